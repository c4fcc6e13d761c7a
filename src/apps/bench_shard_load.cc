#include "apps/bench_shard_load.h"

#include <algorithm>
#include <numeric>

#include "gpu/cpu.h"
#include "kernels/device/device_kernels.h"
#include "kernels/fill_random.kernel.h"
#include "kernels/ops.h"

namespace ingot::apps {
namespace {

int64_t pages_of(int64_t positions) { return (positions + ShardCache::kPageSize - 1) / ShardCache::kPageSize; }

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

Result<ShardCache> ShardCache::make(const spec::ModelConfig& config, tensor::LatentFormat format, const std::vector<StepShape>& shapes,
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
  ShardCache made(std::move(*cache));
  made.shared_ = shared;
  made.own_pages_ = own;
  made.common_pages_ = common;
  INGOT_TRY(made.fill(config, device, pool));
  return made;
}

int64_t ShardCache::bytes() const { return cache_.options().num_pages * cache_.page_bytes(); }

std::vector<int32_t> ShardCache::page_table(int64_t sequences, int64_t context) const {
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
Result<> ShardCache::fill(const spec::ModelConfig& config, const std::shared_ptr<gpu::Accelerator>& device, ThreadPool& pool) {
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

ShardSteps::ShardSteps(model::Glm& glm, ShardCache& cache, const StepShape& shape, int64_t vocab, uint64_t seed)
    : glm_(glm), cache_(cache), shape_(shape), vocab_(vocab), rng_(seed) {
  pages_ = cache.page_table(shape.sequences, shape.context);
  const int64_t each = pages_of(shape.context);
  for (int64_t s = 0; s < shape.sequences; ++s) {
    for (int64_t r = 0; r < shape.rows_each; ++r) {
      const int64_t position = shape.context - shape.rows_each + r;
      const int32_t page = pages_[static_cast<size_t>(s * each + position / ShardCache::kPageSize)];
      if (shape.all_logits || r + 1 == shape.rows_each) logit_rows_.push_back(static_cast<int32_t>(positions_.size()));
      positions_.push_back(static_cast<int32_t>(position));
      slots_.push_back(static_cast<int32_t>(page * ShardCache::kPageSize + position % ShardCache::kPageSize));
      sequence_.push_back(static_cast<int32_t>(s));
    }
  }
  const auto width = static_cast<size_t>(glm.config().hidden_size);
  tokens_.resize(positions_.size());
  logits_.resize(logit_rows_.size() * static_cast<size_t>(glm.config().vocab_size));
  hidden_.resize(positions_.size() * width);
  if (!shape.mtp) return;
  drafted_.resize(logit_rows_.size() * width);
  for (float& h : hidden_) h = rng_.uniform_float(-1.7f, 1.7f);
}

Result<> ShardSteps::run(gpu::Stream& stream) {
  for (int32_t& token : tokens_) token = static_cast<int32_t>(rng_.below(static_cast<uint64_t>(vocab_)));
  const model::ForwardBatch batch{tokens_, positions_, slots_, sequence_, pages_, pages_of(shape_.context), logit_rows_};
  if (!shape_.mtp) return glm_.forward(stream, batch, cache_.cache(), {logits_, hidden_});
  model::MtpBatch mtp;
  mtp.rows = batch;
  mtp.hidden = hidden_;
  return glm_.forward_mtp(stream, mtp, cache_.cache(), {logits_, drafted_, {}});
}

}  // namespace ingot::apps
