// `ingot bench kernels`: every operation of a step of this model on this machine, by the kernels that production chooses, beside the roof
// that binds it. Called by main.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench_kernels_report.h"
#include "apps/bench_step_model.h"
#include "base/result.h"
#include "gpu/accelerator.h"

namespace CLI {
class App;
}

namespace ingot::apps {

struct BenchKernelsOptions {
  BenchModelOptions model;
  std::vector<int64_t> rows{1, 6, 32, 512};  // up to kMostSequences as many sequences that decode, more as one sequence's prompt
  int64_t context = 4096;                    // positions that the last row of a sequence sees
  int runs = 15;                             // of each step; long ones stop after time_limit_s
  double time_limit_s = 10;
  std::string json;  // a file to write; "-" for standard output, in place of the text

  static constexpr int64_t kMostSequences = 64;
};

void add_bench_kernels_flags(CLI::App* app, BenchKernelsOptions& options);

// Errors: a flag by name, no memory, those of the device.
Result<KernelsReport> bench_kernels(const BenchKernelsOptions& options, std::shared_ptr<gpu::Accelerator> device);

// Returns the exit code: 1 when it could not run. Prints to standard output.
int run_bench_kernels(const BenchKernelsOptions& options);

}  // namespace ingot::apps
