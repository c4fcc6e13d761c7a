// Model text to reasoning, content and tool calls, incrementally (GLM format: spec 8.6). The concatenation of all deltas does not depend
// on how the text was cut; the time is linear in the text. A call of a tool that was not declared is still a call: the client can answer
// it with an error the model understands.
//
// No text is lost, except the tags that were understood and this white space (space, tab, CR, LF; with * also a newline written as the
// two characters \n):
//   - before a <think> that opens the answer;
//   - after a call, up to the next text or call;
//   - around a call's name and an argument's key*, between the tags inside a call up to any other text there*, and around a value that
//     is not a string (a string keeps every byte).
// What is not a well-formed part of a call goes where it stood:
//   - <tool_call> without a name up to its tag, or with white space inside the name, is prose: it stays reasoning or content, tag included;
//   - text where only a tag may stand in a call, and a key that the end of the call or a new call cuts short, are content without tags;
//   - a key without a value has the value null.
// Used by serve; one object an answer, one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace ingot::text {

struct ToolCallDelta {
  int index = 0;
  std::string name;       // whole, in the first delta of a call; empty afterwards
  std::string arguments;  // a piece of the JSON text of the arguments object
};

struct OutputDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallDelta> tool_calls;
  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

struct OutputParserOptions {
  bool starts_in_reasoning = false;  // the prompt ended inside an open <think>
  bool parse_reasoning = true;       // false: think tags are plain text
  bool parse_tool_calls = false;     // true when the request declares tools
  Json tools = Json::array();        // OpenAI tools array: decides how argument values are typed
};

class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);
  ~OutputParser();
  OutputParser(OutputParser&&) noexcept;

  OutputDelta push(std::string_view text);
  OutputDelta finish();  // flushes what waits; an unfinished tool call is closed to valid JSON
  int num_tool_calls() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ingot::text
