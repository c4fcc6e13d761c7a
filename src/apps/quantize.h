// `ingot quantize SRC DST`: a checkpoint in fewer bits, in the layout of the published ones. Progress goes to standard error, the plan of
// --dry-run and the summary to standard output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ingot::apps {

struct QuantizeFlags {
  std::string source, target;
  std::string scheme;  // mxfp4 or fp8-block; empty: the recipe file says
  std::string preset;  // amd, all-linear or a recipe file; empty: by scheme
  std::vector<std::string> excludes;
  bool allow_unmatched_excludes = false;
  std::string scale_mode = "even";
  std::string calibrate;             // JSON lines of texts; empty: round to nearest
  int64_t calibrate_tokens = 65536;  // of them, at most
  double shard_gb = 5.0;             // 1e9 bytes
  bool resume = false;
  bool dry_run = false;
  std::string report;  // a file to write; empty: none
  int threads = 0;     // 0: one per processor
};

// Exit status: 0, or 1 with the reason on standard error.
int run_quantize(const QuantizeFlags& flags);

}  // namespace ingot::apps
