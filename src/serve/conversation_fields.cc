#include "serve/conversation_fields.h"

#include <algorithm>
#include <array>
#include <set>

namespace ingot::serve {

namespace {
constexpr size_t kMaxTools = 1024;
constexpr const char* kKwargs = "chat_template_kwargs";

bool is_tool_name(const std::string& name) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.' || c == ':' || c == '/'; };
  return !name.empty() && name.size() <= 256 && std::all_of(name.begin(), name.end(), allowed);
}

void read_tools(JsonFields& fields, ChatRequest& request) {
  const Json* given = fields.get("tools");
  if (given == nullptr) return;
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
    const Json strict = function->value("strict", Json());
    if (!strict.is_null() && !strict.is_boolean()) return fields.refuse(at + ".function.strict", "expected true or false");
    if (strict == true) request.tool_choice.constrained = true;
  }
  request.tools = *given;
}

const Json* find_tool(const Json& tools, const Json& name) {
  const auto it = std::find_if(tools.begin(), tools.end(), [&](const Json& tool) { return tool["function"]["name"] == name; });
  return it == tools.end() ? nullptr : &*it;
}

// {"type": "function", "function": {"name": ...}}: the tool that it names, or null and a refusal.
const Json* read_tool_reference(JsonFields& fields, const Json& reference, const std::string& at, const Json& tools) {
  const auto function = reference.is_object() ? reference.find("function") : reference.end();
  if (!reference.is_object() || reference.value("type", Json()) != "function" || function == reference.end() || !function->is_object() ||
      !function->value("name", Json()).is_string()) {
    fields.refuse(at, R"(expected {"type": "function", "function": {"name": ...}})");
    return nullptr;
  }
  const Json name = (*function)["name"];
  const Json* tool = find_tool(tools, name);
  if (tool == nullptr)
    fields.refuse(at, fmt::format("no tool is named {}", name.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 80)));
  return tool;
}

// {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [...]}}: the prompt has all tools, calls may be of
// these alone.
void read_allowed_tools(JsonFields& fields, const Json& given, ChatRequest& request) {
  ToolChoice& choice = request.tool_choice;
  const Json allowed = given.value("allowed_tools", Json());
  const Json mode = allowed.is_object() ? allowed.value("mode", Json()) : Json();
  const Json list = allowed.is_object() ? allowed.value("tools", Json()) : Json();
  if (mode != "auto" && mode != "required") return fields.refuse("tool_choice", "allowed_tools.mode: expected \"auto\" or \"required\"");
  if (!list.is_array() || list.empty() || list.size() > kMaxTools)
    return fields.refuse("tool_choice", "allowed_tools.tools: expected a list of at least one of the tools");
  choice.kind = mode == "required" ? ToolChoice::Kind::required : ToolChoice::Kind::automatic;
  choice.constrained = true;
  choice.callable = Json::array();
  for (const Json& reference : list) {
    const Json* tool = read_tool_reference(fields, reference, "tool_choice", request.tools);
    if (tool == nullptr) return;
    if (find_tool(choice.callable, (*tool)["function"]["name"]) == nullptr) choice.callable.push_back(*tool);
  }
}

void read_tool_choice(JsonFields& fields, ChatRequest& request) {
  ToolChoice& choice = request.tool_choice;
  choice.callable = request.tools;
  if (request.tools.empty()) choice.kind = ToolChoice::Kind::none;
  const Json* given = fields.get("tool_choice");
  if (given == nullptr) return;
  if (*given == "none") {
    choice = ToolChoice{.kind = ToolChoice::Kind::none, .name = {}, .parallel = true, .constrained = false, .callable = Json::array()};
    request.tools = Json::array();
    return;
  }
  const bool known = *given == "auto" || *given == "required" || given->is_object();
  if (!known)
    return fields.refuse("tool_choice", R"(expected "auto", "none", "required" or {"type": "function", "function": {"name": ...}})");
  if (request.tools.empty()) return fields.refuse("tool_choice", "needs tools; without them only \"none\" is possible");
  if (*given == "auto") return;
  if (*given == "required") {
    choice.kind = ToolChoice::Kind::required;
  } else if (given->value("type", Json()) == "allowed_tools") {
    return read_allowed_tools(fields, *given, request);
  } else if (const Json* tool = read_tool_reference(fields, *given, "tool_choice", request.tools)) {
    choice.kind = ToolChoice::Kind::named;
    choice.name = (*tool)["function"]["name"].get<std::string>();
    choice.callable = Json::array({*tool});
  }
  choice.constrained = true;
}

