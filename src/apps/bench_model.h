// `ingot bench model`: how fast the forward pass of a checkpoint is on this machine, and what fraction of the machine that is.
// Called by main.cc. Prints to standard output; changes nothing.
#pragma once

#include <string>
#include <vector>

namespace ingot::apps {

struct BenchModelOptions {
  std::string model;  // checkpoint folder
  int prompt_len = 2000;
  int decode_len = 256;                // steps of each decode measurement
  std::vector<int> batches{1, 4, 16};  // sequences that decode together
  int chunk = 512;                     // tokens of a prefill step
  int runs = 5;                        // repetitions; median, least and greatest are told
  std::string kv_dtype = "bf16";       // bf16, fp8_e4m3, fp8_ds_mla or f32
  int threads = 0;                     // 0: one per processor
  bool json = false;
};

// Returns the exit code. Errors go to standard error by name: a model that does not load, a length beyond the model's, an unknown
// cache type.
int run_bench_model(const BenchModelOptions& options);

}  // namespace ingot::apps
