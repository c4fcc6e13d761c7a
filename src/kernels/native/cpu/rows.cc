// Row-wise operations: norms, rotation, activation, combination. Small, but some twenty of them make up a decode step.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/native/cpu/native.h"
#include "kernels/native/cpu/simd.h"

namespace ingot::kernels::native {
namespace {

// Runs body(row) for all rows, on the pool when there is enough to do: `row_cost` is about the nanoseconds of one row.
template <class Body>
void for_rows(ThreadPool& pool, int64_t rows, int64_t row_cost, const Body& body) {
  // A few times the cost of handing out a task. Fetching rows that another core wrote takes far longer than the arithmetic.
  constexpr int64_t kTaskNs = 800;
  const int64_t grain = std::max<int64_t>(1, kTaskNs / std::max<int64_t>(1, row_cost));
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) body(r);
  };
  if (rows <= grain) return run(0, rows);
  pool.parallel_for(rows, grain, run);
}

template <class W>
void rms_norm_row(const float* x, const W* weight, float* y, int64_t dim, float eps) {
  F32x8 sum = zero8();
  int64_t i = 0;
  for (; i + 8 <= dim; i += 8) sum = fma8(load8(x + i), load8(x + i), sum);
  if (i < dim) {
    const F32x8 v = load_part(x + i, dim - i);
    sum = fma8(v, v, sum);
  }
  const F32x8 factor = set8(1.0f / std::sqrt(sum_lanes(sum) / static_cast<float>(dim) + eps));
  for (i = 0; i + 8 <= dim; i += 8) _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(load8(x + i), factor), load8(weight + i)));
  if (i < dim) {
    const F32x8 v = _mm256_mul_ps(_mm256_mul_ps(load_part(x + i, dim - i), factor), load_part(weight + i, dim - i));
    store_part(y + i, v, dim - i);
  }
}

F32x8 silu_times(F32x8 gate, F32x8 up) {
  const F32x8 denominator = _mm256_add_ps(set8(1.0f), exp8(_mm256_sub_ps(zero8(), gate)));
  return _mm256_mul_ps(_mm256_div_ps(gate, denominator), up);
}

}  // namespace

void rms_norm(ThreadPool& pool, const RmsNormParams& p) {
  for_rows(pool, p.rows, p.dim / 8, [&](int64_t r) {
    const float* x = p.x + r * p.x_stride;
    float* y = p.y + r * p.y_stride;
    if (p.weight_dtype == DType::f32)
      rms_norm_row(x, static_cast<const float*>(p.weight), y, p.dim, p.eps);
    else
      rms_norm_row(x, static_cast<const uint16_t*>(p.weight), y, p.dim, p.eps);
  });
}

void rope(ThreadPool& pool, const RopeParams& p) {
  const int64_t half = p.rope_dim / 2;
  for_rows(pool, p.num_tokens, p.heads * half / 2, [&](int64_t t) {
    const float* table = p.cos_sin + t * p.rope_dim;
    for (int64_t h = 0; h < p.heads; ++h) {
      float* x = p.x + t * p.token_stride + h * p.head_stride + p.offset;
      int64_t j = 0;
      if (p.interleave) {
        // Four pairs at once: (a, b) -> (a cos - b sin, b cos + a sin), cos and sin spread over the pair.
        for (; j + 4 <= half; j += 4) {
          const F32x8 v = load8(x + 2 * j), cs = load8(table + 2 * j);
          const F32x8 swapped = _mm256_permute_ps(v, 0xb1);
          const F32x8 turned = _mm256_mul_ps(swapped, _mm256_movehdup_ps(cs));
          _mm256_storeu_ps(x + 2 * j, _mm256_addsub_ps(_mm256_mul_ps(v, _mm256_moveldup_ps(cs)), turned));
        }
      }
      for (; j < half; ++j) {
        float& a = p.interleave ? x[2 * j] : x[j];
        float& b = p.interleave ? x[2 * j + 1] : x[j + half];
        const float c = table[2 * j], s = table[2 * j + 1], a0 = a, b0 = b;
        a = a0 * c - b0 * s;
        b = b0 * c + a0 * s;
      }
    }
  });
}

void swiglu(ThreadPool& pool, const SwiGluParams& p) {
  for_rows(pool, p.rows, p.dim, [&](int64_t r) {
    const float* gate = p.gate + r * p.in_stride;
    const float* up = p.up + r * p.in_stride;
    float* y = p.y + r * p.y_stride;
    int64_t i = 0;
    for (; i + 8 <= p.dim; i += 8) _mm256_storeu_ps(y + i, silu_times(load8(gate + i), load8(up + i)));
    if (i < p.dim) store_part(y + i, silu_times(load_part(gate + i, p.dim - i), load_part(up + i, p.dim - i)), p.dim - i);
  });
}

void combine(ThreadPool& pool, const CombineParams& p) {
  for_rows(pool, p.num_tokens, p.k * p.dim / 8, [&](int64_t t) {
    float* out = p.out + t * p.out_stride;
    for (int64_t i = 0; i < p.dim; i += 8) {
      const int64_t n = std::min<int64_t>(8, p.dim - i);
      F32x8 sum = zero8();
      for (int64_t j = 0; j < p.k; ++j) {
        const float* y = p.y + p.inverse[t * p.k + j] * p.y_stride + i;
        sum = fma8(set8(p.weights[t * p.k + j]), n == 8 ? load8(y) : load_part(y, n), sum);
      }
      if (p.accumulate) sum = _mm256_add_ps(sum, n == 8 ? load8(out + i) : load_part(out + i, n));
      if (n == 8)
        _mm256_storeu_ps(out + i, sum);
      else
        store_part(out + i, sum, n);
    }
  });
}

}  // namespace ingot::kernels::native
