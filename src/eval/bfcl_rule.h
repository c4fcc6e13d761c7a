// The Berkeley Function Calling Leaderboard's AST rule (v4, Python sets): whether calls are those wanted, read from what was called with
// what. Follows the published checker in its oddities, too; each is said where it is.
#pragma once

#include <string>
#include <vector>

#include "eval/task.h"

namespace ingot::eval {

// Dots in names become underscores in what a server is asked (OpenAI allows no dots), so here, too.
std::string bfcl_called_name(std::string name);

// The reason why `calls` are wrong; empty: they are right.
//   functions     as in the data, types "dict", "float", ...
//   ground_truth  [{name: {argument: [values allowed; "" = may be left out]}}, ...], one object a call, in any order when `parallel`
std::string bfcl_fault(const Json& functions, const std::vector<ToolCall>& calls, const Json& ground_truth, bool parallel);

}  // namespace ingot::eval
