// JSON as Python's json.dumps(value, sort_keys=True) prints it: what published state hashes are made of.
#pragma once

#include <string>

#include "base/json.h"

namespace ingot::eval {

// ", " and ": " between, keys sorted by code point, ASCII escapes, floats as Python's repr. Integers and floats stay apart: 1 and 1.0.
std::string python_dumps_sorted(const Json& value);
// Python's round(value, 2): to the nearest, halves (which few doubles are) to even.
double python_round2(double value);

}  // namespace ingot::eval
