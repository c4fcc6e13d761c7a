// The work of the local benchmarks: a KV cache full of random keys, and steps of every shape over it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/rng.h"
#include "exec/sampler.h"
#include "gpu/accelerator.h"
#include "gpu/stream.h"
#include "model/glm.h"

namespace ingot::apps {

// What a step leaves: logits and hidden states of all rows, as drafts need them; the likeliest token of each row of logits, which on a GPU
// is drawn there; the logits alone; or nothing but keys, as a prompt's steps before the last.
enum class StepGives : uint8_t { hidden, tokens, logits, nothing };

// One step: `sequences` sequences, each with `rows_each` rows, the last of which sees `context` positions.
struct StepShape {
  std::string name;
  int64_t sequences = 1, rows_each = 1, context = 0;
  bool mtp = false;
  bool all_logits = true;  // of every row, as a verification wants them; else of each sequence's last
  StepGives gives = StepGives::hidden;

  int64_t rows() const { return sequences * rows_each; }
  // For the costs of its operations, when a layer's rows are sent to so many experts.
  gpu::OpHints hints(double distinct_experts) const;
};

// Errors: a name that is not known.
Result<tensor::WeightFormat> weight_format_of(const std::string& name);

// A cache for steps of these shapes, its keys random. Sequences have pages of their own while `max_bytes` allows, and share all but
// their last ones beyond. Errors: no memory.
class BenchCache {
 public:
  static Result<BenchCache> make(const spec::ModelConfig& config, tensor::LatentFormat format, const std::vector<StepShape>& shapes,
                                 int64_t max_bytes, std::shared_ptr<gpu::Accelerator> device, ThreadPool& pool);

  // Of the memory that is there, with room for the steps' own arrays. device: null for the host. Errors: a GPU's.
  static Result<int64_t> affordable_bytes(gpu::Accelerator* device);

  model::KvCache& cache() { return cache_; }
  int64_t bytes() const;
  // (sequences, max_pages), and what it is not.
  std::vector<int32_t> page_table(int64_t sequences, int64_t context) const;
  bool pages_are_shared() const { return shared_; }
  static constexpr int64_t kPageSize = 64;

 private:
  explicit BenchCache(model::KvCache cache) : cache_(std::move(cache)) {}
  Result<> fill(const spec::ModelConfig& config, const std::shared_ptr<gpu::Accelerator>& device, ThreadPool& pool);

  model::KvCache cache_;
  bool shared_ = false;
  int64_t own_pages_ = 0;     // behind the common ones: a sequence's last page, or all of its pages
  int64_t common_pages_ = 0;  // that all sequences may read
};

// Steps of one shape, with tokens of their own each.
class BenchSteps {
 public:
  // `vocab`: token ids are below it.
  BenchSteps(model::Glm& glm, BenchCache& cache, const StepShape& shape, int64_t vocab, uint64_t seed);

  // Errors: those of the model.
  Result<> run(gpu::Stream& stream);
  int64_t logit_rows() const { return static_cast<int64_t>(logit_rows_.size()); }
  const std::vector<float>& hidden() const { return hidden_; }  // (rows, hidden_size) of the last step; of an MTP step its input

 private:
  Result<> draw(gpu::Stream& stream);

  model::Glm& glm_;
  BenchCache& cache_;
  StepShape shape_;
  int64_t vocab_;
  Rng rng_;
  std::vector<int32_t> tokens_, positions_, slots_, sequence_, pages_, logit_rows_;
  std::vector<float> logits_, hidden_, drafted_;
  exec::Sampler sampler_;                   // of the CPU
  std::vector<kernels::DrawRow> draws_;     // of a GPU, as the next
  std::vector<kernels::SampledRow> drawn_;  // (logit rows)
};

}  // namespace ingot::apps
