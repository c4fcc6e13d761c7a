// Responses that a client may ask for later: by id, or as previous_response_id. One SQLite table, in a file that survives a restart or in
// memory, bounded by count and bytes: those used least recently go first. Any thread; writes are made by a thread of its own, and what
// waits for it is found all the same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/result.h"

namespace ingot::serve {

struct StoredResponse {
  std::string id;
  std::string previous;  // empty: none
  Json response;
  Json input;  // items of this request alone
};

class ResponseStore {
 public:
  struct Limits {
    int64_t max_responses = 4096;
    int64_t max_bytes = 256 << 20;  // of JSON text
  };
  // An empty path: in memory. Errors: what SQLite says of the file, a file of another program.
  static Result<std::unique_ptr<ResponseStore>> open(const std::filesystem::path& path, Limits limits);
  ~ResponseStore();  // writes what waits
  ResponseStore(const ResponseStore&) = delete;
  ResponseStore& operator=(const ResponseStore&) = delete;

  // Never waits for the disk. What cannot be written is logged, and not found later.
  void put(StoredResponse response);
  // Counts as a use. Null: not there (any more). Errors: what SQLite says.
  Result<std::optional<StoredResponse>> get(const std::string& id);
  // Whether it was there.
  Result<bool> erase(const std::string& id);
  int64_t count();

 private:
  struct Impl;
  explicit ResponseStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ingot::serve
