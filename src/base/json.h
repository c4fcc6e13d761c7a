// JSON from outside: parsed with a depth limit, a clear place of the error, and no exceptions. Key order is kept.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ingot {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  int max_depth = 128;
  bool reject_duplicate_keys = false;  // else the last one counts, as in Python
};

// Parses exactly one JSON document. `what` names the source in the error ("config.json", "request body").
// Errors: syntax with byte position, invalid UTF-8, nesting over the limit, duplicate keys when rejected.
Result<Json> parse_json(std::string_view text, std::string_view what, const JsonLimits& limits = {});

// The documents of a text with one a line (JSON lines), in order; empty lines are passed over. `where` is "name:line". visit returns
// whether to go on. Errors: those of parse_json and of visit.
Result<> for_each_json_line(std::string_view text, std::string_view name,
                            const std::function<Result<bool>(Json line, const std::string& where)>& visit);

}  // namespace ingot
