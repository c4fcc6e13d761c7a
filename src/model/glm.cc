#include "model/glm.h"

#include <cmath>

#include "base/check.h"
#include "base/log.h"
#include "model/forward.h"
#include "model/weights.h"
#include "model/workspace.h"
#include "tensor/checkpoint.h"

namespace ingot::model {
namespace {

class LoadedGlm final : public Glm {
 public:
  LoadedGlm(spec::ModelConfig config, const GlmOptions& options, tensor::Checkpoint checkpoint, Weights weights)
      : config_(std::move(config)), options_(options), checkpoint_(std::move(checkpoint)), weights_(std::move(weights)) {
    for (int64_t j = 0; j < config_.qk_rope_head_dim / 2; ++j)
      inv_freq_.push_back(
          static_cast<float>(std::pow(config_.rope_theta, -2.0 * static_cast<double>(j) / static_cast<double>(config_.qk_rope_head_dim))));
  }

  const spec::ModelConfig& config() const override { return config_; }
  const tensor::Checkpoint& checkpoint() const override { return checkpoint_; }

  void forward(gpu::Stream& stream, const ForwardBatch& batch, KvCache& cache, std::span<float> logits, ForwardProbe* probe) override {
    const size_t tokens = batch.token_ids.size();
    INGOT_CHECK(batch.positions.size() == tokens && batch.slots.size() == tokens && batch.seq_of_token.size() == tokens,
                "a batch of {} tokens with {} positions, {} slots and {} sequence rows", tokens, batch.positions.size(), batch.slots.size(),
                batch.seq_of_token.size());
    INGOT_CHECK(logits.size() == batch.logit_rows.size() * static_cast<size_t>(config_.vocab_size), "{} logits for {} rows of {}",
                logits.size(), batch.logit_rows.size(), config_.vocab_size);
    if (tokens == 0) return;
    Forward(stream, config_, weights_, options_, inv_freq_, batch, cache, workspace_, probe).run(logits);
  }

 private:
  spec::ModelConfig config_;
  GlmOptions options_;
  tensor::Checkpoint checkpoint_;  // keeps the mapped bytes that weights_ points into
  Weights weights_;
  std::vector<float> inv_freq_;  // (rope / 2)
  Workspace workspace_;
};

}  // namespace

Result<std::unique_ptr<Glm>> Glm::load(const std::filesystem::path& model_dir, const GlmOptions& options) {
  INGOT_ASSIGN(spec::ModelConfig config, spec::load_model_config(model_dir));
  INGOT_ASSIGN(tensor::Checkpoint checkpoint, tensor::Checkpoint::open(model_dir));
  auto weights = bind_weights(checkpoint, config);
  if (!weights) return fail("{}: {}", model_dir.string(), weights.error().message);
  for (const auto& [name, reason] : weights->unused) log_info("unused tensor {}: {}", name, reason);
  return std::make_unique<LoadedGlm>(std::move(config), options, std::move(checkpoint), std::move(*weights));
}

}  // namespace ingot::model
