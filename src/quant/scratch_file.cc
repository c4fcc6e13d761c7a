#include "quant/scratch_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/file_io.h"

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
  const int error = read_fully_at(fd_, out, bytes, offset);
  if (error == kEndOfFile) return fail("{}: a scratch file ends before byte {}", folder_.string(), offset + bytes);
  if (error != 0) return fail("{}: cannot read a scratch file: {}", folder_.string(), std::strerror(error));
  return {};
}

Result<> ScratchFile::write(uint64_t offset, uint64_t bytes, const void* from) {
  if (const int error = write_fully_at(fd_, from, bytes, offset); error != 0)
    return fail("{}: cannot write a scratch file: {}", folder_.string(), std::strerror(error));
  return {};
}

}  // namespace ingot::quant
