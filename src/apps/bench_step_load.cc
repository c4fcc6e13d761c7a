#include "apps/bench_step_load.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "gpu/cpu.h"
#include "kernels/device/device_kernels.h"
#include "kernels/fill_random.kernel.h"
#include "kernels/observed.h"
#include "kernels/ops.h"

namespace ingot::apps {
namespace {

constexpr int64_t kScratchBytes = int64_t{8} << 30;  // of a GPU: experts' rows of a long prefill, scores, logits

int64_t pages_of(int64_t positions) { return (positions + BenchCache::kPageSize - 1) / BenchCache::kPageSize; }

// Memory where the kernels work.
struct Scratch {
  gpu::DeviceMemory device;
  std::vector<uint64_t> host;
  uint8_t* data = nullptr;

  static Result<Scratch> make(const std::shared_ptr<gpu::Accelerator>& device, size_t bytes) {
    Scratch s;
    if (device) {
      INGOT_ASSIGN(s.device, gpu::DeviceMemory::allocate(device, bytes));
      s.data = reinterpret_cast<uint8_t*>(s.device.data());
    } else {
      s.host.resize((bytes + 7) / 8);
      s.data = reinterpret_cast<uint8_t*>(s.host.data());
    }
    return s;
  }
};

}  // namespace

gpu::OpHints StepShape::hints(double distinct_experts) const {
  gpu::OpHints hints;
  hints.distinct_experts = distinct_experts;
  hints.positions = static_cast<double>(context) - static_cast<double>(rows_each - 1) / 2;
  hints.rows_per_sequence = static_cast<double>(rows_each);
  return hints;
}

Result<tensor::WeightFormat> weight_format_of(const std::string& name) {
  if (name == "mxfp4") return tensor::WeightFormat::mxfp4;
  if (name == "fp8") return tensor::WeightFormat::fp8_block;
  if (name == "bf16") return tensor::WeightFormat::bf16;
  return fail_hint("use mxfp4, fp8 or bf16", "weights of format {} are unknown", name);
}

Result<int64_t> BenchCache::affordable_bytes(gpu::Accelerator* device) {
  if (device == nullptr) return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / 4;
  INGOT_ASSIGN(const gpu::MemoryInfo memory, device->driver().memory());
  return memory.free_bytes - std::min(kScratchBytes, memory.free_bytes / 2);
}

Result<BenchCache> BenchCache::make(const spec::ModelConfig& config, tensor::LatentFormat format, const std::vector<StepShape>& shapes,
                                    int64_t max_bytes, std::shared_ptr<gpu::Accelerator> device, ThreadPool& pool) {
  int64_t longest = 1, most = 1;
  for (const StepShape& shape : shapes) {
    longest = std::max(longest, pages_of(shape.context));
    most = std::max(most, shape.sequences);
  }
  // A step writes the keys of its rows: they are in a sequence's own pages in any case.
  int64_t tail = 1;
  for (const StepShape& shape : shapes) tail = std::max(tail, shape.sequences > 1 ? pages_of(shape.rows_each) + 1 : 1);
  const int64_t page_bytes = kPageSize * model::KvCache::bytes_per_token(config, format);
  const int64_t affordable = max_bytes / page_bytes;
  const bool shared = most * longest > affordable;
  const int64_t own = shared ? std::min(tail, longest) : longest;
  const int64_t common = shared ? std::max(longest, affordable - most * own) : 0;
  auto cache = model::KvCache::create(config, {.format = format, .num_pages = common + most * own, .page_size = kPageSize}, device);
  if (!cache) return forward_error(std::move(cache).error());
  BenchCache made(std::move(*cache));
  made.shared_ = shared;
  made.own_pages_ = own;
  made.common_pages_ = common;
  INGOT_TRY(made.fill(config, device, pool));
  return made;
}

int64_t BenchCache::bytes() const { return cache_.options().num_pages * cache_.page_bytes(); }

std::vector<int32_t> BenchCache::page_table(int64_t sequences, int64_t context) const {
  const int64_t each = pages_of(context), own = std::min(own_pages_, each);
  std::vector<int32_t> table;
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t p = 0; p < each; ++p) {
      const bool is_own = p >= each - own;
      table.push_back(static_cast<int32_t>(is_own ? common_pages_ + s * own_pages_ + (p - (each - own)) : (s * each + p) % common_pages_));
    }
  }
  return table;
}

