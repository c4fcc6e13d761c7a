// The pipeline of `ingot quantize`: source folder to target folder, band by band on all threads, in memory that does not grow with the
// model. prepare() reads headers and decides everything; quantize() does it. Called by the command line and by tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "quant/corrections.h"
#include "quant/plan.h"
#include "quant/recipe.h"
#include "quant/report.h"
#include "spec/model_config.h"
#include "tensor/checkpoint.h"

namespace ingot::quant {

struct QuantizeOptions {
  std::filesystem::path source, target;
  RecipeOptions recipe;
  uint64_t shard_bytes = 5'000'000'000;
  bool resume = false;
  std::string calibration;  // what identifies the corrections, for --resume; empty: none
};

struct Job {
  QuantizeOptions options;
  spec::ModelConfig config;
  Json config_json;  // of the source, as it is
  tensor::Checkpoint checkpoint;
  std::vector<Module> modules;
  Recipe recipe;
  Plan plan;
  std::vector<std::string> small_files;  // of the source, copied beside the weights
  std::vector<std::string> left_out;     // "name: why"
};

// Errors: those of the parts; a target that is the source or lies in it.
Result<Job> prepare(const QuantizeOptions& options);

// What the plan does to tensors of one kind.
struct PlanLine {
  std::string kind, from, to;
  int64_t tensors = 0;
  uint64_t bytes_before = 0, bytes_after = 0;
};
std::vector<PlanLine> plan_lines(const Job& job);

// Resident bytes at most, of `threads` threads: tables, buffers, the program itself.
uint64_t memory_estimate(const Job& job, int threads);

// Bytes of input a second of this job on this machine without writing, from a sample of at most `sample_bytes` of each kind of conversion,
// weighted by what the plan has of it.
Result<double> measure_rate(const Job& job, ThreadPool& pool, uint64_t sample_bytes);

class Progress {
 public:
  virtual ~Progress() = default;
  // Once, before the work: input bytes and shards in all, and how much of both an earlier run has done.
  virtual void begin(uint64_t bytes, size_t shards, uint64_t bytes_done, size_t shards_done) = 0;
  virtual void advance(uint64_t bytes) = 0;  // from any thread
  virtual void shard_done(const PlannedShard& shard, uint64_t bytes_in) = 0;
};

struct QuantizeResult {
  std::vector<TensorReport> tensors;  // the packed modules, in the source's order
  size_t shards_written = 0, shards_kept = 0;
  double seconds = 0;
};

// Calibration, which may take hours: called when the target is locked and something is left to do. Must give the same bytes each time, for
// --resume. May use work_folder() below the target, which is removed with what is in it.
using MakeCorrections = std::function<Result<std::unique_ptr<Corrections>>()>;
std::filesystem::path work_folder(const Job& job);

// Errors: a target that is not empty (without --resume); another run's target; no space; reading, writing, a weight that is not finite.
// What was finished stays for --resume. calibration: may be empty. progress: may be null.
Result<QuantizeResult> quantize(const Job& job, const MakeCorrections& calibration, ThreadPool& pool, Progress* progress);

ReportHeader report_header(const Job& job);

}  // namespace ingot::quant
