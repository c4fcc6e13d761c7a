#include "text/output_parser.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "text/tool_arguments.h"
#include "text/utf8_text.h"

namespace ingot::text {
namespace {

constexpr std::string_view kThink = "<think>", kEndThink = "</think>";
constexpr std::string_view kCall = "<tool_call>", kEndCall = "</tool_call>";
constexpr std::string_view kKey = "<arg_key>", kEndKey = "</arg_key>";
constexpr std::string_view kValue = "<arg_value>", kEndValue = "</arg_value>";
constexpr size_t kLongestTag = 12;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// Without the white space, and without the two characters \n that the model writes for a newline at times, at both ends.
std::string_view trim(std::string_view text) {
  for (;;) {
    if (!text.empty() && is_space(text.front()))
      text.remove_prefix(1);
    else if (text.starts_with("\\n"))
      text.remove_prefix(2);
    else
      break;
  }
  for (;;) {
    if (!text.empty() && is_space(text.back()))
      text.remove_suffix(1);
    else if (text.ends_with("\\n"))
      text.remove_suffix(2);
    else
      break;
  }
  return text;
}

}  // namespace

// A state a part of the format. Each step consumes from the front of `buffer`, or waits for more text; only text that may be the beginning
// of a tag (or, in the middle of a call, text that means nothing until its end has come) is kept back.
struct OutputParser::Impl {
  enum class State : uint8_t { start, reasoning_start, reasoning, content, after_call, name, between, key, before_value, value };

  explicit Impl(OutputParserOptions o) : options(std::move(o)) {
    state = !options.parse_reasoning ? State::content : options.starts_in_reasoning ? State::reasoning_start : State::start;
  }

  OutputParserOptions options;
  State state;
  std::string store;  // what has not been consumed, after `head` consumed bytes
  size_t head = 0;
  std::string_view buffer;  // store from head on
  size_t scanned = 0;       // of buffer, in states that wait: nothing they look for begins before this offset
  bool at_end = false;
  OutputDelta delta;

  bool from_reasoning = false;  // where the current <tool_call> stood
  bool name_begun = false;      // up to `scanned` the name has begun,
  bool name_gap = false;        // and white space has followed it

  int num_calls = 0;
  int num_arguments = 0;  // of the current call
  std::string call_name, argument_key;
  ArgumentType type;
  bool in_string = false;                     // the current value streams as a JSON string
  size_t null_scanned = 0, null_matched = 0;  // of an optional string: bytes read, letters of the word null among them
  bool in_stray = false;                      // text where only a tag may stand has begun

  void arguments(std::string text) {
    if (text.empty()) return;
    auto& calls = delta.tool_calls;
    if (calls.empty() || calls.back().index != num_calls - 1) calls.push_back({num_calls - 1, {}, {}});
    calls.back().arguments += text;
  }

  void receive(std::string_view text) {
    store.erase(0, head);
    head = 0;
    store.append(text);
    buffer = store;
  }

  void take(size_t n) {
    buffer.remove_prefix(n);
    head += n;
    scanned = 0;
  }

  // The first of the tags in the buffer: (offset, which), or (npos, -1).
  template <size_t N>
  std::pair<size_t, int> find_tag(const std::array<std::string_view, N>& tags) {
    std::pair<size_t, int> best{std::string::npos, -1};
    // One pass for all tags: a pass for each would read to the end of the buffer for a tag that is not there, once a step.
    for (size_t at = buffer.find('<', scanned); at != std::string::npos && best.second < 0; at = buffer.find('<', at + 1)) {
      for (size_t i = 0; i < N && best.second < 0; ++i) {
        if (buffer.substr(at).starts_with(tags[i])) best = {at, static_cast<int>(i)};
      }
    }
    if (best.second < 0) scanned = buffer.size() < kLongestTag ? 0 : buffer.size() - kLongestTag + 1;
    return best;
  }

