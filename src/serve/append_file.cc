#include "serve/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/file_io.h"

namespace ingot::serve {

namespace {

std::string reason() { return std::error_code(errno, std::generic_category()).message(); }

}  // namespace

Result<AppendFile> AppendFile::open(const std::filesystem::path& path, Mode mode) {
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | (mode == Mode::create ? O_EXCL : 0);
  const int fd = ::open(path.c_str(), flags, 0644);
  if (fd < 0) return fail("cannot open {} for writing: {}", path.string(), reason());
  return AppendFile(path, fd);
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}
AppendFile::AppendFile(AppendFile&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

Result<> AppendFile::write(std::string_view text) {
  errno = write_fully(fd_, text.data(), text.size());
  if (errno != 0) return fail("cannot write to {}: {}", path_.string(), reason());
  return {};
}

Result<> AppendFile::cut(uint64_t bytes) {
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) return fail("cannot cut {} to {} bytes: {}", path_.string(), bytes, reason());
  return {};
}

bool AppendFile::is_at_path() const {
  struct stat ours {};
  struct stat there {};
  if (::fstat(fd_, &ours) != 0 || ::stat(path_.c_str(), &there) != 0) return false;
  return ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

}  // namespace ingot::serve
