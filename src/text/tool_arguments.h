// How the text of one tool-call argument becomes JSON: by the type that the tool's JSON schema declares. Used by OutputParser.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace ingot::text {

// Which JSON types a schema allows, as a set.
struct ArgumentType {
  bool string = false, number = false, integer = false, boolean = false, null = false, object = false, array = false;
  bool known = false;  // false: the schema says nothing
  bool only_string() const { return known && string && !number && !integer && !boolean && !null && !object && !array; }
};

// Looks at type (one or a list), enum, const, properties, items, and through $ref ("#/..." in `root`), oneOf, anyOf and allOf.
ArgumentType argument_type(const Json& schema, const Json& root);

// The type of argument `key` of tool `name` in an OpenAI tools array; unknown when the tool or the key is not declared.
ArgumentType argument_type(const Json& tools, std::string_view name, std::string_view key);

// One JSON value. A string type keeps the text as it is. Any other type: the text, when it is strict JSON of an allowed type (True, False
// and None are read as JSON's words), else a JSON string of the text. Unknown: the text when it is strict JSON, else a string.
std::string argument_json(std::string_view text, const ArgumentType& type);

// Appends `text` escaped for the inside of a JSON string. Bytes that are not UTF-8 become U+FFFD.
void append_json_escaped(std::string_view text, std::string& out);

}  // namespace ingot::text