  // How much of the buffer is certainly not the beginning of one of the tags.
  template <size_t N>
  size_t safe_length(const std::array<std::string_view, N>& tags) const {
    if (at_end) return buffer.size();
    size_t keep = 0;
    for (std::string_view tag : tags) {
      for (size_t n = std::min(tag.size() - 1, buffer.size()); n > keep; --n) {
        if (tag.starts_with(buffer.substr(buffer.size() - n))) {
          keep = n;
          break;
        }
      }
    }
    return buffer.size() - keep;
  }

  // True when the buffer begins with `tag`; `maybe` when more text could make it so.
  bool begins_with(std::string_view tag, bool& maybe) const {
    if (buffer.starts_with(tag)) return true;
    if (!at_end && buffer.size() < tag.size() && tag.starts_with(buffer)) maybe = true;
    return false;
  }

  // Each step returns false when it waits for more text.
  bool step() {
    switch (state) {
      case State::start: return step_start();
      case State::reasoning_start: return step_reasoning_start();
      case State::reasoning: return step_reasoning();
      case State::content: return step_content();
      case State::after_call: return step_after_call();
      case State::name: return step_name();
      case State::between: return step_between();
      case State::key: return step_key();
      case State::before_value: return step_before_value();
      case State::value: return step_value();
    }
    return false;
  }

  bool step_start() {
    const size_t text = buffer.find_first_not_of(" \t\r\n", scanned);
    scanned = std::min(text, buffer.size());
    if (text == std::string::npos && !at_end) return false;
    const std::string_view rest = buffer.substr(scanned);
    if (rest.starts_with(kThink)) {
      take(text + kThink.size());
      state = State::reasoning;
      return true;
    }
    if (!at_end && kThink.starts_with(rest)) return false;
    take(0);
    state = State::content;
    return true;
  }

  // The prompt has opened <think> already; some models repeat it.
  bool step_reasoning_start() {
    bool maybe = buffer.empty() && !at_end;
    if (begins_with(kThink, maybe)) take(kThink.size());
    if (maybe) return false;
    state = State::reasoning;
    return true;
  }

  bool step_reasoning() {
    const std::array<std::string_view, 2> tags{kEndThink, options.parse_tool_calls ? kCall : kEndThink};
    const auto [at, which] = find_tag(tags);
    if (which < 0) {
      const size_t n = safe_length(tags);
      delta.reasoning.append(buffer, 0, n);
      take(n);
      return false;
    }
    delta.reasoning.append(buffer, 0, at);
    take(at + tags[static_cast<size_t>(which)].size());
    if (which == 0)
      state = State::content;
    else
      begin_name(true);
    return true;
  }

  bool step_content() {
    if (!options.parse_tool_calls) {
      delta.content += buffer;
      take(buffer.size());
      return false;
    }
    const std::array<std::string_view, 1> tags{kCall};
    const auto [at, which] = find_tag(tags);
    if (which < 0) {
      const size_t n = safe_length(tags);
      delta.content.append(buffer, 0, n);
      take(n);
      return false;
    }
    delta.content.append(buffer, 0, at);
    take(at + kCall.size());
    begin_name(false);
    return true;
  }

  // White space between calls belongs to nobody.
  bool step_after_call() {
    const size_t text = buffer.find_first_not_of(" \t\r\n");
    take(text == std::string::npos ? buffer.size() : text);
    if (buffer.empty()) return false;
    state = State::content;
    return true;
  }

  void begin_name(bool in_reasoning) {
    from_reasoning = in_reasoning;
    name_begun = name_gap = false;
    state = State::name;
  }

