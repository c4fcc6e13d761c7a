// What this machine does at most, measured beside what it is compared with: bytes a second of its memory, and multiply-adds a second. Used
// by the local benchmarks on the model's thread.
#pragma once

#include <cstdint>
#include <memory>

#include "apps/bench_step_figures.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "gpu/accelerator.h"
#include "gpu/stream.h"

namespace ingot::apps {

struct RoofSizes {
  int64_t read_mb = 256;   // that the CPU reads: more than any cache in reach
  int64_t copy_mb = 1024;  // of a GPU's copy
  int64_t product = 8192;  // rows, n and k of its product
};

class RoofMeter {
 public:
  // device: null on the CPU, whose threads are the pool's. matmul: how the GPU multiplies.
  RoofMeter(std::shared_ptr<gpu::Accelerator> device, ThreadPool& pool, gpu::DeviceMatmul matmul, const RoofSizes& sizes = {});

  // A roof is the best that was seen. On the CPU, which others may use, every call adds some passes: before and after what is measured. On
  // a GPU the first call measures, and the others do nothing. Errors: those of a GPU.
  Result<> measure();
  const Roofs& roofs() const { return roofs_; }

 private:
  Result<> measure_gpu();

  std::shared_ptr<gpu::Accelerator> device_;
  ThreadPool& pool_;
  gpu::DeviceMatmul matmul_;
  RoofSizes sizes_;
  Roofs roofs_;
};

}  // namespace ingot::apps
