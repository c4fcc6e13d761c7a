#include "serve/openai_request.h"

#include <algorithm>

#include "serve/conversation_fields.h"
#include "serve/generation_fields.h"

namespace ingot::serve {

namespace {
constexpr int64_t kDefaultCompletionTokens = 16;  // OpenAI's default for /v1/completions

std::optional<ApiError> expect_object(const Json& body) {
  if (body.is_object()) return std::nullopt;
  return ApiError{400, "the request body must be a JSON object", {}, {}};
}

void check_min_tokens(JsonFields& fields, const GenerationOptions& options) {
  const int32_t max_tokens = options.sampling.max_tokens;
  if (options.min_tokens > 0 && max_tokens > 0 && options.min_tokens > max_tokens)
    fields.refuse("min_tokens", fmt::format("is more than max_tokens, which is {}", max_tokens));
  if (options.min_tokens > 0 && options.form.kind != AnswerForm::Kind::free)
    fields.refuse("min_tokens", fmt::format("can't be combined with {}, which decides where an answer may end", options.form.field));
}

void check_tools(JsonFields& fields, const ChatRequest& request) {
  const bool constrained = request.tool_choice.kind != ToolChoice::Kind::none && request.tool_choice.constrained;
  if (request.options.min_tokens > 0 && constrained)
    fields.refuse("min_tokens", "can't be combined with tool calls that are constrained: they decide where an answer may end");
}

// One prompt, or nothing when it is none.
std::optional<CompletionRequest::Prompt> read_prompt(JsonFields& fields, const Json& prompt, int64_t vocab_size) {
  if (prompt.is_string()) {
    if (prompt.get_ref<const std::string&>().empty()) fields.refuse("prompt", "is empty");
    return prompt.get<std::string>();
  }
  if (!prompt.is_array() || prompt.empty() || !prompt[0].is_number()) return std::nullopt;
  const Json wrapped{{"prompt", prompt}};
  JsonFields ids(wrapped);
  auto tokens = ids.token_ids("prompt", vocab_size, SIZE_MAX);
  fields.take_error(ids);
  return tokens;
}

void read_prompts(JsonFields& fields, const RequestDefaults& defaults, CompletionRequest& request) {
  constexpr const char* kExpected = "expected a string, a list of token ids, or a list of several of either";
  const Json* given = fields.get("prompt");
  if (given == nullptr) return fields.refuse("prompt", kExpected);
  if (auto one = read_prompt(fields, *given, defaults.vocab_size)) {
    request.prompts.push_back(std::move(*one));
    return;
  }
  if (!given->is_array() || given->empty()) return fields.refuse("prompt", kExpected);
  if (given->size() * static_cast<size_t>(request.options.num_choices) > static_cast<size_t>(kMaxChoices)) {
    return fields.refuse(
        "prompt", fmt::format("{} prompts with n = {} make more than {} choices", given->size(), request.options.num_choices, kMaxChoices));
  }
  for (const Json& item : *given) {
    auto prompt = read_prompt(fields, item, defaults.vocab_size);
    if (!prompt || (!request.prompts.empty() && prompt->index() != request.prompts[0].index())) return fields.refuse("prompt", kExpected);
    request.prompts.push_back(std::move(*prompt));
  }
}
}  // namespace

ApiResult<ChatRequest> parse_chat_request(const Json& body, const RequestDefaults& defaults) {
  if (auto error = expect_object(body)) return tl::unexpected(*error);
  JsonFields fields(body);
  ChatRequest request;
  read_generation(fields, defaults, request.options);
  auto& sampling = request.options.sampling;
  const auto max_tokens = fields.integer("max_tokens", 1, INT32_MAX);
  const auto max_completion_tokens = fields.integer("max_completion_tokens", 1, INT32_MAX);
  if (max_tokens && max_completion_tokens && *max_tokens != *max_completion_tokens) {
    fields.refuse("max_tokens", "differs from max_completion_tokens; give one of them");
  }
  sampling.max_tokens = static_cast<int32_t>(max_completion_tokens.value_or(max_tokens.value_or(0)));
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && !logprobs) fields.refuse("top_logprobs", "needs logprobs: true");
  if (logprobs) sampling.top_logprobs = static_cast<int32_t>(top.value_or(0));
  fields.only("modalities", Json::array({"text"}), "only text is supported");
  fields.only("audio", Json(), "answers are text");
  fields.only("verbosity", "medium", "the model has no such setting; ask for it in a message");
  fields.only("web_search_options", Json(), "the server has no search; give it as a tool");
  fields.only("echo", false, "supported by /v1/completions alone");
  read_conversation(fields, defaults, request);
  check_min_tokens(fields, request.options);
  check_tools(fields, request);
  if (auto error = fields.error()) return tl::unexpected(*error);
  return request;
}

