// `ingot bench shard`: one tensor-parallel rank of a model that no machine here could hold, with random weights of the true shapes and
// formats, run through the production path and timed operation by operation. Called by main.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench_shard_report.h"
#include "apps/bench_step_roofs.h"
#include "base/result.h"
#include "gpu/accelerator.h"
#include "spec/model_config.h"

namespace ingot::apps {

struct BenchShardOptions {
  std::string spec = "glm-5.2";
  int tp = 8;
  int64_t layers = 0;             // 0: all; fewer: one dense, then sparse ones, as with_layers() has it
  std::string weights = "mxfp4";  // of the experts: mxfp4, fp8 or bf16
  std::string attention_weights;  // bf16 or fp8; empty: fp8 for fp8, else bf16
  std::string mtp_weights;        // of the MTP layer's experts; empty: bf16 for mxfp4, as published, else as `weights`
  std::string kv_dtype = "fp8_e4m3";
  std::string routing = "uniform";                 // or zipf
  std::vector<int64_t> tokens{1, 6, 32, 64, 192};  // rows of decode steps: multiples of 6 as sequences of 6 rows, else of 1
  int64_t context = 20480;
  int64_t prefill = 8192, cached = 12288;  // prefill 0: none
  int runs = 7;                            // of each step; long ones stop after time_limit_s
  double time_limit_s = 20;                // of a step's runs
  std::string device = "auto";
  std::string device_matmul = "fast";  // f32, bf16 or fast
  bool graphs = true;
  bool check = false, project = false;
  std::string json;  // a file to write; "-" for standard output, in place of the text
  RoofSizes roofs;
};

// A model of `layers` layers that has every kind of the whole one: layer 0 is dense, the rest are sparse; 0, 1 and every fourth from 5 own
// an indexer. As many layers as it has, or 0: the model itself.
spec::ModelConfig with_layers(spec::ModelConfig config, int64_t layers);

// Errors: an option that is not known, no memory, those of the device.
Result<ShardReport> bench_shard(const BenchShardOptions& options, std::shared_ptr<gpu::Accelerator> device);

// Returns the exit code: 1 when it could not run, 3 when a check failed. Prints to standard output.
int run_bench_shard(const BenchShardOptions& options);

}  // namespace ingot::apps
