// `ingot bench speculation MODEL --data FILE`: what the MTP layer earns on this machine. Acceptance by position, what a verification and a
// draft cost beside a plain step, and tokens per second without drafts, with a fixed depth and with an adaptive one, side by side in one
// run. Called by main.cc. Prints to standard output; changes nothing.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ingot::apps {

struct BenchSpeculationOptions {
  std::filesystem::path model;
  std::filesystem::path data;          // tasks as of `ingot eval set`: a conversation a line
  int64_t limit = 120;                 // tasks from the start of the file
  int64_t max_tokens = 220;            // of an answer
  int num_steps = 5;                   // the fixed depth, and the deepest of the adaptive mode
  std::vector<int> batches{1, 8, 32};  // sequences that decode together
  int runs = 3;                        // repetitions of the speeds; medians count
  double temperature = 0;
  bool rejection_sampling = false;  // see `ingot serve --speculative-use-rejection-sampling`
  std::string kv_cache_dtype = "auto";
  int threads = 0;                    // 0: one per processor
  std::string device = "cpu";         // cpu, cuda, hip; auto: a GPU when there is one
  std::string device_matmul = "f32";  // see `ingot serve --device-matmul`
  bool no_graphs = false;             // launch every kernel of a GPU's step, replay nothing
  bool json = false;
};

// The exit code. Errors go to standard error by name.
int run_bench_speculation(const BenchSpeculationOptions& options);

}  // namespace ingot::apps
