// Multi-head latent attention over the cache. Keys are taken in blocks of a fixed number of list entries (or positions) with a
// running maximum, so the arithmetic of a (token, head) does not depend on what else is computed, and long lists need no
// memory of their own.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>
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

// One head of one token.
struct Query {
  const float* q;    // (dim)
  float* out;        // (latent_dim)
  int64_t num_keys;  // of its list, or positions that it sees
  Running state;
};

// A task: heads of tokens that attend to the same keys, but for the last few.
struct QueryGroup {
  int64_t t_begin, t_end;
  int64_t h_begin, h_end;
};

// scores[i * kKeyBlock + j] = q of query i . key j. `keys` may be of the cache's type.
template <class K>
void score_keys(const Query* queries, int64_t rows, const K* keys, int64_t stride, int64_t count, int64_t dim, float* scores) {
  for (int64_t k = 0; k < dim; k += kDotBlock)
    dot_rows([&](int64_t i) { return queries[i].q + k; }, keys + k, stride, rows, count, std::min(kDotBlock, dim - k),
             [&](int64_t i) { return scores + i * kKeyBlock; }, k == 0 ? Write::replace : Write::add);
}

// out of query i += sum over j of scores[i * kKeyBlock + j] * the latent part of key j, in the order of j.
template <class K>
void add_values(const Query* queries, int64_t rows, const K* keys, int64_t stride, int64_t count, int64_t latent_dim, const float* scores) {
  constexpr int64_t kColumns = 64;  // 64 keys x 64 f32 = 16 KB stay in L1 while all queries pass
  for (int64_t d = 0; d < latent_dim; d += kColumns)
    axpy_rows([&](int64_t i) { return scores + i * kKeyBlock; }, keys + d, stride, rows, count, std::min(kColumns, latent_dim - d),
              [&](int64_t i) { return queries[i].out + d; }, Write::add);
}

// Calls f(j, n, slot) for stretches of n keys, number j and following of the positions from `first`, that lie in the slots from
// `slot` on: one stretch a page.
template <class F>
void for_stretches(const PagedPositions& where, int64_t seq, int64_t first, int64_t count, const F& f) {
  for (int64_t j = 0; j < count;) {
    const int64_t n = std::min(count - j, where.page_size - (first + j) % where.page_size);
    f(j, n, where.slot(seq, first + j));
    j += n;
  }
}

// The attention of one task. `Key` is the type whose rows the tiles read in the cache itself, or void: rows are widened first.
template <class Key>
void attend(const SparseMlaParams& p, const QueryGroup& group) {
  constexpr bool kDirect = !std::is_void_v<Key>;
  const int64_t dim = p.latent_dim + p.rope_dim;
  const int64_t stride = (dim + 7) / 8 * 8;  // rows of a scratch block start on a vector
  const int64_t row_bytes = tensor::latent_row_bytes(p.cache_format, p.latent_dim, p.rope_dim);
  const int64_t seq = p.where.seq_of_token[group.t_begin];
  const int32_t* list = p.indices ? p.indices + group.t_begin * p.topk : nullptr;
  const auto* cache = static_cast<const uint8_t*>(p.cache);

  thread_local std::vector<Query> of_thread;
  of_thread.clear();
  for (int64_t t = group.t_end - 1; t >= group.t_begin; --t) {  // mostly in falling order of num_keys
    const int64_t num_keys = list ? std::find(list, list + p.topk, -1) - list : int64_t{p.where.positions[t]} + 1;
    for (int64_t h = group.h_begin; h < group.h_end; ++h) {
      float* out = p.out + (t * p.heads + h) * p.latent_dim;
      std::fill(out, out + p.latent_dim, 0.0f);
      of_thread.push_back({p.q + (t * p.heads + h) * dim, out, num_keys, {}});
    }
  }
  // Those that see the most first: whatever the key, the queries that see it are the first few.
  const auto sees_more = [](const Query& a, const Query& b) { return a.num_keys > b.num_keys; };
  if (!std::is_sorted(of_thread.begin(), of_thread.end(), sees_more)) std::sort(of_thread.begin(), of_thread.end(), sees_more);
  const std::span<Query> queries = of_thread;
  int64_t active = std::ssize(queries);
  const auto that_see = [&](int64_t key) {
    while (active > 0 && queries[static_cast<size_t>(active - 1)].num_keys <= key) --active;
    return active;
  };

  float* keys = kDirect ? nullptr : scratch(Scratch::keys, kKeyBlock * stride);
  float* scores = scratch(Scratch::scores, std::ssize(queries) * kKeyBlock);
  const int64_t num_keys = queries.front().num_keys;
  for (int64_t first = 0; first < num_keys; first += kKeyBlock) {
    const int64_t count = std::min(kKeyBlock, num_keys - first);
    const int64_t rows = that_see(first);
    if constexpr (kDirect) {
      for_stretches(p.where, seq, first, count, [&](int64_t j, int64_t n, int64_t slot) {
        score_keys(queries.data(), rows, static_cast<const Key*>(p.cache) + slot * dim, dim, n, dim, scores + j);
      });
    } else {
      const auto widen = [&](int64_t j, int64_t slot) {
        unpack_latent(cache + slot * row_bytes, p.cache_format, p.latent_dim, p.rope_dim, keys + j * stride);
      };
      constexpr int64_t kAtOnce = 16;  // keys that are still in L1 when their products are taken
      for (int64_t at = 0; at < count; at += kAtOnce) {
        const int64_t some = std::min(kAtOnce, count - at);
        if (list) {
          for (int64_t j = at; j < at + some; ++j) widen(j, p.where.slot(seq, list[first + j]));
        } else {
          for_stretches(p.where, seq, first + at, some, [&](int64_t j, int64_t n, int64_t slot) {
            for (int64_t i = 0; i < n; ++i) widen(at + j + i, slot + i);
          });
        }
        score_keys(queries.data(), rows, keys + at * stride, stride, some, dim, scores + at);
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      Query& query = queries[static_cast<size_t>(i)];
      softmax_block(scores + i * kKeyBlock, std::min(count, query.num_keys - first), p.scale, query.state, query.out, p.latent_dim);
    }
    // A key is added for those alone that see it: what a later position holds, be it NaN, must not reach an earlier one.
    for (int64_t at = 0; at < count;) {
      const int64_t see = that_see(first + at);
      const int64_t end = std::min(count, queries[static_cast<size_t>(see - 1)].num_keys - first);
      if constexpr (kDirect) {
        for_stretches(p.where, seq, first + at, end - at, [&](int64_t j, int64_t n, int64_t slot) {
          add_values(queries.data(), see, static_cast<const Key*>(p.cache) + slot * dim, dim, n, p.latent_dim, scores + at + j);
        });
      } else {
        add_values(queries.data(), see, keys + at * stride, stride, end - at, p.latent_dim, scores + at);
      }
      at = end;
    }
  }
  for (const Query& query : queries) divide(query.out, p.latent_dim, query.state.sum);
}

}  // namespace

