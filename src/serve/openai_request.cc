#include "serve/openai_request.h"

#include <charconv>
#include <cmath>
#include <random>
#include <set>

namespace ingot::serve {

namespace {
constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxStopTokenIds = 256;
constexpr size_t kMaxTools = 1024;
constexpr double kMaxTemperature = 100;
constexpr int64_t kMaxTopLogprobs = 20;
constexpr size_t kMaxBiases = 1024;
constexpr double kMaxBias = 100;
constexpr double kMaxPenalty = 2;
// Beyond these a logit may leave the range of numbers.
constexpr double kMinRepetitionPenalty = 0.01;
constexpr double kMaxRepetitionPenalty = 100;
constexpr int64_t kDefaultCompletionTokens = 16;  // OpenAI's default for /v1/completions

std::optional<ApiError> expect_object(const Json& body) {
  if (body.is_object()) return std::nullopt;
  return ApiError{400, "the request body must be a JSON object", {}, {}};
}

uint64_t draw_seed() {
  thread_local std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// The id in its one spelling: no sign, no leading zeros; so no two keys mean one token.
std::optional<int32_t> token_id_of(const std::string& key, int64_t end) {
  int32_t id = -1;
  const auto [last, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || id < 0 || id >= end || std::to_string(id) != key) return std::nullopt;
  return id;
}

void read_logit_bias(JsonFields& fields, int64_t vocab_size, std::vector<std::pair<int32_t, float>>& biases) {
  constexpr const char* kField = "logit_bias";
  const Json* given = fields.get(kField);
  if (given == nullptr) return;
  if (!given->is_object() || given->size() > kMaxBiases)
    return fields.refuse(kField, fmt::format("expected an object of up to {} token ids, each with a number", kMaxBiases));
  for (const auto& [key, value] : given->items()) {
    const auto id = token_id_of(key, vocab_size);
    if (!id) {
      return fields.refuse(kField,
                           fmt::format("\"{}\" is not the id of a token: expected \"0\" to \"{}\"", key.substr(0, 20), vocab_size - 1));
    }
    if (!value.is_number() || !(std::abs(value.get<double>()) <= kMaxBias))
      return fields.refuse(kField, fmt::format("of token {}: expected a number from {} to {}", key, -kMaxBias, kMaxBias));
    biases.emplace_back(*id, value.get<float>());
  }
}

// `speculative`: how many tokens may be drafted for this request. It changes the pace of an answer, never the answer, so a server that
// drafts less, or not at all, has obeyed it.
void read_speculative(JsonFields& fields, int32_t& max_draft_tokens) {
  constexpr const char* kField = "speculative";
  const Json* given = fields.get(kField);
  if (given == nullptr) return;
  if (!given->is_object()) return fields.refuse(kField, "expected an object");
  JsonFields inner(*given, "speculative.");
  const bool enabled = inner.boolean("enabled").value_or(true);
  const auto num_steps = inner.integer("num_steps", 0, sched::kMaxDraftTokens);
  if (const auto error = inner.error()) return fields.refuse(kField, error->message);
  max_draft_tokens = enabled ? static_cast<int32_t>(num_steps.value_or(sched::kMaxDraftTokens)) : 0;
}

// Fields of both endpoints, logprobs and max_tokens apart.
void read_generation(JsonFields& fields, const RequestDefaults& defaults, GenerationOptions& options) {
  options.model = fields.string("model").value_or("");
  auto& sampling = options.sampling;
  sampling.temperature = static_cast<float>(fields.number("temperature", 0, kMaxTemperature).value_or(defaults.temperature));
  sampling.top_p = static_cast<float>(fields.number("top_p", 0, 1).value_or(defaults.top_p));
  if (!(sampling.top_p > 0)) fields.refuse("top_p", "must be greater than 0");
  sampling.top_k = static_cast<int32_t>(fields.integer("top_k", -1, INT32_MAX).value_or(defaults.top_k));
  if (sampling.top_k < 0) sampling.top_k = 0;  // -1 means off in vLLM's and SGLang's clients
  sampling.min_p = static_cast<float>(fields.number("min_p", 0, 1).value_or(0));
  const auto seed = fields.integer("seed", INT64_MIN);
  sampling.seed = seed ? static_cast<uint64_t>(*seed) : draw_seed();
  sampling.has_client_seed = seed.has_value();
  const auto penalty = [&](const char* name) { return static_cast<float>(fields.number(name, -kMaxPenalty, kMaxPenalty).value_or(0)); };
  sampling.presence_penalty = penalty("presence_penalty");
  sampling.frequency_penalty = penalty("frequency_penalty");
  sampling.repetition_penalty =
      static_cast<float>(fields.number("repetition_penalty", kMinRepetitionPenalty, kMaxRepetitionPenalty).value_or(1));
  read_logit_bias(fields, defaults.vocab_size, sampling.logit_bias);
  read_speculative(fields, options.max_draft_tokens);
  options.stop_strings = fields.strings("stop", kMaxStopStrings);
  sampling.stop_token_ids = fields.token_ids("stop_token_ids", defaults.vocab_size, kMaxStopTokenIds);
  sampling.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  if (!sampling.ignore_eos) {
    sampling.stop_token_ids.insert(sampling.stop_token_ids.end(), defaults.eos_token_ids.begin(), defaults.eos_token_ids.end());
  }
  options.priority = static_cast<int32_t>(fields.integer("priority", -1'000'000, 1'000'000).value_or(0));
  options.stream = fields.boolean("stream").value_or(false);
  if (const Json* given = fields.get("stream_options")) {
    if (!given->is_object()) {
      fields.refuse("stream_options", "expected an object");
    } else if (!options.stream) {
      fields.refuse("stream_options", "is allowed only with stream: true");
    } else {
      JsonFields inner(*given, "stream_options.");
      options.include_usage = inner.boolean("include_usage").value_or(false);
      inner.only("include_obfuscation", false, "padding of events is not supported");
      if (const auto error = inner.error()) fields.refuse("stream_options", error->message);
    }
  }
  fields.only("n", 1, "several answers to one request are not supported");
  // These don't touch the answer: they label it for whoever reads logs.
  fields.string("user");
  fields.string("safety_identifier");
  fields.string("prompt_cache_key");
  if (const Json* metadata = fields.get("metadata"); metadata != nullptr && !metadata->is_object()) {
    fields.refuse("metadata", "expected an object");
  }
  fields.only("store", false, "answers are not stored");
}

// z.ai's levels on the two that the template knows, and off.
void read_effort(JsonFields& fields, const std::string& name, const std::string& value, Json& kwargs) {
  if (value == "none" || value == "minimal") {
    if (kwargs.value("enable_thinking", false)) {
      return fields.refuse(name, fmt::format("\"{}\" turns thinking off, but chat_template_kwargs.enable_thinking is true", value));
    }
    kwargs["enable_thinking"] = false;
  } else if (value == "low" || value == "medium" || value == "high") {
    kwargs["reasoning_effort"] = "high";
  } else if (value == "xhigh" || value == "max") {
    kwargs["reasoning_effort"] = "max";
  } else {
    fields.refuse(name, "expected one of none, minimal, low, medium, high, xhigh, max");
  }
}

void read_template_kwargs(JsonFields& fields, const RequestDefaults& defaults, Json& kwargs) {
  constexpr const char* kField = "chat_template_kwargs";
  if (const Json* given = fields.get(kField)) {
    if (!given->is_object()) return fields.refuse(kField, "expected an object");
    kwargs = *given;
  }
  for (const auto& [name, value] : kwargs.items()) {
    const std::string full = std::string(kField) + "." + name;
    const bool is_switch = name == "enable_thinking" || name == "clear_thinking";
    if (is_switch && !value.is_boolean()) return fields.refuse(full, "expected true or false");
    if (name == "reasoning_effort" && !value.is_string()) return fields.refuse(full, "expected a string");
    if (name == "messages" || name == "tools" || name == "add_generation_prompt") return fields.refuse(full, "can't be set here");
    // The template would ignore it, and the client would not know.
    if (defaults.chat_template_source.find(name) == std::string::npos)
      return fields.refuse(full, "the model's chat template has no such variable");
  }
  const auto outer = fields.string("reasoning_effort");
  if (const auto it = kwargs.find("reasoning_effort"); it != kwargs.end()) {
    const std::string inner = it->get<std::string>();
    if (outer && *outer != inner) return fields.refuse("reasoning_effort", "differs from chat_template_kwargs.reasoning_effort");
    kwargs.erase("reasoning_effort");
    read_effort(fields, std::string(kField) + ".reasoning_effort", inner, kwargs);
  } else if (outer) {
    read_effort(fields, "reasoning_effort", *outer, kwargs);
  }
}

bool is_tool_name(const std::string& name) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.' || c == ':' || c == '/'; };
  return !name.empty() && name.size() <= 256 && std::all_of(name.begin(), name.end(), allowed);
}

void read_tools(JsonFields& fields, Json& tools) {
  if (const Json* given = fields.get("tools")) {
    if (!given->is_array() || given->size() > kMaxTools)
      return fields.refuse("tools", fmt::format("expected a list of up to {} tools", kMaxTools));
    std::set<std::string> names;
    for (size_t i = 0; i < given->size(); ++i) {
      const Json& tool = (*given)[i];
      const std::string at = fmt::format("tools[{}]", i);
      if (!tool.is_object()) return fields.refuse(at, "expected an object");
      if (tool.value("type", Json()) != "function") return fields.refuse(at + ".type", "only \"function\" is supported");
      const auto function = tool.find("function");
      if (function == tool.end() || !function->is_object()) return fields.refuse(at + ".function", "expected an object");
      const Json name = function->value("name", Json());
      if (!name.is_string() || !is_tool_name(name.get<std::string>())) {
        return fields.refuse(at + ".function.name", "expected a name of letters, digits and _-.:/");
      }
      if (!names.insert(name.get<std::string>()).second) return fields.refuse(at + ".function.name", "two tools have this name");
      const Json description = function->value("description", Json());
      if (!description.is_null() && !description.is_string()) return fields.refuse(at + ".function.description", "expected a string");
      const Json parameters = function->value("parameters", Json());
      if (!parameters.is_null() && !parameters.is_object())
        return fields.refuse(at + ".function.parameters", "expected a JSON schema object");
      if (function->value("strict", Json()) == true) return fields.refuse(at + ".function.strict", "strict schemas are not supported yet");
    }
    tools = *given;
  }
  if (const Json* choice = fields.get("tool_choice")) {
    if (*choice == "none") {
      tools = Json::array();
    } else if (*choice == "auto") {
      if (tools.empty()) fields.refuse("tool_choice", "\"auto\" needs tools");
    } else if (*choice == "required" || choice->is_object()) {
      fields.refuse("tool_choice", "forcing a tool call is not supported yet; use \"auto\" or \"none\"");
    } else {
      fields.refuse("tool_choice", "expected \"auto\" or \"none\"");
    }
  }
  fields.only("parallel_tool_calls", true, "limiting an answer to one tool call is not supported");
  fields.only("functions", Json::array(), "this old form is not supported; use tools");
  fields.only("function_call", "none", "this old form is not supported; use tool_choice");
}

// What decides the prompt: the same for an answer and for /tokenize.
void read_conversation(JsonFields& fields, const RequestDefaults& defaults, ChatRequest& request) {
  const Json* messages = fields.get("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty())
    return fields.refuse("messages", "expected a list of at least one message");
  request.messages = *messages;
  read_tools(fields, request.tools);
  read_template_kwargs(fields, defaults, request.template_kwargs);
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
    fields.refuse("max_tokens", "differs from max_completion_tokens");
  }
  sampling.max_tokens = static_cast<int32_t>(max_completion_tokens.value_or(max_tokens.value_or(0)));
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && !logprobs) fields.refuse("top_logprobs", "needs logprobs: true");
  if (logprobs) sampling.top_logprobs = static_cast<int32_t>(top.value_or(0));
  if (const Json* format = fields.get("response_format")) {
    if (!format->is_object() || *format != Json{{"type", "text"}}) {
      fields.refuse("response_format", "only {\"type\": \"text\"} is supported yet");
    }
  }
  fields.only("modalities", Json::array({"text"}), "only text is supported");
  read_conversation(fields, defaults, request);
  if (auto error = fields.error()) return tl::unexpected(*error);
  return request;
}

ApiResult<CompletionRequest> parse_completion_request(const Json& body, const RequestDefaults& defaults) {
  if (auto error = expect_object(body)) return tl::unexpected(*error);
  JsonFields fields(body);
  CompletionRequest request;
  read_generation(fields, defaults, request.options);
  auto& sampling = request.options.sampling;
  sampling.max_tokens = static_cast<int32_t>(fields.integer("max_tokens", 1, INT32_MAX).value_or(kDefaultCompletionTokens));
  sampling.top_logprobs = static_cast<int32_t>(fields.integer("logprobs", 0, kMaxTopLogprobs).value_or(-1));
  fields.only("echo", false, "repeating the prompt is not supported");
  fields.only("suffix", "", "a suffix is not supported");
  fields.only("best_of", 1, "several answers to one request are not supported");

  const Json* prompt = fields.get("prompt");
  if (prompt != nullptr && prompt->is_array() && prompt->size() == 1 && !(*prompt)[0].is_number()) prompt = &(*prompt)[0];
  if (prompt != nullptr && prompt->is_string()) {
    if (prompt->get_ref<const std::string&>().empty()) fields.refuse("prompt", "is empty");
    request.prompt = prompt->get<std::string>();
  } else if (prompt != nullptr && prompt->is_array() && !prompt->empty() && (*prompt)[0].is_number()) {
    const Json wrapped{{"prompt", *prompt}};
    JsonFields ids(wrapped);
    request.prompt = ids.token_ids("prompt", defaults.vocab_size, SIZE_MAX);
    if (const auto error = ids.error()) fields.refuse("prompt", error->message);
  } else if (prompt != nullptr && prompt->is_array() && prompt->size() > 1) {
    fields.refuse("prompt", "several prompts in one request are not supported; send one request each");
  } else {
    fields.refuse("prompt", "expected a string or a list of token ids");
  }
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
