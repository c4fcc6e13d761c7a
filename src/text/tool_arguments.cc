#include "text/tool_arguments.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "text/utf8_text.h"

namespace ingot::text {
namespace {

// Schemas nest through references; a cycle of them ends here.
constexpr int kMaxSchemaDepth = 16;

// And they fan out: the work on one argument, in looked-at members of schemas, ends here.
constexpr size_t kMaxSchemaWork = 10'000;

struct Walk {
  const Json& root;
  size_t work = 0;
  // False when the work is used up.
  bool spend(size_t n) {
    work += std::min(n, kMaxSchemaWork);
    return work <= kMaxSchemaWork;
  }
};

// JSON pointer escapes: ~1 is '/', ~0 is '~'.
std::string unescape_pointer(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '~' && i + 1 < text.size();
    out += !escape ? text[i] : text[++i] == '1' ? '/' : '~';
  }
  return out;
}

const Json* resolve_reference(Walk& walk, std::string_view reference) {
  if (!walk.spend(reference.size() / 64) || !reference.starts_with("#/")) return nullptr;
  const Json* at = &walk.root;
  reference.remove_prefix(2);
  while (!reference.empty()) {
    const size_t slash = reference.find('/');
    const std::string part = unescape_pointer(reference.substr(0, slash));
    if (at->is_array()) {
      size_t index = 0;
      const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
      if (error != std::errc() || end != part.data() + part.size() || index >= at->size() || !walk.spend(1)) return nullptr;
      at = &(*at)[index];
    } else {
      if (!at->is_object() || !walk.spend(1 + at->size() / 16)) return nullptr;
      const auto found = at->find(part);
      if (found == at->end()) return nullptr;
      at = &*found;
    }
    reference = slash == std::string_view::npos ? std::string_view() : reference.substr(slash + 1);
  }
  return at;
}

void allow(ArgumentType& out, std::string_view word) {
  if (word.size() > std::string_view("boolean").size()) return;
  std::string name(word);
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (name == "string") out.string = true;
  if (name == "number" || name == "float") out.number = out.integer = true;
  if (name == "integer") out.integer = true;
  if (name == "boolean") out.boolean = true;
  if (name == "null") out.null = true;
  if (name == "object" || name == "dict") out.object = true;
  if (name == "array" || name == "tuple") out.array = true;
  out.known = out.string || out.integer || out.boolean || out.null || out.object || out.array;
}

void allow_value(ArgumentType& out, const Json& value) {
  if (value.is_string())
    allow(out, "string");
  else if (value.is_boolean())
    allow(out, "boolean");
  else if (value.is_null())
    allow(out, "null");
  else if (value.is_number_integer())
    allow(out, "integer");
  else if (value.is_number())
    allow(out, "number");
  else if (value.is_object())
    allow(out, "object");
  else if (value.is_array())
    allow(out, "array");
}

void merge(ArgumentType& out, const ArgumentType& other) {
  out.string |= other.string;
  out.number |= other.number;
  out.integer |= other.integer;
  out.boolean |= other.boolean;
  out.null |= other.null;
  out.object |= other.object;
  out.array |= other.array;
  out.known |= other.known;
}

ArgumentType type_of(const Json& schema, Walk& walk, int depth) {
  ArgumentType out;
  if (!schema.is_object() || depth > kMaxSchemaDepth || !walk.spend(1 + schema.size() / 16)) return out;
  if (schema.contains("type")) {
    const Json& type = schema["type"];
    if (type.is_string()) allow(out, type.get_ref<const std::string&>());
    if (type.is_array()) {
      for (const Json& name : type) {
        if (!walk.spend(1)) break;
        if (name.is_string()) allow(out, name.get_ref<const std::string&>());
      }
    }
    if (schema.value("nullable", Json(false)) == Json(true)) allow(out, "null");
    if (out.known) return out;
  }
  if (schema.contains("const")) allow_value(out, schema["const"]);
  if (schema.contains("enum") && schema["enum"].is_array()) {
    for (const Json& value : schema["enum"]) {
      if (!walk.spend(1)) break;
      allow_value(out, value);
    }
  }
  if (schema.contains("$ref") && schema["$ref"].is_string()) {
    const Json* target = resolve_reference(walk, schema["$ref"].get_ref<const std::string&>());
    if (target != nullptr) merge(out, type_of(*target, walk, depth + 1));
  }
  for (const char* combinator : {"oneOf", "anyOf", "allOf"}) {
    if (!schema.contains(combinator) || !schema[combinator].is_array()) continue;
    for (const Json& part : schema[combinator]) {
      if (!walk.spend(1)) break;
      merge(out, type_of(part, walk, depth + 1));
    }
  }
  if (!out.known && (schema.contains("properties") || schema.contains("additionalProperties"))) allow(out, "object");
  if (!out.known && schema.contains("items")) allow(out, "array");
  return out;
}

// The declaration of `key`: among the properties, or among those of a combinator's parts.
ArgumentType type_of_property(const Json& parameters, const std::string& key, Walk& walk, int depth) {
  ArgumentType out;
  if (!parameters.is_object() || depth > kMaxSchemaDepth || !walk.spend(1 + parameters.size() / 16)) return out;
  if (parameters.contains("properties") && parameters["properties"].is_object()) {
    const Json& properties = parameters["properties"];
    const auto found = walk.spend(properties.size() / 16) ? properties.find(key) : properties.end();
    if (found != properties.end()) merge(out, type_of(*found, walk, depth + 1));
  }
  if (parameters.contains("$ref") && parameters["$ref"].is_string()) {
    const Json* target = resolve_reference(walk, parameters["$ref"].get_ref<const std::string&>());
    if (target != nullptr) merge(out, type_of_property(*target, key, walk, depth + 1));
  }
  for (const char* combinator : {"oneOf", "anyOf", "allOf"}) {
    if (!parameters.contains(combinator) || !parameters[combinator].is_array()) continue;
    for (const Json& part : parameters[combinator]) {
      if (!walk.spend(1)) break;
      merge(out, type_of_property(part, key, walk, depth + 1));
    }
  }
  return out;
}

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// Of the text of a JSON number: true when no digit other than 0 is behind the point, once the exponent has moved it. Exact for any length.
bool is_integral(std::string_view number) {
  const size_t exponent_at = std::min(number.find_first_of("eE"), number.size());
  const std::string_view mantissa = number.substr(0, exponent_at);
  const size_t last = mantissa.find_last_of("123456789");
  if (last == std::string_view::npos) return true;
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  const auto digits_behind =
      last > point ? static_cast<int64_t>(last - point) : static_cast<int64_t>(last) + 1 - static_cast<int64_t>(point);
  std::string_view digits = number.substr(std::min(exponent_at + 1, number.size()));
  if (digits.starts_with('+')) digits.remove_prefix(1);
  int64_t exponent = 0;
  // An exponent over 64 bits is a negative one: parse_json refuses what overflows a double.
  if (std::from_chars(digits.data(), digits.data() + digits.size(), exponent).ec == std::errc::result_out_of_range) return false;
  return digits_behind <= exponent;
}

// `text` is the JSON text of `value`.
bool allows(const ArgumentType& type, const Json& value, std::string_view text) {
  if (!type.known) return true;
  switch (value.type()) {
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return type.integer || type.number;
    case Json::value_t::number_float: return type.number || (type.integer && is_integral(text));
    case Json::value_t::boolean: return type.boolean;
    case Json::value_t::null: return type.null;
    case Json::value_t::object: return type.object;
    case Json::value_t::array: return type.array;
    default: return false;
  }
}

}  // namespace

