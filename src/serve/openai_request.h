// The desk's reading half: OpenAI request bodies to typed requests. A field is obeyed or refused with its name; null means absent.
// Pure functions over JSON; they tokenize and render nothing.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "sched/request.h"
#include "serve/json_fields.h"

namespace ingot::serve {

// What a request may leave out, and the numbers it is checked against.
struct RequestDefaults {
  float temperature = 1.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;
  std::vector<int32_t> eos_token_ids;
  int64_t vocab_size = 0;                 // of the model: the end of valid token ids
  int64_t context_length = 0;             // prompt and completion together
  std::string chat_template_source;       // a chat_template_kwargs name must occur in it
  Json special_tokens = Json::object();   // bos_token, eos_token: variables of the template
  Json template_kwargs = Json::object();  // the server's own, under those of a request; as parse_template_kwargs gives them
};

// What the text of an answer (its content, of a conversation) must be.
struct AnswerForm {
  enum class Kind : uint8_t { free, json_object, json_schema, regex };
  Kind kind = Kind::free;
  Json schema;          // of json_schema
  std::string pattern;  // of regex
  std::string field;    // the request's field that asked for it
};

// A new constraint for each choice: where one answer stands in its grammar is its own. Null: a choice has none.
using ConstraintFactory = std::function<std::shared_ptr<sched::TokenConstraint>()>;

struct GenerationOptions {
  std::string model;               // empty: the served one
  sched::SamplingParams sampling;  // complete, but max_tokens 0 when the client gave none
  std::vector<std::string> stop_strings;
  int num_choices = 1;  // of each prompt; choice i draws with seed + i
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;                      // every event of a stream has the usage so far
  bool token_ids = false;                             // the answer names the tokens of prompt and choices
  bool tokens_as_ids = false;                         // logprobs show "token_id:7" instead of the token's text
  int32_t priority = 0;                               // higher goes first
  int32_t max_draft_tokens = sched::kMaxDraftTokens;  // a step, where the server drafts so many; 0: no speculation
  int32_t min_tokens = 0;                             // before them no stop token is drawn
  bool score_only = false;                            // max_tokens is 0 because the client said so
  AnswerForm form;
  std::optional<int64_t> thinking_budget;  // tokens of reasoning; 0: none at all
  ConstraintFactory constraint;            // what all this comes to: set by the Desk
};

// What tool_choice, parallel_tool_calls and `strict` of the tools come to.
struct ToolChoice {
  enum class Kind : uint8_t { none, automatic, required, named };
  Kind kind = Kind::automatic;
  std::string name;               // of named
  bool parallel = true;           // false: one call at most
  bool constrained = false;       // calls must be those of `callable`, with arguments that follow their schemas
  Json callable = Json::array();  // of the tools, those that may be called
};

struct ChatRequest {
  // What becomes of the reasoning: a field of its own, left in the content with its tags, or not shown.
  enum class Reasoning : uint8_t { separate, in_content, hidden };

  GenerationOptions options;
  Json messages;               // as the client sent them
  Json tools = Json::array();  // checked; empty when tool_choice is "none"
  ToolChoice tool_choice;
  Json template_kwargs = Json::object();
  Reasoning reasoning = Reasoning::separate;
};

struct CompletionRequest {
  using Prompt = std::variant<std::string, std::vector<int32_t>>;
  GenerationOptions options;
  std::vector<Prompt> prompts;  // at least one; choice j of prompt i has the index i * num_choices + j
  bool echo = false;            // the prompt goes before the text, and its logprobs before those of the text
};

// Either a text or a conversation to tokenize.
struct TokenizeRequest {
  std::string model;
  std::variant<std::string, ChatRequest> input;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

inline constexpr int kMaxChoices = 128;  // of one request, over all its prompts
inline constexpr int64_t kMaxTopLogprobs = 20;

ApiResult<ChatRequest> parse_chat_request(const Json& body, const RequestDefaults& defaults);
ApiResult<CompletionRequest> parse_completion_request(const Json& body, const RequestDefaults& defaults);
ApiResult<TokenizeRequest> parse_tokenize_request(const Json& body, const RequestDefaults& defaults);
ApiResult<DetokenizeRequest> parse_detokenize_request(const Json& body, const RequestDefaults& defaults);
// The server's own chat_template_kwargs (flag --default-chat-template-kwargs), checked like a request's.
ApiResult<Json> parse_template_kwargs(const Json& kwargs, const RequestDefaults& defaults);

}  // namespace ingot::serve
