// Multi-head latent attention over the cache. Keys are taken in blocks of a fixed number of list entries (or positions) with a
// running maximum, so the arithmetic of a (token, head) does not depend on what else is computed, and long lists need no
// memory of their own.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/native/cpu/native.h"
#include "kernels/native/cpu/tile.h"
#include "kernels/native/cpu/unpack.h"

namespace ingot::kernels::native {
namespace {

constexpr int64_t kKeyBlock = 64;  // 64 x 576 f32 = 147 KB at the full model's width: in L2
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// What softmax remembers of the blocks before: the maximum and the sum of e^(score - maximum).
struct Running {
  float max = kNegInf;
  float sum = 0;
};

// One block of scores becomes e^(score * scale - max), the running state follows, and `out`, summed so far against the old
// maximum, is scaled to the new one. `scores` has kKeyBlock entries; those from `count` on are ignored and become 0.
void softmax_block(float* scores, int64_t count, float scale, Running& state, float* out, int64_t out_dim) {
  for (int64_t i = count; i < kKeyBlock; ++i) scores[i] = kNegInf;
  F32x8 best = set8(kNegInf);
  for (int64_t i = 0; i < kKeyBlock; i += 8) {
    const F32x8 v = _mm256_mul_ps(load8(scores + i), set8(scale));
    _mm256_storeu_ps(scores + i, v);
    best = _mm256_max_ps(best, v);
  }
  const float max = std::max(state.max, max_lanes(best));
  if (max == kNegInf) {  // nothing visible yet
    std::fill(scores, scores + kKeyBlock, 0.0f);
    return;
  }
  F32x8 sum = zero8();
  for (int64_t i = 0; i < kKeyBlock; i += 8) {
    const F32x8 e = exp8(_mm256_sub_ps(load8(scores + i), set8(max)));
    _mm256_storeu_ps(scores + i, e);
    sum = _mm256_add_ps(sum, e);
  }
  const float shrink = exp1(state.max - max);
  state.sum = state.sum * shrink + sum_lanes(sum);
  state.max = max;
  if (shrink != 1.0f) {
    int64_t d = 0;
    for (; d + 8 <= out_dim; d += 8) _mm256_storeu_ps(out + d, _mm256_mul_ps(load8(out + d), set8(shrink)));
    for (; d < out_dim; ++d) out[d] *= shrink;
  }
}

void divide(float* out, int64_t dim, float by) {
  const float factor = 1.0f / by;
  for (int64_t d = 0; d < dim; ++d) out[d] *= factor;
}

}  // namespace

void sparse_mla(ThreadPool& pool, const SparseMlaParams& p) {
  const int64_t dim = p.latent_dim + p.rope_dim;
  const int64_t stride = (dim + 7) / 8 * 8;  // rows of a scratch block start on a vector
  const size_t row_bytes = static_cast<size_t>(dim) * tensor::dtype_bytes(p.cache_dtype);
  // A few tokens: split the heads over the threads, each reading the keys for itself. Heads are independent, so bits agree.
  const int64_t parts = std::clamp<int64_t>(p.num_tokens == 0 ? 1 : pool.num_threads() / p.num_tokens, 1, p.heads);
  const int64_t heads_per_part = (p.heads + parts - 1) / parts;
  pool.parallel_for(p.num_tokens * parts, 1, [&](int64_t begin, int64_t end) {
    float* keys = scratch(Scratch::keys, kKeyBlock * stride);
    float* scores = scratch(Scratch::scores, p.heads * kKeyBlock);
    thread_local std::vector<Running> states;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t t = task / parts, h0 = task % parts * heads_per_part;
      const int64_t heads = std::min(heads_per_part, p.heads - h0);
      if (heads <= 0) continue;
      const int64_t seq = p.where.seq_of_token[t];
      const int32_t* list = p.indices ? p.indices + t * p.topk : nullptr;
      int64_t num_keys = static_cast<int64_t>(p.where.positions[t]) + 1;
      if (list) num_keys = std::find(list, list + p.topk, -1) - list;
      const float* q = p.q + (t * p.heads + h0) * dim;
      float* out = p.out + (t * p.heads + h0) * p.latent_dim;
      std::fill(out, out + heads * p.latent_dim, 0.0f);
      states.assign(static_cast<size_t>(heads), Running{});
      for (int64_t first = 0; first < num_keys; first += kKeyBlock) {
        const int64_t count = std::min(kKeyBlock, num_keys - first);
        for (int64_t j = 0; j < count; ++j) {
          const int64_t slot = p.where.slot(seq, list ? list[first + j] : first + j);
          unpack_row(static_cast<const uint8_t*>(p.cache) + static_cast<size_t>(slot) * row_bytes, p.cache_dtype, dim, keys + j * stride);
        }
        const auto score_row = [&](int64_t h) { return scores + h * kKeyBlock; };
        const auto out_row = [&](int64_t h) { return out + h * p.latent_dim; };
        for (int64_t k = 0; k < dim; k += kDotBlock)
          dot_rows([&](int64_t h) { return q + h * dim + k; }, keys + k, stride, heads, count, std::min(kDotBlock, dim - k), score_row,
                   k == 0 ? Write::replace : Write::add);
        for (int64_t h = 0; h < heads; ++h)
          softmax_block(score_row(h), count, p.scale, states[static_cast<size_t>(h)], out_row(h), p.latent_dim);
        axpy_rows(score_row, keys, stride, heads, count, p.latent_dim, out_row, Write::add);
      }
      for (int64_t h = 0; h < heads; ++h) divide(out + h * p.latent_dim, p.latent_dim, states[static_cast<size_t>(h)].sum);
    }
  });
}

