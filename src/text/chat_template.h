// Chat templates in Jinja: the subset the field's templates use; anything else is an error with line and construct.
// Settings are those of transformers: trim_blocks, lstrip_blocks, loop controls, tojson as Python's json.dumps(ensure_ascii=False).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace ingot::text {

struct RenderLimits {
  int64_t max_steps = 20'000'000;  // evaluated nodes
  int64_t max_output_bytes = 64 << 20;
  int64_t max_live_bytes = 512 << 20;  // values alive at one time, the context and the text included
  int max_depth = 200;                 // nested macro calls; evaluated nodes may nest ten times as deep
};

class ChatTemplate {
 public:
  // `name` is used in errors. Parses everything, so an unsupported construct fails here and not at the first request.
  static Result<ChatTemplate> parse(std::string_view source, std::string_view name);

  // `context` is an object whose members are the template's variables (messages, tools, add_generation_prompt, ...).
  // Errors: line and reason; raise_exception() gives its own text; limits exceeded.
  // `now_unix_seconds` is the time that strftime_now() prints, in UTC (add an offset for local time); without it the template
  // finds no strftime_now, as it would in a host that has no clock.
  Result<std::string> render(const Json& context, const RenderLimits& limits = {}, std::optional<int64_t> now_unix_seconds = {}) const;

  struct Program;

 private:
  std::shared_ptr<const Program> program_;
};

}  // namespace ingot::text
