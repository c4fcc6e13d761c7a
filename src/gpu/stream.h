// Stream: where an operation runs: on a thread pool, in call order and at once, or on a GPU, in call order and behind the caller's back.
// Passed as an argument, never global.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/thread_pool.h"

namespace ingot::gpu {

class Accelerator;

// Rows of a step that decodes or verifies, at most: the native kernels of such steps are batch invariant among them.
inline constexpr int64_t kMaxStreamRows = 512;

// How a GPU multiplies. `lanes` and `tiles` are batch invariant: a row's bits do not depend on the rows beside it. `fast` is among steps
// of up to kMaxStreamRows rows, which covers decoding and verification; larger ones have kernels whose sums have another order.
enum class DeviceMatmul : uint8_t {
  lanes,  // in f32, by the kernels that the CPU has too
  tiles,  // activations rounded to bf16, on matrix instructions; weights stored as f32 still by lanes
  fast,   // as tiles, and by the native kernels of a GPU that has them, for attention too
};

// How large an operation is: of a product rows x n x k, of attention rows x heads x positions, of others rows x numbers in a row. What is
// not there is 0.
struct OpShape {
  int64_t rows = 0, n = 0, k = 0;
  bool operator==(const OpShape&) const = default;
};

// What an operation must move and compute at least.
struct OpCost {
  double bytes = 0;
  double flop = 0;
  OpShape shape = {};
};

// What the arrays of a step would tell, and the host of a GPU does not know when it launches; 0: not known, the most is assumed.
struct OpHints {
  double distinct_experts = 0;   // that some row of a step is sent to
  double positions = 0;          // that a row sees, in the mean
  double rows_per_sequence = 1;  // of a step
};

// Sees every operation: on the CPU when it is run, on a GPU when it is put on the queue.
struct OpObserver {
  virtual ~OpObserver() = default;
  OpHints hints;  // for the costs that it is told
  // `op` is the operation or its role, `kernel` what was chosen for it; both live for ever.
  virtual void before(std::string_view op, std::string_view kernel, const OpCost& cost) = 0;
  virtual void after() = 0;
};

struct Stream {
  ThreadPool* pool = nullptr;     // not owned; of the CPU alone
  Accelerator* device = nullptr;  // not owned; null: the CPU
  DeviceMatmul matmul = DeviceMatmul::lanes;
  OpObserver* observer = nullptr;  // not owned; null: nobody looks
  std::string_view role = {};      // what the next operations are for ("q_b"), as the observer is to name them; empty: their own name
};

}  // namespace ingot::gpu
