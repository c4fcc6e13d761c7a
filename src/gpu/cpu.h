// The CPU as a machine for kernels: a block is one thread of one lane, so barriers and shuffles vanish and a loop over threads is a
// plain loop that the compiler vectorises. Blocks are spread over the stream's thread pool.
#pragma once

#include <cstdint>

#include "gpu/grid.h"
#include "gpu/host_maths.h"
#include "gpu/kernel.h"
#include "gpu/stream.h"

namespace ingot::gpu {
namespace cpu {

class Thread : public HostMaths {
 public:
  static constexpr int lanes = 1;
  explicit Thread(int64_t block) : block_(block) {}
  int64_t block() const { return block_; }
  static constexpr int thread() { return 0; }
  static constexpr int threads() { return 1; }
  static constexpr int lane() { return 0; }
  static constexpr int warp() { return 0; }
  static constexpr int warps() { return 1; }
  static constexpr void sync() {}
  template <class T>
  static T shfl_xor(T v, int) {
    return v;
  }
  template <class T>
  static void block_add(T* p, T v) {
    *p += v;
  }

 private:
  int64_t block_;
};

}  // namespace cpu

// Runs all blocks of kernel K and returns when they are done.
template <class K>
void cpu_launch(Stream& stream, const typename K::Params& p) {
  const int64_t blocks = p.grid().blocks;
  // A few ranges a thread: even work without a fetch of the counter for each small block.
  const int64_t grain = blocks / (8 * stream.pool->num_threads()) + 1;
  stream.pool->parallel_for(blocks, grain, [&p](int64_t begin, int64_t end) {
    typename K::Shared shared;
    for (int64_t block = begin; block < end; ++block) {
      cpu::Thread g(block);
      K{}(g, shared, p);
    }
  });
}

}  // namespace ingot::gpu
