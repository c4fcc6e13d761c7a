// `ingot bench compare A B`: two reports of `ingot bench shard` side by side, operation by operation, or two of `ingot bench serve`,
// request by request. Called by main.cc.
#pragma once

#include <string>

#include "apps/bench_shard_report.h"

namespace ingot::apps {

struct BenchCompareOptions {
  std::string a, b;  // files
};

// Steps and operations that both have, with b's time over a's; what only one has is told. Largest change first.
std::string compare_text(const ShardReport& a, const ShardReport& b);

// Returns the exit code. Errors go to standard error: a file that is no report, or of another version.
int run_bench_compare(const BenchCompareOptions& options);

}  // namespace ingot::apps
