// Stream: where an operation runs: on a thread pool, in call order and at once, or on a GPU, in call order and behind the caller's back.
// Passed as an argument, never global.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace ingot::gpu {

class Accelerator;

// How a GPU multiplies by weights. Both are batch invariant: a row's bits do not depend on the rows beside it.
enum class DeviceMatmul : uint8_t {
  lanes,  // in f32, by the kernels that the CPU has too
  tiles,  // activations rounded to bf16, on matrix instructions; weights stored as f32 still by lanes
};

struct Stream {
  ThreadPool* pool = nullptr;     // not owned; of the CPU alone
  Accelerator* device = nullptr;  // not owned; null: the CPU
  DeviceMatmul matmul = DeviceMatmul::lanes;
};

}  // namespace ingot::gpu