void sparse_mla(ThreadPool& pool, const SparseMlaParams& p) {
  constexpr int64_t kMaxQueries = 48;    // of a task: widening a key then costs a few percent of its products
  constexpr int64_t kDirectQueries = 4;  // so few that reading the cache as it is costs less than widening it
  if (p.num_tokens == 0) return;
  const int64_t threads = pool.num_threads();
  // Neighbouring rows of a sequence go together when they take all positions in order; lists may differ.
  const int64_t share = (p.num_tokens + threads - 1) / threads;
  const int64_t most = p.indices ? 1 : std::clamp<int64_t>(kMaxQueries / p.heads, 1, share);
  thread_local std::vector<QueryGroup> groups;
  groups.clear();
  for (int64_t t = 0; t < p.num_tokens;) {
    int64_t end = t + 1;
    while (end < p.num_tokens && p.where.seq_of_token[end] == p.where.seq_of_token[t]) ++end;
    for (int64_t left = (end - t + most - 1) / most; left > 0; --left) {
      const int64_t rows = (end - t + left - 1) / left;
      groups.push_back({t, t + rows, 0, p.heads});
      t += rows;
    }
  }
  // A few groups that do not fill the threads evenly: split the heads too. Heads are independent, so bits agree.
  const auto count = std::ssize(groups);
  const auto rows_of = [](const QueryGroup& group) { return group.t_end - group.t_begin; };
  const bool equal =
      std::all_of(groups.begin(), groups.end(), [&](const QueryGroup& group) { return rows_of(group) == rows_of(groups[0]); });
  if (count < 4 * threads && (count % threads != 0 || !equal)) {
    const int64_t parts = std::min(p.heads, std::max<int64_t>(2, threads / count));
    const int64_t heads = (p.heads + parts - 1) / parts;
    for (int64_t i = 0; i < count; ++i) {
      QueryGroup rest = groups[static_cast<size_t>(i)];
      groups[static_cast<size_t>(i)].h_end = heads;
      for (rest.h_begin = heads; rest.h_begin < p.heads; rest.h_begin = rest.h_end) {
        rest.h_end = std::min(p.heads, rest.h_begin + heads);
        groups.push_back(rest);
      }
    }
  }
  const QueryGroup* tasks = groups.data();
  pool.parallel_for(std::ssize(groups), 1, [&, tasks](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const bool few = p.indices == nullptr && rows_of(tasks[i]) * (tasks[i].h_end - tasks[i].h_begin) <= kDirectQueries;
      if (few && p.cache_format == LatentFormat::bf16)
        attend<uint16_t>(p, tasks[i]);
      else
        attend<void>(p, tasks[i]);
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
