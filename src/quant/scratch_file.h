// An unnamed file for data that is too large for memory: nobody else sees it, and it vanishes with its owner, however that ends.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/result.h"

namespace ingot::quant {

class ScratchFile {
 public:
  // Errors: the folder with the system's reason.
  static Result<ScratchFile> create(const std::filesystem::path& folder);

  ScratchFile() = default;
  ScratchFile(ScratchFile&& other) noexcept;
  ScratchFile& operator=(ScratchFile&& other) noexcept;
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile();

  // Any thread. Errors: the folder with the system's reason; bytes that were never written.
  Result<> read(uint64_t offset, uint64_t bytes, void* out) const;
  Result<> write(uint64_t offset, uint64_t bytes, const void* from);

 private:
  int fd_ = -1;
  std::filesystem::path folder_;
};

}  // namespace ingot::quant
