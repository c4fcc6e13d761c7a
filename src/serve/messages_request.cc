#include "serve/messages_request.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ingot::serve {

namespace {
// Claude Code's first system block: facts for Anthropic's bill. They change from request to request, and the prefix cache would end there.
constexpr std::string_view kBillingBlock = "x-anthropic-billing-header:";
constexpr size_t kMaxMessages = 100'000;  // as Anthropic's own

using Failure = std::optional<ApiError>;

// The conversation, message by message. Blocks of one message may become several: results of tools are messages of their own.
class Conversation {
 public:
  explicit Conversation(FieldNames& names) : names_(names) {}
  Json take() { return std::move(messages_); }

  Failure add_system(const Json& system) {
    if (system.is_string()) {
      push({{"role", "system"}, {"content", system}}, "system");
      return std::nullopt;
    }
    if (!system.is_array()) return bad("system", "expected a string or a list of text blocks");
    std::string text;
    for (size_t i = 0; i < system.size(); ++i) {
      const auto block = read_text_part(system[i], fmt::format("system[{}]", i), {"text"});
      if (!block) return block.error();
      if (block->starts_with(kBillingBlock)) continue;
      if (!text.empty()) text += '\n';
      text += *block;
    }
    if (!text.empty()) push({{"role", "system"}, {"content", std::move(text)}}, "system");
    return std::nullopt;
  }

  Failure add(const Json& message, const std::string& at) {
    if (!message.is_object()) return bad(at, "expected an object");
    const std::string role = string_of(message, "role");
    if (role != "user" && role != "assistant") return bad(at + ".role", "expected \"user\" or \"assistant\"");
    for (const auto& [name, value] : message.items()) {
      if (name != "role" && name != "content") return unknown_field(at + ".", name);
    }
    const auto content = message.find("content");
    const std::string content_at = at + ".content";
    if (content != message.end() && content->is_string()) {
      push({{"role", role}, {"content", *content}}, content_at);
      return std::nullopt;
    }
    if (content == message.end() || !content->is_array()) return bad(content_at, "expected a string or a list of blocks");
    return role == "user" ? add_user(*content, content_at) : add_assistant(*content, content_at);
  }

 private:
  void push(Json message, const std::string& at) {
    names_.add(fmt::format("messages[{}]", messages_.size()), at);
    messages_.push_back(std::move(message));
  }

  // Fields of a block, all known. `cache_control` is obeyed by caching everything.
  static Failure check_block(const Json& block, const std::string& at, std::initializer_list<std::string_view> known) {
    for (const auto& [name, value] : block.items()) {
      const bool is_known = name == "type" || name == "cache_control" || std::find(known.begin(), known.end(), name) != known.end();
      if (!is_known && !value.is_null()) return unknown_field(at + ".", name);
    }
    return std::nullopt;
  }

  static Failure unknown_type(const std::string& at, const std::string& type, std::string_view known) {
    if (type.empty()) return bad(at + ".type", "expected a string");
    return bad(at + ".type", fmt::format("a block of type \"{}\" cannot be read here; {} can", shown_name(type), known));
  }

  static Failure read_text(const Json& block, const std::string& at, std::string& text) {
    if (auto error = check_block(block, at, {"text", "citations"})) return error;
    const auto value = block.find("text");
    if (value == block.end() || !value->is_string()) return bad(at + ".text", "expected a string");
    text += value->get_ref<const std::string&>();
    return std::nullopt;
  }

