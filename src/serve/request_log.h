// One line a finished request: to the log as key=value pairs, or to a file as JSON objects. Numbers and reasons only, never text of a
// prompt or an answer. The engine's thread hands a record over and goes on; a thread of the log's own formats and writes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "serve/append_file.h"
#include "serve/background_writer.h"
#include "serve/engine_events.h"

namespace ingot::serve {

// The fields of a request's line, in order. What the request never came to is left out: no ttft_ms without a token.
//   id, replica, prompt, cached, completion (tokens), queue_ms (submit to first planned row), ttft_ms (submit to first token),
//   tpot_ms (mean time between tokens, from two tokens on), tok_s (completion tokens over e2e time), e2e_ms,
//   preemptions (if any), priority (if not 0), with speculation: draft_steps (verifications), drafted, accepted,
//   accepted_per_position, mean_acceptance_length; forced_acceptance (of a server for benchmarks), finish (stop, length, cancelled,
//   queue_timeout, timeout, error), error.
Json request_fields(const RequestRecord& request);

// `fields` as "request id=... replica=0 ..."; values with spaces, quotes, '=' or control characters are quoted and escaped.
std::string logfmt_line(const Json& fields);

class RequestLog final : public EngineObserver {
 public:
  // Empty `file`: lines go to log_info. Else they are appended to it, each with its "time" (UTC); the file is opened anew, within a second,
  // once log rotation has renamed or deleted it.
  // Errors: the file cannot be opened for appending.
  static Result<std::unique_ptr<RequestLog>> open(const std::string& file);

  void on_finished(const RequestRecord& request) override;

  // Returns when the lines of all requests finished before are written.
  void flush() { writer_.flush(); }

  // Lines lost because the writer did not keep up.
  uint64_t dropped() const { return writer_.dropped(); }

 private:
  struct Entry {
    RequestRecord request;
    int64_t finished_unix_ms = 0;
  };

  explicit RequestLog(std::optional<AppendFile> file);
  void write(std::span<Entry> entries);  // writer thread, as all below
  void write_to_file(const std::string& lines, size_t count);
  void follow_rotation();

  std::optional<AppendFile> file_;
  std::chrono::steady_clock::time_point checked_at_;
  bool line_open_ = false;  // a failed write may have left a part of a line
  ErrorGate write_errors_;
  ErrorGate reopen_errors_;
  BackgroundWriter<Entry> writer_;  // last: its thread uses all of the above
};

}  // namespace ingot::serve
