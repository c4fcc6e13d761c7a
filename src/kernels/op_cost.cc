#include "kernels/op_cost.h"

#include <algorithm>

namespace ingot::kernels {
namespace {

using tensor::WeightFormat;

constexpr double kFloat = sizeof(float), kIndex = sizeof(int32_t);

double product(int64_t a, int64_t b, int64_t c = 1) { return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c); }
double size_of(DType dtype) { return static_cast<double>(tensor::dtype_bytes(dtype)); }

// Positions that a row of the batch reads.
double seen(const OpHints& hints, int64_t limit) {
  const auto most = static_cast<double>(limit);
  return hints.positions > 0 ? std::min(hints.positions, most) : most;
}

double distinct_experts(const GroupedMatmulParams& p, const OpHints& hints) {
  const auto most = static_cast<double>(std::min(p.num_experts, p.num_rows));
  return hints.distinct_experts > 0 ? std::min(hints.distinct_experts, most) : most;
}

// Of a number of an array that there is a rounded copy of, which is then read or written in its place.
double number_bytes(const uint16_t* rounded) { return rounded == nullptr ? kFloat : sizeof(uint16_t); }

int64_t whole(double count) { return static_cast<int64_t>(count + 0.5); }

// x as the experts gather it: a source row once, whatever the number of experts that read it.
double source_bytes(const GroupedMatmulParams& p, int64_t k) {
  const int64_t sources = p.order == nullptr ? p.num_rows : p.num_rows / std::max<int64_t>(p.rows_per_source, 1);
  return product(sources, k) * number_bytes(p.x_wide) + (p.order == nullptr ? 0.0 : product(p.num_rows, 1) * kIndex);
}

}  // namespace

double weight_bytes(const WeightView& w) {
  const double data = product(w.rows, w.row_bytes());
  if (w.format == WeightFormat::fp8_block) return data + product((w.rows + 127) / 128, w.scale_cols()) * kFloat;
  return data + product(w.rows, w.scale_cols());
}

OpCost op_cost(const EmbedParams& p, const OpHints&) {
  return {product(p.num_tokens, p.table.row_bytes()) + product(p.num_tokens, p.table.cols) * kFloat, 0, {p.num_tokens, p.table.cols}};
}

OpCost op_cost(const RmsNormParams& p, const OpHints&) {
  if (p.rows == 0) return {};
  return {product(p.rows, p.dim) * 2 * kFloat + product(p.dim, 1) * size_of(p.weight_dtype), 4 * product(p.rows, p.dim), {p.rows, p.dim}};
}

OpCost op_cost(const LayerNormParams& p, const OpHints&) {
  if (p.rows == 0) return {};
  return {
      product(p.rows, p.dim) * 2 * kFloat + 2 * product(p.dim, 1) * size_of(p.weight_dtype), 7 * product(p.rows, p.dim), {p.rows, p.dim}};
}

OpCost op_cost(const RopeTableParams& p, const OpHints&) {
  const double numbers = product(p.num_tokens, p.rope_dim);
  return {numbers * kFloat + product(p.num_tokens, 1) * kIndex, numbers, {p.num_tokens, p.rope_dim}};
}

OpCost op_cost(const RopeParams& p, const OpHints&) {
  const double turned = product(p.num_tokens, p.heads, p.rope_dim);
  return {turned * (p.copy == nullptr ? 2 : 3) * kFloat + product(p.num_tokens, p.rope_dim) * kFloat,
          3 * turned,
          {p.num_tokens, p.heads * p.rope_dim}};
}

OpCost op_cost(const MatmulParams& p, const OpHints&) {
  if (p.rows == 0) return {};
  const double out = product(p.rows, p.w.rows) * kFloat;
  return {weight_bytes(p.w) + product(p.rows, p.w.cols) * number_bytes(p.x_wide) + (p.accumulate ? 2 : 1) * out,
          2 * product(p.rows, p.w.rows, p.w.cols),
          {p.rows, p.w.rows, p.w.cols}};
}

OpCost op_cost(const MatmulTransposedParams& p, const OpHints&) {
  if (p.rows == 0) return {};
  return {weight_bytes(p.w) + product(p.rows, p.w.rows + p.w.cols) * kFloat,
          2 * product(p.rows, p.w.rows, p.w.cols),
          {p.rows, p.w.cols, p.w.rows}};
}

