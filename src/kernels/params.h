// One params struct a kernel: plain pointers with their shapes, sizes, and the grid. Shared by the kernel (any machine), its
// reference in double (ref/) and its native forms (native/). Activations are f32; weights and caches have their own formats.
// T = num_tokens. Strides are in elements, between consecutive rows. Nothing here owns memory.
#pragma once

#include <cstdint>

#include "gpu/grid.h"
#include "tensor/dtype.h"
#include "tensor/weight_view.h"

namespace ingot::kernels {

using gpu::Grid;
using tensor::DType;
using tensor::WeightView;

// out[t,:] = table[token_ids[t],:]
struct EmbedParams {
  float* out;                // (T, hidden)
  const int32_t* token_ids;  // (T), each in [0, table.rows)
  WeightView table;          // (vocab, hidden), bf16 or f32
  int64_t num_tokens;
  Grid grid() const { return {num_tokens, 256}; }
};

// y[r,:] = x[r,:] * rsqrt(mean(x[r,:]^2) + eps) * weight. y may be x.
struct RmsNormParams {
  float* y;
  int64_t y_stride;  // (rows, dim)
  const float* x;
  int64_t x_stride;    // (rows, dim)
  const void* weight;  // (dim)
  DType weight_dtype;  // bf16 or f32
  int64_t rows, dim;
  float eps;
  Grid grid() const { return {rows, 256}; }
};

// y[r,:] = (x - mean) * rsqrt(var + eps) * weight + bias, population variance. y may be x.
struct LayerNormParams {
  float* y;
  int64_t y_stride;  // (rows, dim)
  const float* x;
  int64_t x_stride;    // (rows, dim)
  const void* weight;  // (dim)
  const void* bias;    // (dim)
  DType weight_dtype;  // of weight and bias: bf16 or f32
  int64_t rows, dim;
  float eps;
  Grid grid() const { return {rows, 128}; }
};

// cos_sin[t,j] = (cos, sin)(f32(positions[t]) * inv_freq[j]); the product is rounded to f32 as the reference runtimes do.
struct RopeTableParams {
  float* cos_sin;            // (T, rope_dim/2, 2)
  const int32_t* positions;  // (T)
  const float* inv_freq;     // (rope_dim/2), theta^(-2j/rope_dim)
  int64_t num_tokens, rope_dim;
  Grid grid() const { return {num_tokens, 64}; }
};

// Rotates, in place, elements [offset, offset + rope_dim) of every head of every token.
// interleave: pairs are (2j, 2j+1); else (j, j + rope_dim/2).
struct RopeParams {
  float* x;  // (T, heads, head_stride)
  int64_t token_stride, head_stride, offset;
  const float* cos_sin;  // (T, rope_dim/2, 2)
  int64_t num_tokens, heads, rope_dim;
  bool interleave;
  Grid grid() const { return {num_tokens, 128}; }
};

// y[m,n] (+)= sum_k x[m,k] * w[n,k]. The order of the sum of an element depends on K alone, never on M or N (batch invariance).
struct MatmulParams {
  float* y;
  int64_t y_stride;  // (M, w.rows)
  const float* x;
  int64_t x_stride;  // (M, w.cols)
  WeightView w;      // (N, K)
  int64_t rows;      // M
  bool accumulate;   // add to y instead of replacing it
  Grid grid() const { return {rows * ((w.rows + 63) / 64), 64}; }
};

// y[m,k] = sum_n x[m,n] * w[n,k]: the transposed product, for absorbing W_k into the query. Same rule for the order of the sum.
struct MatmulTransposedParams {
  float* y;
  int64_t y_stride;  // (M, w.cols)
  const float* x;
  int64_t x_stride;  // (M, w.rows)
  WeightView w;      // (N, K)
  int64_t rows;      // M
  Grid grid() const { return {rows * ((w.cols + 63) / 64), 64}; }
};

// y = silu(gate) * up
struct SwiGluParams {
  float* y;
  int64_t y_stride;  // (rows, dim)
  const float* gate;
  const float* up;
  int64_t in_stride;  // (rows, dim) each
  int64_t rows, dim;
  Grid grid() const { return {rows, 256}; }
};

// cache[slots[t], :] = (latent[t], k_pe[t]) in the cache's type. f8_e4m3 is the 576-byte form: scale 1.0, saturating.
struct LatentStoreParams {
  void* cache;        // (num_slots, latent_dim + rope_dim) of cache_dtype
  DType cache_dtype;  // f32, bf16 or f8_e4m3
  const float* latent;
  int64_t latent_stride;  // (T, latent_dim), after kv_a_layernorm
  const float* k_pe;
  int64_t k_pe_stride;   // (T, rope_dim), after RoPE
  const int32_t* slots;  // (T); negative: the row is padding, nothing is written
  int64_t num_tokens, latent_dim, rope_dim;
  Grid grid() const { return {num_tokens, 128}; }
};

// cache[slots[t], :] = keys[t]
struct IndexKeyStoreParams {
  void* cache;        // (num_slots, dim) of cache_dtype
  DType cache_dtype;  // f32 or bf16
  const float* keys;
  int64_t key_stride;    // (T, dim), after LayerNorm and RoPE
  const int32_t* slots;  // (T); negative: padding
  int64_t num_tokens, dim;
  Grid grid() const { return {num_tokens, 128}; }
};

// Where the tokens of a batch keep their keys: position p of sequence s is slot page_table[s, p / page_size] * page_size + p % page_size.
struct PagedPositions {
  const int32_t* page_table;    // (num_seqs, max_pages)
  const int32_t* seq_of_token;  // (T)
  const int32_t* positions;     // (T): token t sees positions 0..positions[t]
  int64_t max_pages;
  int64_t page_size;

