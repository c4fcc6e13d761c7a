// The indexer's scores and the exact choice of the best positions.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/native/cpu/native.h"
#include "kernels/native/cpu/simd.h"
#include "kernels/native/cpu/unpack.h"

namespace ingot::kernels::native {
namespace {

constexpr int64_t kGroupKeys = 16;  // keys side by side in two vectors
constexpr int64_t kTaskKeys = 256;
constexpr int64_t kTaskTokens = 32;

// Eight rows of eight become their columns.
void transpose8(F32x8 (&r)[8]) {
  F32x8 t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  F32x8 u[8];
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

// sum over the heads, in order, of weights[h] * max(0, q[h] . key) for 16 keys; each dot product in the order of d.
template <int kHeads>
inline void add_heads(const float* q, int64_t dim, const float* weights, const float* keys, F32x8& low, F32x8& high) {
  F32x8 acc[kHeads][2];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) acc[h][0] = acc[h][1] = zero8();
  for (int64_t d = 0; d < dim; ++d) {
    const F32x8 k0 = load8(keys + d * kGroupKeys), k1 = load8(keys + d * kGroupKeys + 8);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const F32x8 a = _mm256_broadcast_ss(q + h * dim + d);
      acc[h][0] = fma8(a, k0, acc[h][0]);
      acc[h][1] = fma8(a, k1, acc[h][1]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    // max's second operand is returned when the first is NaN, so a NaN key stays NaN this way round.
    low = fma8(set8(weights[h]), _mm256_max_ps(zero8(), acc[h][0]), low);
    high = fma8(set8(weights[h]), _mm256_max_ps(zero8(), acc[h][1]), high);
  }
}

// Larger float -> larger integer; both zeros alike; NaN below everything.
uint32_t sort_key(float score) {
  if (score != score) return 0;
  const float canonical = score + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &canonical, sizeof bits);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The k-th largest of n keys (n > k > 0), and how many of those equal to it belong to the k. Radix selection: 11, 11, 10 bits.
struct Threshold {
  uint32_t key;
  int64_t equal_to_take;
};
Threshold kth_largest(const uint32_t* keys, int64_t n, int64_t k) {
  uint32_t prefix = 0, mask = 0;
  int64_t wanted = k;
  for (const int shift : {21, 10, 0}) {
    const int bits = shift == 0 ? 10 : 11;
    uint32_t counts[2048] = {};
    const uint32_t digit_mask = (1u << bits) - 1;
    for (int64_t i = 0; i < n; ++i) counts[(keys[i] >> shift) & digit_mask] += (keys[i] & mask) == prefix ? 1 : 0;
    int64_t digit = digit_mask;
    for (; counts[digit] < wanted; --digit) wanted -= counts[digit];
    prefix |= static_cast<uint32_t>(digit) << shift;
    mask |= digit_mask << shift;
  }
  return {prefix, wanted};
}

}  // namespace

void index_scores(ThreadPool& pool, const IndexScoresParams& p) {
  // Runs of tokens of one sequence, so that a group of keys is read and turned once for all of them.
  struct Task {
    int64_t t_begin, t_end, key_begin;
  };
  thread_local std::vector<Task> tasks;
  tasks.clear();
  for (int64_t t = 0; t < p.num_tokens;) {
    int64_t end = t + 1;
    int64_t last = p.where.positions[t];
    while (end < p.num_tokens && end - t < kTaskTokens && p.where.seq_of_token[end] == p.where.seq_of_token[t])
      last = std::max<int64_t>(last, p.where.positions[end++]);
    for (int64_t key = 0; key <= last; key += kTaskKeys) tasks.push_back({t, end, key});
    t = end;
  }
  const Task* list = tasks.data();
  const size_t row_bytes = static_cast<size_t>(p.dim) * tensor::dtype_bytes(p.cache_dtype);
  pool.parallel_for(static_cast<int64_t>(tasks.size()), 1, [&, list](int64_t begin, int64_t end) {
    float* rows = scratch(Scratch::keys, kGroupKeys * p.dim);
    float* keys = scratch(Scratch::values, kGroupKeys * p.dim);
    for (int64_t i = begin; i < end; ++i) {
      const Task& task = list[i];
      const int64_t seq = p.where.seq_of_token[task.t_begin];
      const int64_t last = *std::max_element(p.where.positions + task.t_begin, p.where.positions + task.t_end);
      const int64_t key_end = std::min(last + 1, task.key_begin + kTaskKeys);
      for (int64_t key = task.key_begin; key < key_end; key += kGroupKeys) {
        const int64_t count = std::min(kGroupKeys, key_end - key);
        for (int64_t j = 0; j < count; ++j) {
          const auto* row = static_cast<const uint8_t*>(p.cache) + static_cast<size_t>(p.where.slot(seq, key + j)) * row_bytes;
          unpack_row(row, p.cache_dtype, p.dim, rows + j * p.dim);
        }
        // Lanes past the end are computed and not stored.
        std::fill(rows + count * p.dim, rows + kGroupKeys * p.dim, 0.0f);
        int64_t d = 0;
        for (; d + 8 <= p.dim; d += 8) {
          for (int64_t half = 0; half < kGroupKeys; half += 8) {
            F32x8 r[8];
            for (int j = 0; j < 8; ++j) r[j] = load8(rows + (half + j) * p.dim + d);
            transpose8(r);
            for (int j = 0; j < 8; ++j) _mm256_storeu_ps(keys + (d + j) * kGroupKeys + half, r[j]);
          }
        }
        for (; d < p.dim; ++d)
          for (int64_t j = 0; j < kGroupKeys; ++j) keys[d * kGroupKeys + j] = rows[j * p.dim + d];
        for (int64_t t = task.t_begin; t < task.t_end; ++t) {
          const int64_t visible = p.where.positions[t] + 1 - key;
          if (visible <= 0) continue;
          F32x8 low = zero8(), high = zero8();
          const float* q = p.q + t * p.heads * p.dim;
          const float* weights = p.weights + t * p.weight_stride;
          int64_t h = 0;
          for (; h + 4 <= p.heads; h += 4) add_heads<4>(q + h * p.dim, p.dim, weights + h, keys, low, high);
          for (; h < p.heads; ++h) add_heads<1>(q + h * p.dim, p.dim, weights + h, keys, low, high);
          low = _mm256_mul_ps(low, set8(p.scale));
          high = _mm256_mul_ps(high, set8(p.scale));
          float* out = p.scores + t * p.score_stride + key;
          if (visible >= kGroupKeys) {
            _mm256_storeu_ps(out, low);
            _mm256_storeu_ps(out + 8, high);
          } else {
            store_part(out, low, std::min<int64_t>(8, visible));
            if (visible > 8) store_part(out + 8, high, visible - 8);
          }
        }
      }
    }
  });
}

void top_k(ThreadPool& pool, const TopKParams& p) {
  pool.parallel_for(p.num_tokens, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      int32_t* out = p.indices + t * p.k;
      const int64_t n = static_cast<int64_t>(p.positions[t]) + 1;
      if (n <= p.k) {
        for (int64_t i = 0; i < p.k; ++i) out[i] = i < n ? static_cast<int32_t>(i) : -1;
        continue;
      }
      const float* scores = p.scores + t * p.score_stride;
      auto* keys = reinterpret_cast<uint32_t*>(scratch(Scratch::bits, n));
      for (int64_t i = 0; i < n; ++i) keys[i] = sort_key(scores[i]);
      const Threshold threshold = kth_largest(keys, n, p.k);
      int64_t taken = 0, equal_left = threshold.equal_to_take;
      for (int64_t i = 0; taken < p.k; ++i) {
        const bool equal = keys[i] == threshold.key && equal_left > 0;
        equal_left -= equal ? 1 : 0;
        out[taken] = static_cast<int32_t>(i);
        taken += keys[i] > threshold.key || equal ? 1 : 0;
      }
    }
  });
}

}  // namespace ingot::kernels::native