OpCost op_cost(const HeadMatmulParams& p, const OpHints&) {
  if (p.rows == 0) return {};
  const double part = static_cast<double>(p.n) / static_cast<double>(p.rows_per_head);
  return {part * weight_bytes(p.w) + product(p.rows, p.heads, p.n + p.w.cols) * kFloat,
          2 * product(p.rows, p.heads, p.n * p.w.cols),
          {p.rows * p.heads, p.transposed ? p.w.cols : p.n, p.transposed ? p.n : p.w.cols}};
}

OpCost op_cost(const GroupedMatmulParams& p, const OpHints& hints) {
  if (p.num_rows == 0) return {};
  const WeightView& w = p.host_weights == nullptr ? p.weights[0] : p.host_weights[0];
  return {distinct_experts(p, hints) * weight_bytes(w) + source_bytes(p, w.cols) + product(p.num_rows, p.n) * number_bytes(p.y_rounded),
          2 * product(p.num_rows, p.n, w.cols),
          {p.num_rows, p.n, w.cols}};
}

OpCost op_cost(const GatedMatmulParams& p, const OpHints& hints) {
  if (p.num_rows == 0) return {};
  const WeightView& up = p.host_weights == nullptr ? p.weights[0] : p.host_weights[0];
  const WeightView& gate = p.host_gates == nullptr ? p.gates[0] : p.host_gates[0];
  const double out = product(p.num_rows, p.n);
  return {distinct_experts(p, hints) * (weight_bytes(up) + weight_bytes(gate)) + source_bytes(p, up.cols) + out * number_bytes(p.y_wide),
          4 * product(p.num_rows, p.n, up.cols) + 4 * out,
          {p.num_rows, 2 * p.n, up.cols}};
}

OpCost op_cost(const SwiGluParams& p, const OpHints&) {
  return {product(p.rows, p.dim) * 3 * kFloat, 4 * product(p.rows, p.dim), {p.rows, p.dim}};
}

OpCost op_cost(const LatentStoreParams& p, const OpHints&) {
  const double row = product(p.latent_dim + p.rope_dim, 1) * kFloat +
                     static_cast<double>(tensor::latent_row_bytes(p.cache_format, p.latent_dim, p.rope_dim)) + kIndex;
  return {product(p.num_tokens, 1) * row, 0, {p.num_tokens, p.latent_dim + p.rope_dim}};
}

OpCost op_cost(const LatentGatherParams& p, const OpHints&) {
  const double row = product(p.latent_dim + p.rope_dim, 1) * kFloat +
                     static_cast<double>(tensor::latent_row_bytes(p.cache_format, p.latent_dim, p.rope_dim));
  return {product(p.num_keys, 1) * row, 0, {p.num_keys, p.latent_dim + p.rope_dim}};
}

OpCost op_cost(const IndexKeyStoreParams& p, const OpHints&) {
  return {product(p.num_tokens, p.dim) * (kFloat + size_of(p.cache_dtype)) + product(p.num_tokens, 1) * kIndex, 0, {p.num_tokens, p.dim}};
}

OpCost op_cost(const QkvPrepareParams& p, const OpHints& hints) {
  // From a projection to its cache nothing lies between.
  OpCost sum = op_cost(p.q_norm, hints);
  if (p.q_norm.rows == 0) return sum;
  sum.shape.n += p.latent_store.latent_dim + p.latent_store.rope_dim + (p.has_index() ? p.index_store.dim : 0);
  sum.bytes += op_cost(p.latent_store, hints).bytes + product(p.kv_norm.dim, 1) * size_of(p.kv_norm.weight_dtype) +
               product(p.k_rope.num_tokens, p.k_rope.rope_dim) * kFloat;
  sum.flop += op_cost(p.kv_norm, hints).flop + op_cost(p.k_rope, hints).flop;
  if (!p.has_index()) return sum;
  sum.bytes += op_cost(p.index_store, hints).bytes + 2 * product(p.index_norm.dim, 1) * size_of(p.index_norm.weight_dtype);
  sum.flop += op_cost(p.index_norm, hints).flop + op_cost(p.index_rope, hints).flop;
  return sum;
}

OpCost op_cost(const IndexScoresParams& p, const OpHints& hints) {
  const double positions = seen(hints, p.score_stride), tokens = product(p.num_tokens, 1);
  // Rows of one sequence score the same keys.
  const double readers = std::max(1.0, std::min(hints.rows_per_sequence, tokens));
  const double keys = tokens / readers * positions * product(p.dim, 1) * size_of(p.cache_dtype);
  return {keys + tokens * positions * kFloat + product(p.num_tokens, p.heads, p.dim + 1) * kFloat,
          2 * positions * product(p.num_tokens, p.heads, p.dim + 1),
          {p.num_tokens, p.heads, whole(positions)}};
}

