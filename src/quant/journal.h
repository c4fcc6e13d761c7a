// Journal: the file in the target folder that makes --resume possible. JSON lines, only appended to: the first says what is being made of
// what, then one line for each finished shard, then one when all is done. A line that a crash cut short counts as not written.
// One process at a time owns a target folder: the journal holds a lock on it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "quant/report.h"

namespace ingot::quant {

inline constexpr const char* kJournalName = ".ingot-quantize.jsonl";

// The numbers of one packed module, by its index among the modules.
struct ModuleNumbers {
  int32_t module = 0;
  bool calibrated = false;
  tensor::QuantError error;
};

struct ShardRecord {
  std::string file;
  uint64_t bytes = 0;
  uint64_t digest = 0;  // digest_shard
  std::vector<ModuleNumbers> modules;
};

class Journal {
 public:
  // Starts one in `folder`, which exists. identity: {"options": {name: value}, "source": [{"file", "bytes", "digest", "modified_ns"}]}.
  static Result<Journal> create(const std::filesystem::path& folder, const Json& identity);
  // Continues the one in `folder`; begins anew when no complete line is there. Errors name the option or source file in which `identity`
  // differs from the journal's; a journal that is damaged before its end.
  static Result<Journal> resume(const std::filesystem::path& folder, const Json& identity);
  Journal(Journal&& other) noexcept;
  Journal& operator=(Journal&&) = delete;
  Journal(const Journal&) = delete;
  ~Journal();

  const std::vector<ShardRecord>& records() const { return records_; }
  bool finished() const { return finished_; }

  // Durable when they return.
  Result<> append(const ShardRecord& record);
  Result<> finish();

  // After a failure: with no shard finished there is nothing to resume, so the journal goes and the folder may be used for anything.
  void leave_if_empty();

 private:
  explicit Journal(std::filesystem::path folder) : folder_(std::move(folder)) {}
  Result<> lock();
  Result<> open_file(int extra_flags);
  Result<> append_line(const Json& line);
  std::filesystem::path path() const { return folder_ / kJournalName; }

  std::filesystem::path folder_;
  int folder_fd_ = -1, fd_ = -1;
  std::vector<ShardRecord> records_;
  bool finished_ = false;
};

}  // namespace ingot::quant
