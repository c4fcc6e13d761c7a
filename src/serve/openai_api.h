// The desk: routes, keys, and the way of one request from its body to the engine. Handlers run on HTTP worker threads; answers are written
// on the io thread. the Dispatcher and Metrics belong to the caller and must outlive the HTTP server.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "serve/answer.h"
#include "serve/dispatcher.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/openai_request.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace ingot::serve {

// What requests are served from. Immutable.
struct ServedModel {
  std::string name;
  int64_t created = 0;  // unix seconds
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;  // without one, chat is refused
  RequestDefaults defaults;
  double forced_acceptance = 0;  // of a server for benchmarks: its answers mean nothing, and say so; 0: none
};

// A prompt in tokens, and how its answer begins.
struct Prompt {
  std::vector<int32_t> tokens;
  bool starts_in_reasoning = false;  // the prompt ends in an open <think>
};

// A conversation by the model's chat template, in text. add_generation_prompt: an answer is to follow. Errors: as below.
ApiResult<std::string> render_chat(const ServedModel& model, const ChatRequest& request, bool add_generation_prompt);

// Renders and tokenizes a conversation. Errors: a message's field by path, what the template raised, no template.
ApiResult<Prompt> make_chat_prompt(const ServedModel& model, const ChatRequest& request);

class OpenAiApi {
 public:
  struct Options {
    std::string api_key;  // empty: open to all
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
  void generate(GenerationOptions options, std::vector<int32_t> prompt, AnswerOptions answer,
                const std::shared_ptr<ResponseWriter>& writer);
  Reply tokenize(const Json& body) const;
  Reply detokenize(const Json& body) const;
  Reply health() const;
  Reply ready() const;
  Json model_card() const;
  std::optional<ApiError> check_model(const std::string& name) const;

  std::shared_ptr<const ServedModel> model_;
  Dispatcher& dispatcher_;
  Metrics& metrics_;
  Options options_;
  std::atomic<bool> draining_{false};
};

}  // namespace ingot::serve
