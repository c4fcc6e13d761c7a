#include "text/chat_messages.h"

#include <string>

namespace ingot::text {
namespace {

// Text of a content list: text parts only, since the model reads nothing else.
Result<std::string> join_parts(const Json& parts, const std::string& path) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& part = parts[i];
    const std::string part_path = fmt::format("{}[{}]", path, i);
    if (part.is_string()) {
      text += part.get_ref<const std::string&>();
      continue;
    }
    if (!part.is_object()) return fail("{}: a content part must be an object, found {}", part_path, part.type_name());
    const auto type = part.find("type");
    if (type == part.end() || !type->is_string()) return fail("{}.type: a content part needs a type", part_path);
    const auto& name = type->get_ref<const std::string&>();
    // A refusal is what the assistant has said, under another name.
    if (name != "text" && name != "refusal")
      return fail_hint("this model reads text parts only", "{}.type: part {} has the unsupported type \"{}\"", part_path, i, name);
    const auto value = part.find(name);
    if (value == part.end() || !value->is_string()) return fail("{}.{}: a {} part needs a string", part_path, name, name);
    text += value->get_ref<const std::string&>();
  }
  return text;
}

Result<Json> normalize_arguments(const Json& arguments, const std::string& path) {
  if (arguments.is_object()) return arguments;
  if (arguments.is_null()) return Json::object();
  if (!arguments.is_string()) return fail("{}: must be a JSON string or an object, found {}", path, arguments.type_name());
  const auto& text = arguments.get_ref<const std::string&>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Json::object();
  auto parsed = parse_json(text, path);
  if (parsed && parsed->is_object()) return std::move(*parsed);
  Json kept = Json::object();
  kept["arguments"] = text;
  return kept;
}

Result<Json> normalize_tool_calls(const Json& calls, const std::string& path) {
  if (!calls.is_array()) return fail("{}: must be an array, found {}", path, calls.type_name());
  Json result = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string call_path = fmt::format("{}[{}]", path, i);
    if (!calls[i].is_object()) return fail("{}: must be an object, found {}", call_path, calls[i].type_name());
    Json call = calls[i];
    // The flat form {"name", "arguments"} is accepted, too.
    const bool nested = call.contains("function");
    if (nested && !call["function"].is_object())
      return fail("{}.function: must be an object, found {}", call_path, call["function"].type_name());
    Json& function = nested ? call["function"] : call;
    const std::string function_path = nested ? call_path + ".function" : call_path;
    if (!function.contains("name") || !function["name"].is_string()) return fail("{}.name: must be a string", function_path);
    INGOT_ASSIGN(Json arguments,
                 normalize_arguments(function.contains("arguments") ? function["arguments"] : Json(), function_path + ".arguments"));
    function["arguments"] = std::move(arguments);
    result.push_back(std::move(call));
  }
  return result;
}

// An assistant's `refusal` is its content where there is none.
Result<> take_refusal(Json& message, const std::string& path) {
  const auto refusal = message.find("refusal");
  if (refusal == message.end()) return {};
  const Json value = *refusal;
  message.erase("refusal");
  if (value.is_null()) return {};
  if (!value.is_string()) return fail("{}.refusal: must be a string or null, found {}", path, value.type_name());
  if (!message.contains("content") || message["content"].is_null()) message["content"] = value;
  return {};
}

Result<Json> normalize_message(const Json& message, const std::string& path) {
  if (!message.is_object()) return fail("{}: must be an object, found {}", path, message.type_name());
  const auto role = message.find("role");
  if (role == message.end()) return fail("{}.role: is missing", path);
  if (!role->is_string()) return fail("{}.role: must be a string, found {}", path, role->type_name());
  std::string name = role->get<std::string>();
  if (name == "developer") name = "system";
  if (name == "function")
    return fail_hint("use role tool, and tool_calls in the assistant's message", "{}.role: the old role \"function\" is not supported",
                     path);
  if (name != "system" && name != "user" && name != "assistant" && name != "tool") {
    return fail_hint("system, developer, user, assistant or tool", "{}.role: unknown role \"{}\"", path, name);
  }
  // Forms that the template would pass over, so that the model never sees what was said in them.
  if (message.contains("function_call") && !message["function_call"].is_null())
    return fail_hint("use tool_calls", "{}.function_call: this old form is not supported", path);
  if (message.contains("audio") && !message["audio"].is_null()) return fail("{}.audio: this model reads text alone", path);
  Json result = message;
  result["role"] = name;
  INGOT_TRY(take_refusal(result, path));

  if (result.contains("tool_calls")) {
    const Json calls = result["tool_calls"];
    result.erase("tool_calls");
    if (!calls.is_null()) {
      INGOT_ASSIGN(Json normal, normalize_tool_calls(calls, path + ".tool_calls"));
      if (!normal.empty() && name != "assistant")
        return fail("{}.tool_calls: only an assistant message may hold tool calls, this is \"{}\"", path, name);
      if (!normal.empty()) result["tool_calls"] = std::move(normal);
    }
  }

  const bool may_be_absent =
      name == "assistant" && (result.contains("tool_calls") || message.contains("reasoning_content") || message.contains("reasoning"));
  if (!result.contains("content")) {
    if (!may_be_absent) return fail("{}.content: is missing", path);
    result["content"] = "";
  } else if (result["content"].is_null()) {
    result["content"] = "";
  } else if (result["content"].is_array()) {
    INGOT_ASSIGN(std::string text, join_parts(message["content"], path + ".content"));
    result["content"] = std::move(text);
  } else if (!result["content"].is_string()) {
    return fail("{}.content: must be a string, null or an array of parts, found {}", path, result["content"].type_name());
  }

  for (const char* key : {"reasoning_content", "reasoning"}) {
    if (!result.contains(key)) continue;
    const Json value = result[key];
    result.erase(key);
    if (value.is_null()) continue;
    if (!value.is_string()) return fail("{}.{}: must be a string or null, found {}", path, key, value.type_name());
    if (key == std::string_view("reasoning_content") || !message.contains("reasoning_content") || message["reasoning_content"].is_null()) {
      result["reasoning_content"] = value;
    }
    if (key == std::string_view("reasoning_content")) {
      result.erase("reasoning");
      break;
    }
  }
  return result;
}

}  // namespace

Result<Json> normalize_messages(const Json& messages) {
  if (!messages.is_array()) return fail("messages: must be an array, found {}", messages.type_name());
  Json result = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    INGOT_ASSIGN(Json message, normalize_message(messages[i], fmt::format("messages[{}]", i)));
    result.push_back(std::move(message));
  }
  return result;
}

}  // namespace ingot::text