ArgumentType argument_type(const Json& schema, const Json& root) {
  Walk walk{root};
  return type_of(schema, walk, 0);
}

ArgumentType argument_type(const Json& tools, std::string_view name, std::string_view key) {
  if (!tools.is_array()) return {};
  for (const Json& tool : tools) {
    if (!tool.is_object()) continue;
    const Json& function = tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object() || !function.contains("name") || function["name"] != name || !function.contains("parameters")) continue;
    Walk walk{function["parameters"]};
    return type_of_property(walk.root, std::string(key), walk, 0);
  }
  return {};
}

void append_json_escaped(std::string_view text, std::string& out) {
  std::string clean;
  append_replacing(text, true, clean);
  for (char c : clean) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          char buffer[8];
          std::snprintf(buffer, sizeof buffer, "\\u%04x", c);
          out += buffer;
        } else {
          out += c;
        }
    }
  }
}

std::string argument_json(std::string_view text, const ArgumentType& type) {
  if (!type.only_string()) {
    std::string_view word = trim(text);
    if (type.known && !type.string) {
      if (type.boolean && word == "True") word = "true";
      if (type.boolean && word == "False") word = "false";
      if (type.null && word == "None") word = "null";
    }
    const auto value = parse_json(word, "argument");
    if (value && !value->is_string() && allows(type, *value, word)) return std::string(word);
    // A quoted JSON string where something else is declared, or nothing is: it is that string.
    if (value && value->is_string() && !type.string) return std::string(word);
  }
  std::string out = "\"";
  append_json_escaped(text, out);
  return out + '"';
}

}  // namespace ingot::text
