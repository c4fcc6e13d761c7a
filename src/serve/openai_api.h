// Routes and keys, and what the OpenAI API asks for. Handlers run on HTTP worker threads; answers are written
// on the io thread. The Dispatcher and Metrics belong to the caller and must outlive the HTTP server.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "serve/desk.h"
#include "serve/messages_api.h"
#include "serve/openai_answer.h"
#include "serve/responses_api.h"
#include "serve/worker_api.h"

namespace ingot::serve {

class OpenAiApi {
 public:
  struct Options {
    std::string api_key;                      // empty: open to all
    WorkerApi* worker = nullptr;              // what routers ask; null: no such path
    ResponseStore* response_store = nullptr;  // of /v1/responses; null: none are kept
  };
  OpenAiApi(std::shared_ptr<const ServedModel> model, Dispatcher& dispatcher, Metrics& metrics, Options options);

  void handle(const HttpRequest& request, std::shared_ptr<ResponseWriter> writer);
  // From now on /ready says 503, so that routers send nothing more. What comes is refused by the dispatcher once that drains.
  void set_draining() { draining_ = true; }

 private:
  using Reply = ApiResult<HttpResponse>;
  bool authorized(const HttpRequest& request) const;
  void chat(const Json& body, const std::shared_ptr<ResponseWriter>& writer);
  void completion(const Json& body, const std::shared_ptr<ResponseWriter>& writer);
  void route(const HttpRequest& request, std::string_view method, const std::shared_ptr<ResponseWriter>& writer);
  ApiResult<AnsweredPrompt> read_prompt(CompletionRequest::Prompt prompt) const;
  Reply tokenize(const Json& body) const;
  Reply detokenize(const Json& body) const;
  Reply health() const;
  Reply ready() const;
  Json model_card() const;

  Desk desk_;
  Metrics& metrics_;
  Options options_;
  ResponsesApi responses_;
  MessagesApi messages_;
  std::atomic<bool> draining_{false};
};

}  // namespace ingot::serve
