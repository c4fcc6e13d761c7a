#include "model/shard.h"

#include <fmt/core.h>

#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"

namespace ingot::model {
namespace {

using tensor::WeightFormat;

constexpr int64_t kMxfp4Block = 32, kFp8Block = 128;

class Cutter {
 public:
  Cutter(int tp, int rank, ShardedWeights& to) : tp_(tp), rank_(rank), to_(to) {}

  // Every part of a weight cut by rows is a view, scales included: MXFP4's lie by row, and a view of an FP8 tensor knows its first row.
  WeightView rows(const WeightView& w) const { return w.row_slice(rank_ * (w.rows / tp_), w.rows / tp_); }

  Result<WeightView> columns(const WeightView& w, const std::string& name) {
    const int64_t cols = w.cols / tp_, first = rank_ * cols;
    WeightView part = w;
    part.cols = cols;
    switch (w.format) {
      case WeightFormat::bf16: part.data = copy(w.data, w.rows, w.cols * 2, first * 2, cols * 2); return part;
      case WeightFormat::f32: part.data = copy(w.data, w.rows, w.cols * 4, first * 4, cols * 4); return part;
      case WeightFormat::mxfp4:
        if (cols % kMxfp4Block != 0)
          return fail("{}: {} of {} columns a rank, which is not a multiple of the MXFP4 block's {}", name, cols, w.cols, kMxfp4Block);
        part.data = copy(w.data, w.rows, w.cols / 2, first / 2, cols / 2);
        part.scale = copy(w.scale, w.rows, w.scale_cols(), first / kMxfp4Block, cols / kMxfp4Block);
        return part;
      case WeightFormat::fp8_block: break;
    }
    // A part's first block begins at its first column. That is a piece of one block of the tensor when the cut is at a block's start, or
    // when the whole part lies in one block.
    if (first % kFp8Block != 0 && first % kFp8Block + cols > kFp8Block)
      return fail("{}: columns {} to {} of a rank begin within an FP8 scale block and go beyond it", name, first, first + cols);
    part.data = copy(w.data, w.rows, w.cols, first, cols);
    const int64_t scale_rows = (w.first_row + w.rows + kFp8Block - 1) / kFp8Block;
    const auto float_bytes = static_cast<int64_t>(sizeof(float));
    part.scale = copy(w.scale, scale_rows, w.scale_cols() * float_bytes, first / kFp8Block * float_bytes, part.scale_cols() * float_bytes);
    return part;
  }

  Result<> mlp(MlpWeights& mlp, const std::string& name) {
    mlp.gate = rows(mlp.gate);
    mlp.up = rows(mlp.up);
    INGOT_ASSIGN(mlp.down, columns(mlp.down, name + ".down_proj"));
    return {};
  }

  Result<> layer(LayerWeights& layer, int64_t index) {
    const std::string name = fmt::format("layer {} ", index);
    layer.q_b = rows(layer.q_b);
    layer.kv_b = rows(layer.kv_b);
    INGOT_ASSIGN(layer.o, columns(layer.o, name + "self_attn.o_proj"));
    if (layer.dense) INGOT_TRY(mlp(*layer.dense, name + "mlp"));
    if (!layer.moe) return {};
    MoeWeights& moe = *layer.moe;
    for (size_t e = 0; e < moe.gate.size(); ++e) {
      MlpWeights expert{moe.gate[e], moe.up[e], moe.down[e]};
      INGOT_TRY(mlp(expert, fmt::format("{}mlp.experts.{}", name, e)));
      moe.gate[e] = expert.gate;
      moe.up[e] = expert.up;
      moe.down[e] = expert.down;
    }
    if (moe.shared) INGOT_TRY(mlp(*moe.shared, name + "mlp.shared_experts"));
    return {};
  }

 private:
  // `count` bytes from `first` of each row.
  const uint8_t* copy(const uint8_t* from, int64_t num_rows, int64_t row_bytes, int64_t first, int64_t count) {
    const auto bytes = static_cast<size_t>(num_rows * count);
    auto memory = std::make_unique<uint8_t[]>(bytes);
    for (int64_t r = 0; r < num_rows; ++r) std::memcpy(memory.get() + r * count, from + r * row_bytes + first, static_cast<size_t>(count));
    to_.owned.push_back(std::move(memory));
    to_.owned_bytes += bytes;
    return to_.owned.back().get();
  }

  const int64_t tp_, rank_;
  ShardedWeights& to_;
};

}  // namespace

Result<spec::ModelConfig> shard_config(const spec::ModelConfig& config, int tp) {
  if (tp < 1) return fail("{} tensor-parallel ranks", tp);
  spec::ModelConfig part = config;
  const std::pair<const char*, int64_t*> cut[] = {{"num_attention_heads", &part.num_attention_heads},
                                                  {"intermediate_size", &part.intermediate_size},
                                                  {"moe_intermediate_size", &part.moe_intermediate_size},
                                                  {"vocab_size", &part.vocab_size}};
  for (const auto& [name, value] : cut) {
    if (*value % tp != 0) return fail_hint("use fewer ranks", "{} is {}, which {} ranks cannot share", name, *value, tp);
    *value /= tp;
  }
  return part;
}

Result<ShardedWeights> shard_weights(const Weights& weights, const spec::ModelConfig& config, int tp, int rank) {
  INGOT_CHECK(rank >= 0 && rank < tp, "rank {} of {}", rank, tp);
  INGOT_TRY(shard_config(config, tp));
  ShardedWeights part;
  part.weights = weights;
  if (tp == 1) return part;
  Cutter cut(tp, rank, part);
  part.weights.lm_head = cut.rows(weights.lm_head);
  for (size_t i = 0; i < weights.layers.size(); ++i) INGOT_TRY(cut.layer(part.weights.layers[i], static_cast<int64_t>(i)));
  if (weights.mtp) {
    part.weights.mtp->head = cut.rows(weights.mtp->head);
    INGOT_ASSIGN(part.weights.mtp->eh_proj, cut.columns(weights.mtp->eh_proj, "MTP eh_proj"));
    INGOT_TRY(cut.layer(part.weights.mtp->layer, config.num_hidden_layers));
  }
  return part;
}

}  // namespace ingot::model
