// One params struct a kernel: plain pointers with their shapes, sizes, and the grid. Shared by the kernel (any machine), its
// reference in double (ref/) and its native forms (native/). Activations are f32; weights and caches have their own formats.
// T = num_tokens. Strides are in elements, between consecutive rows. Nothing here owns memory.
#pragma once

#include <cstdint>

#include "gpu/grid.h"
#include "tensor/dtype.h"
#include "tensor/latent_format.h"
#include "tensor/weight_view.h"

namespace ingot::kernels {

using gpu::Grid;
using tensor::DType;
using tensor::LatentFormat;
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
// interleave: pairs are (2j, 2j+1); else (j, j + rope_dim/2). The rotated numbers also go to `copy`, where it is not null.
struct RopeParams {
  float* x;  // (T, heads, head_stride)
  int64_t token_stride, head_stride, offset;
  const float* cos_sin;  // (T, rope_dim/2, 2)
  int64_t num_tokens, heads, rope_dim;
  bool interleave;
  float* copy = nullptr;  // (T, heads, rope_dim), outside x
  int64_t copy_token_stride = 0, copy_head_stride = 0;
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
  // x once more, as a native kernel for many rows wants it (RoundRows); null: it was not made.
  const uint16_t* x_wide = nullptr;
  int64_t x_wide_stride = 0;
  constexpr Grid grid() const { return {rows * ((w.rows + 63) / 64), 64}; }
};

// y[m,k] = sum_n x[m,n] * w[n,k]: the transposed product, for absorbing W_k into the query. Same rule for the order of the sum.
struct MatmulTransposedParams {
  float* y;
  int64_t y_stride;  // (M, w.cols)
  const float* x;
  int64_t x_stride;  // (M, w.rows)
  WeightView w;      // (N, K)
  int64_t rows;      // M
  constexpr Grid grid() const { return {rows * ((w.cols + 63) / 64), 64}; }
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

// cache[slots[t], :] = (latent[t], k_pe[t]) in the cache's format. A NaN stays one; an infinity does where the format has a scale or an
// infinity, and is the greatest number else.
struct LatentStoreParams {
  void* cache;  // (num_slots) rows of latent_row_bytes(cache_format, latent_dim, rope_dim)
  LatentFormat cache_format;
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

// All that a layer makes of its tokens' projections before attention, as one operation: q_norm; kv_norm, k_rope and latent_store; and
// index_norm, index_rope and index_store where the layer has an indexer. They are told as if one worked after another, each of the latter
// two groups in place; but what is left there of the latents and keys, once they are in the caches, is not said.
struct QkvPrepareParams {
  RmsNormParams q_norm;             // y may be x
  RmsNormParams kv_norm;            // y = x = latent_store.latent, (T, latent_dim)
  RopeParams k_rope;                // of latent_store.k_pe, one head
  LatentStoreParams latent_store;   // (T)
  LayerNormParams index_norm;       // y = x = index_store.keys, (T, dim)
  RopeParams index_rope;            // of a part of index_store.keys, one head
  IndexKeyStoreParams index_store;  // num_tokens 0: no indexer, and all three mean nothing
  constexpr bool has_index() const { return index_store.num_tokens > 0; }
  Grid grid() const { return {q_norm.rows * (has_index() ? 3 : 2), 256}; }
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
  float* out;         // (T, heads, latent_dim)
  const float* q;     // (T, heads, latent_dim + rope_dim): absorbed part, then RoPE part
  const void* cache;  // (num_slots) rows of latent_row_bytes(cache_format, latent_dim, rope_dim)
  LatentFormat cache_format;
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
  LatentFormat cache_format;
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
  static constexpr int64_t kPairsPerBlock = 1024;
  // At least one, for the offsets of an empty batch.
  Grid grid() const {
    const int64_t pairs = num_tokens * k;
    return {pairs <= kPairsPerBlock ? 1 : (pairs + kPairsPerBlock - 1) / kPairsPerBlock, 1024};
  }
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
  const uint16_t* x_wide = nullptr;          // as in MatmulParams
  int64_t x_wide_stride = 0;
  uint16_t* y_rounded = nullptr;  // not null, with x_wide: y goes there as bf16, (num_rows, y_stride), and nothing to y
  Grid grid() const { return {num_experts * ((n + 63) / 64), 64}; }
};

// y[i,:] = silu(x[src(i),:] . gates[e]^T) * (x[src(i),:] . weights[e]^T): `weights` are the up projections.
struct GatedMatmulParams : GroupedMatmulParams {
  const WeightView* gates;       // (num_experts), of the format and shape of `weights`
  const WeightView* host_gates;  // as host_weights
  float* up;                     // scratch, (num_rows, y_stride); not used where both products are one kernel
  // Where not null, a native kernel for many rows puts y there, as the next one's x_wide, and nothing to y.
  uint16_t* y_wide = nullptr;
  int64_t y_wide_stride = 0;
};

// Per head h, with W_h the rows [h * rows_per_head + first_row, ... + n) of w:
// y[t,h,:] = x[t,h,:] . W_h^T (n numbers out of w.cols), or, transposed, x[t,h,:] . W_h (w.cols numbers out of n).
struct HeadMatmulParams {
  float* y;
  int64_t y_stride, y_head_stride;  // between rows, and between the heads of one row
  const float* x;
  int64_t x_stride, x_head_stride;
  WeightView w;  // (heads * rows_per_head, K)
  int64_t rows, heads, rows_per_head, first_row, n;
  bool transposed;

