// The work of `ingot bench shard`: a KV cache full of random keys, and steps of every shape over it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/rng.h"
#include "gpu/accelerator.h"
#include "gpu/stream.h"
#include "model/glm.h"

namespace ingot::apps {

// One step: `sequences` sequences, each with `rows_each` rows, the last of which sees `context` positions.
struct StepShape {
  std::string name;  // as ShardMode::name
  int64_t sequences = 1, rows_each = 1, context = 0;
  bool mtp = false;
  bool all_logits = true;  // of every row, as a verification wants them; else of each sequence's last

  int64_t rows() const { return sequences * rows_each; }
};

// A cache for steps of these shapes, its keys random. Sequences have pages of their own while `max_bytes` allows, and share all but
// their last ones beyond. Errors: no memory.
class ShardCache {
 public:
  static Result<ShardCache> make(const spec::ModelConfig& config, tensor::LatentFormat format, const std::vector<StepShape>& shapes,
                                 int64_t max_bytes, std::shared_ptr<gpu::Accelerator> device, ThreadPool& pool);

  model::KvCache& cache() { return cache_; }
  int64_t bytes() const;
  // (sequences, max_pages), and what it is not.
  std::vector<int32_t> page_table(int64_t sequences, int64_t context) const;
  bool pages_are_shared() const { return shared_; }
  static constexpr int64_t kPageSize = 64;

 private:
  explicit ShardCache(model::KvCache cache) : cache_(std::move(cache)) {}
  Result<> fill(const spec::ModelConfig& config, const std::shared_ptr<gpu::Accelerator>& device, ThreadPool& pool);

  model::KvCache cache_;
  bool shared_ = false;
  int64_t own_pages_ = 0;     // behind the common ones: a sequence's last page, or all of its pages
  int64_t common_pages_ = 0;  // that all sequences may read
};

// Steps of one shape, with tokens of their own each.
class ShardSteps {
 public:
  // `vocab`: token ids are below it.
  ShardSteps(model::Glm& glm, ShardCache& cache, const StepShape& shape, int64_t vocab, uint64_t seed);

  // Errors: those of the model.
  Result<> run(gpu::Stream& stream);
  const std::vector<float>& hidden() const { return hidden_; }  // (rows, hidden_size) of the last step; of an MTP step its input

 private:
  model::Glm& glm_;
  ShardCache& cache_;
  StepShape shape_;
  int64_t vocab_;
  Rng rng_;
  std::vector<int32_t> tokens_, positions_, slots_, sequence_, pages_, logit_rows_;
  std::vector<float> logits_, hidden_, drafted_;
};

}  // namespace ingot::apps
