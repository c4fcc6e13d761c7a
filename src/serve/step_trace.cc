#include "serve/step_trace.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/log.h"

namespace ingot::serve {

namespace fs = std::filesystem;

namespace {

constexpr size_t kQueueCapacity = 16384;    // records; two a step: more than a minute of 100 steps a second
constexpr size_t kPieceBytes = 256u << 10;  // what is gathered before a write
constexpr int kPid = 1;                     // of the trace: one process group, whatever the system's number

// Microseconds with three decimals, exactly: spans that touch in nanoseconds touch in the trace.
std::string micros(int64_t ns) {
  const int64_t whole = ns / 1000;
  const int64_t rest = ns % 1000;
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(whole), std::abs(rest));
}

std::string quoted(const std::string& text) { return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string span(std::string_view name, int replica, int64_t start_ns, int64_t length_ns, const std::string& args) {
  return fmt::format(R"({{"ph":"X","name":"{}","cat":"step","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})", name, kPid, replica,
                     micros(start_ns), micros(length_ns), args);
}

std::string counter(std::string_view name, int replica, int64_t at_ns, const std::string& args) {
  return fmt::format(R"({{"ph":"C","name":"{}, replica {}","pid":{},"tid":{},"ts":{},"args":{{{}}}}})", name, replica, kPid, replica,
                     micros(at_ns), args);
}

// "trace-<pid>-<n>.json" -> n.
std::optional<int64_t> file_number(const std::string& name, const std::string& prefix) {
  constexpr std::string_view kSuffix = ".json";
  if (!name.starts_with(prefix) || !name.ends_with(kSuffix) || name.size() <= prefix.size() + kSuffix.size()) return std::nullopt;
  int64_t number = 0;
  const char* end = name.data() + name.size() - kSuffix.size();
  const auto [at, error] = std::from_chars(name.data() + prefix.size(), end, number);
  if (error != std::errc() || at != end) return std::nullopt;
  return number;
}

std::string file_prefix() { return fmt::format("trace-{}-", ::getpid()); }

}  // namespace

Result<> StepTrace::Files::begin() {
  std::error_code error;
  fs::create_directories(dir_, error);
  if (error) return fail("cannot make the trace folder {}: {}", dir_.string(), error.message());
  std::vector<std::pair<int64_t, fs::path>> found;
  for (fs::directory_iterator it(dir_, error), end; !error && it != end; it.increment(error)) {
    if (const auto number = file_number(it->path().filename().string(), file_prefix())) found.emplace_back(*number, it->path());
  }
  if (error) return fail("cannot list the trace folder {}: {}", dir_.string(), error.message());
  std::sort(found.begin(), found.end());
  for (auto& [number, path] : found) {
    kept_.push_back(std::move(path));
    next_number_ = number + 1;
  }
  return next_file();
}

Result<> StepTrace::Files::next_file() {
  close();
  const fs::path path = dir_ / fmt::format("{}{}.json", file_prefix(), next_number_++);
  INGOT_ASSIGN(AppendFile file, AppendFile::open(path, AppendFile::Mode::create));
  INGOT_TRY(file.write("["));
  file_.emplace(std::move(file));
  bytes_ = 1;
  has_event_ = false;
  named_.clear();
  kept_.push_back(path);
  while (kept_.size() > limits_.files) {
    std::error_code ignored;  // somebody else may have deleted it
    fs::remove(kept_.front(), ignored);
    kept_.pop_front();
  }
  return {};
}

void StepTrace::Files::close() {
  if (!file_) return;
  const auto closed = file_->write("\n]\n");
  if (!closed && errors_.open()) log_error("step trace: {}", closed.error().text());
  file_.reset();
}

void StepTrace::Files::append_event(const std::string& json) {
  pending_ += has_event_ ? ",\n" : "\n";
  pending_ += json;
  has_event_ = true;
}

void StepTrace::Files::add(int replica, const std::string& json) {
  if (named_.empty()) append_event(fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"ingot"}}}})", kPid));
  if (named_.insert(replica).second) {
    append_event(
        fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"replica {}"}}}})", kPid, replica, replica));
    append_event(
        fmt::format(R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})", kPid, replica, replica));
  }
  append_event(json);
}

void StepTrace::Files::end_record() {
  if (pending_.size() >= std::min<uint64_t>(kPieceBytes, limits_.file_bytes)) write();
}

void StepTrace::Files::write() {
  const std::string text = std::exchange(pending_, {});
  if (text.empty()) return;
  // Without a file (the last attempt to begin one failed) the events are lost, but the next attempt may succeed.
  if (file_) {
    if (const auto written = file_->write(text); written) {
      bytes_ += text.size();
    } else {
      if (errors_.open()) log_error("step trace: {}; events lost, serving goes on", written.error().text());
      // Half an event would spoil the file; what is in it up to here is worth keeping.
      if (!file_->cut(bytes_)) file_.reset();
      has_event_ = bytes_ > 1;
      named_.clear();
    }
  }
  if (file_ && bytes_ < limits_.file_bytes) return;
  if (const auto next = next_file(); !next) {
    named_.clear();
    if (errors_.open()) log_error("step trace: {}; events lost, serving goes on", next.error().text());
  }
}

