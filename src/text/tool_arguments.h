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
  bool only_string() const { return optional_string() && !null; }
  // A string, or a string and null.
  bool optional_string() const { return known && string && !number && !integer && !boolean && !object && !array; }
};

// Looks at type (one or a list, in any case; a word that is no type says nothing), enum, const, properties, items, and through $ref
// ("#/..." in `root`), oneOf, anyOf and allOf. A schema is the client's: the work is bounded, and what was found until then counts.
ArgumentType argument_type(const Json& schema, const Json& root);

// The type of argument `key` of tool `name` in an OpenAI tools array; unknown when the tool or the key is not declared.
ArgumentType argument_type(const Json& tools, std::string_view name, std::string_view key);

// One JSON value. A string type keeps the text as it is. Any other type: the text as written, when it is strict JSON of an allowed type (a
// number of integral value is an integer, 1.0 and more than 64 bits included), else a JSON string of the text. True, False and None are
// read as JSON's words where those are allowed and a string is not. Unknown: the text when it is strict JSON, else a string.
std::string argument_json(std::string_view text, const ArgumentType& type);

// Appends `text` escaped for the inside of a JSON string. Bytes that are not UTF-8 become U+FFFD.
void append_json_escaped(std::string_view text, std::string& out);

}  // namespace ingot::text
