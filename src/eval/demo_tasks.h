// The demo model's own sets and others like them (tools/demo_model): word problems, tool calls, facts to be found in a long text.
//
// A line of a file is a JSON object: id, kind (word, tool, retr), messages, tools, enable_thinking, reasoning_effort, and `expected`:
//   word   a number: right when it is what first follows "#### " in the answer
//   retr   a string: right when it occurs in the answer as a word of its own
//   tool   {"calls": [{"name", "arguments"}]}: right when the answer makes these calls, in this order, and no other. With no calls
//          expected the answer must be text that came to its end.
// Only what follows the thoughts is looked at. steps, family, form and the number of expected calls are what accuracy is shown by.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "eval/task.h"

namespace ingot::eval {

// One answer, as it is scored.
struct DemoAnswer {
  std::string content;          // without thoughts and calls
  std::vector<ToolCall> calls;  // in order
  bool ended = false;           // by a token that ends an answer, not by length
  bool ended_in_call = false;   // by the token that asks for the calls' results, where the vocabulary has one
};
// Errors: a task without `kind` or `expected`, or of an unknown kind.
Result<bool> score_demo_answer(const Json& task, const DemoAnswer& answer);

// The longest answer that the published figures of the demo model allowed: word 220, tool 260, retr 60 tokens.
int64_t demo_answer_limit(const std::string& kind);
// ("steps", "2"), ("family", "f_pct"), ...
std::vector<std::pair<std::string, std::string>> demo_groups(const Json& task);

struct DemoOptions {
  std::vector<std::filesystem::path> data;  // files, or folders whose .jsonl files are taken
  int64_t max_tokens = 0;                   // 0: demo_answer_limit
};
// Errors name the file and the task.
Result<Task> make_demo_tasks(const DemoOptions& options);

}  // namespace ingot::eval
