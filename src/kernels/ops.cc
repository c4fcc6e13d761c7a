#include "kernels/ops.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "gpu/cpu.h"
#include "kernels/combine.kernel.h"
#include "kernels/copy_rows.kernel.h"
#include "kernels/device/device_kernels.h"
#include "kernels/embed.kernel.h"
#include "kernels/expanded_mla.kernel.h"
#include "kernels/grouped_matmul.kernel.h"
#include "kernels/index_key_store.kernel.h"
#include "kernels/index_scores.kernel.h"
#include "kernels/latent_gather.kernel.h"
#include "kernels/latent_store.kernel.h"
#include "kernels/layer_norm.kernel.h"
#include "kernels/matmul.kernel.h"
#include "kernels/matmul_transposed.kernel.h"
#include "kernels/native/cpu/native.h"
#include "kernels/permute.kernel.h"
#include "kernels/rms_norm.kernel.h"
#include "kernels/rope.kernel.h"
#include "kernels/rope_table.kernel.h"
#include "kernels/router.kernel.h"
#include "kernels/sparse_mla.kernel.h"
#include "kernels/swiglu.kernel.h"
#include "kernels/tile_grouped_matmul.kernel.h"
#include "kernels/tile_matmul.kernel.h"
#include "kernels/top_k.kernel.h"

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

const WeightView* host_weights(const GroupedMatmulParams& p) { return p.host_weights == nullptr ? p.weights : p.host_weights; }

// The sizes of a tile kernel are neighbours in list.h, and `small` is the first.
static_assert(kDeviceTileMatmulMxfp4Small + static_cast<size_t>(TileSize::large) == kDeviceTileMatmulMxfp4Large);

DeviceKernel small_of(WeightFormat format, DeviceKernel bf16, DeviceKernel fp8, DeviceKernel mxfp4) {
  return format == WeightFormat::bf16 ? bf16 : format == WeightFormat::fp8_block ? fp8 : mxfp4;
}

template <template <TileSize, int> class TileParams, TileSize Size, class Params>
void launch_tile(gpu::Accelerator& device, DeviceKernel small, const Params& p) {
  const size_t kernel = small + static_cast<size_t>(Size);
  if (device.info().lanes == 32)
    device.launch(kernel, TileParams<Size, 32>{p});
  else
    device.launch(kernel, TileParams<Size, 64>{p});
}

// The size changes no bit.
template <template <TileSize, int> class TileParams, class Params>
void launch_tiles(gpu::Accelerator& device, DeviceKernel small, TileSize size, const Params& p) {
  switch (size) {
    case TileSize::small: return launch_tile<TileParams, TileSize::small>(device, small, p);
    case TileSize::medium: return launch_tile<TileParams, TileSize::medium>(device, small, p);
    case TileSize::large: return launch_tile<TileParams, TileSize::large>(device, small, p);
  }
}

}  // namespace

void embed(gpu::Stream& stream, const EmbedParams& p) {
  INGOT_CHECK(p.table.format == WeightFormat::bf16 || p.table.format == WeightFormat::f32, "an embedding table is bf16 or f32");
  if (stream.device != nullptr) return launch<Embed>(*stream.device, p);
  if (p.num_tokens > 0) gpu::cpu_launch<Embed>(stream, p);
}

void rms_norm(gpu::Stream& stream, const RmsNormParams& p) {
  check_norm(p.weight_dtype, p.x_stride, p.y_stride, p.dim);
  if (stream.device != nullptr) return launch<RmsNorm>(*stream.device, p);
  native::rms_norm(*stream.pool, p);
}

void layer_norm(gpu::Stream& stream, const LayerNormParams& p) {
  check_norm(p.weight_dtype, p.x_stride, p.y_stride, p.dim);
  if (stream.device != nullptr) return launch<LayerNorm>(*stream.device, p);
  if (p.rows > 0) gpu::cpu_launch<LayerNorm>(stream, p);
}

void rope_table(gpu::Stream& stream, const RopeTableParams& p) {
  INGOT_CHECK(p.rope_dim % 2 == 0, "RoPE over {} numbers", p.rope_dim);
  if (stream.device != nullptr) return launch<RopeTable>(*stream.device, p);
  if (p.num_tokens > 0) gpu::cpu_launch<RopeTable>(stream, p);
}

