#include "serve/responses_request.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace ingot::serve {

namespace {
constexpr size_t kMaxItems = 100'000;
constexpr const char* kLogprobs = "message.output_text.logprobs";
// Fields that the chat request has under the same name, and checks.
constexpr std::array kAsInChat{"model",
                               "temperature",
                               "top_p",
                               "stream",
                               "min_p",
                               "top_k",
                               "seed",
                               "presence_penalty",
                               "frequency_penalty",
                               "repetition_penalty",
                               "logit_bias",
                               "stop",
                               "stop_token_ids",
                               "ignore_eos",
                               "priority",
                               "speculative",
                               "chat_template_kwargs",
                               "thinking",
                               "thinking_budget"};

using Failure = std::optional<ApiError>;

// Items to chat messages. Reasoning, text and calls of one answer are items of their own there, and one message here.
class Conversation {
 public:
  explicit Conversation(FieldNames& names) : names_(names) {}

  Json take() {
    end_turn();
    return std::move(messages_);
  }

  void add_instructions(const std::string& text) { push({{"role", "system"}, {"content", text}}, "instructions"); }

  Failure add(const Json& item, const std::string& at) {
    if (!item.is_object()) return bad(at, "expected an object");
    const auto type = item.find("type");
    const std::string name = type == item.end() ? "message" : string_of(item, "type");
    if (name == "message") return add_message(item, at);
    if (name == "reasoning") return add_reasoning(item, at);
    if (name == "function_call") return add_call(item, at);
    if (name == "function_call_output") return add_output(item, at);
    return bad(at + ".type", fmt::format("an item of type \"{}\" cannot be read here; message, reasoning, function_call and "
                                         "function_call_output can",
                                         shown_name(name)));
  }

 private:
  static Failure check_item(const Json& item, const std::string& at, std::initializer_list<std::string_view> known) {
    for (const auto& [name, value] : item.items()) {
      const bool is_known =
          name == "type" || name == "id" || name == "status" || std::find(known.begin(), known.end(), name) != known.end();
      if (!is_known && !value.is_null()) return unknown_field(at + ".", name);
    }
    return std::nullopt;
  }

  void push(Json message, const std::string& at) {
    end_turn();
    names_.add(fmt::format("messages[{}]", messages_.size()), at);
    messages_.push_back(std::move(message));
  }

  void end_turn() {
    if (turn_.is_null()) return;
    names_.add(fmt::format("messages[{}]", messages_.size()), turn_at_);
    messages_.push_back(std::exchange(turn_, Json()));
  }

  Json& turn(const Json& item, const std::string& at) {
    if (turn_.is_null()) {
      turn_ = {{"role", "assistant"}, {"content", ""}};
      turn_at_ = at;
    }
    // The first id names the turn for replay.
    if (const std::string id = string_of(item, "id"); !id.empty() && !turn_.contains("id")) turn_["id"] = id;
    return turn_;
  }

  Failure add_message(const Json& item, const std::string& at) {
    if (auto error = check_item(item, at, {"role", "content", "phase"})) return error;
    const std::string role = string_of(item, "role");
    if (role != "user" && role != "assistant" && role != "system" && role != "developer")
      return bad(at + ".role", "expected one of user, assistant, system, developer");
    const auto content = item.find("content");
    std::string text;
    if (content != item.end() && content->is_string()) {
      text = content->get<std::string>();
    } else if (content != item.end() && content->is_array()) {
      auto joined = join_text_parts(*content, at + ".content", {"input_text", "output_text", "text"}, "");
      if (!joined) return joined.error();
      text = std::move(*joined);
    } else {
      return bad(at + ".content", "expected a string or a list of parts");
    }
    if (role != "assistant") {
      push({{"role", role}, {"content", std::move(text)}}, at);
      return std::nullopt;
    }
    // Text behind calls is still the same answer; text behind text is the next one.
    if (!turn_.is_null() && !turn_["content"].get_ref<const std::string&>().empty() && !turn_.contains("tool_calls")) end_turn();
    turn(item, at)["content"].get_ref<std::string&>() += text;
    return std::nullopt;
  }

  Failure add_reasoning(const Json& item, const std::string& at) {
    if (auto error = check_item(item, at, {"summary", "content", "encrypted_content"})) return error;
    const auto content = item.find("content");
    std::string text;
    if (content != item.end() && content->is_array()) {
      auto joined = join_text_parts(*content, at + ".content", {"reasoning_text", "text"}, "");
      if (!joined) return joined.error();
      text = std::move(*joined);
    } else if (content != item.end() && !content->is_null()) {
      return bad(at + ".content", "expected a list of parts");
    }
    // Reasoning begins an answer.
    if (!turn_.is_null()) end_turn();
    Json& message = turn(item, at);
    if (!text.empty()) message["reasoning_content"] = std::move(text);
    return std::nullopt;
  }

