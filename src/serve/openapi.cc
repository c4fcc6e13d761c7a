#include "serve/openapi.h"

#include <array>
#include <span>
#include <string>
#include <string_view>

namespace ingot::serve {

namespace {
struct Field {
  const char* name;
  const char* schema;  // JSON
  const char* about;
};

constexpr const char* kBoolean = R"({"type": ["boolean", "null"]})";
constexpr const char* kString = R"({"type": ["string", "null"]})";
constexpr const char* kObject = R"({"type": ["object", "null"]})";
constexpr const char* kPenalty = R"({"type": ["number", "null"], "minimum": -2, "maximum": 2})";
constexpr const char* kCount = R"({"type": ["integer", "null"], "minimum": 0, "maximum": 2147483647})";
constexpr const char* kTokens = R"({"type": ["integer", "null"], "minimum": 1, "maximum": 2147483647})";
constexpr const char* kTop = R"({"type": ["integer", "null"], "minimum": 0, "maximum": 20})";
constexpr const char* kChoices = R"({"type": ["integer", "null"], "minimum": 1, "maximum": 128})";

constexpr std::array kGeneration{
    Field{"model", kString, "the served model's name, or absent"},
    Field{"temperature", R"({"type": ["number", "null"], "minimum": 0, "maximum": 100})", "0, or less than 1e-5: greedy"},
    Field{"top_p", R"({"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1})", ""},
    Field{"top_k", R"({"type": ["integer", "null"], "minimum": -1, "maximum": 2147483647})", "0 or -1: off"},
    Field{"min_p", R"({"type": ["number", "null"], "minimum": 0, "maximum": 1})", ""},
    Field{"seed", R"({"type": ["integer", "null"]})", "choice i of a prompt draws with seed + i"},
    Field{"presence_penalty", kPenalty, ""},
    Field{"frequency_penalty", kPenalty, ""},
    Field{"repetition_penalty", R"({"type": ["number", "null"], "minimum": 0.01, "maximum": 100})", ""},
    Field{"logit_bias", R"({"type": ["object", "null"], "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}})",
          "by token id"},
    Field{"speculative", R"({"type": ["object", "null"], "properties": {"enabled": {"type": ["boolean", "null"]},
          "num_steps": {"type": ["integer", "null"], "minimum": 0, "maximum": 8}}, "additionalProperties": false})",
          "how many tokens may be drafted"},
    Field{"stop", R"({"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string", "minLength": 1},
          "maxItems": 16}, {"type": "null"}]})",
          "not part of the text"},
    Field{"stop_token_ids", R"({"type": ["array", "null"], "items": {"type": "integer", "minimum": 0}, "maxItems": 256})", ""},
    Field{"ignore_eos", kBoolean, ""},
    Field{"min_tokens", kCount, "no stop token is drawn before them"},
    Field{"n", kChoices, "choices of each prompt"},
    Field{"stream", kBoolean, "server-sent events"},
    Field{"stream_options", R"({"type": ["object", "null"], "properties": {"include_usage": {"type": ["boolean", "null"]},
          "continuous_usage_stats": {"type": ["boolean", "null"]}, "include_obfuscation": {"enum": [false, null]}},
          "additionalProperties": false})",
          "with stream alone"},
    Field{"priority", R"({"type": ["integer", "null"], "minimum": -1000000, "maximum": 1000000})", "higher goes first"},
    Field{"return_token_ids", kBoolean, "token_ids and prompt_token_ids in each choice"},
    Field{"return_tokens_as_token_ids", kBoolean, "logprobs name tokens \"token_id:7\""},
    Field{"response_format", R"({"anyOf": [{"type": "null"},
          {"type": "object", "properties": {"type": {"enum": ["text", "json_object"]}}, "required": ["type"], "additionalProperties": false},
          {"type": "object", "properties": {"type": {"const": "json_schema"}, "json_schema": {"type": "object", "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 64}, "description": {"type": ["string", "null"]},
            "strict": {"type": ["boolean", "null"]}, "schema": {"type": "object"}}, "required": ["schema"],
            "additionalProperties": false}}, "required": ["type", "json_schema"], "additionalProperties": false}]})",
          ""},
    Field{"regex", kString, "the whole answer matches"},
    Field{"guided_regex", kString, "as regex"},
    Field{"guided_json", R"({"type": ["object", "string", "null"]})", "a JSON schema, or the text of one"},
    Field{"json_schema", R"({"type": ["object", "string", "null"]})", "as guided_json"},
    Field{"guided_choice", R"({"type": ["array", "null"], "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": 1024})",
          "the answer is one of them"},
    Field{"structured_outputs", R"({"type": ["object", "null"], "properties": {"json": {"type": ["object", "string", "null"]},
          "regex": {"type": ["string", "null"]}, "choice": {"type": ["array", "null"], "items": {"type": "string"}},
          "json_object": {"type": ["boolean", "null"]}}, "additionalProperties": false})",
          "the same in one object"},
    Field{"user", kString, "a label"},
    Field{"safety_identifier", kString, "a label"},
    Field{"prompt_cache_key", kString, "a label"},
    Field{"request_id", kString, "a label"},
    Field{"rid", kString, "a label"},
    Field{"metadata", kObject, "a label"},
    Field{"service_tier", R"({"enum": ["auto", "default", null]})", "there is one"},
    Field{"store", R"({"enum": [false, null]})", ""},
    Field{"prompt_cache_retention", R"({"enum": ["in_memory", null]})", ""},
    Field{"skip_special_tokens", R"({"enum": [true, null]})", ""},
    Field{"spaces_between_special_tokens", kBoolean, "none is shown"},
    Field{"add_special_tokens", kBoolean, "the tokenizer has none to add"},
    Field{"include_stop_str_in_output", R"({"enum": [false, null]})", ""},
    Field{"no_stop_trim", R"({"enum": [false, null]})", ""},
    Field{"return_hidden_states", R"({"enum": [false, null]})", ""},
    Field{"bad_words", R"({"type": ["array", "null"], "maxItems": 0})", ""},
    Field{"use_beam_search", R"({"enum": [false, null]})", ""},
    Field{"length_penalty", R"({"enum": [1, null]})", ""},
    Field{"early_stopping", R"({"enum": [false, null]})", ""},
    Field{"guided_decoding_backend", R"({"enum": ["auto", null]})", ""},
};

