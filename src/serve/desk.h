// What all dialects share: from a typed request to the engine. Handlers run on HTTP worker threads. The Dispatcher and Metrics belong to
// the caller and must outlive the desk.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/answer.h"
#include "serve/dispatcher.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/openai_request.h"
#include "serve/replay.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace ingot::text {
class GrammarCompiler;
}

namespace ingot::serve {

// What requests are served from. Immutable.
struct ServedModel {
  std::string name;
  int64_t created = 0;  // unix seconds
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;  // without one, chat is refused
  std::shared_ptr<text::GrammarCompiler> grammars;  // without one, answers of a given form are refused
  RequestDefaults defaults;
  double forced_acceptance = 0;  // of a server for benchmarks: its answers mean nothing, and say so; 0: none
};

// A prompt in tokens, and how its answer begins.
struct Prompt {
  std::vector<int32_t> tokens;
  bool starts_in_reasoning = false;  // the prompt ends in an open <think>
  ConstraintFactory constraint;      // what the answer must look like; set by Desk::prepare
};

// A conversation by the model's chat template, in text. add_generation_prompt: an answer is to follow. Errors: as below.
ApiResult<std::string> render_chat(const ServedModel& model, const ChatRequest& request, bool add_generation_prompt);

// Renders and tokenizes a conversation; turns that `replay` knows (null: none) keep the tokens that were sampled. Errors: a message's field
// by path, what the template raised, no template.
ApiResult<Prompt> make_chat_prompt(const ServedModel& model, const ChatRequest& request, ReplayStore* replay = nullptr);

class Desk {
 public:
  Desk(std::shared_ptr<const ServedModel> model, Dispatcher& dispatcher, Metrics& metrics);

  const ServedModel& model() const { return *model_; }
  Dispatcher& dispatcher() const { return dispatcher_; }
  // Refuses a model that is not served here; empty: the served one.
  std::optional<ApiError> check_model(const std::string& name) const;
  // Tokens of a text. Errors: longer than the context by far; `param` names the field.
  ApiResult<std::vector<int32_t>> encode(std::string_view text, const char* param) const;
  // Refuses a prompt that leaves no room for one token of an answer.
  std::optional<ApiError> check_length(size_t num_tokens, const char* param) const;
  // A conversation in tokens, however many: checks the model, renders and tokenizes. Errors: those of check_model and make_chat_prompt.
  ApiResult<Prompt> make_prompt(const ChatRequest& request) const;
  // One ready to be answered: checks the length, too, and compiles what the answer must look like.
  ApiResult<Prompt> prepare(const ChatRequest& request) const;
  // What an answer to `prompt` is told of it; takes the request's tools, and gives its options the prompt's constraint. The dialect adds
  // nothing but its own options.
  AnswerOptions answer_options(ChatRequest& request, const Prompt& prompt) const;
  // The same for any request: what concerns model and server. `num_prompt_tokens`: of all prompts.
  AnswerOptions with_common(AnswerOptions options, const GenerationOptions& generation, size_t num_prompt_tokens,
                            size_t num_prompts = 1) const;

  // Sends the request's choices to the engine; their pieces come to `answer` on the io thread. A refusal is answered by the answer's
  // fail(). When the client goes, or a choice fails, all are cancelled.
  void submit(GenerationOptions options, std::vector<int32_t> prompt, const std::shared_ptr<Answer>& answer,
              const std::shared_ptr<ResponseWriter>& writer);
  // The same of several prompts: options.num_choices of each, those of the first prompt first.
  void submit_all(GenerationOptions options, std::vector<std::vector<int32_t>> prompts, const std::shared_ptr<Answer>& answer,
                  const std::shared_ptr<ResponseWriter>& writer);

 private:
  sched::Request make_request(const GenerationOptions& options, std::vector<int32_t> prompt, int choice) const;

  std::shared_ptr<const ServedModel> model_;
  Dispatcher& dispatcher_;
  Metrics& metrics_;
  std::shared_ptr<ReplayStore> replay_;
};

}  // namespace ingot::serve