// What a request says of thinking, under all the names that clients use. Two that contradict each other are refused.
class ThinkingReader {
 public:
  ThinkingReader(JsonFields& fields, const RequestDefaults& defaults, ChatRequest& request)
      : fields_(fields), defaults_(defaults), request_(request) {}

  void read() {
    template_kwargs();
    if (const auto on = fields_.boolean("enable_thinking")) turn("enable_thinking", *on);
    thinking_object();
    if (const auto effort = fields_.string("reasoning_effort")) set_effort("reasoning_effort", *effort);
    for (const char* name : {"thinking_budget", "thinking_token_budget"}) {
      if (const auto tokens = fields_.integer(name, 0, INT32_MAX)) set_budget(name, *tokens);
    }
    shown();
    merge_defaults();
  }

  void template_kwargs() {
    const Json* given = fields_.get(kKwargs);
    if (given == nullptr) return;
    if (!given->is_object()) return fields_.refuse(kKwargs, "expected an object");
    for (const auto& [name, value] : given->items()) one_kwarg(name, value);
  }

  void merge_defaults() {
    for (const auto& [name, value] : defaults_.template_kwargs.items()) {
      // Who asks for an effort wants thinking, whatever the server's own setting; who turns thinking off wants no effort.
      if (name == "enable_thinking" && !effort_field_.empty()) continue;
      if (!kwargs_.contains(name)) kwargs_[name] = value;
    }
    request_.template_kwargs = std::move(kwargs_);
  }

  Json take_kwargs() { return std::move(kwargs_); }

 private:
  void one_kwarg(const std::string& name, const Json& value) {
    const std::string full = std::string(kKwargs) + "." + name;
    if (value.is_null()) return;
    const auto is_any = [&](auto... names) { return ((name == names) || ...); };
    if (is_any("messages", "tools", "add_generation_prompt")) return fields_.refuse(full, "can't be set here");
    if (is_any("enable_thinking", "clear_thinking") && !value.is_boolean()) return fields_.refuse(full, "expected true or false");
    if (name == "enable_thinking") return turn(full, value.get<bool>());
    if (name == "thinking_budget") {
      if (!value.is_number_integer() || value < 0 || value > INT32_MAX)
        return fields_.refuse(full, fmt::format("expected an integer from 0 to {}", INT32_MAX));
      return set_budget(full, value.get<int64_t>());
    }
    if (name == "reasoning_effort") {
      if (!value.is_string()) return fields_.refuse(full, "expected a string");
      return set_effort(full, value.get<std::string>());
    }
    // The template would ignore it, and the client would not know.
    if (!knows(name)) return fields_.refuse(full, "the model's chat template has no such variable");
    kwargs_[name] = value;
  }

  // z.ai's switch: {"type": "enabled" or "disabled", "clear_thinking": ..., "budget_tokens": ...}.
  void thinking_object() {
    const Json* given = fields_.get("thinking");
    if (given == nullptr) return;
    if (!given->is_object()) return fields_.refuse("thinking", R"(expected {"type": "enabled"} or {"type": "disabled"})");
    JsonFields inner(*given, "thinking.");
    const auto type = inner.string("type");
    if (type && *type != "enabled" && *type != "disabled") inner.refuse("type", "expected \"enabled\" or \"disabled\"");
    const auto clear = inner.boolean("clear_thinking");
    const auto budget = inner.integer("budget_tokens", 0, INT32_MAX);
    if (fields_.take_error(inner)) return;
    if (type) turn("thinking", *type == "enabled");
    if (clear) {
      if (!knows("clear_thinking")) return fields_.refuse("thinking.clear_thinking", "the model's chat template has no such variable");
      if (kwargs_.value("clear_thinking", *clear) != *clear)
        return fields_.refuse("thinking.clear_thinking", "differs from chat_template_kwargs.clear_thinking");
      kwargs_["clear_thinking"] = *clear;
    }
    if (budget) set_budget("thinking.budget_tokens", *budget);
  }