ApiResult<CompletionRequest> parse_completion_request(const Json& body, const RequestDefaults& defaults) {
  if (auto error = expect_object(body)) return tl::unexpected(*error);
  JsonFields fields(body);
  CompletionRequest request;
  GenerationOptions& options = request.options;
  read_generation(fields, defaults, options);
  request.echo = fields.boolean("echo").value_or(false);
  const auto max_tokens = fields.integer("max_tokens", 0, INT32_MAX).value_or(kDefaultCompletionTokens);
  options.sampling.max_tokens = static_cast<int32_t>(max_tokens);
  options.score_only = max_tokens == 0;
  if (options.score_only && !request.echo) fields.refuse("max_tokens", "0 is for scoring a prompt, and needs echo: true");
  options.sampling.top_logprobs = static_cast<int32_t>(fields.integer("logprobs", 0, kMaxTopLogprobs).value_or(-1));
  if (options.score_only || (request.echo && options.sampling.top_logprobs >= 0))
    options.sampling.prompt_logprobs = std::max(options.sampling.top_logprobs, 0);
  fields.only("suffix", "", "a suffix is not supported");
  const auto best_of = fields.integer("best_of", 1, kMaxChoices);
  if (best_of && *best_of != options.num_choices)
    fields.refuse("best_of", fmt::format("must be equal to n, which is {}: all choices are returned", options.num_choices));
  read_prompts(fields, defaults, request);
  check_min_tokens(fields, options);
  if (auto error = fields.error()) return tl::unexpected(*error);
  return request;
}

ApiResult<TokenizeRequest> parse_tokenize_request(const Json& body, const RequestDefaults& defaults) {
  if (auto error = expect_object(body)) return tl::unexpected(*error);
  JsonFields fields(body);
  TokenizeRequest request;
  request.model = fields.string("model").value_or("");
  const auto prompt = fields.string("prompt");
  if (body.contains("messages") && !body["messages"].is_null()) {
    if (prompt) fields.refuse("prompt", "give prompt or messages, not both");
    ChatRequest chat;
    read_conversation(fields, defaults, chat);
    request.input = std::move(chat);
  } else if (prompt) {
    request.input = *prompt;
  } else {
    fields.refuse("prompt", "expected prompt (a string) or messages");
  }
  if (auto error = fields.error()) return tl::unexpected(*error);
  return request;
}

ApiResult<DetokenizeRequest> parse_detokenize_request(const Json& body, const RequestDefaults& defaults) {
  if (auto error = expect_object(body)) return tl::unexpected(*error);
  JsonFields fields(body);
  DetokenizeRequest request;
  request.model = fields.string("model").value_or("");
  if (fields.get("tokens") == nullptr) fields.refuse("tokens", "expected a list of token ids");
  request.tokens = fields.token_ids("tokens", defaults.vocab_size, SIZE_MAX);
  if (auto error = fields.error()) return tl::unexpected(*error);
  return request;
}

}  // namespace ingot::serve