void expanded_mla(ThreadPool& pool, const ExpandedMlaParams& p) {
  constexpr int64_t kTokenBlock = 24;
  const int64_t dim = p.nope_dim + p.rope_dim;
  const int64_t stride = (dim + 7) / 8 * 8;
  const int64_t kv_stride = p.heads * (p.nope_dim + p.v_dim);
  const int64_t blocks = (p.num_tokens + kTokenBlock - 1) / kTokenBlock;
  pool.parallel_for(blocks * p.heads, 1, [&](int64_t begin, int64_t end) {
    float* keys = scratch(Scratch::keys, kKeyBlock * stride);
    float* scores = scratch(Scratch::scores, kTokenBlock * kKeyBlock);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t t0 = task / p.heads * kTokenBlock, h = task % p.heads;
      const int64_t t1 = std::min(t0 + kTokenBlock, p.num_tokens);
      const auto out_of = [&](int64_t t) { return p.out + (t * p.heads + h) * p.v_dim; };
      Running states[kTokenBlock];
      const int32_t* cursor[kTokenBlock] = {};  // the first entry of the token's list that is not yet passed
      for (int64_t t = t0; t < t1; ++t) {
        std::fill(out_of(t), out_of(t) + p.v_dim, 0.0f);
        if (p.indices) cursor[t - t0] = p.indices + t * p.topk;
      }
      const int64_t last = *std::max_element(p.positions + t0, p.positions + t1);
      for (int64_t first = 0; first <= last; first += kKeyBlock) {
        const int64_t count = std::min(kKeyBlock, last + 1 - first);
        // Only the rows that see this block take part: a row's arithmetic must not show how far its neighbours see.
        int64_t active[kTokenBlock];
        int64_t num_active = 0;
        for (int64_t t = t0; t < t1; ++t)
          if (p.positions[t] >= first) active[num_active++] = t;
        for (int64_t j = 0; j < count; ++j) {
          const float* row = p.kv + (first + j) * kv_stride + h * (p.nope_dim + p.v_dim);
          std::copy(row, row + p.nope_dim, keys + j * stride);
          std::copy_n(p.k_pe + (first + j) * p.k_pe_stride, p.rope_dim, keys + j * stride + p.nope_dim);
        }
        const auto score_row = [&](int64_t a) { return scores + a * kKeyBlock; };
        const auto out_row = [&](int64_t a) { return out_of(active[a]); };
        for (int64_t k = 0; k < dim; k += kDotBlock)
          dot_rows([&](int64_t a) { return p.q + (active[a] * p.heads + h) * dim + k; }, keys + k, stride, num_active, count,
                   std::min(kDotBlock, dim - k), score_row, k == 0 ? Write::replace : Write::add);
        for (int64_t a = 0; a < num_active; ++a) {
          const int64_t t = active[a];
          const int64_t visible = std::min<int64_t>(count, p.positions[t] + 1 - first);
          if (p.indices) {
            float* row = score_row(a);
            const int32_t* list_end = p.indices + (t + 1) * p.topk;
            const int32_t*& next = cursor[t - t0];
            for (int64_t j = 0; j < visible; ++j) {
              if (next != list_end && *next == first + j)
                ++next;
              else
                row[j] = kNegInf;
            }
          }
          softmax_block(score_row(a), visible, p.scale, states[t - t0], out_row(a), p.v_dim);
        }
        // Columns that a row does not see have weight 0; their values are finite, as every position up to `last` was expanded.
        axpy_rows(score_row, p.kv + first * kv_stride + h * (p.nope_dim + p.v_dim) + p.nope_dim, kv_stride, num_active, count, p.v_dim,
                  out_row, Write::add);
      }
      for (int64_t t = t0; t < t1; ++t) divide(out_of(t), p.v_dim, states[t - t0].sum);
    }
  });
}

}  // namespace ingot::kernels::native
