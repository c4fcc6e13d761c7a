#include "kernels/ops.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/combine.kernel.h"
#include "kernels/copy_rows.kernel.h"
#include "kernels/device/device_kernels.h"
#include "kernels/embed.kernel.h"
#include "kernels/expanded_mla.kernel.h"
#include "kernels/index_key_store.kernel.h"
#include "kernels/index_scores.kernel.h"
#include "kernels/latent_gather.kernel.h"
#include "kernels/latent_store.kernel.h"
#include "kernels/layer_norm.kernel.h"
#include "kernels/native/cpu/native.h"
#include "kernels/observed.h"
#include "kernels/ops_sm90.h"
#include "kernels/permute.kernel.h"
#include "kernels/qkv_prepare.kernel.h"
#include "kernels/rms_norm.kernel.h"
#include "kernels/rope.kernel.h"
#include "kernels/rope_table.kernel.h"
#include "kernels/router.kernel.h"
#include "kernels/sample.kernel.h"
#include "kernels/sample_adjust.kernel.h"
#include "kernels/sample_draft.kernel.h"
#include "kernels/sample_logprob.kernel.h"
#include "kernels/sparse_mla.kernel.h"
#include "kernels/swiglu.kernel.h"
#include "kernels/top_k.kernel.h"

namespace ingot::kernels {
namespace {

using tensor::WeightFormat;

void check_latents(LatentFormat format, int64_t latent_dim, int64_t rope_dim) {
  INGOT_CHECK(tensor::latent_fits(format, latent_dim, rope_dim), "a latent of {} numbers and {} of its key cannot be kept as {}",
              latent_dim, rope_dim, tensor::latent_format_name(format));
}

void check_index_keys(DType dtype) { INGOT_CHECK(dtype == DType::f32 || dtype == DType::bf16, "cache type {}", tensor::dtype_name(dtype)); }

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
  run_observed<Embed>(stream, "embed", p);
}

void rms_norm(gpu::Stream& stream, const RmsNormParams& p) {
  check_norm(p.weight_dtype, p.x_stride, p.y_stride, p.dim);
  if (stream.device != nullptr) return launch_observed<RmsNorm>(stream, "rms_norm", p);
  native_observed(stream, "rms_norm", p, [&](ThreadPool& pool) { native::rms_norm(pool, p); });
}

void layer_norm(gpu::Stream& stream, const LayerNormParams& p) {
  check_norm(p.weight_dtype, p.x_stride, p.y_stride, p.dim);
  run_observed<LayerNorm>(stream, "layer_norm", p);
}

void rope_table(gpu::Stream& stream, const RopeTableParams& p) {
  INGOT_CHECK(p.rope_dim % 2 == 0, "RoPE over {} numbers", p.rope_dim);
  run_observed<RopeTable>(stream, "rope_table", p);
}

void rope(gpu::Stream& stream, const RopeParams& p) {
  INGOT_CHECK(p.rope_dim % 2 == 0 && p.offset >= 0, "RoPE over {} numbers at {}", p.rope_dim, p.offset);
  INGOT_CHECK(p.heads == 1 || p.offset + p.rope_dim <= p.head_stride, "RoPE part ends after its head");
  if (stream.device != nullptr) return launch_observed<Rope>(stream, "rope", p);
  native_observed(stream, "rope", p, [&p](ThreadPool& pool) {
    native::rope(pool, p);
    if (p.copy == nullptr) return;
    pool.parallel_for(p.num_tokens, 8, [&p](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t h = 0; h < p.heads; ++h)
          std::copy_n(p.x + t * p.token_stride + h * p.head_stride + p.offset, p.rope_dim,
                      p.copy + t * p.copy_token_stride + h * p.copy_head_stride);
      }
    });
  });
}

void swiglu(gpu::Stream& stream, const SwiGluParams& p) {
  INGOT_CHECK(p.rows <= 1 || (p.in_stride >= p.dim && p.y_stride >= p.dim), "SwiGLU over {} with strides {} and {}", p.dim, p.in_stride,
              p.y_stride);
  if (stream.device != nullptr) return launch_observed<SwiGlu>(stream, "swiglu", p);
  native_observed(stream, "swiglu", p, [&](ThreadPool& pool) { native::swiglu(pool, p); });
}

void latent_store(gpu::Stream& stream, const LatentStoreParams& p) {
  check_latents(p.cache_format, p.latent_dim, p.rope_dim);
  run_observed<LatentStore>(stream, "latent_store", p);
}

void latent_gather(gpu::Stream& stream, const LatentGatherParams& p) {
  check_latents(p.cache_format, p.latent_dim, p.rope_dim);
  INGOT_CHECK(p.page_size > 0, "pages of {} tokens", p.page_size);
  run_observed<LatentGather>(stream, "latent_gather", p);
}

