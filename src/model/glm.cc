#include "model/glm.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "model/device_step.h"
#include "model/device_weights.h"
#include "model/forward.h"
#include "model/weights.h"
#include "model/workspace.h"
#include "tensor/checkpoint.h"

namespace ingot::model {
namespace {

std::vector<float> inverse_frequencies(const spec::ModelConfig& config) {
  std::vector<float> out;
  for (int64_t j = 0; j < config.qk_rope_head_dim / 2; ++j)
    out.push_back(
        static_cast<float>(std::pow(config.rope_theta, -2.0 * static_cast<double>(j) / static_cast<double>(config.qk_rope_head_dim))));
  return out;
}

template <class T>
T* data_or_null(std::span<T> span) {
  return span.empty() ? nullptr : span.data();
}

// The arrays of a step on the CPU: the caller's own.
Step host_step(const ForwardBatch& batch) {
  Step step;
  step.batch = &batch;
  step.token_ids = batch.token_ids.data();
  step.positions = batch.positions.data();
  step.slots = batch.slots.data();
  step.seq_of_token = batch.seq_of_token.data();
  step.page_table = batch.page_table.data();
  step.logit_rows = batch.logit_rows.data();
  return step;
}

const ForwardBatch kNoBatch{};  // of a step that is the head alone

class LoadedGlm final : public Glm {
 public:
  LoadedGlm(spec::ModelConfig config, const GlmOptions& options, tensor::Checkpoint checkpoint, Weights weights,
            std::shared_ptr<gpu::Accelerator> device)
      : config_(std::move(config)),
        options_(options),
        checkpoint_(std::move(checkpoint)),
        weights_(std::move(weights)),
        inv_freq_(inverse_frequencies(config_)),
        device_(std::move(device)),
        workspace_(device_) {}

  // Copies what the kernels read to the device.
  Result<> move_to_device() {
    INGOT_ASSIGN(device_weights_, DeviceWeights::upload(weights_, device_));
    INGOT_TRY(prepare_device());
    log_info("weights on {}: {:.2f} GB", device_->info().text(), static_cast<double>(device_weights_.bytes()) / 1e9);
    return {};
  }
  // The weights are there already.
  Result<> use_device() {
    device_weights_ = DeviceWeights::there(weights_);
    return prepare_device();
  }
  Result<> prepare_device() {
    const size_t bytes = inv_freq_.size() * sizeof(float);
    INGOT_ASSIGN(device_inv_freq_, gpu::DeviceMemory::allocate(device_, bytes));
    device_->copy(device_inv_freq_.data(), inv_freq_.data(), bytes);
    INGOT_TRY(device_->finish());
    steps_ = std::make_unique<DeviceSteps>(device_, workspace_, options_, config_);
    return {};
  }

  const spec::ModelConfig& config() const override { return config_; }
  const tensor::Checkpoint& checkpoint() const override { return checkpoint_; }
  bool has_mtp() const override { return weights_.mtp.has_value(); }
  const std::shared_ptr<gpu::Accelerator>& device() const override { return device_; }
  DeviceCounts device_counts() const override { return steps_ ? steps_->counts() : DeviceCounts{}; }

  Result<std::vector<int32_t>> last_expert_offsets() const override {
    std::vector<int32_t> offsets(static_cast<size_t>(config_.n_routed_experts + 1));
    if (!device_) {
      std::copy_n(workspace_.offsets.get(), offsets.size(), offsets.begin());
      return offsets;
    }
    const size_t bytes = offsets.size() * sizeof(int32_t);
    INGOT_ASSIGN(gpu::HostMemory host, gpu::HostMemory::allocate(device_, bytes));
    device_->copy(host.data(), workspace_.offsets.get(), bytes);
    INGOT_TRY(device_->finish());
    std::memcpy(offsets.data(), host.data(), bytes);
    return offsets;
  }

