#include "model/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "base/rng.h"
#include "gpu/cpu.h"
#include "kernels/device/device_kernels.h"
#include "kernels/fill_random.kernel.h"
#include "model/shard.h"

namespace ingot::model {
namespace {

using kernels::RandomKind;
using tensor::DType;
using tensor::WeightFormat;

constexpr size_t kAlignment = 256;  // as an allocation of its own would have
// Root mean squares of uniform e2m1 codes, and of 2^(-1, 0, 1).
constexpr double kCodeSize = 2.926, kExponentSize = 1.323;
constexpr float kCodesOfFp8 = 64.0f;  // deviation of the e4m3 numbers themselves: far from both ends

// Lays out a model's tensors one after the other. With a null base it only counts.
class Builder {
 public:
  struct Fill {
    size_t offset;
    int64_t bytes;
    RandomKind kind;
    float mean, deviation;  // both 0: zeros
  };
  struct Array {  // of an MoE layer, to be copied to the device
    size_t offset;
    const void* host;
    size_t bytes;
  };

  // config: of the rank. whole: of the model, whose vocabulary the embedding table has.
  Builder(const spec::ModelConfig& config, const spec::ModelConfig& whole, const RandomWeightOptions& options, uint8_t* base,
          bool on_device)
      : config_(config), whole_(whole), tp_(whole.vocab_size / config.vocab_size), options_(options), base_(base), on_device_(on_device) {}

  Weights build() {
    Weights w;
    const int64_t hidden = config_.hidden_size;
    w.embed = table(WeightPart::embed, -1, whole_.vocab_size, hidden, 1.0f);
    w.final_norm = norm(hidden);
    w.lm_head = linear(WeightPart::head, -1, config_.vocab_size, hidden, WeightFormat::bf16);
    for (int64_t i = 0; i < config_.num_hidden_layers; ++i) w.layers.push_back(layer(i, options_.experts));
    if (config_.num_nextn_predict_layers == 0) return w;
    const int64_t index = config_.num_hidden_layers;
    MtpWeights& mtp = w.mtp.emplace();
    mtp.enorm = norm(hidden);
    mtp.hnorm = norm(hidden);
    mtp.final_norm = norm(hidden);
    mtp.eh_proj = linear(WeightPart::mtp_projection, index, hidden, 2 * hidden / tp_, WeightFormat::bf16);
    mtp.embed = w.embed;
    mtp.head = w.lm_head;
    mtp.layer = layer(index, options_.mtp);
    return w;
  }

  size_t bytes() const { return end_; }
  const std::vector<Fill>& fills() const { return fills_; }
  // The arrays of `weights`, where build() left room for them in the same order.
  std::vector<Array> arrays(Weights& weights) const {
    std::vector<Array> list;
    const auto add = [&](const auto& host, const auto*& device) {
      list.push_back({static_cast<size_t>(reinterpret_cast<const uint8_t*>(device) - base_), host.data(), host.size() * sizeof(host[0])});
    };
    const auto moe = [&](LayerWeights& layer) {
      if (!layer.moe) return;
      add(layer.moe->router_bias, layer.moe->on_device.router_bias);
      add(layer.moe->gate, layer.moe->on_device.gate);
      add(layer.moe->up, layer.moe->on_device.up);
      add(layer.moe->down, layer.moe->on_device.down);
    };
    for (LayerWeights& layer : weights.layers) moe(layer);
    if (weights.mtp) moe(weights.mtp->layer);
    return list;
  }

