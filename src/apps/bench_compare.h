// `ingot bench compare A B`: two reports of one command side by side: of `ingot bench shard` and `kernels` operation by operation, of
// `ingot bench step` step by step, of `ingot bench serve` request by request. Called by main.cc.
#pragma once

#include <string>

#include "apps/bench_kernels_report.h"
#include "apps/bench_shard_report.h"
#include "apps/bench_step_report.h"

namespace ingot::apps {

struct BenchCompareOptions {
  std::string a, b;  // files
};

// Steps and operations that both have, with b's time over a's; what only one has is told. Largest change first.
std::string compare_text(const ShardReport& a, const ShardReport& b);
// In the order of a.
std::string compare_text(const StepReport& a, const StepReport& b);
std::string compare_text(const KernelsReport& a, const KernelsReport& b);

// Returns the exit code. Errors go to standard error: a file that is no report, of another command than the other one, or of another
// version.
int run_bench_compare(const BenchCompareOptions& options);

}  // namespace ingot::apps
