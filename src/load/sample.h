// What the client saw of one request: times as they were, nothing derived. Times in ns from the run's start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "load/stream_event.h"

namespace ingot::load {

// Text that came in one event.
struct Arrived {
  int64_t at_ns = 0;
  int64_t tokens = -1;  // that the event says it holds (log-probabilities, or usage that goes along); -1: not told
};

struct Sample {
  int64_t index = 0, session = 0, turn = 0;
  bool is_warmup = false;
  bool has_exact_input = true;  // planned_input is what the server must count: later turns quote answers, whose tokens it knows better
  int64_t planned_input = 0, planned_output = 0, expected_cached = 0;  // tokens
  int64_t due_ns = -1;                                                 // open loop: when it was to be sent; -1: after something else
  int64_t sent_ns = 0;                                                 // the client began: connecting is part of what it waits for
  int64_t first_token_ns = -1;                                         // of any kind
  int64_t first_content_ns = -1;                                       // of the answer itself: behind reasoning
  int64_t end_ns = 0;                                                  // of the stream
  std::vector<Arrived> arrived;
  Usage usage;
  bool is_done = false;         // the stream said so
  int64_t textless_tokens = 0;  // told, and without text so far
  std::string finish_reason;
  std::string error;  // kind: http 429, reset, timeout, error event, no text, ...; empty: answered
  std::string detail;

  bool ok() const { return error.empty(); }
  int64_t last_token_ns() const { return arrived.empty() ? -1 : arrived.back().at_ns; }
};

}  // namespace ingot::load
