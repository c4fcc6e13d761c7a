// BFCL v4's single-turn sets (ShishirPatil/gorilla): functions are described to the server as tools, its calls are scored by the AST rule
// (bfcl_rule.h). Sets with "irrelevance" in the name: right without a call; "relevance": right with one at least.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "eval/task.h"

namespace ingot::eval {

struct BfclOptions {
  std::filesystem::path data;  // folder with BFCL_v4_<set>.json and possible_answer/
  std::vector<std::string> sets = {"simple_python"};
  int64_t max_tokens = 4096;
  std::optional<bool> enable_thinking;
};

const std::vector<std::string>& bfcl_sets();
// Errors name the set, the file and the question.
Result<Task> make_bfcl(const BfclOptions& options);
// A function as it goes into a request: JSON Schema's types for Python's.
Json bfcl_tool(const Json& function);

}  // namespace ingot::eval