constexpr const char* kEffort = R"({"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max", null]})";

constexpr std::array kConversation{
    Field{"messages", R"({"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Message"}})", ""},
    Field{"tools",
          R"({"type": ["array", "null"], "maxItems": 1024, "items": {"type": "object", "properties": {"type": {"const": "function"},
          "function": {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[A-Za-z0-9_.:/-]{1,256}$"},
          "description": {"type": ["string", "null"]}, "parameters": {"type": ["object", "null"]}, "strict": {"type": ["boolean", "null"]}},
          "required": ["name"]}}, "required": ["type", "function"]}})",
          ""},
    Field{"tool_choice", R"({"anyOf": [{"enum": ["auto", "none", "required", null]}, {"type": "object", "properties": {
          "type": {"enum": ["function", "allowed_tools"]}}, "required": ["type"]}]})",
          ""},
    Field{"parallel_tool_calls", kBoolean, "false: one call at most"},
    Field{"chat_template_kwargs", kObject, "variables of the model's template, and thinking_budget"},
    Field{"enable_thinking", kBoolean, ""},
    Field{"reasoning_effort", kEffort, "none, minimal: off; low, medium, high: high; xhigh, max: max"},
    Field{"thinking", R"({"type": ["object", "null"], "properties": {"type": {"enum": ["enabled", "disabled", null]},
          "clear_thinking": {"type": ["boolean", "null"]}, "budget_tokens": {"type": ["integer", "null"], "minimum": 0,
          "maximum": 2147483647}}, "additionalProperties": false})",
          ""},
    Field{"thinking_budget", kCount, "tokens of reasoning at most"},
    Field{"thinking_token_budget", kCount, "as thinking_budget"},
    Field{"separate_reasoning", kBoolean, "false: reasoning stays in the content"},
    Field{"include_reasoning", kBoolean, "false: reasoning is not shown"},
    Field{"stream_reasoning", R"({"enum": [true, null]})", ""},
    Field{"add_generation_prompt", R"({"enum": [true, null]})", ""},
    Field{"continue_final_message", R"({"enum": [false, null]})", ""},
    Field{"functions", R"({"type": ["array", "null"], "maxItems": 0})", ""},
    Field{"function_call", R"({"enum": ["none", null]})", ""},
    Field{"documents", R"({"type": ["array", "null"], "maxItems": 0})", ""},
};