void rope(gpu::Stream& stream, const RopeParams& p) {
  INGOT_CHECK(p.rope_dim % 2 == 0 && p.offset >= 0, "RoPE over {} numbers at {}", p.rope_dim, p.offset);
  INGOT_CHECK(p.heads == 1 || p.offset + p.rope_dim <= p.head_stride, "RoPE part ends after its head");
  if (stream.device != nullptr) return launch<Rope>(*stream.device, p);
  native::rope(*stream.pool, p);
}

void matmul(gpu::Stream& stream, std::span<const MatmulParams> products) {
  for (const MatmulParams& p : products) {
    check_weight(p.w);
    INGOT_CHECK(p.rows <= 1 || (p.x_stride >= p.w.cols && p.y_stride >= p.w.rows), "matmul {} x {} with strides {} and {}", p.w.rows,
                p.w.cols, p.x_stride, p.y_stride);
  }
  if (stream.device == nullptr) return native::matmul(*stream.pool, products);
  for (const MatmulParams& p : products) {
    if (stream.matmul == gpu::DeviceMatmul::lanes || p.w.format == WeightFormat::f32)
      launch<Matmul>(*stream.device, p);
    else
      launch_tiles<TileMatmulParams>(
          *stream.device, small_of(p.w.format, kDeviceTileMatmulBf16Small, kDeviceTileMatmulFp8Small, kDeviceTileMatmulMxfp4Small),
          tile_size(p.rows), p);
  }
}

void matmul_transposed(gpu::Stream& stream, std::span<const MatmulTransposedParams> products) {
  for (const MatmulTransposedParams& p : products) {
    check_weight(p.w);
    INGOT_CHECK(p.rows <= 1 || (p.x_stride >= p.w.rows && p.y_stride >= p.w.cols), "transposed matmul {} x {} with strides {} and {}",
                p.w.rows, p.w.cols, p.x_stride, p.y_stride);
  }
  if (stream.device == nullptr) return native::matmul_transposed(*stream.pool, products);
  for (const MatmulTransposedParams& p : products) launch<MatmulTransposed>(*stream.device, p);
}

void swiglu(gpu::Stream& stream, const SwiGluParams& p) {
  INGOT_CHECK(p.rows <= 1 || (p.in_stride >= p.dim && p.y_stride >= p.dim), "SwiGLU over {} with strides {} and {}", p.dim, p.in_stride,
              p.y_stride);
  if (stream.device != nullptr) return launch<SwiGlu>(*stream.device, p);
  native::swiglu(*stream.pool, p);
}

void latent_store(gpu::Stream& stream, const LatentStoreParams& p) {
  check_cache_dtype(p.cache_dtype, true);
  if (stream.device != nullptr) return launch<LatentStore>(*stream.device, p);
  if (p.num_tokens > 0) gpu::cpu_launch<LatentStore>(stream, p);
}

void latent_gather(gpu::Stream& stream, const LatentGatherParams& p) {
  check_cache_dtype(p.cache_dtype, true);
  INGOT_CHECK(p.page_size > 0, "pages of {} tokens", p.page_size);
  if (stream.device != nullptr) return launch<LatentGather>(*stream.device, p);
  if (p.num_keys > 0) gpu::cpu_launch<LatentGather>(stream, p);
}

void index_key_store(gpu::Stream& stream, const IndexKeyStoreParams& p) {
  check_cache_dtype(p.cache_dtype, false);
  if (stream.device != nullptr) return launch<IndexKeyStore>(*stream.device, p);
  if (p.num_tokens > 0) gpu::cpu_launch<IndexKeyStore>(stream, p);
}

void index_scores(gpu::Stream& stream, const IndexScoresParams& p) {
  check_cache_dtype(p.cache_dtype, false);
  check_where(p.where);
  INGOT_CHECK(p.dim > 0 && p.heads > 0, "indexer of {} heads of {}", p.heads, p.dim);
  if (stream.device != nullptr) return launch<IndexScores>(*stream.device, p);
  native::index_scores(*stream.pool, p);
}

