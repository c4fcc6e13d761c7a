// What the fuzzers share: an input's leading letters, cuts, a file that lives in memory. A fuzzer's finding is an INGOT_CHECK that fails.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/rng.h"

namespace ingot::fuzz {

// The bytes of one input, read from the front: first the letters that choose how it is used, then the text itself, so that a seed is a
// text file with a few letters before it.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  // The next byte; 0 when there is none.
  uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return value;
  }
  std::string_view rest() const { return rest_; }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

// Lengths of the pieces that a text is cut into, chosen by one byte of the input: mostly short ones, some long.
class Cuts {
 public:
  explicit Cuts(uint8_t choice) : rng_(choice), longest_(size_t{1} << rng_.below(9)) {}
  // At least 1, and no longer than `text`, which must not be empty.
  std::string_view take(std::string_view& text) {
    const std::string_view piece = text.substr(0, 1 + rng_.below(longest_));
    text.remove_prefix(piece.size());
    return piece;
  }

 private:
  Rng rng_;
  uint64_t longest_;
};

// A file without a name on any disk, for loaders that take a path. One object serves a whole run.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("fuzz", 0)) { INGOT_CHECK(fd_ >= 0, "memfd_create failed"); }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void write(std::string_view bytes) {
    INGOT_CHECK(ftruncate(fd_, 0) == 0 && pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace ingot::fuzz