constexpr std::array kChat{
    Field{"max_tokens", kTokens, "absent: as many as the context has room for"},
    Field{"max_completion_tokens", kTokens, "the newer name of max_tokens"},
    Field{"logprobs", kBoolean, ""},
    Field{"top_logprobs", kTop, "with logprobs alone"},
    Field{"modalities", R"({"enum": [["text"], null]})", ""},
    Field{"verbosity", R"({"enum": ["medium", null]})", ""},
    Field{"echo", R"({"enum": [false, null]})", ""},
};

constexpr std::array kCompletion{
    Field{"prompt",
          R"({"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "maxItems": 128, "items": {"type": "string",
          "minLength": 1}}, {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}, {"type": "array", "minItems": 1,
          "maxItems": 128, "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}}]})",
          ""},
    Field{"max_tokens", kCount, "absent: 16; 0: with echo alone, scores the prompt"},
    Field{"logprobs", kTop, ""},
    Field{"echo", kBoolean, "the prompt, and with logprobs its logprobs, come first"},
    Field{"best_of", kChoices, "equal to n"},
    Field{"suffix", R"({"enum": ["", null]})", ""},
};

constexpr std::array kTokenize{
    Field{"prompt", kString, "a text; or messages"},
    Field{"model", kString, ""},
};

constexpr std::array kDetokenize{
    Field{"tokens", R"({"type": "array", "items": {"type": "integer", "minimum": 0}})", ""},
    Field{"model", kString, ""},
};

void add_fields(std::span<const Field> fields, Json& properties) {
  for (const Field& field : fields) {
    Json schema = Json::parse(field.schema);
    if (*field.about != '\0') schema["description"] = field.about;
    properties[field.name] = std::move(schema);
  }
}

Json body_schema(std::initializer_list<std::span<const Field>> groups, Json required) {
  Json properties = Json::object();
  for (const auto& group : groups) add_fields(group, properties);
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}, {"additionalProperties", false}};
}

struct Endpoint {
  const char* path;
  const char* method;
  const char* summary;
  const char* body;  // name of a schema; null: none
  bool streams = false;
  const char* parameter = nullptr;  // in the path
};

constexpr std::array kEndpoints{
    Endpoint{"/v1/chat/completions", "post", "OpenAI chat", "ChatRequest", true},
    Endpoint{"/v1/completions", "post", "OpenAI completions", "CompletionRequest", true},
    Endpoint{"/v1/responses", "post", "OpenAI responses", "ResponsesRequest", true},
    Endpoint{"/v1/responses/{response_id}", "get", "a stored response", nullptr, false, "response_id"},
    Endpoint{"/v1/responses/{response_id}", "delete", "forget a stored response", nullptr, false, "response_id"},
    Endpoint{"/v1/responses/{response_id}/input_items", "get", "what a stored response answered", nullptr, false, "response_id"},
    Endpoint{"/v1/messages", "post", "Anthropic messages", "MessagesRequest", true},
    Endpoint{"/v1/messages/count_tokens", "post", "tokens of an Anthropic conversation", "MessagesRequest"},
    Endpoint{"/tokenize", "post", "tokens of a text or a conversation", "TokenizeRequest"},
    Endpoint{"/detokenize", "post", "the text of tokens", "DetokenizeRequest"},
    Endpoint{"/v1/models", "get", "the served model", nullptr},
    Endpoint{"/v1/models/{model}", "get", "the served model", nullptr, false, "model"},
    Endpoint{"/health", "get", "whether the engine lives, and its load", nullptr},
    Endpoint{"/health_generate", "get", "whether the engine makes a token", nullptr},
    Endpoint{"/ready", "get", "whether requests are welcome", nullptr},
    Endpoint{"/metrics", "get", "Prometheus metrics", nullptr},
    Endpoint{"/version", "get", "the server's version", nullptr},
    Endpoint{"/openapi.json", "get", "this document", nullptr},
    Endpoint{"/server_info", "get", "SGLang's worker interface", nullptr},
    Endpoint{"/get_server_info", "get", "as /server_info", nullptr},
    Endpoint{"/model_info", "get", "SGLang's worker interface", nullptr},
    Endpoint{"/get_model_info", "get", "as /model_info", nullptr},
    Endpoint{"/get_load", "get", "load of each replica", nullptr},
    Endpoint{"/get_loads", "get", "load of each replica", nullptr},
    Endpoint{"/v1/loads", "get", "load of each replica", nullptr},
    Endpoint{"/flush_cache", "post", "empties the prefix cache", nullptr},
};

