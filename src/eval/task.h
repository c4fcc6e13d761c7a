// What an evaluation is: questions, each a request to an OpenAI-compatible server, and a rule that scores the answers. A task is made by a
// pure function of files and options (gsm8k.h, gpqa.h, bfcl.h, demo_tasks.h); runner.h asks, report.h counts.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace ingot::eval {

struct ToolCall {
  std::string name;
  Json arguments;                                // an object; what the model wrote, as a string, where that is no JSON object
  bool operator==(const ToolCall& other) const;  // whatever the order of the keys
};

// One answer of a server, either endpoint's.
struct Answer {
  std::string content;  // without thoughts and calls, as far as the server parted them
  std::string reasoning;
  std::vector<ToolCall> calls;  // in order
  std::string finish_reason;    // the server's word: stop, length, tool_calls, ...
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;

  bool ended() const { return finish_reason == "stop" || finish_reason == "tool_calls"; }
};

// The first choice of a /v1/completions or /v1/chat/completions reply. Errors: a reply without one.
Result<Answer> parse_answer(const Json& reply);

// What follows the last "</think>": servers that do not part thoughts from the answer leave both in the content. A template that opens
// <think> in the prompt leaves the closing tag alone; without one all is answer.
std::string_view after_thoughts(std::string_view content);

struct Score {
  bool ok = false;                                  // by the task's first rule
  std::string extracted;                            // what the rule took for the answer; empty: nothing found
  bool no_answer = false;                           // the rule found nothing to score
  std::vector<std::pair<std::string, bool>> marks;  // further rules on the same answer, by name
  std::string why;                                  // of a wrong one, where the rule has a reason
};

struct Question {
  std::string id;                                           // unique in the task
  std::string cluster;                                      // questions with the same one are repeats of each other; empty: the id
  std::string path;                                         // "/v1/completions" or "/v1/chat/completions"
  Json body;                                                // all but the model's name
  Json key;                                                 // what the rule needs
  std::vector<std::pair<std::string, std::string>> groups;  // accuracy is shown by these, too: ("set", "simple_python")
};

struct Task {
  std::string name;        // "gsm8k"
  std::string rule;        // "lm-eval-3.0": changes whenever a prompt or a mark would
  std::string first_mark;  // the name of Score::ok among the marks; empty: "accuracy"
  std::string about;       // prompt and rule in a sentence, for the result
  std::string not_scored;  // what the published task scores and this does not; empty: nothing
  bool secret = false;     // questions and answers must not be stored or shown
  std::vector<Question> questions;
  std::function<Score(const Question&, const Answer&)> score;
};

// SHA-256, in hex.
std::string sha256_hex(std::string_view text);
// Of ids, paths and bodies: equal when two runs asked the same questions with the same settings.
std::string prompts_sha256(const Task& task);

// The objects of a file with one a line. Errors name file and line.
Result<std::vector<Json>> read_objects(const std::filesystem::path& path);
// A member's text; empty when it is absent or no string.
std::string text_of(const Json& object, const char* name);
// The same of a member that must be there. Errors name the member; `where` goes before.
Result<std::string> string_member(const Json& object, const char* name, std::string_view where);

}  // namespace ingot::eval