  // Reads a name on from `scanned`. found: at the tag that ends it. not_a_name: white space inside, so this is prose about the tag.
  enum class Name : uint8_t { waits, found, not_a_name };
  Name scan_name(bool& has_arguments) {
    for (;; ++scanned) {
      const std::string_view rest = buffer.substr(scanned);
      if (rest.empty()) return at_end ? Name::not_a_name : Name::waits;
      if (is_space(rest[0])) {
        name_gap = name_begun;
        continue;
      }
      if (rest.starts_with("\\n")) {
        ++scanned;
        continue;
      }
      if (!at_end && rest == "\\") return Name::waits;
      if (rest[0] == '<') {
        const auto is = [&](std::string_view tag) { return rest.starts_with(tag); };
        has_arguments = is(kKey);
        if (has_arguments || is(kEndCall)) return name_begun ? Name::found : Name::not_a_name;
        if (is(kCall) || (from_reasoning && is(kEndThink))) return Name::not_a_name;
        const auto may_be = [&](std::string_view tag) { return tag.starts_with(rest); };
        if (!at_end && (may_be(kKey) || may_be(kEndCall) || may_be(kCall) || (from_reasoning && may_be(kEndThink)))) return Name::waits;
      }
      if (name_gap) return Name::not_a_name;
      name_begun = true;
    }
  }

  bool step_name() {
    bool has_arguments = false;
    const Name found = scan_name(has_arguments);
    if (found == Name::waits) return false;
    const size_t at = scanned;
    if (found == Name::not_a_name) {
      // Not a call after all: the text, with the tag, belongs to where it stood.
      (from_reasoning ? delta.reasoning : delta.content).append(kCall).append(buffer, 0, at);
      take(at);
      state = from_reasoning ? State::reasoning : State::content;
      return true;
    }
    const std::string_view name = trim(buffer.substr(0, at));
    call_name.clear();
    append_clean(name, call_name);
    ++num_calls;
    num_arguments = 0;
    delta.tool_calls.push_back({num_calls - 1, call_name, {}});
    if (has_arguments) {
      take(at);  // the tag is read by the next state
      state = State::between;
    } else {
      take(at + kEndCall.size());
      end_call();
    }
    return true;
  }

  static void append_clean(std::string_view text, std::string& out) { append_replacing(text, true, out); }

  void end_call() {
    arguments(num_arguments == 0 ? "{}" : "}");
    state = State::after_call;
  }

  // White space, and a newline written as two characters, may stand between tags. True when something else is in front now.
  bool skip_filler() {
    while (!in_stray) {
      size_t n = 0;
      while (n < buffer.size() && is_space(buffer[n])) ++n;
      if (buffer.substr(n).starts_with("\\n")) n += 2;
      if (n == 0) break;
      take(n);
    }
    return !buffer.empty() && (at_end || in_stray || buffer != "\\");
  }

  // Text where only a tag may stand is not lost: up to the next '<' it goes to the content.
  void stray() {
    const size_t n = std::min(buffer.find('<', 1), buffer.size());
    delta.content.append(buffer, 0, n);
    take(n);
    in_stray = true;
  }

  void take_tag(std::string_view tag) {
    take(tag.size());
    in_stray = false;
  }

  bool step_between() {
    if (!skip_filler()) return false;
    bool maybe = false;
    if (begins_with(kKey, maybe)) {
      take_tag(kKey);
      state = State::key;
      return true;
    }
    if (begins_with(kEndCall, maybe)) {
      take_tag(kEndCall);
      end_call();
      return true;
    }
    if (begins_with(kCall, maybe)) {
      in_stray = false;
      end_call();  // a new call without the end of this one
      return true;
    }
    if (maybe) return false;
    stray();
    return true;
  }

  bool step_key() {
    const std::array<std::string_view, 3> tags{kEndKey, kEndCall, kCall};
    const auto [at, which] = find_tag(tags);
    if (which < 0 && !at_end) return false;
    if (which != 0) {
      // The call ends inside the key: there is no such argument, and the text is content.
      delta.content.append(buffer, 0, at);
      take(std::min(at, buffer.size()));
      state = State::between;
      return true;
    }
    argument_key.clear();
    append_clean(trim(buffer.substr(0, at)), argument_key);
    take(at + kEndKey.size());
    type = argument_type(options.tools, call_name, argument_key);
    in_string = false;
    state = State::before_value;
    return true;
  }

