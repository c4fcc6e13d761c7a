// Bytes as a Jinja template: they parse and render a small conversation within the limits, or give an error with a line.
// Input: the template alone, so that a seed is a template as it is.
#include "text/chat_template.h"

#include <time.h>

#include "fuzz.h"

namespace ingot::text {
namespace {

constexpr RenderLimits kLimits{.max_steps = 50'000, .max_output_bytes = 64 << 10, .max_live_bytes = 8 << 20, .max_depth = 50};
// The limits bound the work of a step too; this many seconds of this thread's own time, instrumented, are far beyond them.
constexpr double kMaxSeconds = 5;
constexpr int64_t kNow = 1'768'478'400;

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

const Json& conversation() {
  static const Json context = Json::parse(R"({
    "messages": [
      {"role": "system", "content": "Be brief."},
      {"role": "user", "content": [{"type": "text", "text": "Wörter 😀\n <b>&"}]},
      {"role": "assistant", "content": "a</think>b", "reasoning_content": "hm", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"s": "x", "i": -7, "n": 2.5, "z": null}}}]},
      {"role": "tool", "content": "{\"ok\": true}", "tool_call_id": "c1"},
      {"role": "user", "content": "  and\tnow?  "}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}],
    "add_generation_prompt": true, "enable_thinking": false, "n": 7, "f": 2.5, "s": "Hello wörld", "xs": [3, 1, 2],
    "nested": [[1, 2], [3, [4]]], "big": 18446744073709551615, "d": {"b": 1, "a": {"x": "y"}}, "nil": null})");
  return context;
}

void run(std::string_view source) {
  const double begin = thread_seconds();
  const auto parsed = ChatTemplate::parse(source, "fuzzed.jinja");
  if (!parsed) {
    INGOT_CHECK(parsed.error().message.find("fuzzed.jinja") != std::string::npos, "no place in: {}", parsed.error().message);
  } else {
    const auto text = parsed->render(conversation(), kLimits, kNow);
    if (text) INGOT_CHECK(static_cast<int64_t>(text->size()) <= kLimits.max_output_bytes, "{} bytes came out", text->size());
  }
  const double seconds = thread_seconds() - begin;
  INGOT_CHECK(seconds < kMaxSeconds, "a template of {} bytes took {} s", source.size(), seconds);
}

}  // namespace
}  // namespace ingot::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ingot::text::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
