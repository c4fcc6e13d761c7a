// A file that grows at its end, for logs and traces: whole pieces of text, no buffering of ours, errors told to the caller.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/result.h"

namespace ingot::serve {

class AppendFile {
 public:
  enum class Mode {
    append,  // goes on at the end of the file, or creates it
    create,  // the file must not exist
  };

  static Result<AppendFile> open(const std::filesystem::path& path, Mode mode);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  // All of `text`, or an error; after an error a part of it may be in the file.
  Result<> write(std::string_view text);

  // Cuts the file to `bytes`: the way back after a piece that went in by half.
  Result<> cut(uint64_t bytes);

  // False when the path no longer leads to this file: it was renamed or deleted.
  bool is_at_path() const;

  const std::filesystem::path& path() const { return path_; }

 private:
  AppendFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::filesystem::path path_;
  int fd_ = -1;
};

// Lets an error through that has not been told for a minute, so that a full disk does not fill the log as well.
class ErrorGate {
 public:
  bool open() {
    const auto now = std::chrono::steady_clock::now();
    if (last_ && now - *last_ < std::chrono::minutes(1)) return false;
    last_ = now;
    return true;
  }

 private:
  std::optional<std::chrono::steady_clock::time_point> last_;
};

}  // namespace ingot::serve