  void turn(const std::string& field, bool on) {
    if (!knows("enable_thinking")) return fields_.refuse(field, "the model's chat template can't turn thinking on or off");
    if (kwargs_.value("enable_thinking", on) != on)
      return fields_.refuse(field,
                            fmt::format("turns thinking {}, but {} turns it {}", on ? "on" : "off", switch_field_, on ? "off" : "on"));
    kwargs_["enable_thinking"] = on;
    switch_field_ = field;
  }

  // z.ai's levels on the two that the template knows, and off.
  void set_effort(const std::string& field, const std::string& value) {
    if (value == "none" || value == "minimal") return turn(field, false);
    const bool high = value == "low" || value == "medium" || value == "high";
    if (!high && value != "xhigh" && value != "max")
      return fields_.refuse(field, "expected one of none, minimal, low, medium, high, xhigh, max");
    const std::string level = high ? "high" : "max";
    if (!effort_field_.empty() && kwargs_["reasoning_effort"] != level)
      return fields_.refuse(field, fmt::format("differs from {}", effort_field_));
    kwargs_["reasoning_effort"] = level;
    effort_field_ = field;
  }

  void set_budget(const std::string& field, int64_t tokens) {
    if (request_.options.thinking_budget && *request_.options.thinking_budget != tokens)
      return fields_.refuse(field, "differs from the other thinking budget in this request");
    request_.options.thinking_budget = tokens;
  }

  void shown() {
    const bool separate = fields_.boolean("separate_reasoning").value_or(true);
    const bool included = fields_.boolean("include_reasoning").value_or(true);
    fields_.only("stream_reasoning", true, "reasoning is streamed as it comes, or not shown with include_reasoning: false");
    if (!separate && !included) return fields_.refuse("include_reasoning", "reasoning that stays in the content can't be left out");
    request_.reasoning = !separate   ? ChatRequest::Reasoning::in_content
                         : !included ? ChatRequest::Reasoning::hidden
                                     : ChatRequest::Reasoning::separate;
  }

  bool knows(std::string_view variable) const { return defaults_.chat_template_source.find(variable) != std::string::npos; }

  JsonFields& fields_;
  const RequestDefaults& defaults_;
  ChatRequest& request_;
  Json kwargs_ = Json::object();
  std::string switch_field_;  // that set enable_thinking
  std::string effort_field_;  // that set reasoning_effort
};
}  // namespace

void read_conversation(JsonFields& fields, const RequestDefaults& defaults, ChatRequest& request) {
  const Json* messages = fields.get("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty())
    return fields.refuse("messages", "expected a list of at least one message");
  request.messages = *messages;
  read_tools(fields, request);
  read_tool_choice(fields, request);
  request.tool_choice.parallel = fields.boolean("parallel_tool_calls").value_or(true);
  if (!request.tool_choice.parallel) request.tool_choice.constrained = true;
  fields.only("functions", Json::array(), "this old form is not supported; use tools");
  fields.only("function_call", "none", "this old form is not supported; use tool_choice");
  fields.only("add_generation_prompt", true, "an answer always follows the conversation");
  fields.only("continue_final_message", false, "not supported; use /v1/completions to go on from a text");
  fields.only("chat_template", Json(), "the model's own template is used");
  fields.only("documents", Json::array(), "not supported; put them into a message");
  ThinkingReader(fields, defaults, request).read();
}

ApiResult<Json> parse_template_kwargs(const Json& kwargs, const RequestDefaults& defaults) {
  const Json body{{kKwargs, kwargs}};
  JsonFields fields(body);
  ChatRequest request;
  ThinkingReader reader(fields, defaults, request);
  reader.template_kwargs();
  if (request.options.thinking_budget) fields.refuse("chat_template_kwargs.thinking_budget", "a default budget is not supported");
  if (auto error = fields.error()) return tl::unexpected(std::move(*error));
  return reader.take_kwargs();
}

}  // namespace ingot::serve