  // read(block, its path, its type), one after the other, until one fails.
  template <class Read>
  static Failure each_block(const Json& blocks, const std::string& at, const Read& read) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      const std::string block_at = fmt::format("{}[{}]", at, i);
      if (!blocks[i].is_object()) return bad(block_at, "expected an object");
      if (auto error = read(blocks[i], block_at, string_of(blocks[i], "type"))) return error;
    }
    return std::nullopt;
  }

  Failure add_user(const Json& blocks, const std::string& at) {
    std::string text;
    bool has_text = false;
    const auto flush = [&] {
      if (has_text) push({{"role", "user"}, {"content", std::exchange(text, {})}}, at);
      has_text = false;
    };
    auto error = each_block(blocks, at, [&](const Json& block, const std::string& block_at, const std::string& type) -> Failure {
      if (type == "tool_result") {
        flush();
        return add_tool_result(block, block_at);
      }
      if (type != "text") return unknown_type(block_at, type, "text and tool_result");
      if (has_text) text += '\n';
      has_text = true;
      return read_text(block, block_at, text);
    });
    if (error) return error;
    if (blocks.empty()) has_text = true;
    flush();
    return std::nullopt;
  }

  Failure add_tool_result(const Json& block, const std::string& at) {
    if (auto error = check_block(block, at, {"tool_use_id", "content", "is_error"})) return error;
    const std::string id = string_of(block, "tool_use_id");
    if (id.empty()) return bad(at + ".tool_use_id", "expected a string");
    const Json is_error = block.value("is_error", Json());
    if (!is_error.is_null() && !is_error.is_boolean()) return bad(at + ".is_error", "expected true or false");
    const Json content = block.value("content", Json());
    std::string text;
    if (content.is_string()) {
      text = content.get<std::string>();
    } else if (content.is_array()) {
      auto joined = join_text_parts(content, at + ".content", {"text"}, "\n");
      if (!joined) return joined.error();
      text = std::move(*joined);
    } else if (!content.is_null()) {
      return bad(at + ".content", "expected a string or a list of text blocks");
    }
    // The template has no other place for it.
    if (is_error == true && !text.starts_with("Error")) text = "Error: " + text;
    push({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}}, at);
    return std::nullopt;
  }

  Failure add_assistant(const Json& blocks, const std::string& at) {
    Json message{{"role", "assistant"}, {"content", ""}};
    std::string text;
    std::string thinking;
    Json calls = Json::array();
    auto error = each_block(blocks, at, [&](const Json& block, const std::string& block_at, const std::string& type) -> Failure {
      if (type == "text") return read_text(block, block_at, text);
      if (type == "redacted_thinking") return std::nullopt;  // only who made it can read it
      if (type == "tool_use") return add_call(block, block_at, calls);
      if (type != "thinking") return unknown_type(block_at, type, "text, thinking, redacted_thinking and tool_use");
      if (auto wrong = check_block(block, block_at, {"thinking", "signature"})) return wrong;
      const auto value = block.find("thinking");
      if (value == block.end() || !value->is_string()) return bad(block_at + ".thinking", "expected a string");
      thinking += value->get_ref<const std::string&>();
      // Ours is the name of the turn; anybody else's says nothing to us.
      if (const std::string signature = string_of(block, "signature"); !signature.empty()) message["id"] = signature;
      return std::nullopt;
    });
    if (error) return error;
    message["content"] = std::move(text);
    if (!thinking.empty()) message["reasoning_content"] = std::move(thinking);
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    push(std::move(message), at);
    return std::nullopt;
  }

  static Failure add_call(const Json& block, const std::string& at, Json& calls) {
    if (auto error = check_block(block, at, {"id", "name", "input", "caller"})) return error;
    const std::string id = string_of(block, "id");
    const std::string name = string_of(block, "name");
    if (id.empty()) return bad(at + ".id", "expected a string");
    if (name.empty()) return bad(at + ".name", "expected a string");
    const Json input = block.value("input", Json::object());
    if (!input.is_object()) return bad(at + ".input", "expected an object");
    calls.push_back({{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", input}}}});
    return std::nullopt;
  }

  FieldNames& names_;
  Json messages_ = Json::array();
};

Failure read_messages(JsonFields& fields, FieldNames& names, Json& chat) {
  Conversation conversation(names);
  if (const Json* system = fields.get("system")) {
    if (auto error = conversation.add_system(*system)) return error;
  }
  const Json* messages = fields.get("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty() || messages->size() > kMaxMessages)
    return bad("messages", "expected a list of at least one message");
  for (size_t i = 0; i < messages->size(); ++i) {
    if (auto error = conversation.add((*messages)[i], fmt::format("messages[{}]", i))) return error;
  }
  if (messages->back().value("role", Json()) == "assistant")
    return bad(fmt::format("messages[{}].role", messages->size() - 1),
               "an answer that was begun cannot be continued: the last message must be of the user");
  chat["messages"] = conversation.take();
  return std::nullopt;
}

// Tools that the client runs; those that Anthropic runs have a type of their own.
Failure read_tools(JsonFields& fields, FieldNames& names, Json& chat) {
  const Json* tools = fields.get("tools");
  if (tools == nullptr) return std::nullopt;
  if (!tools->is_array()) return bad("tools", "expected a list of tools");
  Json& list = chat["tools"] = Json::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const std::string at = fmt::format("tools[{}]", i);
    if (!tool.is_object()) return bad(at, "expected an object");
    const Json type = tool.value("type", Json());
    if (!type.is_null() && type != "custom")
      return bad(at + ".type", "this server runs no tools: only those that the client runs (\"custom\", with input_schema) are supported");
    Json function = Json::object();
    for (const auto& [name, value] : tool.items()) {
      if (name == "type" || name == "cache_control" || name == "eager_input_streaming" || value.is_null()) continue;
      if (name == "input_schema") {
        function["parameters"] = value;
      } else if (name == "name" || name == "description" || name == "strict" || name == "input_examples") {
        function[name] = value;
      } else if (name == "defer_loading") {
        if (value != false) return bad(at + ".defer_loading", "searching for tools is not supported; only false is accepted");
      } else if (name == "allowed_callers") {
        if (value != Json::array({"direct"})) return bad(at + ".allowed_callers", "only [\"direct\"] is accepted");
      } else {
        return unknown_field(at + ".", name);
      }
    }
    if (!function.contains("parameters")) return bad(at + ".input_schema", "expected a JSON schema object");
    names.add(at + ".function", at);
    names.add(at + ".function.parameters", at + ".input_schema");
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return std::nullopt;
}

Failure read_tool_choice(JsonFields& fields, Json& chat) {
  const Json* choice = fields.get("tool_choice");
  if (choice == nullptr) return std::nullopt;
  if (!choice->is_object()) return bad("tool_choice", "expected an object");
  JsonFields inner(*choice, "tool_choice.");
  const std::string type = inner.string("type").value_or("");
  const auto name = inner.string("name");
  const auto one_call = inner.boolean("disable_parallel_tool_use");
  if (auto error = inner.error()) return error;
  if (name && type != "tool") return bad("tool_choice.name", "is allowed only with type \"tool\"");
  if (type == "auto" || type == "none") {
    chat["tool_choice"] = type;
  } else if (type == "any") {
    chat["tool_choice"] = "required";
  } else if (type == "tool") {
    if (!name) return bad("tool_choice.name", "expected the name of a tool");
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
  } else {
    return bad("tool_choice.type", "expected one of auto, any, tool, none");
  }
  if (one_call.value_or(false) && type != "none") chat["parallel_tool_calls"] = false;
  return std::nullopt;
}

// What the client says of thinking. Off unless it asks for it, as in Anthropic's API.
struct Thinking {
  bool wanted = false;
  bool omitted = false;
  std::optional<int64_t> budget;
};

Failure read_thinking(JsonFields& fields, Thinking& thinking, Json& kwargs) {
  const Json* given = fields.get("thinking");
  if (given == nullptr) return std::nullopt;
  if (!given->is_object()) return bad("thinking", "expected an object");
  JsonFields inner(*given, "thinking.");
  const std::string type = inner.string("type").value_or("");
  const auto budget = inner.integer("budget_tokens", 1);
  const auto display = inner.string("display");
  const auto clear = inner.boolean("clear_thinking");  // of z.ai: whether the template forgets the thinking of earlier turns
  if (auto error = inner.error()) return error;
  if (type != "enabled" && type != "disabled" && type != "adaptive")
    return bad("thinking.type", "expected one of enabled, disabled, adaptive");
  if (budget && type != "enabled") return bad("thinking.budget_tokens", "is allowed only with type \"enabled\"");
  if (display && *display != "summarized" && *display != "omitted")
    return bad("thinking.display", "expected \"summarized\" or \"omitted\"");
  thinking = {type != "disabled", display == "omitted", budget};
  if (clear) kwargs["clear_thinking"] = *clear;
  return std::nullopt;
}

// `context_management`: thinking of earlier turns is kept or not; nothing else of it is done here.
Failure read_context_management(JsonFields& fields, Json& kwargs) {
  const Json* given = fields.get("context_management");
  if (given == nullptr) return std::nullopt;
  if (!given->is_object()) return bad("context_management", "expected an object");
  JsonFields outer(*given, "context_management.");
  const Json* edits = outer.get("edits");
  if (auto error = outer.error()) return error;
  if (edits == nullptr) return std::nullopt;
  if (!edits->is_array()) return bad("context_management.edits", "expected a list");
  for (size_t i = 0; i < edits->size(); ++i) {
    const Json& edit = (*edits)[i];
    const std::string at = fmt::format("context_management.edits[{}]", i);
    if (!edit.is_object() || edit.value("type", Json()) != "clear_thinking_20251015")
      return bad(at + ".type", "only \"clear_thinking_20251015\" is supported");
    const Json keep = edit.value("keep", Json());
    if (keep != "all" && keep != Json{{"type", "all"}})
      return bad(at + ".keep", "only \"all\" is supported: the thinking of every turn is kept");
    kwargs["clear_thinking"] = false;
  }
  return std::nullopt;
}

Failure read_output_config(JsonFields& fields, FieldNames& names, Json& chat) {
  const Json* given = fields.get("output_config");
  const Json* old_format = fields.get("output_format");  // where the beta had it
  if (given != nullptr && !given->is_object()) return bad("output_config", "expected an object");
  const Json* format = old_format;
  std::string at = "output_format";
  if (given != nullptr) {
    JsonFields inner(*given, "output_config.");
    if (const auto effort = inner.string("effort")) {
      constexpr std::array<std::string_view, 5> kEfforts{"low", "medium", "high", "xhigh", "max"};
      if (std::find(kEfforts.begin(), kEfforts.end(), *effort) == kEfforts.end())
        return bad("output_config.effort", "expected one of low, medium, high, xhigh, max");
      chat["reasoning_effort"] = *effort;
      names.add("reasoning_effort", "output_config.effort");
    }
    if (const Json* own = inner.get("format")) {
      format = own;
      at = "output_config.format";
    }
    if (auto error = inner.error()) return error;
  }
  if (format == nullptr) return std::nullopt;
  if (!format->is_object() || format->value("type", Json()) != "json_schema") return bad(at + ".type", "only \"json_schema\" is supported");
  JsonFields inner(*format, at + ".");
  inner.get("type");
  const Json* schema = inner.get("schema");
  if (auto error = inner.error()) return error;
  if (schema == nullptr) return bad(at + ".schema", "expected a JSON schema");
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "output"}, {"strict", true}, {"schema", *schema}}}};
  names.add("response_format", at);
  names.add("response_format.json_schema.schema", at + ".schema");
  return std::nullopt;
}