  Result<> reserve(gpu::Stream& stream, const StepLimits& asked) override {
    if (!device_) return {};
    StepLimits limits = asked;
    limits.logit_rows = std::max(limits.logit_rows, kHeadRows);
    constexpr int64_t kPageSize = 64;
    INGOT_ASSIGN(KvCache cache, KvCache::create(config_, {limits.cache_format, 1, kPageSize}, device_));
    const auto rows = static_cast<size_t>(limits.rows), logit_rows = static_cast<size_t>(limits.logit_rows);
    const int64_t max_pages = (limits.context_length + kPageSize - 1) / kPageSize;
    // All pages are the one that there is, and nothing is stored. The first and the last row see a whole context, so that every row is one
    // that chooses positions; the rest of them are short, since it is memory that is asked for.
    std::vector<int32_t> token_ids(rows), positions(rows), slots(rows, -1), seq_of_token(rows), wanted(logit_rows);
    const std::vector<int32_t> pages(logit_rows * static_cast<size_t>(max_pages));
    positions.front() = positions.back() = static_cast<int32_t>(limits.context_length - 1);
    std::vector<float> logits(logit_rows * static_cast<size_t>(config_.vocab_size)), hidden(rows * hidden_size());
    const ForwardBatch batch{token_ids, positions, slots, seq_of_token, pages, max_pages, wanted};
    INGOT_TRY(forward(stream, batch, cache, {logits, hidden}, nullptr));
    INGOT_TRY(steps_->reserve(limits));
    if (!has_mtp()) return {};
    std::vector<float> drafted(logit_rows * hidden_size());
    std::vector<int32_t> lists(logit_rows * static_cast<size_t>(config_.index_topk));
    MtpBatch mtp;
    mtp.rows = batch;
    mtp.hidden = hidden;
    return forward_mtp(stream, mtp, cache, {logits, drafted, lists}, nullptr);
  }

  Result<> forward(gpu::Stream& stream, const ForwardBatch& batch, KvCache& cache, const ForwardOutput& output,
                   ForwardProbe* probe) override {
    const size_t tokens = check(batch, output.logits);
    INGOT_CHECK(output.hidden.empty() || output.hidden.size() == tokens * hidden_size(), "{} numbers for the hidden states of {} rows",
                output.hidden.size(), tokens);
    if (tokens == 0) return {};
    if (device_) {
      check_device(cache, probe);
      return steps_->run(
          {.batch = &batch, .hidden = {}, .lists = {}, .logits = output.logits, .out_hidden = output.hidden, .out_lists = {}}, cache,
          [&](const Step& step) { on_device(stream, step, &cache, [](Forward& forward) { forward.run(); }); });
    }
    Step step = host_step(batch);
    step.logits = output.logits.data();
    step.out_hidden = data_or_null(output.hidden);
    Forward(stream, config_, weights_, options_, inv_freq_.data(), step, &cache, workspace_, probe).run();
    return {};
  }

  Result<> head(gpu::Stream& stream, std::span<const float> hidden, std::span<float> logits) override {
    const size_t rows = hidden.size() / hidden_size();
    INGOT_CHECK(hidden.size() == rows * hidden_size() && logits.size() == rows * static_cast<size_t>(config_.vocab_size),
                "{} logits for {} numbers of hidden states", logits.size(), hidden.size());
    INGOT_CHECK(rows <= kHeadRows, "the head of {} rows at once", rows);
    if (rows == 0) return {};
    if (device_) return steps_->head(hidden, logits, head_on_device(stream, rows));
    Step step;
    step.batch = &kNoBatch;
    step.logits = logits.data();
    Forward(stream, config_, weights_, options_, inv_freq_.data(), step, nullptr, workspace_, nullptr)
        .run_head(hidden.data(), static_cast<int64_t>(rows));
    return {};
  }

