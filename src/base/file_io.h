// Whole reads and writes of open files: interrupted calls are made again, parts are completed. No messages: who asks knows what the file
// is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ingot {

// All return 0 or the system's error number. After an error a part may have been moved.
int write_fully(int fd, const void* from, size_t bytes);
int write_fully_at(int fd, const void* from, size_t bytes, uint64_t offset);
// kEndOfFile: the file ends before.
inline constexpr int kEndOfFile = -1;
int read_fully_at(int fd, void* to, size_t bytes, uint64_t offset);

}  // namespace ingot
