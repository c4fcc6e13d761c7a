#include "base/file_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace ingot {

Result<FileMap> FileMap::open(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail("cannot open {}: {}", path.string(), std::strerror(errno));
  struct stat st {};
  if (::fstat(fd, &st) != 0) {
    const int error = errno;
    ::close(fd);
    return fail("cannot stat {}: {}", path.string(), std::strerror(error));
  }
  if (!S_ISREG(st.st_mode)) {
    ::close(fd);
    return fail("{} is not a regular file", path.string());
  }
  FileMap map;
  map.size_ = static_cast<size_t>(st.st_size);
  if (map.size_ > 0) {
    void* data = ::mmap(nullptr, map.size_, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      ::close(fd);
      map.size_ = 0;
      return fail("cannot map {} ({} bytes): {}", path.string(), st.st_size, std::strerror(error));
    }
    map.data_ = data;
  }
  ::close(fd);
  return map;
}

FileMap::FileMap(FileMap&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

FileMap& FileMap::operator=(FileMap&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

FileMap::~FileMap() {
  if (data_ != nullptr) ::munmap(const_cast<void*>(data_), size_);
}

Result<std::string> read_file(const std::filesystem::path& path, size_t max_bytes) {
  INGOT_ASSIGN(FileMap map, FileMap::open(path));
  if (map.size() > max_bytes)
    return fail("{} has {} bytes, more than the {} allowed for this kind of file", path.string(), map.size(), max_bytes);
  return std::string(reinterpret_cast<const char*>(map.bytes().data()), map.size());
}

}  // namespace ingot