// Through the operations that store keys in a step, so that every cache format gets rows that it would have.
Result<> BenchCache::fill(const spec::ModelConfig& config, const std::shared_ptr<gpu::Accelerator>& device, ThreadPool& pool) {
  constexpr int64_t kRows = 4096;  // at once
  const tensor::LatentFormat format = cache_.options().format;
  const int64_t width = std::max(config.latent_dim(), config.index_head_dim), total = cache_.options().num_pages * kPageSize;
  const int64_t latent_bytes = model::KvCache::latent_bytes(config, format);
  const auto dtype = model::KvCache::index_dtype(format);
  const int64_t key_bytes = config.index_head_dim * static_cast<int64_t>(tensor::dtype_bytes(dtype));
  const int64_t number_bytes = kRows * width * static_cast<int64_t>(sizeof(float));
  INGOT_ASSIGN(const Scratch numbers, Scratch::make(device, static_cast<size_t>(number_bytes)));
  INGOT_ASSIGN(const Scratch slots, Scratch::make(device, kRows * sizeof(int32_t)));
  std::vector<int32_t> rising(kRows);
  std::iota(rising.begin(), rising.end(), 0);
  gpu::Stream stream{&pool, device.get()};
  gpu::HostMemory staged;
  if (device) {
    INGOT_ASSIGN(staged, gpu::HostMemory::allocate(device, kRows * sizeof(int32_t)));
    std::copy(rising.begin(), rising.end(), reinterpret_cast<int32_t*>(staged.data()));
    device->copy(slots.data, staged.data(), staged.bytes());
  } else {
    std::copy(rising.begin(), rising.end(), reinterpret_cast<int32_t*>(slots.data));
  }
  const auto* x = reinterpret_cast<const float*>(numbers.data);
  const auto* to = reinterpret_cast<const int32_t*>(slots.data);
  uint64_t seed = 1000;
  for (int64_t layer = 0; layer < config.total_layers(); ++layer) {
    const kernels::FillRandomParams random{numbers.data, number_bytes, kernels::RandomKind::f32, ++seed, 0.0f, 1.0f};
    if (device)
      kernels::launch<kernels::FillRandom>(*device, random);
    else
      gpu::cpu_launch<kernels::FillRandom>(stream, random);
    for (int64_t row = 0; row < total; row += kRows) {
      const int64_t count = std::min(kRows, total - row);
      kernels::latent_store(stream, {static_cast<uint8_t*>(cache_.latents(layer)) + row * latent_bytes, format, x, width,
                                     x + config.kv_lora_rank, width, to, count, config.kv_lora_rank, config.qk_rope_head_dim});
      if (!config.has_indexer(layer)) continue;
      kernels::index_key_store(
          stream, {static_cast<uint8_t*>(cache_.index_keys(layer)) + row * key_bytes, dtype, x, width, to, count, config.index_head_dim});
    }
  }
  return device ? device->finish() : Result<>();
}

BenchSteps::BenchSteps(model::Glm& glm, BenchCache& cache, const StepShape& shape, int64_t vocab, uint64_t seed)
    : glm_(glm), cache_(cache), shape_(shape), vocab_(vocab), rng_(seed) {
  pages_ = cache.page_table(shape.sequences, shape.context);
  const int64_t each = pages_of(shape.context);
  for (int64_t s = 0; s < shape.sequences; ++s) {
    for (int64_t r = 0; r < shape.rows_each; ++r) {
      const int64_t position = shape.context - shape.rows_each + r;
      const int32_t page = pages_[static_cast<size_t>(s * each + position / BenchCache::kPageSize)];
      if (shape.gives != StepGives::nothing && (shape.all_logits || r + 1 == shape.rows_each))
        logit_rows_.push_back(static_cast<int32_t>(positions_.size()));
      positions_.push_back(static_cast<int32_t>(position));
      slots_.push_back(static_cast<int32_t>(page * BenchCache::kPageSize + position % BenchCache::kPageSize));
      sequence_.push_back(static_cast<int32_t>(s));
    }
  }
  const auto width = static_cast<size_t>(glm.config().hidden_size);
  tokens_.resize(positions_.size());
  if (shape.gives == StepGives::tokens && glm.device() != nullptr) {
    kernels::DrawRow greedy;
    greedy.kind = kernels::DrawKind::greedy;
    draws_.assign(logit_rows_.size(), greedy);
    drawn_.resize(logit_rows_.size());
  } else {
    logits_.resize(logit_rows_.size() * static_cast<size_t>(glm.config().vocab_size));
  }
  if (shape.gives == StepGives::hidden) hidden_.resize(positions_.size() * width);
  if (!shape.mtp) return;
  drafted_.resize(logit_rows_.size() * width);
  for (float& h : hidden_) h = rng_.uniform_float(-1.7f, 1.7f);
}

Result<> BenchSteps::run(gpu::Stream& stream) {
  for (int32_t& token : tokens_) token = static_cast<int32_t>(rng_.below(static_cast<uint64_t>(vocab_)));
  const model::ForwardBatch batch{tokens_, positions_, slots_, sequence_, pages_, pages_of(shape_.context), logit_rows_};
  if (!draws_.empty()) {
    model::QueuedStep step;
    step.batch = batch;
    step.draw.rows = draws_;
    step.draw.results = drawn_;
    INGOT_TRY(glm_.queue(stream, step, cache_.cache()));
    return glm_.finish();
  }
  if (!shape_.mtp) {
    INGOT_TRY(glm_.forward(stream, batch, cache_.cache(), {logits_, hidden_}));
    return shape_.gives == StepGives::tokens ? draw(stream) : Result<>();
  }
  model::MtpBatch mtp;
  mtp.rows = batch;
  mtp.hidden = hidden_;
  return glm_.forward_mtp(stream, mtp, cache_.cache(), {logits_, drafted_, {}});
}

// By the host, which has the logits.
Result<> BenchSteps::draw(gpu::Stream& stream) {
  const auto width = static_cast<size_t>(glm_.config().vocab_size);
  sched::SamplingParams greedy;
  greedy.temperature = 0;
  kernels::SampleRowsParams cost{};
  cost.num_rows = logit_rows();
  cost.vocab_size = glm_.config().vocab_size;
  Result<> done;
  stream.role = {};
  kernels::observed(stream, "sample", "host", cost, [&] {
    for (size_t row = 0; row < logit_rows_.size() && done; ++row) {
      auto drawn = sampler_.sample(std::span<const float>(logits_).subspan(row * width, width), greedy, 0);
      if (!drawn) done = forward_error(std::move(drawn).error());
    }
  });
  return done;
}

}  // namespace ingot::apps
