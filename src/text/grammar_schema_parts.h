// Small tables and arithmetic of schemas: formats, steps of numbers, constants as JSON, arguments of a tool call. Used by grammar_schema
// and grammar_tools.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/grammar_rules.h"

namespace ingot::text {

inline constexpr int kMaxDecimals = 9;  // digits behind the point of a number with bounds

// The regular expression of a `format`; empty: not supported. Of its language all is valid, but not all that is valid is in it.
std::string_view format_pattern(std::string_view format);
std::string supported_formats();

// 1 -> 0, 0.1 -> 1, 0.01 -> 2, ... 1e-9 -> 9; nothing else is a step of decimal digits.
std::optional<int> decimals_of(double step);

// The multiples of an integer between two bounds as literals, when they are 1 to 1000.
std::vector<std::string> multiples_between(double step, const std::optional<NumberBound>& low, const std::optional<NumberBound>& high);

// A constant as compact JSON, a literal of a rule; in a tag `</` is written `<\/`.
std::string json_literal(const Json& value, Spelling spelling);

// One argument of a call in the model's own format; `key` and `text` are what a rule says of them.
std::string argument_pair(std::string_view key, std::string_view text);

}  // namespace ingot::text
