// One event of a streamed answer as the client's figures need it. Reads by a scan without a tree: 2,000 streams share one core. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ingot::load {

// `usage` of an answer; -1: the server does not tell it.
struct Usage {
  int64_t prompt_tokens = -1, completion_tokens = -1;
  int64_t cached_tokens = -1;
  // usage.speculative: tokens a verification put out in the mean, and drafts.
  double mean_acceptance_length = -1;
  int64_t drafted = -1, accepted = -1;
};

struct StreamEvent {
  bool is_done = false;        // [DONE]
  bool has_reasoning = false;  // text of each kind that is not empty
  bool has_content = false;
  bool has_tool_call = false;
  int64_t logprob_tokens = -1;  // tokens whose log-probabilities the event holds; -1: none
  std::optional<Usage> usage;
  std::string finish_reason;  // empty: none
  std::string error;          // message of an error event, or what is wrong with this one; empty: none
  std::string content;        // filled only when asked

  bool has_token() const { return has_reasoning || has_content || has_tool_call; }
};

// `data` without "data: ". `want_content`: copy the text of the answer (reasoning apart).
StreamEvent parse_stream_event(std::string_view data, bool want_content = false);

}  // namespace ingot::load