  Failure add_call(const Json& item, const std::string& at) {
    if (auto error = check_item(item, at, {"call_id", "name", "arguments", "namespace", "caller"})) return error;
    const std::string id = string_of(item, "call_id");
    if (id.empty()) return bad(at + ".call_id", "expected a string");
    const std::string name = string_of(item, "name");
    if (name.empty()) return bad(at + ".name", "expected a string");
    const auto arguments = item.find("arguments");
    if (arguments == item.end() || !arguments->is_string()) return bad(at + ".arguments", "expected a string of JSON");
    turn(item, at)["tool_calls"].push_back({{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", *arguments}}}});
    return std::nullopt;
  }

  Failure add_output(const Json& item, const std::string& at) {
    if (auto error = check_item(item, at, {"call_id", "output", "name", "namespace", "caller"})) return error;
    const std::string id = string_of(item, "call_id");
    if (id.empty()) return bad(at + ".call_id", "expected a string");
    const auto output = item.find("output");
    std::string text;
    if (output != item.end() && output->is_string()) {
      text = output->get<std::string>();
    } else if (output != item.end() && output->is_array()) {
      auto joined = join_text_parts(*output, at + ".output", {"input_text", "output_text", "text"}, "");
      if (!joined) return joined.error();
      text = std::move(*joined);
    } else {
      return bad(at + ".output", "expected a string or a list of text parts");
    }
    push({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}}, at);
    return std::nullopt;
  }

  FieldNames& names_;
  Json messages_ = Json::array();
  Json turn_;  // the answer that is being put together; null: none
  std::string turn_at_;
};

Failure read_input(JsonFields& fields, Json& items) {
  items = Json::array();
  const Json* input = fields.get("input");
  if (input == nullptr) return bad("input", "expected a string or a list of items");
  if (input->is_string()) {
    items.push_back({{"type", "message"}, {"role", "user"}, {"content", Json::array({{{"type", "input_text"}, {"text", *input}}})}});
  } else if (input->is_array() && !input->empty() && input->size() <= kMaxItems) {
    items = *input;
  } else {
    return bad("input", "expected a string or a list of at least one item");
  }
  for (size_t i = 0; i < items.size(); ++i) {
    Json& item = items[i];
    if (!item.is_object()) return bad(fmt::format("input[{}]", i), "expected an object");
    if (!item.contains("type")) item["type"] = "message";
    const std::string type = string_of(item, "type");
    if (type == "item_reference")
      return bad(fmt::format("input[{}].type", i), "references to stored items are not supported; send the item, or previous_response_id");
    // A message in short form reads as a whole one when it is listed.
    if (type == "message" && item.contains("content") && item["content"].is_string()) {
      const char* part = item.value("role", Json()) == "assistant" ? "output_text" : "input_text";
      item["content"] = Json::array({{{"type", part}, {"text", item["content"]}}});
    }
  }
  return std::nullopt;
}

Failure read_tools(JsonFields& fields, Json& body) {
  const Json* tools = fields.get("tools");
  body["tools"] = tools == nullptr ? Json::array() : *tools;
  if (tools == nullptr) return std::nullopt;
  if (!tools->is_array()) return bad("tools", "expected a list of tools");
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const std::string at = fmt::format("tools[{}]", i);
    if (!tool.is_object()) return bad(at, "expected an object");
    const std::string type = string_of(tool, "type");
    if (type != "function")
      return bad(at + ".type", fmt::format("a tool of type \"{}\" is not run here; only \"function\" is supported", shown_name(type)));
    constexpr std::array<std::string_view, 6> kKnown{"type", "name", "description", "parameters", "strict", "defer_loading"};
    for (const auto& [name, value] : tool.items()) {
      if (std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end() && !value.is_null()) return unknown_field(at + ".", name);
    }
    if (tool.value("defer_loading", Json()) == true) return bad(at + ".defer_loading", "searching for tools is not supported");
  }
  return std::nullopt;
}

Failure read_tool_choice(JsonFields& fields, Json& body) {
  const Json* choice = fields.get("tool_choice");
  body["tool_choice"] = choice == nullptr ? Json("auto") : *choice;
  if (choice == nullptr || choice->is_string()) return std::nullopt;
  if (!choice->is_object()) return bad("tool_choice", "expected \"auto\", \"none\", \"required\" or a function");
  if (string_of(*choice, "type") != "function") return bad("tool_choice.type", "only {\"type\": \"function\", \"name\": ...} is supported");
  if (string_of(*choice, "name").empty()) return bad("tool_choice.name", "expected the name of a tool");
  return std::nullopt;
}

Failure read_reasoning(JsonFields& fields, Json& body) {
  Json& out = body["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
  const Json* reasoning = fields.get("reasoning");
  if (reasoning == nullptr) return std::nullopt;
  if (!reasoning->is_object()) return bad("reasoning", "expected an object");
  JsonFields inner(*reasoning, "reasoning.");
  if (const auto effort = inner.string("effort")) out["effort"] = *effort;
  // A summary is asked for to see something of the reasoning; here all of it is shown.
  for (const char* name : {"summary", "generate_summary"}) {
    const auto summary = inner.string(name);
    if (!summary) continue;
    if (*summary != "auto" && *summary != "concise" && *summary != "detailed" && *summary != "none")
      return bad(fmt::format("reasoning.{}", name), "expected one of auto, concise, detailed");
    out["summary"] = *summary;
  }
  return inner.error();
}

Failure read_text(JsonFields& fields, Json& body) {
  Json& out = body["text"] = {{"format", {{"type", "text"}}}};
  const Json* text = fields.get("text");
  if (text == nullptr) return std::nullopt;
  if (!text->is_object()) return bad("text", "expected an object");
  JsonFields inner(*text, "text.");
  const auto verbosity = inner.string("verbosity");
  if (verbosity && *verbosity != "medium") return bad("text.verbosity", "the model has one way to answer; only \"medium\" is accepted");
  if (verbosity) out["verbosity"] = *verbosity;
  const Json* format = inner.get("format");
  if (auto error = inner.error()) return error;
  if (format == nullptr) return std::nullopt;
  if (!format->is_object()) return bad("text.format", "expected an object");
  const std::string type = string_of(*format, "type");
  if (type != "text" && type != "json_object" && type != "json_schema")
    return bad("text.format.type", "expected one of text, json_object, json_schema");
  if (type == "json_schema") {
    JsonFields schema(*format, "text.format.");
    for (const char* name : {"type", "schema", "name", "description", "strict"}) schema.get(name);
    if (auto error = schema.error()) return error;
    if (!format->contains("schema")) return bad("text.format.schema", "expected a JSON schema");
  }
  out["format"] = *format;
  return std::nullopt;
}

Failure read_include(JsonFields& fields, Json& body) {
  const Json* include = fields.get("include");
  bool logprobs = false;
  if (include != nullptr) {
    if (!include->is_array()) return bad("include", "expected a list");
    for (size_t i = 0; i < include->size(); ++i) {
      const Json& what = (*include)[i];
      if (what == kLogprobs)
        logprobs = true;
      else if (what != "reasoning.encrypted_content")  // reasoning comes as it is: there is nothing to decrypt
        return bad(fmt::format("include[{}]", i), fmt::format("expected \"{}\" or \"reasoning.encrypted_content\"", kLogprobs));
    }
  }
  const auto top = fields.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (fields.failed()) return fields.error();
  if (logprobs || top.value_or(0) > 0) body["include"] = Json::array({kLogprobs});
  body["top_logprobs"] = top.value_or(0);
  return std::nullopt;
}

Failure read_rest(JsonFields& fields, Json& body) {
  const auto repeat = [&](const char* name) {
    const Json* value = fields.get(name);
    body[name] = value == nullptr ? Json() : *value;
  };
  for (const char* name : kAsInChat) repeat(name);
  repeat("max_output_tokens");
  const auto parallel = fields.boolean("parallel_tool_calls");
  body["parallel_tool_calls"] = parallel.value_or(true);
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key"}) {
    const auto label = fields.string(name);
    body[name] = label ? Json(*label) : Json();
  }
  const Json* metadata = fields.get("metadata");
  if (metadata != nullptr && !metadata->is_object()) return bad("metadata", "expected an object");
  body["metadata"] = metadata == nullptr ? Json::object() : *metadata;
  const Json* instructions = fields.get("instructions");
  if (instructions != nullptr && !instructions->is_string()) return bad("instructions", "expected a string");
  body["instructions"] = instructions == nullptr ? Json() : *instructions;
  fields.only("background", false, "answers are not made in the background");
  fields.only("truncation", "disabled", "a conversation that is too long is refused, not cut");
  fields.only("conversation", nullptr, "conversations are not supported; use previous_response_id");
  fields.only("prompt", nullptr, "stored prompts are not supported");
  fields.only("max_tool_calls", nullptr, "this server runs no tools");
  fields.only("context_management", nullptr, "a conversation is not shortened");
  if (const auto tier = fields.string("service_tier"); tier && *tier != "auto" && *tier != "default")
    return bad("service_tier", "expected \"auto\" or \"default\"");
  if (const auto kept = fields.string("prompt_cache_retention"); kept && *kept != "in_memory" && *kept != "in-memory")
    return bad("prompt_cache_retention", "prompts are cached as long as there is room; only \"in_memory\" is accepted");
  if (const Json* options = fields.get("stream_options")) {
    if (!options->is_object()) return bad("stream_options", "expected an object");
    JsonFields inner(*options, "stream_options.");
    inner.only("include_obfuscation", false, "padding of events is not supported");
    if (auto error = inner.error()) return error;
  }
  return std::nullopt;
}

// The body of the chat request: what it calls otherwise goes into `names`.
Json chat_body(const Json& body, FieldNames& names) {
  Json chat = Json::object();
  const auto pass = [&](const char* name, const char* chat_name) {
    if (!body.at(name).is_null()) chat[chat_name] = body.at(name);
    if (std::string_view(name) != chat_name) names.add(chat_name, name);
  };
  for (const char* name : kAsInChat) pass(name, name);
  pass("max_output_tokens", "max_completion_tokens");
  if (body.contains("include")) {
    chat["logprobs"] = true;
    chat["top_logprobs"] = body.at("top_logprobs");
  }
  if (const Json& effort = body.at("reasoning").at("effort"); !effort.is_null()) chat["reasoning_effort"] = effort;
  names.add("reasoning_effort", "reasoning.effort");
  if (!body.at("tools").empty()) {
    Json& tools = chat["tools"] = Json::array();
    for (size_t i = 0; i < body.at("tools").size(); ++i) {
      Json function = body.at("tools")[i];
      function.erase("type");
      function.erase("defer_loading");
      tools.push_back({{"type", "function"}, {"function", std::move(function)}});
      names.add(fmt::format("tools[{}].function", i), fmt::format("tools[{}]", i));
    }
    if (body.at("parallel_tool_calls") == false) chat["parallel_tool_calls"] = false;
  }
  const Json& choice = body.at("tool_choice");
  if (choice.is_object()) {
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", choice.at("name")}}}};
    names.add("tool_choice.function", "tool_choice");
  } else if (chat.contains("tools") || choice != "auto") {
    chat["tool_choice"] = choice;
  }
  const Json& format = body.at("text").at("format");
  if (format.at("type") == "json_schema") {
    Json schema = format;
    schema.erase("type");
    chat["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
  } else if (format.at("type") != "text") {
    chat["response_format"] = format;
  }
  names.add("response_format", "text.format");
  names.add("response_format.json_schema", "text.format");
  return chat;
}
}  // namespace

ApiResult<ResponsesRequest> parse_responses_request(const Json& body, bool stores) {
  if (!body.is_object()) return tl::unexpected(ApiError{400, "the request body must be a JSON object", {}, {}});
  JsonFields fields(body);
  ResponsesRequest request;
  request.body = Json::object();
  Failure failure = read_rest(fields, request.body);
  if (!failure) failure = read_input(fields, request.input);
  if (!failure) failure = read_tools(fields, request.body);
  if (!failure) failure = read_tool_choice(fields, request.body);
  if (!failure) failure = read_reasoning(fields, request.body);
  if (!failure) failure = read_text(fields, request.body);
  if (!failure) failure = read_include(fields, request.body);
  request.previous_response_id = fields.string("previous_response_id").value_or("");
  const auto store = fields.boolean("store");
  if (!failure) failure = fields.error();
  if (!failure && !stores && store.value_or(false)) failure = bad("store", "this server keeps no responses (--response-store none)");
  if (!failure && !stores && !request.previous_response_id.empty())
    failure = bad("previous_response_id", "this server keeps no responses (--response-store none); send the conversation as input");
  if (failure) return tl::unexpected(std::move(*failure));
  request.store = stores && store.value_or(true);
  request.body["store"] = request.store;
  request.body["previous_response_id"] = request.previous_response_id.empty() ? Json() : Json(request.previous_response_id);
  return request;
}

std::optional<ApiError> finish_responses_request(ResponsesRequest& request, const Json& history, const RequestDefaults& defaults) {
  Json chat = chat_body(request.body, request.names);
  Conversation conversation(request.names);
  if (request.body["instructions"].is_string()) conversation.add_instructions(request.body["instructions"].get<std::string>());
  for (const Json& item : history) {
    if (auto error = conversation.add(item, "previous_response_id")) return error;
  }
  for (size_t i = 0; i < request.input.size(); ++i) {
    if (auto error = conversation.add(request.input[i], fmt::format("input[{}]", i))) return error;
  }
  chat["messages"] = conversation.take();
  request.names.add("messages", "input");
  auto parsed = parse_chat_request(chat, defaults);
  if (!parsed) return request.names.rename(std::move(parsed).error());
  request.chat = std::move(*parsed);
  return std::nullopt;
}

}  // namespace ingot::serve
