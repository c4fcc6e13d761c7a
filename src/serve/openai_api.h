// The desk: routes, keys, and the way of one request from its body to the engine. Handlers run on HTTP worker threads; answers are written
// on the io thread. It owns no model: ServedModel and Engine belong to the caller and must outlive the HTTP server.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "serve/answer.h"
#include "serve/engine.h"
#include "serve/http.h"
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
};

// A prompt in tokens, and how its answer begins.
struct Prompt {
  std::vector<int32_t> tokens;
  bool starts_in_reasoning = false;  // the prompt ends in an open <think>
};

// Renders and tokenizes a conversation. Errors: a message's field by path, what the template raised, no template.
ApiResult<Prompt> make_chat_prompt(const ServedModel& model, const ChatRequest& request);

class OpenAiApi {
 public:
  struct Options {
    std::string api_key;                            // empty: open to all
    std::chrono::milliseconds stall_limit{60'000};  // /health fails when requests run and no step ends for this long
  };
  OpenAiApi(std::shared_ptr<const ServedModel> model, Engine& engine, Options options);

  void handle(const HttpRequest& request, const std::shared_ptr<ResponseWriter>& writer);

 private:
  using Reply = ApiResult<HttpResponse>;
  bool authorized(const HttpRequest& request) const;
  void chat(const Json& body, const std::shared_ptr<ResponseWriter>& writer);
  void completion(const Json& body, const std::shared_ptr<ResponseWriter>& writer);
  void generate(GenerationOptions options, std::vector<int32_t> prompt, AnswerOptions answer,
                const std::shared_ptr<ResponseWriter>& writer);
  Reply tokenize(const Json& body) const;
  Reply detokenize(const Json& body) const;
  Reply health();
  Json model_card() const;
  std::optional<ApiError> check_model(const std::string& name) const;

  std::shared_ptr<const ServedModel> model_;
  Engine& engine_;
  Options options_;
  std::mutex mutex_;  // of the two below
  int64_t last_steps_ = -1;
  std::chrono::steady_clock::time_point last_step_seen_;
};

}  // namespace ingot::serve