 private:
  size_t place(int64_t bytes) {
    const size_t offset = end_;
    end_ += (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }
  const uint8_t* add(int64_t bytes, RandomKind kind, float mean, float deviation) {
    const size_t offset = place(bytes);
    fills_.push_back({offset, bytes, kind, mean, deviation});
    return base_ + offset;
  }
  float gain(WeightPart part, int64_t layer) const { return options_.gain ? options_.gain(part, layer) : 1.0f; }

  VectorView norm(int64_t size) { return {add(size * 2, RandomKind::bf16, 1.0f, 0.1f), DType::bf16}; }

  WeightView table(WeightPart part, int64_t layer, int64_t rows, int64_t cols, float deviation) {
    return {add(rows * cols * 2, RandomKind::bf16, 0.0f, deviation * gain(part, layer)), nullptr, rows, cols, 0, WeightFormat::bf16};
  }
  // `count` weights of one shape, one behind the other.
  std::vector<WeightView> linears(WeightPart part, int64_t layer, int64_t count, int64_t rows, int64_t cols, WeightFormat format) {
    WeightView w{nullptr, nullptr, rows, cols, 0, format};
    const float deviation = gain(part, layer) / std::sqrt(static_cast<float>(cols));
    const int64_t data_bytes = rows * w.row_bytes();
    int64_t scale_bytes = 0;
    switch (format) {
      case WeightFormat::bf16: w.data = add(count * data_bytes, RandomKind::bf16, 0.0f, deviation); break;
      case WeightFormat::f32: w.data = add(count * data_bytes, RandomKind::f32, 0.0f, deviation); break;
      case WeightFormat::fp8_block:
        w.data = add(count * data_bytes, RandomKind::e4m3, 0.0f, deviation > 0 ? kCodesOfFp8 : 0.0f);
        scale_bytes = (rows + 127) / 128 * w.scale_cols() * static_cast<int64_t>(sizeof(float));
        w.scale = add(count * scale_bytes, RandomKind::f32, deviation / kCodesOfFp8, deviation / kCodesOfFp8 / 16);
        break;
      case WeightFormat::mxfp4: {
        w.data = add(count * data_bytes, RandomKind::bytes, 0.0f, deviation > 0 ? 1.0f : 0.0f);
        scale_bytes = rows * w.scale_cols();
        const double exponent = deviation > 0 ? std::log2(deviation / (kCodeSize * kExponentSize)) : 0.0;
        w.scale = add(count * scale_bytes, RandomKind::e8m0, static_cast<float>(127 + std::lround(exponent)), 1.0f);
        break;
      }
    }
    std::vector<WeightView> list;
    for (int64_t i = 0; i < count; ++i) {
      list.push_back(w);
      w.data += data_bytes;
      if (scale_bytes > 0) w.scale += scale_bytes;
    }
    return list;
  }
  WeightView linear(WeightPart part, int64_t layer, int64_t rows, int64_t cols, WeightFormat format) {
    return linears(part, layer, 1, rows, cols, format).front();
  }
  MlpWeights mlp(int64_t layer, int64_t intermediate, WeightFormat format) {
    const int64_t hidden = config_.hidden_size;
    return {linear(WeightPart::mlp_in, layer, intermediate, hidden, format),
            linear(WeightPart::mlp_in, layer, intermediate, hidden, format),
            linear(WeightPart::mlp_out, layer, hidden, intermediate, format)};
  }

  LayerWeights layer(int64_t index, WeightFormat experts) {
    const int64_t hidden = config_.hidden_size, heads = config_.num_attention_heads;
    const WeightFormat attention = options_.attention;
    LayerWeights w;
    w.input_norm = norm(hidden);
    w.post_attention_norm = norm(hidden);
    w.q_a = linear(WeightPart::attention_in, index, config_.q_lora_rank, hidden, attention);
    w.q_a_norm = norm(config_.q_lora_rank);
    w.q_b = linear(WeightPart::attention_in, index, heads * config_.qk_head_dim(), config_.q_lora_rank, attention);
    w.kv_a = linear(WeightPart::attention_in, index, config_.latent_dim(), hidden, attention);
    w.kv_a_norm = norm(config_.kv_lora_rank);
    w.kv_b =
        linear(WeightPart::attention_in, index, heads * (config_.qk_nope_head_dim + config_.v_head_dim), config_.kv_lora_rank, attention);
    w.o = linear(WeightPart::attention_out, index, hidden, heads * config_.v_head_dim, attention);
    if (config_.has_indexer(index)) {
      IndexerWeights& indexer = w.indexer.emplace();
      indexer.wq_b = linear(WeightPart::indexer, index, config_.index_n_heads * config_.index_head_dim, config_.q_lora_rank, attention);
      indexer.wk = linear(WeightPart::indexer, index, config_.index_head_dim, hidden, attention);
      indexer.weights_proj = linear(WeightPart::indexer, index, config_.index_n_heads, hidden, WeightFormat::bf16);
      indexer.k_norm_weight = norm(config_.index_head_dim);
      indexer.k_norm_bias = {add(config_.index_head_dim * 2, RandomKind::bf16, 0.0f, 0.1f), DType::bf16};
    }
    if (config_.is_moe(index))
      w.moe = moe(index, experts);
    else
      w.dense = mlp(index, config_.intermediate_size, attention);
    return w;
  }

  MoeWeights moe(int64_t index, WeightFormat format) {
    const int64_t hidden = config_.hidden_size, count = config_.n_routed_experts, intermediate = config_.moe_intermediate_size;
    MoeWeights m;
    m.router = linear(WeightPart::router, index, count, hidden, WeightFormat::bf16);
    m.router_bias = router_bias(index);
    m.gate = linears(WeightPart::mlp_in, index, count, intermediate, hidden, format);
    m.up = linears(WeightPart::mlp_in, index, count, intermediate, hidden, format);
    m.down = linears(WeightPart::mlp_out, index, count, hidden, intermediate, format);
    if (config_.n_shared_experts > 0) m.shared = mlp(index, config_.n_shared_experts * intermediate, format);
    if (!on_device_) return m;
    const auto room = [&](const auto& host) { return base_ + place(static_cast<int64_t>(host.size() * sizeof(host[0]))); };
    m.on_device.router_bias = reinterpret_cast<const float*>(room(m.router_bias));
    m.on_device.gate = reinterpret_cast<const WeightView*>(room(m.gate));
    m.on_device.up = reinterpret_cast<const WeightView*>(room(m.up));
    m.on_device.down = reinterpret_cast<const WeightView*>(room(m.down));
    return m;
  }

  std::vector<float> router_bias(int64_t layer) const {
    std::vector<size_t> order(static_cast<size_t>(config_.n_routed_experts));
    std::iota(order.begin(), order.end(), 0);
    Rng rng(options_.seed + 7919 * static_cast<uint64_t>(layer));
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
    std::vector<float> bias(order.size());
    for (size_t rank = 0; rank < order.size(); ++rank)
      bias[order[rank]] = static_cast<float>(-options_.routing_skew * std::log(static_cast<double>(rank) + 1));
    return bias;
  }

  const spec::ModelConfig &config_, &whole_;
  const int64_t tp_;
  const RandomWeightOptions& options_;
  uint8_t* const base_;
  const bool on_device_;
  size_t end_ = 0;
  std::vector<Fill> fills_;
};

Result<> copy_arrays(const std::vector<Builder::Array>& arrays, uint8_t* base, const std::shared_ptr<gpu::Accelerator>& device) {
  size_t bytes = 0;
  for (const auto& array : arrays) bytes += array.bytes;
  INGOT_ASSIGN(const gpu::HostMemory staging, gpu::HostMemory::allocate(device, bytes));
  size_t at = 0;
  for (const auto& array : arrays) {
    std::memcpy(staging.data() + at, array.host, array.bytes);
    device->copy(base + array.offset, staging.data() + at, array.bytes);
    at += array.bytes;
  }
  return device->finish();
}

}  // namespace

Result<RandomWeights> RandomWeights::make(const spec::ModelConfig& whole, int tp, const RandomWeightOptions& options,
                                          std::shared_ptr<gpu::Accelerator> device, ThreadPool& pool) {
  INGOT_ASSIGN(const spec::ModelConfig config, shard_config(whole, tp));
  for (const auto& [name, width] : {std::pair{"hidden_size", config.hidden_size}, {"moe_intermediate_size", config.moe_intermediate_size}})
    if ((options.experts == WeightFormat::mxfp4 || options.mtp == WeightFormat::mxfp4) && width % 32 != 0)
      return fail("{} is {} a rank: MXFP4 needs a multiple of 32", name, width);
  const bool on_device = device != nullptr;
  Builder count(config, whole, options, nullptr, on_device);
  count.build();
  RandomWeights made;
  made.bytes_ = count.bytes();
  uint8_t* base = nullptr;
  if (on_device) {
    auto memory = gpu::DeviceMemory::allocate(device, made.bytes_);
    if (!memory) return fail_hint("use more ranks or fewer layers", "no memory for the weights: {}", memory.error().message);
    made.device_ = std::move(*memory);
    base = reinterpret_cast<uint8_t*>(made.device_.data());
  } else {
    made.host_ = {static_cast<uint8_t*>(std::aligned_alloc(kAlignment, made.bytes_)), std::free};
    if (!made.host_) return fail_hint("use more ranks or fewer layers", "no memory for {} bytes of weights", made.bytes_);
    base = made.host_.get();
  }
  Builder builder(config, whole, options, base, on_device);
  made.weights_ = builder.build();
  gpu::Stream stream{&pool};
  uint64_t seed = options.seed;
  for (const Builder::Fill& fill : builder.fills()) {
    if (fill.mean == 0 && fill.deviation == 0) {
      if (on_device)
        device->fill(base + fill.offset, 0, static_cast<size_t>(fill.bytes));
      else
        std::memset(base + fill.offset, 0, static_cast<size_t>(fill.bytes));
      continue;
    }
    const kernels::FillRandomParams p{base + fill.offset, fill.bytes, fill.kind, ++seed, fill.mean, fill.deviation};
    if (on_device)
      kernels::launch<kernels::FillRandom>(*device, p);
    else
      gpu::cpu_launch<kernels::FillRandom>(stream, p);
  }
  if (on_device) {
    INGOT_TRY(copy_arrays(builder.arrays(made.weights_), base, device));
    INGOT_TRY(device->finish());
  }
  return made;
}

Result<size_t> RandomWeights::bytes_of(const spec::ModelConfig& whole, int tp, const RandomWeightOptions& options) {
  INGOT_ASSIGN(const spec::ModelConfig config, shard_config(whole, tp));
  Builder count(config, whole, options, nullptr, true);
  count.build();
  return count.bytes();
}

double expected_distinct_experts(int64_t experts, int64_t k, double rows, double skew) {
  const auto count = static_cast<size_t>(experts);
  std::vector<double> chosen(count, static_cast<double>(k) / static_cast<double>(experts));  // the chance that a row chooses it
  if (skew != 0) {
    constexpr int kDraws = 4096;
    Rng rng(1);
    std::vector<double> score(count);
    std::vector<size_t> order(count);
    std::fill(chosen.begin(), chosen.end(), 0.0);
    for (int draw = 0; draw < kDraws; ++draw) {
      for (size_t e = 0; e < count; ++e) {
        const double normal = std::sqrt(-2 * std::log(1 - rng.uniform())) * std::cos(2 * M_PI * rng.uniform());
        score[e] = 1 / (1 + std::exp(-normal)) - skew * std::log(static_cast<double>(e) + 1);
      }
      std::iota(order.begin(), order.end(), 0);
      std::nth_element(order.begin(), order.begin() + k - 1, order.end(), [&](size_t a, size_t b) { return score[a] > score[b]; });
      for (int64_t i = 0; i < k; ++i) chosen[order[static_cast<size_t>(i)]] += 1.0 / kDraws;
    }
  }
  double distinct = 0;
  for (const double p : chosen) distinct += 1 - std::pow(1 - p, rows);
  return distinct;
}

}  // namespace ingot::model