  Result<> forward_mtp(gpu::Stream& stream, const MtpBatch& batch, KvCache& cache, const MtpOutput& output, ForwardProbe* probe) override {
    INGOT_CHECK(has_mtp(), "the checkpoint has no MTP layer");
    const size_t tokens = check(batch.rows, output.logits), rows = batch.rows.logit_rows.size();
    INGOT_CHECK(batch.hidden.size() == tokens * hidden_size() && output.hidden.size() == rows * hidden_size(),
                "hidden states of {} numbers in and {} out for {} rows, {} of them wanted", batch.hidden.size(), output.hidden.size(),
                tokens, rows);
    INGOT_CHECK(batch.lists.empty() || batch.lists.size() == tokens * static_cast<size_t>(batch.list_width),
                "lists of {} for {} rows of {}", batch.lists.size(), tokens, batch.list_width);
    INGOT_CHECK(output.lists.empty() || output.lists.size() == rows * static_cast<size_t>(config_.index_topk), "{} places for {} lists",
                output.lists.size(), rows);
    if (tokens == 0) return {};
    if (device_) {
      check_device(cache, probe);
      const DeviceSteps::Job job{.batch = &batch.rows,
                                 .mtp = true,
                                 .hidden = batch.hidden,
                                 .lists = batch.lists,
                                 .list_width = batch.list_width,
                                 .logits = output.logits,
                                 .out_hidden = output.hidden,
                                 .out_lists = output.lists};
      return steps_->run(job, cache, [&](const Step& step) {
        on_device(stream, step, &cache, [&](Forward& forward) { forward.run_mtp(*device_weights_.weights().mtp); });
      });
    }
    Step step = host_step(batch.rows);
    step.hidden = batch.hidden.data();
    step.lists = data_or_null(batch.lists);
    step.list_width = batch.list_width;
    step.logits = output.logits.data();
    step.out_hidden = output.hidden.data();
    step.out_lists = data_or_null(output.lists);
    Forward(stream, config_, weights_, options_, inv_freq_.data(), step, &cache, workspace_, probe).run_mtp(*weights_.mtp);
    return {};
  }

  Result<> queue(gpu::Stream& stream, const QueuedStep& job, KvCache& cache) override {
    const size_t tokens = check_rows(job.batch);
    check_device(cache, nullptr);
    INGOT_CHECK(job.draw.rows.empty() || job.draw.rows.size() == job.batch.logit_rows.size(), "{} draws of {} rows", job.draw.rows.size(),
                job.batch.logit_rows.size());
    INGOT_CHECK(job.token_places.empty() || job.token_places.size() == tokens, "{} places of drafts for {} rows", job.token_places.size(),
                tokens);
    if (tokens == 0) return {};
    return steps_->queue(stream, job, cache,
                         [&](const Step& step) { on_device(stream, step, &cache, [](Forward& forward) { forward.run(); }); });
  }

  Result<> queue_mtp(gpu::Stream& stream, const QueuedMtp& job, KvCache& cache) override {
    INGOT_CHECK(has_mtp(), "the checkpoint has no MTP layer");
    const size_t tokens = check_rows(job.batch), rows = job.batch.logit_rows.size();
    check_device(cache, nullptr);
    INGOT_CHECK(job.draw.rows.size() == rows && job.draft_places.size() == rows, "{} draws to {} places of {} rows", job.draw.rows.size(),
                job.draft_places.size(), rows);
    INGOT_CHECK(job.hidden_rows.size() == tokens && (job.token_places.empty() || job.token_places.size() == tokens),
                "{} hidden states and {} places of drafts for {} rows", job.hidden_rows.size(), job.token_places.size(), tokens);
    if (tokens == 0) return {};
    return steps_->queue_mtp(stream, job, cache, [&](const Step& step) {
      on_device(stream, step, &cache, [&](Forward& forward) { forward.run_mtp(*device_weights_.weights().mtp); });
    });
  }

  Result<> queue_head(gpu::Stream& stream, const QueuedHead& job) override {
    INGOT_CHECK(device_ != nullptr, "steps are queued on a GPU alone");
    INGOT_CHECK(job.draw.rows.size() == job.rows.size() && job.rows.size() <= kHeadRows, "{} draws of {} rows", job.draw.rows.size(),
                job.rows.size());
    if (job.rows.empty()) return {};
    return steps_->queue_head(stream, job, head_on_device(stream, job.rows.size()));
  }

  Result<> fetch_drafts(std::span<int32_t> drafts) override { return steps_->fetch_drafts(drafts); }
  Result<> keep_hidden(gpu::Stream& stream, std::span<const int32_t> rows, std::span<const int32_t> kept) override {
    return steps_->keep_hidden(stream, rows, kept);
  }
  Result<> finish() override { return steps_->finish(); }