Result<std::unique_ptr<StepTrace>> StepTrace::open(const fs::path& dir, Limits limits) {
  auto files = std::make_unique<Files>(dir, limits);
  INGOT_TRY(files->begin());
  return std::unique_ptr<StepTrace>(new StepTrace(std::move(files)));
}

StepTrace::StepTrace(std::unique_ptr<Files> files)
    : files_(std::move(files)), writer_("step trace", kQueueCapacity, [this](std::span<Record> records) { write(records); }) {}

void StepTrace::on_step(const StepRecord& step) { push(step); }
void StepTrace::on_state(const ReplicaState& state) { push(state); }
void StepTrace::on_finished(const RequestRecord& request) {
  try {
    push(request);
  } catch (const std::exception&) {
    // No memory to copy the record's strings: its spans are lost, the request is not.
  }
}

void StepTrace::write(std::span<Record> records) {
  for (const Record& record : records) {
    std::visit([this](const auto& r) { add(r); }, record);
    files_->end_record();
  }
  files_->write();
}

void StepTrace::add(const StepRecord& s) {
  const int64_t run_ns = s.start_ns + s.plan_ns;
  const int64_t commit_ns = run_ns + s.run_ns;
  const int64_t end_ns = commit_ns + s.commit_ns;
  latest_ns_ = std::max(latest_ns_, end_ns);
  const std::string step = fmt::format(R"("step":{})", s.step);
  const std::string args = fmt::format(R"({},"prefill_rows":{},"decode_rows":{},"pages_saved":{},"pages_loaded":{})", step, s.prefill_rows,
                                       s.decode_rows, s.pages_saved, s.pages_loaded);
  files_->add(s.replica, span("step", s.replica, s.start_ns, end_ns - s.start_ns, args));
  files_->add(s.replica, span("plan", s.replica, s.start_ns, s.plan_ns, step));
  files_->add(s.replica, span("run", s.replica, run_ns, s.run_ns, args));
  files_->add(s.replica, span("commit", s.replica, commit_ns, s.commit_ns, step));
}

void StepTrace::add(const ReplicaState& s) {
  if (latest_ns_ == 0) return;  // no time to put it at
  files_->add(s.replica, counter("requests", s.replica, latest_ns_, fmt::format(R"("running":{},"waiting":{})", s.running, s.waiting)));
  files_->add(s.replica, counter("pages", s.replica, latest_ns_,
                                 fmt::format(R"("used":{},"cached":{},"free":{})", s.total_pages - s.free_pages - s.cached_pages,
                                             s.cached_pages, s.free_pages)));
}

void StepTrace::add(const RequestRecord& r) {
  if (r.submitted_ns == 0 || r.finished_ns < r.submitted_ns) return;
  latest_ns_ = std::max(latest_ns_, r.finished_ns);
  // Ids of requests are unique within a replica. Hexadecimal with 0x: the form that all viewers take for a number.
  const std::string id = fmt::format("0x{:x}", (static_cast<uint64_t>(r.replica) << 48) ^ r.id);
  const auto edge = [&](char phase, const char* name, int64_t at_ns, const std::string& args = {}) {
    files_->add(r.replica, fmt::format(R"({{"ph":"{}","name":"{}","cat":"request","id":"{}","pid":{},"tid":{},"ts":{},"args":{{{}}}}})",
                                       phase, name, id, kPid, r.replica, micros(at_ns), args));
  };
  const auto stage = [&](const char* name, int64_t from_ns, int64_t to_ns) {
    edge('b', name, from_ns);
    edge('e', name, to_ns);
  };
  edge('b', "request", r.submitted_ns,
       fmt::format(R"("name":{},"prompt_tokens":{},"cached_tokens":{},"completion_tokens":{},"preemptions":{})", quoted(r.name),
                   r.prompt_tokens, r.cached_tokens, r.completion_tokens, r.preemptions));
  stage("queued", r.submitted_ns, r.scheduled_ns > 0 ? r.scheduled_ns : r.finished_ns);
  if (r.scheduled_ns > 0) stage("prefill", r.scheduled_ns, r.first_token_ns > 0 ? r.first_token_ns : r.finished_ns);
  if (r.first_token_ns > 0) stage("decode", r.first_token_ns, std::max(r.last_token_ns, r.first_token_ns));
  edge('e', "request", r.finished_ns);
}

}  // namespace ingot::serve