OpCost op_cost(const TopKParams& p, const OpHints& hints) {
  const double lists = product(p.num_tokens, p.k) * kIndex;
  if (p.scores == nullptr) return {lists, 0, {p.num_tokens, p.k}};
  const double positions = seen(hints, p.score_stride);
  return {lists + product(p.num_tokens, 1) * positions * kFloat, 0, {p.num_tokens, p.k, whole(positions)}};
}

OpCost op_cost(const SparseMlaParams& p, const OpHints& hints) {
  const double keys = p.indices != nullptr ? seen(hints, p.topk) : seen(hints, p.where.max_pages * p.where.page_size);
  const double row = static_cast<double>(tensor::latent_row_bytes(p.cache_format, p.latent_dim, p.rope_dim));
  const double tokens = product(p.num_tokens, 1);
  return {tokens * keys * row + (p.indices != nullptr ? tokens * keys * kIndex : 0.0) +
              product(p.num_tokens, p.heads, 2 * p.latent_dim + p.rope_dim) * kFloat,
          2 * keys * product(p.num_tokens, p.heads, 2 * p.latent_dim + p.rope_dim),
          {p.num_tokens, p.heads, whole(keys)}};
}

OpCost op_cost(const ExpandedMlaParams& p, const OpHints& hints) {
  const double positions = std::max(hints.positions, 1.0);
  const double keys = p.indices != nullptr ? seen(hints, p.topk) : positions;
  return {positions * product(p.heads, p.nope_dim + p.v_dim) * kFloat +
              product(p.num_tokens, p.heads, p.nope_dim + p.rope_dim + p.v_dim) * kFloat,
          2 * keys * product(p.num_tokens, p.heads, p.nope_dim + p.rope_dim + p.v_dim),
          {p.num_tokens, p.heads, whole(keys)}};
}

OpCost op_cost(const RouterParams& p, const OpHints&) {
  return {product(p.num_tokens, p.num_experts) * kFloat + product(p.num_tokens, p.k) * (kFloat + kIndex),
          4 * product(p.num_tokens, p.num_experts),
          {p.num_tokens, p.num_experts}};
}

OpCost op_cost(const PermuteParams& p, const OpHints&) {
  return {3 * product(p.num_tokens, p.k) * kIndex + product(p.num_experts + 1, 1) * kIndex, 0, {p.num_tokens, p.k}};
}

OpCost op_cost(const CombineParams& p, const OpHints&) {
  const double out = product(p.num_tokens, p.dim) * kFloat;
  return {product(p.num_tokens, p.k, p.dim) * number_bytes(p.y_rounded) + (p.accumulate ? 2 : 1) * out +
              product(p.num_tokens, p.k) * (kFloat + kIndex),
          2 * product(p.num_tokens, p.k, p.dim),
          {p.num_tokens, p.dim, p.k}};
}

OpCost op_cost(const CopyRowsParams& p, const OpHints&) {
  return {product(p.rows, p.count) * 2 * kFloat + (p.source_rows != nullptr ? product(p.rows, 1) * kIndex : 0.0), 0, {p.rows, p.count}};
}

OpCost op_cost(const AdjustRowsParams& p, const OpHints&) {
  return {product(p.num_rows, p.vocab_size) * kFloat, 0, {p.num_rows, p.vocab_size}};
}

OpCost op_cost(const SampleRowsParams& p, const OpHints&) {
  return {product(p.num_rows, p.vocab_size) * kFloat, 4 * product(p.num_rows, p.vocab_size), {p.num_rows, p.vocab_size}};
}

OpCost op_cost(const LogprobRowsParams& p, const OpHints&) {
  return {product(p.num_rows, p.vocab_size) * kFloat, 4 * product(p.num_rows, p.vocab_size), {p.num_rows, p.vocab_size}};
}

OpCost op_cost(const KeepDraftsParams& p, const OpHints&) { return {3 * product(p.num_rows, 1) * kIndex, 0, {p.num_rows, 1}}; }

OpCost op_cost(const TakeDraftsParams& p, const OpHints&) { return {3 * product(p.num_tokens, 1) * kIndex, 0, {p.num_tokens, 1}}; }

OpCost op_cost(const ExtendListsParams& p, const OpHints&) { return {2 * product(p.num_rows, p.width) * kIndex, 0, {p.num_rows, p.width}}; }

OpCost op_cost(const MoveRowsParams& p, const OpHints&) { return {2 * product(p.num_rows, p.dim) * kFloat, 0, {p.num_rows, p.dim}}; }

}  // namespace ingot::kernels
