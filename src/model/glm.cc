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

  bool has_mtp() const override { return weights_.mtp.has_value(); }

  void forward(gpu::Stream& stream, const ForwardBatch& batch, KvCache& cache, const ForwardOutput& output, ForwardProbe* probe) override {
    const size_t tokens = check(batch, output.logits);
    INGOT_CHECK(output.hidden.empty() || output.hidden.size() == tokens * hidden_size(), "{} numbers for the hidden states of {} rows",
                output.hidden.size(), tokens);
    if (tokens == 0) return;
    Forward(stream, config_, weights_, options_, inv_freq_, batch, cache, workspace_, probe).run(output);
  }

  void forward_mtp(gpu::Stream& stream, const MtpBatch& batch, KvCache& cache, const MtpOutput& output, ForwardProbe* probe) override {
    INGOT_CHECK(has_mtp(), "the checkpoint has no MTP layer");
    const size_t tokens = check(batch.rows, output.logits), rows = batch.rows.logit_rows.size();
    INGOT_CHECK(batch.hidden.size() == tokens * hidden_size() && output.hidden.size() == rows * hidden_size(),
                "hidden states of {} numbers in and {} out for {} rows, {} of them wanted", batch.hidden.size(), output.hidden.size(),
                tokens, rows);
    INGOT_CHECK(batch.lists.empty() || batch.lists.size() == tokens * static_cast<size_t>(batch.list_width),
                "lists of {} for {} rows of {}", batch.lists.size(), tokens, batch.list_width);
    INGOT_CHECK(output.lists.empty() || output.lists.size() == rows * static_cast<size_t>(config_.index_topk), "{} places for {} lists",
                output.lists.size(), rows);
    if (tokens == 0) return;
    Forward(stream, config_, weights_, options_, inv_freq_, batch.rows, cache, workspace_, probe).run_mtp(*weights_.mtp, batch, output);
  }

 private:
  size_t hidden_size() const { return static_cast<size_t>(config_.hidden_size); }
  // Returns the number of rows.
  size_t check(const ForwardBatch& batch, std::span<const float> logits) const {
    const size_t tokens = batch.token_ids.size();
    INGOT_CHECK(batch.positions.size() == tokens && batch.slots.size() == tokens && batch.seq_of_token.size() == tokens,
                "a batch of {} tokens with {} positions, {} slots and {} sequence rows", tokens, batch.positions.size(), batch.slots.size(),
                batch.seq_of_token.size());
    INGOT_CHECK(logits.size() == batch.logit_rows.size() * static_cast<size_t>(config_.vocab_size), "{} logits for {} rows of {}",
                logits.size(), batch.logit_rows.size(), config_.vocab_size);
    return tokens;
  }

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
