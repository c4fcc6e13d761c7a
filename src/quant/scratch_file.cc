#include "quant/scratch_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace ingot::quant {

Result<ScratchFile> ScratchFile::create(const std::filesystem::path& folder) {
  std::string name = (folder / "ingot-XXXXXX").string();
  ScratchFile file;
  file.folder_ = folder;
  file.fd_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (file.fd_ < 0) return fail("{}: cannot make a scratch file: {}", folder.string(), std::strerror(errno));
  ::unlink(name.c_str());
  return file;
}

ScratchFile::ScratchFile(ScratchFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)), folder_(std::move(other.folder_)) {}

ScratchFile& ScratchFile::operator=(ScratchFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(folder_, other.folder_);
  return *this;
}

ScratchFile::~ScratchFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<> ScratchFile::read(uint64_t offset, uint64_t bytes, void* out) const {
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t n = ::pread(fd_, static_cast<char*>(out) + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail("{}: cannot read a scratch file: {}", folder_.string(), std::strerror(errno));
    if (n == 0) return fail("{}: a scratch file ends at byte {}, before {}", folder_.string(), offset + done, offset + bytes);
    done += static_cast<uint64_t>(n);
  }
  return {};
}

Result<> ScratchFile::write(uint64_t offset, uint64_t bytes, const void* from) {
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t n = ::pwrite(fd_, static_cast<const char*>(from) + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail("{}: cannot write a scratch file: {}", folder_.string(), std::strerror(errno));
    done += static_cast<uint64_t>(n);
  }
  return {};
}

}  // namespace ingot::quant
