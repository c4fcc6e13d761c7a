// `ingot bench step`: how long a step of this model takes on this machine, by the sequences in it and the positions that they see, and a
// prompt by its length; what fraction of the machine that is. Called by main.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench_step_model.h"
#include "apps/bench_step_report.h"
#include "base/result.h"
#include "gpu/accelerator.h"

namespace CLI {
class App;
}

namespace ingot::apps {

struct BenchStepOptions {
  BenchModelOptions model;
  std::vector<int64_t> batch{1, 4, 16};     // sequences that decode together
  std::vector<int64_t> context{256, 4096};  // positions that a decoded row sees
  std::vector<int64_t> prefill{512, 2000};  // lengths of prompts
  int64_t chunk = 512;                      // rows of a prompt's steps
  int runs = 15;                            // of each; long ones stop after time_limit_s
  double time_limit_s = 10;                 // of the runs of one line
  std::string json;                         // a file to write; "-" for standard output, in place of the text
};

void add_bench_step_flags(CLI::App* app, BenchStepOptions& options);

// Errors: a flag by name, no memory, those of the device.
Result<StepReport> bench_step(const BenchStepOptions& options, std::shared_ptr<gpu::Accelerator> device);

// Returns the exit code: 1 when it could not run. Prints to standard output.
int run_bench_step(const BenchStepOptions& options);

}  // namespace ingot::apps