Json answer(const char* description, Json schema) {
  return {{"description", description}, {"content", {{"application/json", {{"schema", std::move(schema)}}}}}};
}

Json operation(const Endpoint& endpoint) {
  const Json error{{"$ref", "#/components/schemas/Error"}};
  Json success{{"description", endpoint.summary}};
  if (std::string_view(endpoint.path) == "/metrics") {
    success["content"] = {{"text/plain", Json::object()}};
  } else {
    success["content"] = {{"application/json", Json::object()}};
    if (endpoint.streams) success["content"]["text/event-stream"] = Json::object();
  }
  Json operation{
      {"summary", endpoint.summary},
      {"responses", {{"200", std::move(success)}, {"4XX", answer("refused, and why", error)}, {"5XX", answer("failed", error)}}}};
  if (endpoint.body != nullptr) {
    const Json reference{{"$ref", std::string("#/components/schemas/") + endpoint.body}};
    operation["requestBody"] = {{"required", true}, {"content", {{"application/json", {{"schema", reference}}}}}};
  }
  if (endpoint.parameter != nullptr) {
    operation["parameters"] = Json::array(
        {{{"name", endpoint.parameter}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}, {"minLength", 1}}}}});
  }
  return operation;
}

Json schemas() {
  Json all = Json::object();
  all["ChatRequest"] = body_schema({kGeneration, kConversation, kChat}, Json::array({"messages"}));
  all["CompletionRequest"] = body_schema({kGeneration, kCompletion}, Json::array({"prompt"}));
  all["TokenizeRequest"] = body_schema({kConversation, kTokenize}, Json::array());
  all["DetokenizeRequest"] = body_schema({kDetokenize}, Json::array({"tokens"}));
  all["Message"] = Json::parse(R"({"type": "object", "required": ["role"], "properties": {
    "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
    "content": {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "array", "items": {"type": "object", "required": ["type"],
      "properties": {"type": {"enum": ["text", "refusal"]}, "text": {"type": "string"}, "refusal": {"type": "string"}}}}]},
    "name": {"type": ["string", "null"]},
    "reasoning_content": {"type": ["string", "null"]}, "reasoning": {"type": ["string", "null"]},
    "refusal": {"type": ["string", "null"]},
    "tool_calls": {"type": ["array", "null"], "items": {"type": "object", "properties": {"id": {"type": "string"},
      "type": {"const": "function"}, "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"},
      "arguments": {"type": ["string", "object", "null"]}}}}}},
    "tool_call_id": {"type": ["string", "null"]}}})");
  all["ResponsesRequest"] = Json::parse(R"({"type": "object", "required": ["input"], "description": "see docs/api.md", "properties": {
    "model": {"type": ["string", "null"]}, "input": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "object"}}]},
    "instructions": {"type": ["string", "null"]}, "stream": {"type": ["boolean", "null"]},
    "previous_response_id": {"type": ["string", "null"]}, "store": {"type": ["boolean", "null"]},
    "max_output_tokens": {"type": ["integer", "null"], "minimum": 1}, "tools": {"type": ["array", "null"], "items": {"type": "object"}}}})");
  all["MessagesRequest"] = Json::parse(R"({"type": "object", "required": ["messages"], "description": "see docs/api.md", "properties": {
    "model": {"type": ["string", "null"]}, "max_tokens": {"type": "integer", "minimum": 1}, "stream": {"type": ["boolean", "null"]},
    "messages": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role", "content"], "properties": {
      "role": {"enum": ["user", "assistant"]}, "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}}}},
    "system": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]},
    "tools": {"type": ["array", "null"], "items": {"type": "object"}}}})");
  all["Error"] = Json::parse(R"({"type": "object", "required": ["error"], "properties": {"error": {"type": "object",
    "required": ["message", "type"], "properties": {"message": {"type": "string"}, "type": {"type": "string"},
    "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}}}})");
  return all;
}
}  // namespace

Json openapi_document() {
  Json paths = Json::object();
  for (const Endpoint& endpoint : kEndpoints) paths[endpoint.path][endpoint.method] = operation(endpoint);
  return {{"openapi", "3.1.0"},
          {"info", {{"title", "Ingot"}, {"version", INGOT_VERSION}, {"description", "docs/api.md has each field in words"}}},
          {"paths", std::move(paths)},
          {"components", {{"schemas", schemas()}, {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}}}};
}

}  // namespace ingot::serve