  constexpr WeightView weight(int64_t h) const { return w.row_slice(h * rows_per_head + first_row, n); }
  constexpr MatmulParams product(int64_t h) const {
    return {y + h * y_head_stride, y_stride, x + h * x_head_stride, x_stride, weight(h), rows, false};
  }
  constexpr MatmulTransposedParams product_transposed(int64_t h) const {
    return {y + h * y_head_stride, y_stride, x + h * x_head_stride, x_stride, weight(h), rows};
  }
  // Blocks of one head.
  constexpr int64_t head_blocks() const { return transposed ? product_transposed(0).grid().blocks : product(0).grid().blocks; }
  constexpr Grid grid() const { return {heads * head_blocks(), 64}; }
};

// What random numbers are made of, and for: mean and deviation are theirs.
enum class RandomKind : uint8_t {
  f32,
  bf16,
  e4m3,   // saturating
  bytes,  // uniform: e2m1 codes. mean and deviation mean nothing
  e8m0,   // mean - 1, mean and mean + 1, an integer
};

// data[0 .. bytes) = random numbers.
struct FillRandomParams {
  static constexpr int64_t kChunks = 4096;  // of 16 bytes, a block
  void* data;                               // aligned to 16 bytes
  int64_t bytes;
  RandomKind kind;
  uint64_t seed;
  float mean, deviation;
  Grid grid() const { return {(bytes + 16 * kChunks - 1) / (16 * kChunks), 256}; }
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
  const uint16_t* y_rounded = nullptr;      // not null: y as bf16, as grouped_matmul() filled it
  static constexpr int64_t kColumns = 512;  // a block
  constexpr int64_t parts() const { return (dim + kColumns - 1) / kColumns; }
  Grid grid() const { return {num_tokens * parts(), 128}; }
};

// How one row of logits is drawn from; exec/sampler.h and exec/verify.h say what the numbers mean. Made by the host.
enum class DrawKind : int32_t { none, greedy, draw };
struct DrawRow {
  double uniform = 0;  // in [0, 1): which token of the distribution
  float temperature = 1, top_p = 1, min_p = 0;
  float repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  int32_t top_k = 0;  // 0: off
  DrawKind kind = DrawKind::none;
  int32_t num_top = -1;                        // likeliest tokens wanted; -1: no logprobs at all
  int32_t first_change = 0, num_changes = 0;   // of LogitChange, each of another token
  int32_t first_drafted = 0, num_drafted = 0;  // of token_ids, at most kMaxDrafted, -1 for none: tokens of the completion, for penalties
  int32_t first_before = -1;                   // num_changes + num_drafted places for logits as they were; -1: nobody wants those
  int32_t mask = -1;                           // row of masks; -1: none
  constexpr bool changes_logits() const { return num_changes + num_drafted > 0 || mask >= 0; }
};
inline constexpr int kMaxDrafted = 8;

// What penalties and logit_bias do to one token.
struct LogitChange {
  int32_t token_id;
  int32_t count;  // in the completion; 0: in the prompt alone; -1: in neither
  float bias;
};

// Whether a row can be drawn from.
struct RowVerdict {
  int32_t likeliest;  // -1: it cannot
  int32_t bad_id;     // the first that is NaN or +infinity; -1: all are -infinity
  float bad_logit;
};
struct SampledRow {
  RowVerdict raw;       // of the model's own logits
  RowVerdict adjusted;  // of what was drawn from; not set when `raw` is bad
  int32_t token_id;     // -1 when one of the two is bad
  float logit;          // the model's own, of the token; with changes and no first_before, that which was drawn from
  // When logprobs are wanted: those of the model are logit - (max + log(total)).
  float max;
  double total;
};
struct LikelyToken {
  int32_t token_id;
  float logit;
};

// Changes rows of logits in place. Rows that want no change are left alone.
struct AdjustRowsParams {
  float* logits;               // (rows, vocab)
  float* before;               // as the rows' first_before say
  SampledRow* results;         // (rows): `raw` of the rows that are changed
  const DrawRow* rows;         // (rows)
  const LogitChange* changes;  // as the rows say
  const int32_t* token_ids;    // as the rows say
  const uint32_t* masks;       // (masks, (vocab + 31) / 32): bit i % 32 of word i / 32 is set when token i is allowed
  int64_t num_rows, vocab_size;
  Grid grid() const { return {num_rows, 512}; }
};

// Draws a token from every row whose kind is not none, after AdjustRows.
struct SampleRowsParams {
  SampledRow* results;         // (rows)
  const float* logits;         // (rows, vocab); vocab < 2^31
  const DrawRow* rows;         // (rows)
  const LogitChange* changes;  // as for AdjustRows
  const int32_t* token_ids;
  const float* before;
  int64_t num_rows, vocab_size;
  Grid grid() const { return {num_rows, 512}; }
};

// max, total and the likeliest tokens of every row that wants logprobs, before AdjustRows.
struct LogprobRowsParams {
  SampledRow* results;  // (rows)
  LikelyToken* top;     // (rows, max_top): num_top of each row are written, likeliest first
  const float* logits;  // (rows, vocab)
  const DrawRow* rows;  // (rows), num_top at most max_top and vocab
  int64_t num_rows, vocab_size, max_top;
  Grid grid() const { return {num_rows, 512}; }
};

// drafted[places[r]] = the token drawn from row r, -1 when there is none.
struct KeepDraftsParams {
  int32_t* drafted;           // as the places say
  const SampledRow* results;  // (rows)
  const int32_t* places;      // (rows)
  int64_t num_rows;
  Grid grid() const { return {1, 256}; }
};

// token_ids[t] = drafted[places[t]] where the place is not -1; 0 where there was no token.
struct TakeDraftsParams {
  int32_t* token_ids;      // (T)
  const int32_t* drafted;  // as the places say
  const int32_t* places;   // (T)
  int64_t num_tokens;
  Grid grid() const { return {1, 256}; }
};

// Row r of `to` is row sources[r] of `from` and positions[r] behind its last position; both are padded with -1.
struct ExtendListsParams {
  int32_t* to;               // (rows, width + 1)
  const int32_t* from;       // (sources, width)
  const int32_t* sources;    // (rows)
  const int32_t* positions;  // (rows)
  int64_t num_rows, width;
  Grid grid() const { return {num_rows, 256}; }
};

// Row targets[r] of `to` is row sources[r] of `from`, or row -1 - sources[r] of `kept`.
struct MoveRowsParams {
  float* to;               // (targets, dim)
  const int32_t* targets;  // (rows), all different; null: in order
  const float* from;       // (some rows, dim)
  const float* kept;       // (some rows, dim)
  const int32_t* sources;  // (rows)
  int64_t num_rows, dim;
  Grid grid() const { return {num_rows, 256}; }
};

}  // namespace ingot::kernels
