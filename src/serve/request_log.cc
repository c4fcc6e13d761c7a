#include "serve/request_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <utility>

#include "base/log.h"

namespace ingot::serve {

namespace {

constexpr size_t kQueueCapacity = 8192;  // requests; some seconds of a stalled disk at the rates one server reaches

double rounded(double value) { return std::round(value * 1000.0) / 1000.0; }
double milliseconds(int64_t from_ns, int64_t to_ns) { return rounded(static_cast<double>(to_ns - from_ns) * 1e-6); }

const char* finish_name(sched::FinishReason reason) {
  switch (reason) {
    case sched::FinishReason::none: return "none";
    case sched::FinishReason::stop_token:
    case sched::FinishReason::stop_string: return "stop";
    case sched::FinishReason::length: return "length";
    case sched::FinishReason::cancelled: return "cancelled";
    case sched::FinishReason::queue_timeout: return "queue_timeout";
    case sched::FinishReason::timeout: return "timeout";
    case sched::FinishReason::error: return "error";
  }
  return "unknown";
}

std::string utc_time(int64_t unix_ms) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(static_cast<std::time_t>(unix_ms / 1000)), unix_ms % 1000);
}

// An id may hold what a client sent: nothing in it may end the line or look like another field.
std::string logfmt_value(const std::string& text) {
  const auto plain = [](unsigned char c) { return c > ' ' && c != '"' && c != '=' && c != '\\' && c != 0x7f; };
  bool quote = text.empty();
  for (const char c : text) quote |= !plain(static_cast<unsigned char>(c));
  return quote ? Json(text).dump(-1, ' ', false, Json::error_handler_t::replace) : text;
}

}  // namespace

Json request_fields(const RequestRecord& r) {
  Json fields;
  fields["id"] = r.name.empty() ? fmt::format("request-{}", r.id) : r.name;
  fields["replica"] = r.replica;
  fields["prompt"] = r.prompt_tokens;
  fields["cached"] = r.cached_tokens;
  fields["completion"] = r.completion_tokens;
  if (r.scheduled_ns > 0) fields["queue_ms"] = milliseconds(r.submitted_ns, r.scheduled_ns);
  if (r.first_token_ns > 0) fields["ttft_ms"] = milliseconds(r.submitted_ns, r.first_token_ns);
  if (r.first_token_ns > 0 && r.completion_tokens >= 2) {
    fields["tpot_ms"] =
        rounded(static_cast<double>(r.last_token_ns - r.first_token_ns) * 1e-6 / static_cast<double>(r.completion_tokens - 1));
  }
  const int64_t e2e_ns = r.finished_ns - r.submitted_ns;
  if (r.completion_tokens > 0 && e2e_ns > 0) {
    fields["tok_s"] = rounded(static_cast<double>(r.completion_tokens) / (static_cast<double>(e2e_ns) * 1e-9));
  }
  if (r.finished_ns > 0) fields["e2e_ms"] = milliseconds(r.submitted_ns, r.finished_ns);
  if (r.preemptions > 0) fields["preemptions"] = r.preemptions;
  if (r.priority != 0) fields["priority"] = r.priority;
  if (r.speculation.any()) {
    fields["draft_steps"] = r.speculation.steps();
    fields["drafted"] = r.speculation.drafted();
    fields["accepted"] = r.speculation.accepted();
    fields["accepted_per_position"] = r.speculation.accepted_per_position();
    fields["mean_acceptance_length"] = rounded(r.speculation.mean_acceptance_length());
  }
  if (r.forced_acceptance > 0) fields["forced_acceptance"] = r.forced_acceptance;
  fields["finish"] = finish_name(r.finish);
  if (!r.error.empty()) fields["error"] = r.error;
  return fields;
}

std::string logfmt_line(const Json& fields) {
  std::string line = "request";
  for (const auto& [key, value] : fields.items()) {
    line += fmt::format(" {}={}", key, value.is_string() ? logfmt_value(value.get<std::string>()) : value.dump());
  }
  return line;
}

Result<std::unique_ptr<RequestLog>> RequestLog::open(const std::string& file) {
  std::optional<AppendFile> opened;
  if (!file.empty()) {
    INGOT_ASSIGN(AppendFile f, AppendFile::open(file, AppendFile::Mode::append));
    opened.emplace(std::move(f));
  }
  return std::unique_ptr<RequestLog>(new RequestLog(std::move(opened)));
}

RequestLog::RequestLog(std::optional<AppendFile> file)
    : file_(std::move(file)),
      checked_at_(std::chrono::steady_clock::now()),
      writer_("request log", kQueueCapacity, [this](std::span<Entry> entries) { write(entries); }) {}

void RequestLog::on_finished(const RequestRecord& request) {
  // The wall clock is read here: the writer may be seconds behind.
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  try {
    writer_.push({request, std::chrono::duration_cast<std::chrono::milliseconds>(now).count()});
  } catch (const std::exception&) {
    // No memory to copy the record. The request itself is answered; its line is lost.
  }
}

void RequestLog::write(std::span<Entry> entries) {
  if (!file_) {
    for (const Entry& entry : entries) log_info("{}", logfmt_line(request_fields(entry.request)));
    return;
  }
  std::string lines;
  for (const Entry& entry : entries) {
    Json line;
    line["time"] = utc_time(entry.finished_unix_ms);
    line.update(request_fields(entry.request));
    // A plain dump() throws on bytes that are not UTF-8.
    lines += line.dump(-1, ' ', false, Json::error_handler_t::replace);
    lines += '\n';
  }
  write_to_file(lines, entries.size());
}

void RequestLog::write_to_file(const std::string& lines, size_t count) {
  follow_rotation();
  const auto written = file_->write(line_open_ ? "\n" + lines : lines);
  line_open_ = !written;
  if (!written && write_errors_.open()) {
    log_error("request log: {}; {} lines lost, serving goes on", written.error().text(), count);
  }
}

void RequestLog::follow_rotation() {
  const auto now = std::chrono::steady_clock::now();
  if (now - checked_at_ < std::chrono::seconds(1)) return;
  checked_at_ = now;
  if (file_->is_at_path()) return;
  auto fresh = AppendFile::open(file_->path(), AppendFile::Mode::append);
  if (fresh) {
    *file_ = std::move(*fresh);
    line_open_ = false;
  } else if (reopen_errors_.open()) {
    log_error("request log: {}; going on with the old file", fresh.error().text());
  }
}

}  // namespace ingot::serve
