// The desk's reading half: OpenAI request bodies to typed requests. A field is obeyed or refused with its name; null means absent.
// Pure functions over JSON; they tokenize and render nothing.
#pragma once

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
  int64_t vocab_size = 0;                // of the model: the end of valid token ids
  int64_t context_length = 0;            // prompt and completion together
  std::string chat_template_source;      // a chat_template_kwargs name must occur in it
  Json special_tokens = Json::object();  // bos_token, eos_token: variables of the template
};

struct GenerationOptions {
  std::string model;               // empty: the served one
  sched::SamplingParams sampling;  // complete, but max_tokens 0 when the client gave none
  std::vector<std::string> stop_strings;
  bool stream = false;
  bool include_usage = false;
  int32_t priority = 0;                               // higher goes first
  int32_t max_draft_tokens = sched::kMaxDraftTokens;  // a step, where the server drafts so many; 0: no speculation
};

struct ChatRequest {
  GenerationOptions options;
  Json messages;               // as the client sent them
  Json tools = Json::array();  // checked; empty when tool_choice is "none"
  Json template_kwargs = Json::object();
};

struct CompletionRequest {
  GenerationOptions options;
  std::variant<std::string, std::vector<int32_t>> prompt;
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

ApiResult<ChatRequest> parse_chat_request(const Json& body, const RequestDefaults& defaults);
ApiResult<CompletionRequest> parse_completion_request(const Json& body, const RequestDefaults& defaults);
ApiResult<TokenizeRequest> parse_tokenize_request(const Json& body, const RequestDefaults& defaults);
ApiResult<DetokenizeRequest> parse_detokenize_request(const Json& body, const RequestDefaults& defaults);

}  // namespace ingot::serve
