// The emulator: a microscope for kernels, used by tests alone. Each GPU thread of a block is a fiber, and the whole grid runs on the
// calling OS thread, one block after another. It is here to catch what a GPU hides:
//   - the order in which threads run is chosen (Order); a correct kernel gives the same bits under all of them
//   - shared memory starts as 0xff bytes (NaN) in every block and has a guard after it
//   - a barrier or shuffle that some threads never reach is an error, with the counts, and not a hang
//   - under ThreadSanitizer each GPU thread has a clock of its own, which only sync() joins: a missing barrier is a reported race
//   - under AddressSanitizer every fiber has a known stack, and the guard of shared memory is poisoned
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/result.h"
#include "gpu/grid.h"
#include "gpu/host_maths.h"
#include "gpu/kernel.h"

namespace ingot::gpu::emu {

// Between two barriers: all threads take turns, in rising, falling or shuffled order, each running to its next barrier or shuffle;
// or one warp (the warps' ranks are shuffled once a block) runs as far as it can before the next one moves.
enum class Order : uint8_t { ascending, descending, shuffled, run_ahead };

struct Schedule {
  Order order = Order::ascending;
  uint64_t seed = 1;  // of shuffled and run_ahead
};

// What every GPU we aim at gives a block without asking.
inline constexpr size_t kMaxSharedBytes = 48 << 10;

// The threads of one block, and the barriers between them.
class Block {
 public:
  Block(int threads, int lanes, Schedule schedule);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Calls body(context, t) for every thread t of block `index`, each on its own fiber. Fails when threads wait for each other in
  // vain; the Block must not be used after that.
  Result<> run(int64_t index, void (*body)(void* context, int thread), void* context);

  int64_t index() const { return index_; }
  int threads() const { return threads_; }

  // For emu::Thread, on a fiber:
  void sync(int thread);
  // Every lane of the warp gives `value` and gets that of `lane`.
  uint64_t exchange(int thread, uint64_t value, int lane);

 private:
  struct Impl;
  int threads_;
  int64_t index_ = 0;
  std::unique_ptr<Impl> impl_;
};

// A block's shared memory, with a guard after it.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  void poison();                 // before each block
  Result<> check_guard() const;  // after it: fails when something was written behind the end
  void* data() const { return data_; }

 private:
  size_t bytes_;
  uint8_t* data_;
};

template <int Lanes>
class Thread : public HostMaths {
 public:
  static constexpr int lanes = Lanes;
  Thread(Block& block, int thread) : block_(block), thread_(thread) {}
  int64_t block() const { return block_.index(); }
  int thread() const { return thread_; }
  int threads() const { return block_.threads(); }
  int lane() const { return thread_ % Lanes; }
  int warp() const { return thread_ / Lanes; }
  int warps() const { return block_.threads() / Lanes; }
  void sync() { block_.sync(thread_); }
  template <class T>
  T shfl_xor(T v, int mask) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    uint64_t bits = 0;
    std::memcpy(&bits, &v, sizeof v);
    bits = block_.exchange(thread_, bits, lane() ^ mask);
    std::memcpy(&v, &bits, sizeof v);
    return v;
  }
  template <class T>
  void block_add(T* p, T v) {
    __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
  }

 private:
  Block& block_;
  int thread_;
};

// Runs all blocks of kernel K in order on a machine of `Lanes` lanes. Errors: a diverged barrier, a write behind shared memory.
template <class K, int Lanes>
Result<> launch(const typename K::Params& p, Schedule schedule = {}) {
  static_assert(sizeof(typename K::Shared) <= kMaxSharedBytes);
  const Grid grid = p.grid();
  Block block(grid.threads, Lanes, schedule);
  SharedMemory shared(sizeof(typename K::Shared));
  struct Call {
    Block& block;
    typename K::Shared& shared;
    const typename K::Params& params;
  } call{block, *static_cast<typename K::Shared*>(shared.data()), p};
  for (int64_t i = 0; i < grid.blocks; ++i) {
    shared.poison();
    INGOT_TRY(block.run(
        i,
        [](void* context, int thread) {
          Call& c = *static_cast<Call*>(context);
          Thread<Lanes> g(c.block, thread);
          K{}(g, c.shared, c.params);
        },
        &call));
    INGOT_TRY(shared.check_guard());
  }
  return {};
}

}  // namespace ingot::gpu::emu
