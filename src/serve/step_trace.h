// Writes what the engines do, step by step, as Chrome trace events: open the files in https://ui.perfetto.dev or chrome://tracing.
// A track a replica with its steps and their phases, counters of requests and pages, and for each finished request its spans.
// The engine's thread hands a record over and goes on; a thread of the trace's own formats and writes.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "base/result.h"
#include "serve/append_file.h"
#include "serve/background_writer.h"
#include "serve/engine_events.h"

namespace ingot::serve {

class StepTrace final : public EngineObserver {
 public:
  struct Limits {
    uint64_t file_bytes = 64ull << 20;  // a file that has come so far is closed and the next one begun
    size_t files = 4;                   // of this process id in the folder; the oldest is deleted beyond it
  };

  // Writes trace-<pid>-<n>.json in `dir`, which is made if it is not there; n goes on after the files that are (in a container each run has
  // the same pid). A closed file is a JSON array; the file of a killed process lacks its "]", which trace viewers accept.
  // Errors: the folder cannot be made or written to.
  static Result<std::unique_ptr<StepTrace>> open(const std::filesystem::path& dir) { return open(dir, Limits{}); }
  static Result<std::unique_ptr<StepTrace>> open(const std::filesystem::path& dir, Limits limits);
  ~StepTrace() override = default;

  void on_step(const StepRecord& step) override;
  void on_state(const ReplicaState& state) override;
  void on_finished(const RequestRecord& request) override;

  // Returns when everything told before is in the file.
  void flush() { writer_.flush(); }

  // Records lost because the writer did not keep up.
  uint64_t dropped() const { return writer_.dropped(); }

 private:
  using Record = std::variant<StepRecord, ReplicaState, RequestRecord>;

  // The files of one trace; used by the writer thread alone once it runs.
  class Files {
   public:
    Files(std::filesystem::path dir, Limits limits) : dir_(std::move(dir)), limits_(limits) {}
    ~Files() { close(); }
    Files(const Files&) = delete;
    Files& operator=(const Files&) = delete;

    Result<> begin();                                // finds the files of earlier runs and opens the first of ours
    void add(int replica, const std::string& json);  // one event, and before a replica's first in a file the names of its tracks
    void end_record();  // between records, so that the spans of a request stay in one file: write() if it is much
    void write();       // what was added, to the file; then the next file if this one is full

   private:
    Result<> next_file();
    void close();
    void append_event(const std::string& json);

    const std::filesystem::path dir_;
    const Limits limits_;
    std::optional<AppendFile> file_;
    int64_t next_number_ = 1;
    std::deque<std::filesystem::path> kept_;  // oldest first, the open one last
    uint64_t bytes_ = 0;                      // of the open file
    bool has_event_ = false;                  // in the open file or pending
    std::set<int> named_;                     // replicas whose tracks have names in the open file
    std::string pending_;
    ErrorGate errors_;
  };

  explicit StepTrace(std::unique_ptr<Files> files);
  void push(Record record) noexcept { writer_.push(std::move(record)); }
  void write(std::span<Record> records);  // writer thread, as the three below
  void add(const StepRecord& step);
  void add(const ReplicaState& state);
  void add(const RequestRecord& request);

  std::unique_ptr<Files> files_;
  int64_t latest_ns_ = 0;            // the latest time seen: ReplicaState has none of its own
  BackgroundWriter<Record> writer_;  // last: its thread uses all of the above
};

}  // namespace ingot::serve