// The rest: passed on under its chat name, or accepted in the one form that changes nothing.
Failure read_generation(JsonFields& fields, MessagesUse use, FieldNames& names, Json& chat) {
  const auto pass = [&](const char* name, const char* chat_name) {
    if (const Json* value = fields.get(name)) chat[chat_name] = *value;
    if (std::string_view(name) != chat_name) names.add(chat_name, name);
  };
  pass("model", "model");
  if (use == MessagesUse::answer) {
    pass("max_tokens", "max_tokens");
    if (!chat.contains("max_tokens")) return bad("max_tokens", "expected an integer of at least 1");
    pass("stop_sequences", "stop");
    if (chat.contains("stop") && !chat["stop"].is_array()) return bad("stop_sequences", "expected a list of strings");
    pass("stream", "stream");
    // Anthropic's, and this server's own of the other dialects.
    for (const char* name : {"temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty",
                             "repetition_penalty", "logit_bias", "stop_token_ids", "ignore_eos", "priority", "speculative"})
      pass(name, name);
    if (const Json* metadata = fields.get("metadata"); metadata != nullptr && !metadata->is_object())
      return bad("metadata", "expected an object");
    fields.only("container", nullptr, "containers are not supported");
    fields.only("mcp_servers", Json::array(), "this server calls no others");
    if (const auto tier = fields.string("service_tier"); tier && *tier != "auto" && *tier != "standard_only")
      return bad("service_tier", "expected \"auto\" or \"standard_only\"");
  }
  fields.only("speed", "standard", "there is one speed");
  fields.get("cache_control");  // every prefix is cached
  return std::nullopt;
}
}  // namespace

