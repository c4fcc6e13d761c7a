#include "base/file_io.h"

#include <unistd.h>

#include <cerrno>

namespace ingot {

namespace {
// Calls move(done) until all bytes are moved.
template <class Move>
int repeat(size_t bytes, int at_zero, Move move) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = move(done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return at_zero;
    done += static_cast<size_t>(n);
  }
  return 0;
}
}  // namespace

int write_fully(int fd, const void* from, size_t bytes) {
  return repeat(bytes, EIO, [&](size_t done) { return ::write(fd, static_cast<const char*>(from) + done, bytes - done); });
}

int write_fully_at(int fd, const void* from, size_t bytes, uint64_t offset) {
  return repeat(bytes, EIO, [&](size_t done) {
    return ::pwrite(fd, static_cast<const char*>(from) + done, bytes - done, static_cast<off_t>(offset + done));
  });
}

int read_fully_at(int fd, void* to, size_t bytes, uint64_t offset) {
  return repeat(bytes, kEndOfFile,
                [&](size_t done) { return ::pread(fd, static_cast<char*>(to) + done, bytes - done, static_cast<off_t>(offset + done)); });
}

}  // namespace ingot
