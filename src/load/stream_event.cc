#include "load/stream_event.h"

#include <vector>

#include "base/json.h"

namespace ingot::load {

namespace {
// Where a value stands that we look at. Everything else is `other`, and what is in it, too.
enum class Place : uint8_t {
  root,
  choices,
  choice,
  delta,
  tool_calls,
  tool_call,
  function,
  logprobs,
  logprob_content,
  logprob_tokens,
  usage,
  prompt_details,
  speculative,
  error,
  other
};

class Handler {
 public:
  Handler(StreamEvent& event, bool want_content) : event_(event), want_content_(want_content) {}

  bool null() { return leaf(); }
  bool boolean(bool) { return leaf(); }
  bool number_integer(Json::number_integer_t value) { return number(static_cast<double>(value)); }
  bool number_unsigned(Json::number_unsigned_t value) { return number(static_cast<double>(value)); }
  bool number_float(Json::number_float_t value, const std::string&) { return number(value); }
  bool binary(Json::binary_t&) { return leaf(); }

  bool string(std::string& value) {
    leaf();
    if (value.empty()) return true;
    switch (place()) {
      case Place::delta:
        if (key_ == "content") take_content(value);
        if (key_ == "reasoning_content" || key_ == "reasoning") event_.has_reasoning = true;
        break;
      case Place::choice:
        if (key_ == "text") take_content(value);
        if (key_ == "finish_reason") event_.finish_reason = value;
        break;
      case Place::function:
        if (key_ == "name" || key_ == "arguments") event_.has_tool_call = true;
        break;
      case Place::error:
        if (key_ == "message") event_.error = value;
        break;
      case Place::root:
        if (key_ == "error") event_.error = value;
        break;
      default: break;
    }
    return true;
  }

  bool start_object(std::size_t) {
    Place next = Place::other;
    switch (stack_.empty() ? Place::other : place()) {
      case Place::root:
        if (key_ == "usage") next = Place::usage, event_.usage.emplace();
        if (key_ == "error") next = Place::error, event_.error = "an error event without a message";
        break;
      case Place::choices: next = Place::choice; break;
      case Place::choice:
        if (key_ == "delta") next = Place::delta;
        if (key_ == "logprobs") next = Place::logprobs;
        break;
      case Place::tool_calls: next = Place::tool_call; break;
      case Place::tool_call:
        if (key_ == "function") next = Place::function;
        break;
      case Place::usage:
        if (key_ == "prompt_tokens_details") next = Place::prompt_details;
        if (key_ == "speculative") next = Place::speculative;
        break;
      case Place::logprob_content: ++event_.logprob_tokens; break;
      default: break;
    }
    stack_.push_back(stack_.empty() ? Place::root : next);
    return true;
  }
  bool key(std::string& name) {
    key_.swap(name);
    return true;
  }
  bool end_object() {
    stack_.pop_back();
    return true;
  }
  bool start_array(std::size_t) {
    Place next = Place::other;
    switch (stack_.empty() ? Place::other : place()) {
      case Place::root:
        if (key_ == "choices") next = Place::choices;
        break;
      case Place::delta:
        if (key_ == "tool_calls") next = Place::tool_calls;
        break;
      case Place::logprobs:
        // Chats list objects under "content" (and, of reasoning, under a name of their own); completions list texts under "tokens".
        if (key_ == "content" || key_ == "reasoning_content") next = Place::logprob_content;
        if (key_ == "tokens") next = Place::logprob_tokens;
        if (next != Place::other && event_.logprob_tokens < 0) event_.logprob_tokens = 0;
        break;
      default: break;
    }
    stack_.push_back(next);
    return true;
  }
  bool end_array() {
    stack_.pop_back();
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) { return false; }

 private:
  Place place() const { return stack_.back(); }

  bool leaf() {
    if (!stack_.empty() && place() == Place::logprob_tokens) ++event_.logprob_tokens;
    return true;
  }
  bool number(double value) {
    leaf();
    if (stack_.empty()) return true;
    const auto count = static_cast<int64_t>(value);
    if (place() == Place::usage) {
      if (key_ == "prompt_tokens") event_.usage->prompt_tokens = count;
      if (key_ == "completion_tokens") event_.usage->completion_tokens = count;
    } else if (place() == Place::prompt_details) {
      if (key_ == "cached_tokens") event_.usage->cached_tokens = count;
    } else if (place() == Place::speculative) {
      if (key_ == "mean_acceptance_length") event_.usage->mean_acceptance_length = value;
      if (key_ == "drafted") event_.usage->drafted = count;
      if (key_ == "accepted") event_.usage->accepted = count;
    }
    return true;
  }
  void take_content(const std::string& value) {
    event_.has_content = true;
    if (want_content_) event_.content += value;
  }

  StreamEvent& event_;
  const bool want_content_;
  std::vector<Place> stack_;
  std::string key_;
};
}  // namespace

StreamEvent parse_stream_event(std::string_view data, bool want_content) {
  StreamEvent event;
  if (data == "[DONE]") {
    event.is_done = true;
    return event;
  }
  Handler handler(event, want_content);
  if (data.empty() || data.front() != '{' || !Json::sax_parse(data, &handler)) {
    event = {};
    event.error = fmt::format("not a JSON object: {}", data.substr(0, 80));
  }
  return event;
}

}  // namespace ingot::load