ApiResult<MessagesRequest> parse_messages_request(const Json& body, const RequestDefaults& defaults, MessagesUse use) {
  if (!body.is_object()) return tl::unexpected(ApiError{400, "the request body must be a JSON object", {}, {}});
  JsonFields fields(body);
  MessagesRequest request;
  Json chat = Json::object();
  Json kwargs = Json::object();
  if (const Json* given = fields.get("chat_template_kwargs")) {
    if (!given->is_object()) return bad_field("chat_template_kwargs", "chat_template_kwargs: expected an object");
    kwargs = *given;
  }
  Thinking thinking;
  Failure failure = read_generation(fields, use, request.names, chat);
  if (!failure) failure = read_messages(fields, request.names, chat);
  if (!failure) failure = read_tools(fields, request.names, chat);
  if (!failure) failure = read_tool_choice(fields, chat);
  if (!failure) failure = read_thinking(fields, thinking, kwargs);
  if (!failure) failure = read_context_management(fields, kwargs);
  if (!failure) failure = read_output_config(fields, request.names, chat);
  if (!failure) failure = fields.error();
  if (failure) return tl::unexpected(std::move(*failure));

  const bool has_switch = defaults.chat_template_source.find("enable_thinking") != std::string::npos;
  if (!kwargs.contains("enable_thinking") && has_switch) kwargs["enable_thinking"] = thinking.wanted;
  // An effort without thinking is how hard an answer is worked at without it.
  if (kwargs.value("enable_thinking", Json()) == false) chat.erase("reasoning_effort");
  if (thinking.wanted && thinking.budget) chat["thinking"] = {{"type", "enabled"}, {"budget_tokens", *thinking.budget}};
  if (!kwargs.empty()) chat["chat_template_kwargs"] = std::move(kwargs);
  auto parsed = parse_chat_request(chat, defaults);
  if (!parsed) return tl::unexpected(request.names.rename(std::move(parsed).error()));
  request.chat = std::move(*parsed);
  request.omits_thinking = thinking.omitted;
  return request;
}

}  // namespace ingot::serve
