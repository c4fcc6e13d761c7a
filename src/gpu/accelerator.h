// Accelerator: one GPU made ready for work: its driver, one queue, and the kernels that were loaded for it, known by number. Shared by
// what has memory on it (a model's weights, a cache); used by one thread at a time, which calls enter() first.
//
// Work is put on the queue and runs in order behind the caller's back. What fails is kept: all later work is dropped, and finish() tells
// the first failure, now and for ever, since after a fault of a kernel a GPU's memory is not to be trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "gpu/code.h"
#include "gpu/driver.h"

namespace ingot::gpu {

enum class MemoryPlace : uint8_t;

class Accelerator {
 public:
  // Loads those blobs of `code` that device number `device` runs, and finds every kernel of `entries` in the blob of its source; native
  // ones whose blob is of another architecture are left out. Errors: no such device, no code for its architecture, a kernel that is not
  // there, or the driver's.
  static Result<std::shared_ptr<Accelerator>> open(std::unique_ptr<Driver> driver, int device, std::span<const CodeBlob> code,
                                                   std::span<const EntryPoint> entries);
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  Driver& driver() { return *driver_; }
  const DeviceInfo& info() const { return info_; }
  Queue queue() const { return queue_; }

  // Makes this GPU the one that the calling thread's driver calls mean.
  void enter();

  // Whether this GPU has kernel `entry` (an index of `entries`): always, but for native ones.
  bool has(size_t entry) const { return functions_[entry].handle != nullptr; }

  // Puts kernel `entry` on the queue. Params that have a shared_bytes() want so much dynamic shared memory a block.
  template <class Params>
  void launch(size_t entry, const Params& params) {
    size_t shared = 0;
    if constexpr (requires { params.shared_bytes(); }) {
      shared = params.shared_bytes();
      allow_shared(entry, shared);
    }
    if (!failure_) keep(driver_->launch(functions_[entry], params.grid(), shared, queue_, params, starts_early_));
  }
  // From and to device or pinned host memory.
  void copy(void* to, const void* from, size_t bytes);
  void fill(void* memory, uint8_t byte, size_t bytes);
  // Keeps a failure of the caller's own, as if work had failed.
  void report(Error error) {
    if (!failure_) failure_ = std::move(error);
  }
  // Waits until the queue is empty. Errors: the first failure since open().
  Result<> finish();

  // Marks this place of the queue, or of the graph that is being captured, whose every replay marks it anew.
  void record(Event event);

  // Launches after begin_capture() are written down instead of run, until end_capture() makes a graph of them. Nothing but launches and
  // records may come between. Errors: the driver's, or a failure that came before.
  Result<> begin_capture();
  Result<Graph> end_capture();
  void replay(const Graph& graph);

  // Bytes that are allocated through DeviceMemory now.
  size_t allocated_bytes() const { return allocated_bytes_; }

 private:
  template <MemoryPlace Place>
  friend class AcceleratorMemory;
  explicit Accelerator(std::unique_ptr<Driver> driver) : driver_(std::move(driver)) {}
  void keep(Result<> result) {
    if (!result) report(std::move(result).error());
  }
  void allow_shared(size_t entry, size_t bytes);

  std::unique_ptr<Driver> driver_;
  DeviceInfo info_;
  Queue queue_;
  bool starts_early_ = false;  // kernels are set up while those before them still run
  std::vector<Module> modules_;
  std::vector<Function> functions_;     // by number
  std::vector<size_t> allowed_shared_;  // of each: the most dynamic shared memory it was allowed so far
  std::optional<Error> failure_;
  bool capturing_ = false;
  size_t allocated_bytes_ = 0;
};

enum class MemoryPlace : uint8_t {
  device,  // the GPU's own, aligned to 256 bytes
  host,    // pinned host memory, which copies of the queue may read and write
};

template <MemoryPlace Place>
class AcceleratorMemory {
 public:
  AcceleratorMemory() = default;
  // Errors: the driver's, with the bytes and what is free.
  static Result<AcceleratorMemory> allocate(std::shared_ptr<Accelerator> device, size_t bytes);
  ~AcceleratorMemory() { release(); }
  AcceleratorMemory(AcceleratorMemory&& other) noexcept { *this = std::move(other); }
  AcceleratorMemory& operator=(AcceleratorMemory&& other) noexcept;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void release();  // waits for the queue: work on it may use the memory

  std::shared_ptr<Accelerator> device_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};
using DeviceMemory = AcceleratorMemory<MemoryPlace::device>;
using HostMemory = AcceleratorMemory<MemoryPlace::host>;
extern template class AcceleratorMemory<MemoryPlace::device>;
extern template class AcceleratorMemory<MemoryPlace::host>;

}  // namespace ingot::gpu