  constexpr int64_t slot(int64_t seq, int64_t position) const {  // constexpr: device compilers take it as their own
    return static_cast<int64_t>(page_table[seq * max_pages + position / page_size]) * page_size + position % page_size;
  }
};

// scores[t,p] = scale * sum_h weights[t,h] * max(0, q[t,h,:] . key_p) for p <= positions[t]; entries beyond are not written.
struct IndexScoresParams {
  float* scores;
  int64_t score_stride;  // (T, max positions + 1)
  const float* q;        // (T, heads, dim)
  const float* weights;
  int64_t weight_stride;  // (T, heads)
  const void* cache;      // (num_slots, dim) of cache_dtype
  DType cache_dtype;      // f32 or bf16
  PagedPositions where;
  int64_t num_tokens, heads, dim;
  float scale;  // heads^-0.5 * dim^-0.5
  Grid grid() const { return {num_tokens, 256}; }
};

// indices[t,:] = the k positions p <= positions[t] with the largest scores, ascending, ties to the smaller position;
// when positions[t] + 1 < k the rest is -1. NaN scores rank below every number.
struct TopKParams {
  int32_t* indices;  // (T, k)
  const float* scores;
  int64_t score_stride;      // (T, >= positions[t] + 1)
  const int32_t* positions;  // (T)
  int64_t num_tokens, k;
  Grid grid() const { return {num_tokens, 256}; }
};

// Absorbed MLA over the cache: score = scale * (q_latent . c_s + q_pe . k_pe_s), out[t,h] = sum_s softmax(score) * c_s (latent_dim).
struct SparseMlaParams {
  float* out;              // (T, heads, latent_dim)
  const float* q;          // (T, heads, latent_dim + rope_dim): absorbed part, then RoPE part
  const void* cache;       // (num_slots, latent_dim + rope_dim) of cache_dtype
  DType cache_dtype;       // f32, bf16 or f8_e4m3
  const int32_t* indices;  // (T, topk) positions, -1 = unused; null: all of 0..positions[t]
  int64_t topk;
  PagedPositions where;
  int64_t num_tokens, heads, latent_dim, rope_dim;
  float scale;
  Grid grid() const { return {num_tokens * heads, 128}; }
};

// Expanded MLA of one sequence: keys and values of positions 0..num_keys-1 have been expanded from the latents.
// score = scale * (q_nope . k_nope_s + q_pe . k_pe_s) for s <= positions[t] (and s in indices[t], when given).
struct ExpandedMlaParams {
  float* out;       // (T, heads, v_dim)
  const float* q;   // (T, heads, nope_dim + rope_dim)
  const float* kv;  // (num_keys, heads, nope_dim + v_dim)
  const float* k_pe;
  int64_t k_pe_stride;       // (num_keys, rope_dim)
  const int32_t* positions;  // (T)
  const int32_t* indices;    // (T, topk) or null
  int64_t topk;
  int64_t num_tokens, heads, nope_dim, rope_dim, v_dim;
  float scale;
  Grid grid() const { return {num_tokens * heads, 128}; }
};

// latent[i,:] = the first latent_dim numbers of the cache at position i of the sequence; k_pe[i,:] = the rest. As f32.
struct LatentGatherParams {
  float* latent;  // (num_keys, latent_dim)
  float* k_pe;    // (num_keys, rope_dim)
  const void* cache;
  DType cache_dtype;
  const int32_t* pages;  // (>= ceil(num_keys / page_size)): the sequence's row of the page table
  int64_t page_size, num_keys, latent_dim, rope_dim;
  Grid grid() const { return {num_keys, 128}; }
};

// to[r,:] = from[source_rows[r],:], bit for bit.
struct CopyRowsParams {
  void* to;
  int64_t to_stride;  // (rows, count) of 4-byte numbers
  const void* from;
  int64_t from_stride;
  int64_t rows, count;
  const int32_t* source_rows = nullptr;  // (rows); null: row r is row r
  Grid grid() const { return {rows, 128}; }
};

// s = sigmoid(logits); experts = top-k of s + bias (ties to the smaller index), ascending by rank; weights = s, unbiased,
// divided by (their sum + 1e-20) when normalize, times scale.
struct RouterParams {
  int32_t* experts;     // (T, k), the largest biased score first
  float* weights;       // (T, k)
  const float* logits;  // (T, num_experts), f32
  const float* bias;    // (num_experts), f32
  int64_t num_tokens, num_experts, k;
  bool normalize;  // norm_topk_prob
  float scale;     // routed_scaling_factor
  Grid grid() const { return {num_tokens, 64}; }
};

// Counting sort of the (token, slot) pairs by expert, stable: order[i] = token * k + slot of permuted row i;
// inverse[order[i]] = i; offsets[e]..offsets[e+1] are the permuted rows of expert e.
struct PermuteParams {
  int32_t* order;          // (T * k)
  int32_t* inverse;        // (T * k)
  int32_t* offsets;        // (num_experts + 1)
  const int32_t* experts;  // (T, k)
  int64_t num_tokens, num_experts, k;
  Grid grid() const { return {1, 256}; }
};

// For every permuted row i of expert e: y[i,:] = x[src(i),:] . weights[e]^T with src(i) = order[i] / rows_per_source, or i when order is
// null.
struct GroupedMatmulParams {
  float* y;
  int64_t y_stride;  // (num_rows, N)
  const float* x;
  int64_t x_stride;           // (num sources, K)
  const int32_t* order;       // (num_rows) or null
  int64_t rows_per_source;    // k for the first GEMM
  const int32_t* offsets;     // (num_experts + 1)
  const WeightView* weights;  // (num_experts), each (N, K), all of one format where a tile kernel is to run
  int64_t num_rows, num_experts, n;
  const WeightView* host_weights = nullptr;  // the same where the host can read them; null: `weights`
  Grid grid() const { return {num_experts * ((n + 63) / 64), 64}; }
};

// out[t,:] (+)= sum over slots j of weights[t,j] * y[inverse[t*k+j],:], in slot order, in f32.
struct CombineParams {
  float* out;
  int64_t out_stride;  // (T, dim)
  const float* y;
  int64_t y_stride;        // (T * k, dim), permuted
  const int32_t* inverse;  // (T * k), as PermuteParams
  const float* weights;    // (T, k)
  int64_t num_tokens, k, dim;
  bool accumulate;
  Grid grid() const { return {num_tokens, 256}; }
};

}  // namespace ingot::kernels
