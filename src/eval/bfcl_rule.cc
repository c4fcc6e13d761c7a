#include "eval/bfcl_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "text/jinja_text.h"

namespace ingot::eval {
namespace {

// Python's types, as the rule asks for them: a bool is no int, an int no float.
enum class Type { none, boolean, integer, floating, string, list, dict };

Type type_of(const Json& value) {
  if (value.is_boolean()) return Type::boolean;
  if (value.is_number_integer()) return Type::integer;
  if (value.is_number_float()) return Type::floating;
  if (value.is_string()) return Type::string;
  if (value.is_array()) return Type::list;
  if (value.is_object()) return Type::dict;
  return Type::none;
}

std::optional<Type> described_type(const std::string& name) {
  if (name == "string" || name == "any") return Type::string;
  if (name == "integer") return Type::integer;
  if (name == "float") return Type::floating;
  if (name == "boolean") return Type::boolean;
  if (name == "array" || name == "tuple") return Type::list;
  if (name == "dict") return Type::dict;
  return std::nullopt;
}

bool is_empty_string(const Json& value) { return value.is_string() && value.get_ref<const std::string&>().empty(); }
bool may_be_left_out(const Json& allowed) { return allowed.is_array() && std::any_of(allowed.begin(), allowed.end(), is_empty_string); }

// What two spellings of the same thing have in common: no spaces and ,./-_*^, lower case, one kind of quote.
std::string plain(const std::string& text) {
  std::string result;
  for (const char c : text::jinja::to_lower(text))
    if (std::string_view(" ,./-_*^").find(c) == std::string_view::npos) result += c == '\'' ? '"' : c;
  return result;
}
Json plain(const Json& value) { return value.is_string() ? Json(plain(value.get_ref<const std::string&>())) : value; }
Json plain_items(const Json& list) {
  Json result = Json::array();
  for (const Json& item : list) result.push_back(plain(item));
  return result;
}

// Whatever the order of keys.
bool is_same(const Json& a, const Json& b) { return nlohmann::json(a) == nlohmann::json(b); }
bool is_among(const Json& value, const Json& allowed) {
  return allowed.is_array() && std::any_of(allowed.begin(), allowed.end(), [&](const Json& a) { return is_same(value, a); });
}

struct TypeCheck {
  bool ok = false;
  bool is_variable = false;  // the answers hold a name in place of a value of the described type: values are then compared as they are
};

// The type of the first answer that is not ""; none: they all are.
std::optional<Type> answer_type(const Json& allowed) {
  for (const Json& answer : allowed)
    if (!is_empty_string(answer)) return type_of(answer);
  return std::nullopt;
}

TypeCheck check_type(const Json& value, const Json& allowed, Type expected, std::optional<Type> nested) {
  const std::optional<Type> in_answers = answer_type(allowed);
  const bool is_variable = in_answers && *in_answers != expected;
  if (type_of(value) == expected) {
    if (!nested) return {true, is_variable};
    for (const Json& answer : allowed) {
      // An answer that is no list ("") accepts every element, as the published checker does.
      const bool fits = !answer.is_array() || std::all_of(value.begin(), value.end(), [&](const Json& element) {
        return check_type(element, answer, *nested, std::nullopt).ok;
      });
      if (fits) return {true, is_variable};
    }
    return {};
  }
  if (in_answers && type_of(value) == *in_answers) return {true, true};
  return {};
}

bool matches_dict(const Json& value, const Json& answer) {
  if (!answer.is_object()) return false;
  for (const auto& [key, element] : value.items()) {
    const auto allowed = answer.find(key);
    if (allowed == answer.end() || !allowed->is_array() || !is_among(plain(element), plain_items(*allowed))) return false;
  }
  return std::all_of(answer.items().begin(), answer.items().end(),
                     [&](const auto& entry) { return value.contains(entry.key()) || may_be_left_out(entry.value()); });
}

bool matches_dicts(const Json& value, const Json& answer) {
  if (is_empty_string(answer)) return value.empty();  // Python's length of "" is that of no list
  if (!answer.is_array() || answer.size() != value.size()) return false;
  for (size_t i = 0; i < value.size(); ++i)
    if (!value[i].is_object() || !matches_dict(value[i], answer[i])) return false;
  return true;
}

bool matches_list(const Json& value, const Json& answer) {
  if (is_empty_string(answer)) return value.empty();
  return answer.is_array() && is_same(plain_items(value), plain_items(answer));
}

bool is_right_value(const Json& value, const Json& allowed, Type expected, std::optional<Type> nested, bool is_variable) {
  const auto any = [&](auto matches) {
    return std::any_of(allowed.begin(), allowed.end(), [&](const Json& answer) { return matches(value, answer); });
  };
  if (!is_variable) {
    if (expected == Type::dict) return any(matches_dict);
    if (expected == Type::list) return nested == Type::dict ? any(matches_dicts) : any(matches_list);
    if (expected == Type::string)
      return any([](const Json& v, const Json& answer) { return answer.is_string() && is_same(plain(v), plain(answer)); });
  }
  return is_among(value, allowed);
}

std::string argument_fault(const std::string& name, Json value, const Json& description, const Json& allowed) {
  const std::string type_name = text_of(description, "type");
  const std::optional<Type> expected = described_type(type_name);
  if (!expected) return fmt::format("{}: the data describes type \"{}\"", name, type_name);
  std::optional<Type> nested;
  if (*expected == Type::list && description.contains("items")) nested = described_type(text_of(description["items"], "type"));
  if (*expected == Type::floating && value.is_number_integer()) value = value.get<double>();
  const TypeCheck check = check_type(value, allowed, *expected, nested);
  if (!check.ok) return fmt::format("{}: {} is no {}", name, value.dump(), type_name);
  if (!is_right_value(value, allowed, *expected, nested, check.is_variable)) return fmt::format("{}: {} is not right", name, value.dump());
  return {};
}

std::string call_fault(const Json& function, const ToolCall& call, const Json& answer) {
  if (call.name != bfcl_called_name(text_of(function, "name"))) return fmt::format("{} was called", call.name);
  if (!call.arguments.is_object()) return fmt::format("{}: the arguments are no JSON object", call.name);
  const Json parameters = function.value("parameters", Json::object());
  const Json descriptions = parameters.value("properties", Json::object());
  for (const Json& required : parameters.value("required", Json::array()))
    if (required.is_string() && !call.arguments.contains(required.get_ref<const std::string&>()))
      return fmt::format("{} is missing", required.get_ref<const std::string&>());
  for (const auto& [name, value] : call.arguments.items()) {
    if (!descriptions.contains(name) || !answer.contains(name)) return fmt::format("{} is not expected", name);
    if (std::string fault = argument_fault(name, value, descriptions[name], answer[name]); !fault.empty()) return fault;
  }
  for (const auto& [name, allowed] : answer.items())
    if (!call.arguments.contains(name) && !may_be_left_out(allowed)) return fmt::format("{} is missing", name);
  return {};
}

}  // namespace

std::string bfcl_called_name(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

std::string bfcl_fault(const Json& functions, const std::vector<ToolCall>& calls, const Json& ground_truth, bool parallel) {
  if (calls.size() != ground_truth.size()) return fmt::format("{} calls, expected {}", calls.size(), ground_truth.size());
  std::vector<bool> taken(calls.size(), false);
  for (size_t wanted = 0; wanted < ground_truth.size(); ++wanted) {
    const auto wanted_call = ground_truth[wanted].begin();
    const std::string& name = wanted_call.key();
    const Json& answer = wanted_call.value();
    const auto function = std::find_if(functions.begin(), functions.end(), [&](const Json& f) { return text_of(f, "name") == name; });
    if (function == functions.end()) return fmt::format("{} is not described", name);
    std::string fault = "every call is taken";
    bool found = false;
    // Greedy, as there: the first call that fits is taken.
    for (size_t i = parallel ? 0 : wanted; i < (parallel ? calls.size() : wanted + 1) && !found; ++i) {
      if (taken[i]) continue;
      fault = call_fault(*function, calls[i], answer);
      if (fault.empty()) taken[i] = found = true;
    }
    if (!found) return fault;
  }
  return {};
}

}  // namespace ingot::eval