 private:
  size_t hidden_size() const { return static_cast<size_t>(config_.hidden_size); }
  // Returns the number of rows.
  size_t check_rows(const ForwardBatch& batch) const {
    const size_t tokens = batch.token_ids.size();
    INGOT_CHECK(batch.positions.size() == tokens && batch.slots.size() == tokens && batch.seq_of_token.size() == tokens,
                "a batch of {} tokens with {} positions, {} slots and {} sequence rows", tokens, batch.positions.size(), batch.slots.size(),
                batch.seq_of_token.size());
    return tokens;
  }
  size_t check(const ForwardBatch& batch, std::span<const float> logits) const {
    const size_t tokens = check_rows(batch);
    INGOT_CHECK(logits.size() == batch.logit_rows.size() * static_cast<size_t>(config_.vocab_size), "{} logits for {} rows of {}",
                logits.size(), batch.logit_rows.size(), config_.vocab_size);
    return tokens;
  }

  void check_device(const KvCache& cache, const ForwardProbe* probe) const {
    INGOT_CHECK(probe == nullptr, "a probe looks into a forward pass on the CPU alone");
    INGOT_CHECK(device_ != nullptr, "steps are queued on a GPU alone");
    INGOT_CHECK(cache.device() == device_, "the cache is not on the GPU of the model");
  }
  template <class Run>
  void on_device(const gpu::Stream& caller, const Step& step, KvCache* cache, Run run) {
    gpu::Stream stream{nullptr, device_.get(), options_.device_matmul, caller.observer};
    Forward forward(stream, config_, device_weights_.weights(), options_, reinterpret_cast<const float*>(device_inv_freq_.data()), step,
                    cache, workspace_, nullptr);
    run(forward);
  }
  DeviceSteps::Operations head_on_device(const gpu::Stream& caller, size_t rows) {
    return [this, &caller, rows](Step step) {
      step.batch = &kNoBatch;
      on_device(caller, step, nullptr, [&](Forward& forward) { forward.run_head(step.hidden, static_cast<int64_t>(rows)); });
    };
  }

  spec::ModelConfig config_;
  GlmOptions options_;
  tensor::Checkpoint checkpoint_;  // keeps the mapped bytes that weights_ points into
  Weights weights_;
  std::vector<float> inv_freq_;  // (rope / 2)
  // Of a GPU; null and empty on the CPU.
  std::shared_ptr<gpu::Accelerator> device_;
  DeviceWeights device_weights_;
  gpu::DeviceMemory device_inv_freq_;
  Workspace workspace_;
  std::unique_ptr<DeviceSteps> steps_;
};

}  // namespace

Result<std::unique_ptr<Glm>> Glm::load(const std::filesystem::path& model_dir, const GlmOptions& options,
                                       std::shared_ptr<gpu::Accelerator> device) {
  if (device && options.activations != tensor::ActivationFormat::f32)
    return fail_hint("use the CPU", "rounding of activations is emulated on the CPU alone");
  INGOT_ASSIGN(spec::ModelConfig config, spec::load_model_config(model_dir));
  INGOT_ASSIGN(tensor::Checkpoint checkpoint, tensor::Checkpoint::open(model_dir));
  auto weights = bind_weights(checkpoint, config);
  if (!weights) return fail("{}: {}", model_dir.string(), weights.error().message);
  for (const auto& [name, reason] : weights->unused) log_info("unused tensor {}: {}", name, reason);
  auto glm = std::make_unique<LoadedGlm>(std::move(config), options, std::move(checkpoint), std::move(*weights), device);
  if (device) {
    if (auto moved = glm->move_to_device(); !moved)
      return fail_hint(moved.error().hint, "{}: {}", model_dir.string(), moved.error().message);
  }
  return glm;
}

Result<std::unique_ptr<Glm>> Glm::over(const Weights& weights, const spec::ModelConfig& config, const GlmOptions& options,
                                       std::shared_ptr<gpu::Accelerator> device) {
  if (device && options.activations != tensor::ActivationFormat::f32)
    return fail_hint("use the CPU", "rounding of activations is emulated on the CPU alone");
  auto glm = std::make_unique<LoadedGlm>(config, options, tensor::Checkpoint(), weights, device);
  if (device) INGOT_TRY(glm->use_device());
  return glm;
}

}  // namespace ingot::model
