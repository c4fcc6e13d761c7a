// JSON from outside: parsed with a depth limit, a clear place of the error, and no exceptions. Key order is kept.
#pragma once

#include <nlohmann/json.hpp>
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

}  // namespace ingot
