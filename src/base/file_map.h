// FileMap: a whole file mapped read-only. Moves, unmaps when destroyed. The bytes stay valid as long as the object lives;
// a file truncated by someone else after the map is taken raises SIGBUS on access, so extents are checked against size() at load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "base/result.h"

namespace ingot {

class FileMap {
 public:
  // Errors: the path with the system's reason. An empty file maps to an empty span.
  static Result<FileMap> open(const std::filesystem::path& path);

  FileMap() = default;
  FileMap(FileMap&& other) noexcept;
  FileMap& operator=(FileMap&& other) noexcept;
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;
  ~FileMap();

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  size_t size() const { return size_; }

 private:
  const void* data_ = nullptr;
  size_t size_ = 0;
};

// Reads a whole small file. Errors: unreadable, or larger than `max_bytes`, naming the path and both sizes.
Result<std::string> read_file(const std::filesystem::path& path, size_t max_bytes);

}  // namespace ingot