  void begin_argument() {
    std::string text = num_arguments++ == 0 ? "{\"" : ", \"";
    append_json_escaped(argument_key, text);
    arguments(text + "\": ");
  }

  bool step_before_value() {
    if (!skip_filler() && !at_end) return false;
    bool maybe = false;
    if (begins_with(kValue, maybe)) {
      take_tag(kValue);
      begin_argument();
      if (type.only_string()) {
        in_string = true;
        arguments("\"");
      }
      null_scanned = null_matched = 0;
      state = State::value;
      return true;
    }
    if (begins_with(kKey, maybe) || begins_with(kEndCall, maybe) || begins_with(kCall, maybe) || buffer.empty()) {
      in_stray = false;
      begin_argument();
      arguments("null");  // a key without a value
      state = State::between;
      return !buffer.empty();
    }
    if (maybe) return false;
    stray();
    return true;
  }

  // True when a value that begins with the first n bytes of the buffer is not the word null, white space around it apart.
  bool differs_from_null(size_t n) {
    constexpr std::string_view kNull = "null";
    for (; null_scanned < n; ++null_scanned) {
      const char c = buffer[null_scanned];
      if (is_space(c) && (null_matched == 0 || null_matched == kNull.size())) continue;
      if (null_matched == kNull.size() || c != kNull[null_matched]) return true;
      ++null_matched;
    }
    return false;
  }

  bool step_value() {
    const std::array<std::string_view, 1> tags{kEndValue};
    const auto [at, which] = find_tag(tags);
    if (!in_string && type.optional_string() && differs_from_null(which < 0 ? safe_length(tags) : at)) {
      in_string = true;
      arguments("\"");
    }
    if (in_string) {
      size_t n = which < 0 ? safe_length(tags) : at;
      // Half a character waits for its other half.
      if (which < 0 && !at_end) {
        std::string ignored;
        n = append_replacing(buffer.substr(0, n), false, ignored);
      }
      std::string escaped;
      append_json_escaped(buffer.substr(0, n), escaped);
      take(which < 0 ? n : at + kEndValue.size());
      if (which >= 0 || at_end) escaped += '"';
      arguments(std::move(escaped));
    } else {
      if (which < 0 && !at_end) return false;
      arguments(argument_json(buffer.substr(0, at), type));
      take(which < 0 ? buffer.size() : at + kEndValue.size());
    }
    if (which >= 0 || at_end) {
      state = State::between;
      return true;
    }
    return false;
  }

  OutputDelta run() {
    while (step()) {
    }
    return std::exchange(delta, {});
  }
};

OutputParser::OutputParser(OutputParserOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
OutputParser::~OutputParser() = default;
OutputParser::OutputParser(OutputParser&&) noexcept = default;

OutputDelta OutputParser::push(std::string_view text) {
  INGOT_CHECK(!impl_->at_end, "push after finish");
  impl_->receive(text);
  return impl_->run();
}

OutputDelta OutputParser::finish() {
  impl_->at_end = true;
  OutputDelta delta = impl_->run();
  switch (impl_->state) {
    case Impl::State::between:
    case Impl::State::key:
    case Impl::State::before_value:
    case Impl::State::value: {
      impl_->end_call();
      OutputDelta rest = std::exchange(impl_->delta, {});
      for (auto& call : rest.tool_calls) {
        if (!delta.tool_calls.empty() && delta.tool_calls.back().index == call.index)
          delta.tool_calls.back().arguments += call.arguments;
        else
          delta.tool_calls.push_back(std::move(call));
      }
      break;
    }
    default: break;
  }
  return delta;
}

int OutputParser::num_tool_calls() const { return impl_->num_calls; }

}  // namespace ingot::text