void index_key_store(gpu::Stream& stream, const IndexKeyStoreParams& p) {
  check_index_keys(p.cache_dtype);
  run_observed<IndexKeyStore>(stream, "index_key_store", p);
}

void qkv_prepare(gpu::Stream& stream, const QkvPrepareParams& p) {
  const LatentStoreParams& latents = p.latent_store;
  const IndexKeyStoreParams& keys = p.index_store;
  INGOT_CHECK(p.kv_norm.y == p.kv_norm.x && p.kv_norm.x == latents.latent && p.kv_norm.x_stride == latents.latent_stride &&
                  p.kv_norm.y_stride == latents.latent_stride && p.kv_norm.dim == latents.latent_dim,
              "the latents' norm is not of what is stored");
  INGOT_CHECK(p.k_rope.x + p.k_rope.offset == latents.k_pe && p.k_rope.token_stride == latents.k_pe_stride && p.k_rope.heads == 1 &&
                  p.k_rope.rope_dim == latents.rope_dim && p.k_rope.copy == nullptr,
              "the keys' rotation is not of what is stored");
  INGOT_CHECK(p.kv_norm.rows == p.q_norm.rows && p.k_rope.num_tokens == p.q_norm.rows && latents.num_tokens == p.q_norm.rows,
              "parts of {}, {}, {} and {} rows", p.q_norm.rows, p.kv_norm.rows, p.k_rope.num_tokens, latents.num_tokens);
  if (p.has_index()) {
    const int64_t first = p.index_rope.x - keys.keys + p.index_rope.offset;
    INGOT_CHECK(p.index_norm.y == p.index_norm.x && p.index_norm.x == keys.keys && p.index_norm.x_stride == keys.key_stride &&
                    p.index_norm.y_stride == keys.key_stride && p.index_norm.dim == keys.dim,
                "the index keys' norm is not of what is stored");
    INGOT_CHECK(first >= 0 && first + p.index_rope.rope_dim <= keys.dim && p.index_rope.token_stride == keys.key_stride &&
                    p.index_rope.heads == 1 && p.index_rope.copy == nullptr,
                "the index keys' rotation is not of what is stored");
    INGOT_CHECK(p.index_norm.rows == p.q_norm.rows && p.index_rope.num_tokens == p.q_norm.rows && keys.num_tokens == p.q_norm.rows,
                "index parts of {}, {} and {} rows, the others of {}", p.index_norm.rows, p.index_rope.num_tokens, keys.num_tokens,
                p.q_norm.rows);
  }
  if (stream.device != nullptr) {
    check_norm(p.q_norm.weight_dtype, p.q_norm.x_stride, p.q_norm.y_stride, p.q_norm.dim);
    check_norm(p.kv_norm.weight_dtype, p.kv_norm.x_stride, p.kv_norm.y_stride, p.kv_norm.dim);
    check_latents(latents.cache_format, latents.latent_dim, latents.rope_dim);
    if (p.has_index()) {
      check_norm(p.index_norm.weight_dtype, p.index_norm.x_stride, p.index_norm.y_stride, p.index_norm.dim);
      check_index_keys(keys.cache_dtype);
    }
    return launch_observed<QkvPrepare>(stream, "qkv_prepare", p);
  }
  // One operation, as on a GPU: nobody is told of its parts.
  gpu::Stream parts{stream.pool};
  native_observed(stream, "qkv_prepare", p, [&](ThreadPool&) {
    rms_norm(parts, p.q_norm);
    rms_norm(parts, p.kv_norm);
    rope(parts, p.k_rope);
    latent_store(parts, latents);
    if (!p.has_index()) return;
    layer_norm(parts, p.index_norm);
    rope(parts, p.index_rope);
    index_key_store(parts, keys);
  });
}

void index_scores(gpu::Stream& stream, const IndexScoresParams& p) {
  check_index_keys(p.cache_dtype);
  check_where(p.where);
  INGOT_CHECK(p.dim > 0 && p.heads > 0, "indexer of {} heads of {}", p.heads, p.dim);
  if (sm90::index_scores(stream, p)) return;
  if (stream.device != nullptr) return launch_observed<IndexScores>(stream, "index_scores", p);
  native_observed(stream, "index_scores", p, [&](ThreadPool& pool) { native::index_scores(pool, p); });
}

void top_k(gpu::Stream& stream, const TopKParams& p) {
  INGOT_CHECK(p.k > 0, "top-k with k = {}", p.k);
  if (sm90::top_k(stream, p)) return;
  if (stream.device != nullptr) return launch_observed<TopK>(stream, "top_k", p);
  native_observed(stream, "top_k", p, [&](ThreadPool& pool) { native::top_k(pool, p); });
}

