// Buffer<T>: memory for a kernel under test, with canaries before and after it. Canaries and poisoned contents read as NaN (and as
// negative integers), so that reading what nobody wrote shows; under AddressSanitizer touching a canary stops the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace ingot::testing {

// Where Buffers get their memory from, in pieces aligned to 64 bytes. device_check puts memory here that its GPU reaches too.
struct BufferMemory {
  void* (*take)(size_t bytes) = [](size_t bytes) { return std::aligned_alloc(64, bytes); };
  void (*give)(void* memory) = [](void* memory) { std::free(memory); };
};
inline BufferMemory buffer_memory;

template <class T>
class Buffer {
 public:
  // `count` elements of 0xff bytes: NaN, or -1.
  explicit Buffer(int64_t count) : initial_(static_cast<size_t>(count)) {
    if (count > 0) std::memset(static_cast<void*>(initial_.data()), 0xff, bytes());
    allocate();
  }
  explicit Buffer(std::vector<T> initial) : initial_(std::move(initial)) { allocate(); }
  ~Buffer() {
    forbid_canaries(false);
    buffer_memory.give(memory_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() { return reinterpret_cast<T*>(memory_ + kCanaryBytes); }
  const T* data() const { return reinterpret_cast<const T*>(memory_ + kCanaryBytes); }
  int64_t size() const { return static_cast<int64_t>(initial_.size()); }
  size_t bytes() const { return initial_.size() * sizeof(T); }
  const T& operator[](int64_t i) const { return data()[i]; }
  const std::vector<T>& initial() const { return initial_; }
  std::vector<T> contents() const { return std::vector<T>(data(), data() + size()); }

  // Back to the contents it was made with.
  void restore() {
    if (bytes() > 0) std::memcpy(static_cast<void*>(data()), initial_.data(), bytes());
  }

  // Whether element i still has its first bits: what a kernel must not touch.
  bool untouched(int64_t i) const { return std::memcmp(data() + i, &initial_[static_cast<size_t>(i)], sizeof(T)) == 0; }

  ::testing::AssertionResult unchanged() const {
    for (int64_t i = 0; i < size(); ++i) {
      if (!untouched(i)) return ::testing::AssertionFailure() << "element " << i << " of " << size() << " was changed";
    }
    return canaries_alive();
  }

  ::testing::AssertionResult canaries_alive() const {
    forbid_canaries(false);
    ::testing::AssertionResult result = ::testing::AssertionSuccess();
    for (size_t i = 0; i < kCanaryBytes; ++i) {
      if (memory_[i] != kPattern[i % 4]) {
        result = ::testing::AssertionFailure() << "written " << kCanaryBytes - i << " bytes before the buffer";
        break;
      }
      if (memory_[kCanaryBytes + bytes() + i] != kPattern[i % 4]) {
        result = ::testing::AssertionFailure() << "written " << i << " bytes behind the buffer of " << bytes() << " bytes";
        break;
      }
    }
    forbid_canaries(true);
    return result;
  }

 private:
  static constexpr size_t kCanaryBytes = 256;
  static constexpr uint8_t kPattern[4] = {0xad, 0xde, 0xff, 0xff};  // as f32 a NaN, as int32 -8531

  void allocate() {
    const size_t total = (bytes() + 2 * kCanaryBytes + 63) / 64 * 64;
    memory_ = static_cast<uint8_t*>(buffer_memory.take(total));
    for (size_t i = 0; i < kCanaryBytes; ++i) memory_[i] = memory_[kCanaryBytes + bytes() + i] = kPattern[i % 4];
    restore();
    forbid_canaries(true);
  }

  void forbid_canaries([[maybe_unused]] bool forbid) const {
#if defined(__SANITIZE_ADDRESS__)
    for (uint8_t* canary : {memory_, memory_ + kCanaryBytes + bytes()}) {
      if (forbid)
        __asan_poison_memory_region(canary, kCanaryBytes);
      else
        __asan_unpoison_memory_region(canary, kCanaryBytes);
    }
#endif
  }

  std::vector<T> initial_;
  uint8_t* memory_ = nullptr;
};

}  // namespace ingot::testing