void top_k(gpu::Stream& stream, const TopKParams& p) {
  INGOT_CHECK(p.k > 0, "top-k with k = {}", p.k);
  if (stream.device != nullptr) return launch<TopK>(*stream.device, p);
  native::top_k(*stream.pool, p);
}

void sparse_mla(gpu::Stream& stream, const SparseMlaParams& p) {
  check_cache_dtype(p.cache_dtype, true);
  check_where(p.where);
  INGOT_CHECK(p.heads > 0 && p.latent_dim > 0, "MLA of {} heads over {}", p.heads, p.latent_dim);
  if (stream.device != nullptr) return launch<SparseMla>(*stream.device, p);
  native::sparse_mla(*stream.pool, p);
}

void expanded_mla(gpu::Stream& stream, const ExpandedMlaParams& p) {
  INGOT_CHECK(p.heads > 0 && p.k_pe_stride >= p.rope_dim, "MLA of {} heads, rope key stride {}", p.heads, p.k_pe_stride);
  if (stream.device != nullptr) return launch<ExpandedMla>(*stream.device, p);
  native::expanded_mla(*stream.pool, p);
}

void router(gpu::Stream& stream, const RouterParams& p) {
  INGOT_CHECK(p.k > 0 && p.k <= p.num_experts, "{} of {} experts", p.k, p.num_experts);
  if (stream.device != nullptr) return launch<Router>(*stream.device, p);
  if (p.num_tokens > 0) gpu::cpu_launch<Router>(stream, p);
}

void permute(gpu::Stream& stream, const PermuteParams& p) {
  INGOT_CHECK(p.k > 0 && p.k <= p.num_experts, "{} of {} experts", p.k, p.num_experts);
  if (stream.device != nullptr) return launch<Permute>(*stream.device, p);
  gpu::cpu_launch<Permute>(stream, p);
}

void grouped_matmul(gpu::Stream& stream, std::span<const GroupedMatmulParams> products) {
  for (const GroupedMatmulParams& p : products) {
    const WeightView* weights = host_weights(p);
    for (int64_t e = 0; e < p.num_experts; ++e) {
      check_weight(weights[e]);
      INGOT_CHECK(weights[e].rows == p.n && weights[e].cols == weights[0].cols, "expert {} is {} x {}, not {} x {}", e, weights[e].rows,
                  weights[e].cols, p.n, weights[0].cols);
    }
  }
  if (stream.device == nullptr) return native::grouped_matmul(*stream.pool, products);
  for (const GroupedMatmulParams& p : products) {
    const WeightView* weights = host_weights(p);
    const WeightFormat format = weights[0].format;
    const bool one_format = std::all_of(weights, weights + p.num_experts, [&](const WeightView& w) { return w.format == format; });
    // An expert's own number of rows is known to the GPU alone: sized for the mean.
    if (stream.matmul == gpu::DeviceMatmul::lanes || format == WeightFormat::f32 || !one_format)
      launch<GroupedMatmul>(*stream.device, p);
    else
      launch_tiles<TileGroupedMatmulParams>(
          *stream.device,
          small_of(format, kDeviceTileGroupedMatmulBf16Small, kDeviceTileGroupedMatmulFp8Small, kDeviceTileGroupedMatmulMxfp4Small),
          tile_size(p.num_rows / p.num_experts), p);
  }
}

void combine(gpu::Stream& stream, const CombineParams& p) {
  if (stream.device != nullptr) return launch<Combine>(*stream.device, p);
  native::combine(*stream.pool, p);
}

void copy_rows(gpu::Stream& stream, const CopyRowsParams& p) {
  INGOT_CHECK(p.rows <= 1 || (p.to_stride >= p.count && p.from_stride >= p.count), "copy of {} with strides {} and {}", p.count,
              p.from_stride, p.to_stride);
  if (stream.device != nullptr) return launch<CopyRows>(*stream.device, p);
  stream.pool->parallel_for(p.rows, 256, [&p](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t row = p.source_rows == nullptr ? r : p.source_rows[r];
      std::memcpy(static_cast<uint32_t*>(p.to) + r * p.to_stride, static_cast<const uint32_t*>(p.from) + row * p.from_stride,
                  static_cast<size_t>(p.count) * sizeof(uint32_t));
    }
  });
}

}  // namespace ingot::kernels
