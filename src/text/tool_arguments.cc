#include "text/tool_arguments.h"

#include <cstdio>

#include "text/utf8_text.h"

namespace ingot::text {
namespace {

// Schemas nest through references; a cycle of them ends here.
constexpr int kMaxSchemaDepth = 16;

const Json* resolve_reference(const Json& root, std::string_view reference) {
  if (!reference.starts_with("#/")) return nullptr;
  const Json* at = &root;
  reference.remove_prefix(2);
  while (!reference.empty()) {
    const size_t slash = reference.find('/');
    std::string part(reference.substr(0, slash));
    // JSON pointer escapes: ~1 is '/', ~0 is '~'.
    for (size_t i = 0; (i = part.find('~', i)) != std::string::npos && i + 1 < part.size(); ++i)
      part.replace(i, 2, part[i + 1] == '1' ? "/" : "~");
    if (!at->is_object() || !at->contains(part)) return nullptr;
    at = &(*at)[part];
    reference = slash == std::string_view::npos ? std::string_view() : reference.substr(slash + 1);
  }
  return at;
}

void allow(ArgumentType& out, const std::string& name) {
  out.known = true;
  if (name == "string") out.string = true;
  if (name == "number" || name == "float") out.number = out.integer = true;
  if (name == "integer") out.integer = true;
  if (name == "boolean") out.boolean = true;
  if (name == "null") out.null = true;
  if (name == "object" || name == "dict") out.object = true;
  if (name == "array" || name == "tuple") out.array = true;
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

ArgumentType type_of(const Json& schema, const Json& root, int depth) {
  ArgumentType out;
  if (!schema.is_object() || depth > kMaxSchemaDepth) return out;
  if (schema.contains("type")) {
    const Json& type = schema["type"];
    if (type.is_string()) allow(out, type.get<std::string>());
    if (type.is_array()) {
      for (const Json& name : type) {
        if (name.is_string()) allow(out, name.get<std::string>());
      }
    }
    if (schema.value("nullable", Json(false)) == Json(true)) allow(out, "null");
    if (out.known) return out;
  }
  if (schema.contains("const")) allow_value(out, schema["const"]);
  if (schema.contains("enum") && schema["enum"].is_array()) {
    for (const Json& value : schema["enum"]) allow_value(out, value);
  }
  if (schema.contains("$ref") && schema["$ref"].is_string()) {
    const Json* target = resolve_reference(root, schema["$ref"].get_ref<const std::string&>());
    if (target != nullptr) merge(out, type_of(*target, root, depth + 1));
  }
  for (const char* combinator : {"oneOf", "anyOf", "allOf"}) {
    if (!schema.contains(combinator) || !schema[combinator].is_array()) continue;
    for (const Json& part : schema[combinator]) merge(out, type_of(part, root, depth + 1));
  }
  if (!out.known && (schema.contains("properties") || schema.contains("additionalProperties"))) allow(out, "object");
  if (!out.known && schema.contains("items")) allow(out, "array");
  return out;
}

// The declaration of `key`: among the properties, or among those of a combinator's parts.
ArgumentType type_of_property(const Json& parameters, const std::string& key, const Json& root, int depth) {
  ArgumentType out;
  if (!parameters.is_object() || depth > kMaxSchemaDepth) return out;
  if (parameters.contains("properties") && parameters["properties"].is_object() && parameters["properties"].contains(key)) {
    merge(out, type_of(parameters["properties"][key], root, depth + 1));
  }
  if (parameters.contains("$ref") && parameters["$ref"].is_string()) {
    const Json* target = resolve_reference(root, parameters["$ref"].get_ref<const std::string&>());
    if (target != nullptr) merge(out, type_of_property(*target, key, root, depth + 1));
  }
  for (const char* combinator : {"oneOf", "anyOf", "allOf"}) {
    if (!parameters.contains(combinator) || !parameters[combinator].is_array()) continue;
    for (const Json& part : parameters[combinator]) merge(out, type_of_property(part, key, root, depth + 1));
  }
  return out;
}

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

bool allows(const ArgumentType& type, const Json& value) {
  if (!type.known) return true;
  switch (value.type()) {
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return type.integer || type.number;
    case Json::value_t::number_float: return type.number;
    case Json::value_t::boolean: return type.boolean;
    case Json::value_t::null: return type.null;
    case Json::value_t::object: return type.object;
    case Json::value_t::array: return type.array;
    default: return false;
  }
}

}  // namespace

ArgumentType argument_type(const Json& schema, const Json& root) { return type_of(schema, root, 0); }

ArgumentType argument_type(const Json& tools, std::string_view name, std::string_view key) {
  if (!tools.is_array()) return {};
  for (const Json& tool : tools) {
    if (!tool.is_object()) continue;
    const Json& function = tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object() || !function.contains("name") || function["name"] != name || !function.contains("parameters")) continue;
    return type_of_property(function["parameters"], std::string(key), function["parameters"], 0);
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
    if (word == "True") word = "true";
    if (word == "False") word = "false";
    if (word == "None") word = "null";
    const auto value = parse_json(word, "argument");
    if (value && !value->is_string() && allows(type, *value)) return std::string(word);
    // A quoted JSON string where something else is declared, or nothing is: it is that string.
    if (value && value->is_string() && !type.string) return std::string(word);
  }
  std::string out = "\"";
  append_json_escaped(text, out);
  return out + '"';
}

}  // namespace ingot::text