void sparse_mla(gpu::Stream& stream, const SparseMlaParams& p) {
  check_latents(p.cache_format, p.latent_dim, p.rope_dim);
  check_where(p.where);
  INGOT_CHECK(p.heads > 0 && p.latent_dim > 0, "MLA of {} heads over {}", p.heads, p.latent_dim);
  if (sm90::sparse_mla(stream, p)) return;
  if (stream.device != nullptr) return launch_observed<SparseMla>(stream, "sparse_mla", p);
  native_observed(stream, "sparse_mla", p, [&](ThreadPool& pool) { native::sparse_mla(pool, p); });
}

void expanded_mla(gpu::Stream& stream, const ExpandedMlaParams& p) {
  INGOT_CHECK(p.heads > 0 && p.k_pe_stride >= p.rope_dim, "MLA of {} heads, rope key stride {}", p.heads, p.k_pe_stride);
  if (stream.device != nullptr) return launch_observed<ExpandedMla>(stream, "expanded_mla", p);
  native_observed(stream, "expanded_mla", p, [&](ThreadPool& pool) { native::expanded_mla(pool, p); });
}

void router(gpu::Stream& stream, const RouterParams& p) {
  INGOT_CHECK(p.k > 0 && p.k <= p.num_experts, "{} of {} experts", p.k, p.num_experts);
  if (sm90::router(stream, p)) return;
  run_observed<Router>(stream, "router", p);
}

void permute(gpu::Stream& stream, const PermuteParams& p) {
  INGOT_CHECK(p.k > 0 && p.k <= p.num_experts, "{} of {} experts", p.k, p.num_experts);
  if (sm90::permute(stream, p)) return;
  run_observed<Permute>(stream, "permute", p);
}

void route(gpu::Stream& stream, const RouterParams& choice, const PermuteParams& permutation) {
  INGOT_CHECK(permutation.experts == choice.experts && permutation.num_tokens == choice.num_tokens &&
                  permutation.num_experts == choice.num_experts && permutation.k == choice.k,
              "the permutation is not of what the router chooses");
  INGOT_CHECK(choice.k > 0 && choice.k <= choice.num_experts, "{} of {} experts", choice.k, choice.num_experts);
  if (sm90::route(stream, choice, permutation)) return;
  router(stream, choice);
  permute(stream, permutation);
}

void combine(gpu::Stream& stream, const CombineParams& p) {
  if (sm90::combine(stream, p)) return;
  if (stream.device != nullptr) return launch_observed<Combine>(stream, "combine", p);
  native_observed(stream, "combine", p, [&](ThreadPool& pool) { native::combine(pool, p); });
}

void copy_rows(gpu::Stream& stream, const CopyRowsParams& p) {
  INGOT_CHECK(p.rows <= 1 || (p.to_stride >= p.count && p.from_stride >= p.count), "copy of {} with strides {} and {}", p.count,
              p.from_stride, p.to_stride);
  if (stream.device != nullptr) return launch_observed<CopyRows>(stream, "copy_rows", p);
  native_observed(stream, "copy_rows", p, [&p](ThreadPool& pool) {
    pool.parallel_for(p.rows, 256, [&p](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t row = p.source_rows == nullptr ? r : p.source_rows[r];
        std::memcpy(static_cast<uint32_t*>(p.to) + r * p.to_stride, static_cast<const uint32_t*>(p.from) + row * p.from_stride,
                    static_cast<size_t>(p.count) * sizeof(uint32_t));
      }
    });
  });
}

void adjust_rows(gpu::Stream& stream, const AdjustRowsParams& p) { launch_observed<AdjustRows>(stream, "adjust_rows", p); }

void sample_rows(gpu::Stream& stream, const SampleRowsParams& p) {
  INGOT_CHECK(p.vocab_size > 0 && p.vocab_size <= std::numeric_limits<int32_t>::max(), "a vocabulary of {}", p.vocab_size);
  launch_observed<SampleRows>(stream, "sample_rows", p);
}

void logprob_rows(gpu::Stream& stream, const LogprobRowsParams& p) {
  INGOT_CHECK(p.max_top <= p.vocab_size, "the {} likeliest of {} tokens", p.max_top, p.vocab_size);
  launch_observed<LogprobRows>(stream, "logprob_rows", p);
}

void keep_drafts(gpu::Stream& stream, const KeepDraftsParams& p) { launch_observed<KeepDrafts>(stream, "keep_drafts", p); }
void take_drafts(gpu::Stream& stream, const TakeDraftsParams& p) { launch_observed<TakeDrafts>(stream, "take_drafts", p); }
void extend_lists(gpu::Stream& stream, const ExtendListsParams& p) { launch_observed<ExtendLists>(stream, "extend_lists", p); }
void move_rows(gpu::Stream& stream, const MoveRowsParams& p) { launch_observed<MoveRows>(stream, "move_rows", p); }

}  // namespace ingot::kernels
