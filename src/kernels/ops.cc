#include "kernels/ops.h"

#include <cstring>

#include "base/check.h"
#include "gpu/cpu.h"
#include "kernels/embed.kernel.h"
#include "kernels/index_key_store.kernel.h"
#include "kernels/latent_gather.kernel.h"
#include "kernels/latent_store.kernel.h"
#include "kernels/layer_norm.kernel.h"
#include "kernels/native/cpu/native.h"
#include "kernels/permute.kernel.h"
#include "kernels/rope_table.kernel.h"
#include "kernels/router.kernel.h"

namespace ingot::kernels {
namespace {

using tensor::WeightFormat;

void check_weight(const WeightView& w) {
  INGOT_CHECK(w.rows >= 0 && w.cols > 0 && w.data != nullptr, "weight of {} x {}", w.rows, w.cols);
  INGOT_CHECK(w.format != WeightFormat::mxfp4 || w.cols % 32 == 0, "MXFP4 needs a multiple of 32 columns, got {}", w.cols);
  const bool scaled = w.format == WeightFormat::fp8_block || w.format == WeightFormat::mxfp4;
  INGOT_CHECK(!scaled || w.scale != nullptr, "a quantised weight without scales");
}

void check_cache_dtype(DType dtype, bool allow_f8) {
  INGOT_CHECK(dtype == DType::f32 || dtype == DType::bf16 || (allow_f8 && dtype == DType::f8_e4m3), "cache type {}",
              tensor::dtype_name(dtype));
}

void check_norm(DType weight, int64_t x_stride, int64_t y_stride, int64_t dim) {
  INGOT_CHECK(weight == DType::f32 || weight == DType::bf16, "norm weight of type {}", tensor::dtype_name(weight));
  INGOT_CHECK(dim > 0 && x_stride >= dim && y_stride >= dim, "norm over {} with strides {} and {}", dim, x_stride, y_stride);
}

void check_where(const PagedPositions& where) {
  INGOT_CHECK(where.page_size > 0 && where.max_pages > 0, "pages of {} tokens, {} a sequence", where.page_size, where.max_pages);
}

}  // namespace

void embed(gpu::Stream& stream, const EmbedParams& p) {
  INGOT_CHECK(p.table.format == WeightFormat::bf16 || p.table.format == WeightFormat::f32, "an embedding table is bf16 or f32");
  if (p.num_tokens > 0) gpu::cpu_launch<Embed>(stream, p);
}

void rms_norm(gpu::Stream& stream, const RmsNormParams& p) {
  check_norm(p.weight_dtype, p.x_stride, p.y_stride, p.dim);
  native::rms_norm(*stream.pool, p);
}

void layer_norm(gpu::Stream& stream, const LayerNormParams& p) {
  check_norm(p.weight_dtype, p.x_stride, p.y_stride, p.dim);
  if (p.rows > 0) gpu::cpu_launch<LayerNorm>(stream, p);
}

void rope_table(gpu::Stream& stream, const RopeTableParams& p) {
  INGOT_CHECK(p.rope_dim % 2 == 0, "RoPE over {} numbers", p.rope_dim);
  if (p.num_tokens > 0) gpu::cpu_launch<RopeTable>(stream, p);
}

void rope(gpu::Stream& stream, const RopeParams& p) {
  INGOT_CHECK(p.rope_dim % 2 == 0 && p.offset >= 0, "RoPE over {} numbers at {}", p.rope_dim, p.offset);
  INGOT_CHECK(p.heads == 1 || p.offset + p.rope_dim <= p.head_stride, "RoPE part ends after its head");
  native::rope(*stream.pool, p);
}

void matmul(gpu::Stream& stream, std::span<const MatmulParams> products) {
  for (const MatmulParams& p : products) {
    check_weight(p.w);
    INGOT_CHECK(p.rows <= 1 || (p.x_stride >= p.w.cols && p.y_stride >= p.w.rows), "matmul {} x {} with strides {} and {}", p.w.rows,
                p.w.cols, p.x_stride, p.y_stride);
  }
  native::matmul(*stream.pool, products);
}

void matmul_transposed(gpu::Stream& stream, std::span<const MatmulTransposedParams> products) {
  for (const MatmulTransposedParams& p : products) {
    check_weight(p.w);
    INGOT_CHECK(p.rows <= 1 || (p.x_stride >= p.w.rows && p.y_stride >= p.w.cols), "transposed matmul {} x {} with strides {} and {}",
                p.w.rows, p.w.cols, p.x_stride, p.y_stride);
  }
  native::matmul_transposed(*stream.pool, products);
}

void swiglu(gpu::Stream& stream, const SwiGluParams& p) {
  INGOT_CHECK(p.rows <= 1 || (p.in_stride >= p.dim && p.y_stride >= p.dim), "SwiGLU over {} with strides {} and {}", p.dim, p.in_stride,
              p.y_stride);
  native::swiglu(*stream.pool, p);
}

void latent_store(gpu::Stream& stream, const LatentStoreParams& p) {
  check_cache_dtype(p.cache_dtype, true);
  if (p.num_tokens > 0) gpu::cpu_launch<LatentStore>(stream, p);
}

void latent_gather(gpu::Stream& stream, const LatentGatherParams& p) {
  check_cache_dtype(p.cache_dtype, true);
  INGOT_CHECK(p.page_size > 0, "pages of {} tokens", p.page_size);
  if (p.num_keys > 0) gpu::cpu_launch<LatentGather>(stream, p);
}

void index_key_store(gpu::Stream& stream, const IndexKeyStoreParams& p) {
  check_cache_dtype(p.cache_dtype, false);
  if (p.num_tokens > 0) gpu::cpu_launch<IndexKeyStore>(stream, p);
}

void index_scores(gpu::Stream& stream, const IndexScoresParams& p) {
  check_cache_dtype(p.cache_dtype, false);
  check_where(p.where);
  INGOT_CHECK(p.dim > 0 && p.heads > 0, "indexer of {} heads of {}", p.heads, p.dim);
  native::index_scores(*stream.pool, p);
}

void top_k(gpu::Stream& stream, const TopKParams& p) {
  INGOT_CHECK(p.k > 0, "top-k with k = {}", p.k);
  native::top_k(*stream.pool, p);
}

void sparse_mla(gpu::Stream& stream, const SparseMlaParams& p) {
  check_cache_dtype(p.cache_dtype, true);
  check_where(p.where);
  INGOT_CHECK(p.heads > 0 && p.latent_dim > 0, "MLA of {} heads over {}", p.heads, p.latent_dim);
  native::sparse_mla(*stream.pool, p);
}

void expanded_mla(gpu::Stream& stream, const ExpandedMlaParams& p) {
  INGOT_CHECK(p.heads > 0 && p.k_pe_stride >= p.rope_dim, "MLA of {} heads, rope key stride {}", p.heads, p.k_pe_stride);
  native::expanded_mla(*stream.pool, p);
}

void router(gpu::Stream& stream, const RouterParams& p) {
  INGOT_CHECK(p.k > 0 && p.k <= p.num_experts, "{} of {} experts", p.k, p.num_experts);
  if (p.num_tokens > 0) gpu::cpu_launch<Router>(stream, p);
}

void permute(gpu::Stream& stream, const PermuteParams& p) {
  INGOT_CHECK(p.k > 0 && p.k <= p.num_experts, "{} of {} experts", p.k, p.num_experts);
  gpu::cpu_launch<Permute>(stream, p);
}

void grouped_matmul(gpu::Stream& stream, std::span<const GroupedMatmulParams> products) {
  for (const GroupedMatmulParams& p : products) {
    for (int64_t e = 0; e < p.num_experts; ++e) {
      check_weight(p.weights[e]);
      INGOT_CHECK(p.weights[e].rows == p.n && p.weights[e].cols == p.weights[0].cols, "expert {} is {} x {}, not {} x {}", e,
                  p.weights[e].rows, p.weights[e].cols, p.n, p.weights[0].cols);
    }
  }
  native::grouped_matmul(*stream.pool, products);
}

void combine(gpu::Stream& stream, const CombineParams& p) { native::combine(*stream.pool, p); }

void copy_rows(gpu::Stream& stream, const CopyRowsParams& p) {
  INGOT_CHECK(p.rows <= 1 || (p.to_stride >= p.count && p.from_stride >= p.count), "copy of {} with strides {} and {}", p.count,
              p.from_stride, p.to_stride);
  stream.pool->parallel_for(p.rows, 256, [&p](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      std::memcpy(p.to + r * p.to_stride, p.from + r * p.from_stride, static_cast<size_t>(p.count) * sizeof(float));
  });
}

}  // namespace ingot::kernels
