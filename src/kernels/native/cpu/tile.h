// The two register tiles that all native matrix work is made of. Used only inside native/cpu.
//   dot_tile:  out[m][n]  = x[m] . w[n]         rows of both are contiguous over K (weights as they lie in a checkpoint)
//   axpy_tile: y[m][0..) += sum_s x[m][s] * w[s][0..)   rows of w are contiguous over the output
// Each output element has its own accumulator whose order of additions depends on K (or the number of s) alone: any tile shape
// gives the same bits, so a row's result does not depend on how many rows run beside it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/native/cpu/simd.h"

namespace ingot::kernels::native {

// A long dot product is the sum, in order, of the sums of blocks of this many elements: 12 widened weight rows and 3 rows of x
// then fit the L1 cache of 32 KB. Part of the arithmetic: changing it changes bits.
constexpr int64_t kDotBlock = 512;

enum class Write : uint8_t { replace, add };

// y[m][n] (=|+)= x[m][0..k) . w[n][0..k) for m < kRows, n < kCols; lane j of the accumulator takes the elements j, j+8, ...
template <int kRows, int kCols, class W>
inline void dot_tile(const float* const* x, const W* w, int64_t w_stride, int64_t k, float* const* y, Write write) {
  F32x8 acc[kRows][kCols];
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < kCols; ++n) acc[m][n] = zero8();
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) {
    F32x8 a[kRows];
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) a[m] = load8(x[m] + i);
#pragma GCC unroll 8
    for (int n = 0; n < kCols; ++n) {
      const F32x8 b = load8(w + n * w_stride + i);
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) acc[m][n] = fma8(a[m], b, acc[m][n]);
    }
  }
  if (i < k) {
#pragma GCC unroll 8
    for (int n = 0; n < kCols; ++n) {
      const F32x8 b = load_part(w + n * w_stride + i, k - i);
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) acc[m][n] = fma8(load_part(x[m] + i, k - i), b, acc[m][n]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    if constexpr (kCols % 4 == 0) {
#pragma GCC unroll 2
      for (int n = 0; n < kCols; n += 4) {
        __m128 sum = sum_lanes4(acc[m][n], acc[m][n + 1], acc[m][n + 2], acc[m][n + 3]);
        if (write == Write::add) sum = _mm_add_ps(_mm_loadu_ps(y[m] + n), sum);
        _mm_storeu_ps(y[m] + n, sum);
      }
    } else {
      static_assert(kCols == 1);
      const float sum = sum_lanes(acc[m][0]);
      y[m][0] = write == Write::add ? y[m][0] + sum : sum;
    }
  }
}

// y[m][n0..n0+n) for kRows rows and any n: wide tiles first. One row wants eight independent sums to hide the latency of FMA.
template <int kRows, class W>
inline void dot_strip(const float* const* x, const W* w, int64_t w_stride, int64_t n, int64_t k, float* const* y, Write write) {
  float* out[kRows];
  for (int m = 0; m < kRows; ++m) out[m] = y[m];
  const auto advance = [&](int by) {
    w += by * w_stride;
    n -= by;
    for (int m = 0; m < kRows; ++m) out[m] += by;
  };
  if constexpr (kRows == 1) {
    for (; n >= 8; advance(8)) dot_tile<1, 8>(x, w, w_stride, k, out, write);
  }
  for (; n >= 4; advance(4)) dot_tile<kRows, 4>(x, w, w_stride, k, out, write);
  for (; n > 0; advance(1)) dot_tile<kRows, 1>(x, w, w_stride, k, out, write);
}

// y(m)[0..n) (=|+)= x(m)[0..k) . w[0..n)[0..k) for m in [0, rows). `x` and `y` give the start of a row.
template <class W, class RowOfX, class RowOfY>
inline void dot_rows(const RowOfX& x, const W* w, int64_t w_stride, int64_t rows, int64_t n, int64_t k, const RowOfY& y, Write write) {
  int64_t m = 0;
  for (; m + 3 <= rows; m += 3) {
    const float* xs[3] = {x(m), x(m + 1), x(m + 2)};
    float* ys[3] = {y(m), y(m + 1), y(m + 2)};
    dot_strip<3>(xs, w, w_stride, n, k, ys, write);
  }
  if (rows - m == 2) {
    const float* xs[2] = {x(m), x(m + 1)};
    float* ys[2] = {y(m), y(m + 1)};
    dot_strip<2>(xs, w, w_stride, n, k, ys, write);
  } else if (rows - m == 1) {
    const float* xs[1] = {x(m)};
    float* ys[1] = {y(m)};
    dot_strip<1>(xs, w, w_stride, n, k, ys, write);
  }
}

// dot_rows for at most three rows and weights that come from memory rather than from a cache. The rows of w are walked as eight
// (four) runs side by side, each a contiguous stretch that the processor's prefetcher can follow; neighbouring rows as the columns of
// a tile are runs of one row each, which it cannot. Measured from DRAM with K = 256: 14.5 GB/s a thread against 5.2.
template <class W, class RowOfX, class RowOfY>
inline void dot_stream(const RowOfX& x, const W* w, int64_t w_stride, int64_t rows, int64_t n, int64_t k, const RowOfY& y, Write write) {
  const auto walk = [&]<int kRows, int kCols>() {
    const float* xs[kRows];
    for (int m = 0; m < kRows; ++m) xs[m] = x(m);
    const int64_t run = n / kCols;
    for (int64_t r = 0; r < run; ++r) {
      float sums[kRows][kCols];
      float* out[kRows];
      for (int m = 0; m < kRows; ++m) out[m] = sums[m];
      dot_tile<kRows, kCols>(xs, w + r * w_stride, run * w_stride, k, out, Write::replace);
      for (int m = 0; m < kRows; ++m) {
        float* row = y(m) + r;
        for (int c = 0; c < kCols; ++c) row[c * run] = write == Write::add ? row[c * run] + sums[m][c] : sums[m][c];
      }
    }
    float* rest[kRows];
    for (int m = 0; m < kRows; ++m) rest[m] = y(m) + run * kCols;
    dot_strip<kRows>(xs, w + run * kCols * w_stride, w_stride, n - run * kCols, k, rest, write);
  };
  if (rows == 1)
    walk.template operator()<1, 8>();
  else if (rows == 2)
    walk.template operator()<2, 4>();
  else
    walk.template operator()<3, 4>();
}

// y[m][0..8*kVecs) (=|+)= sum over s in [0, count) of x[m][s] * w[s][0..8*kVecs), in the order of s. `part` > 0: the single vector
// has only that many lanes.
template <int kRows, int kVecs, bool kPart, class W>
inline void axpy_tile(const float* const* x, const W* w, int64_t w_stride, int64_t count, float* const* y, Write write, int64_t part) {
  static_assert(!kPart || kVecs == 1);
  F32x8 acc[kRows][kVecs];
#pragma GCC unroll 6
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      if (write == Write::replace) {
        acc[m][v] = zero8();
      } else if constexpr (kPart) {
        acc[m][v] = load_part(y[m], part);
      } else {
        acc[m][v] = load8(y[m] + 8 * v);
      }
    }
  for (int64_t s = 0; s < count; ++s) {
    F32x8 b[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      if constexpr (kPart) {
        b[v] = load_part(w + s * w_stride, part);
      } else {
        b[v] = load8(w + s * w_stride + 8 * v);
      }
    }
#pragma GCC unroll 6
    for (int m = 0; m < kRows; ++m) {
      const F32x8 a = _mm256_broadcast_ss(x[m] + s);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) acc[m][v] = fma8(a, b[v], acc[m][v]);
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      if constexpr (kPart) {
        store_part(y[m], acc[m][v], part);
      } else {
        _mm256_storeu_ps(y[m] + 8 * v, acc[m][v]);
      }
    }
}

template <int kRows, class W>
inline void axpy_strip(const float* const* x, const W* w, int64_t w_stride, int64_t count, int64_t cols, float* const* y, Write write) {
  constexpr int kVecs = kRows >= 4 ? 2 : kRows >= 2 ? 4 : 8;  // 8 to 12 accumulators
  float* out[kRows];
  for (int m = 0; m < kRows; ++m) out[m] = y[m];
  const auto advance = [&](int64_t by) {
    w += by;
    cols -= by;
    for (int m = 0; m < kRows; ++m) out[m] += by;
  };
  for (; cols >= 8 * kVecs; advance(8 * kVecs)) axpy_tile<kRows, kVecs, false>(x, w, w_stride, count, out, write, 0);
  for (; cols >= 8; advance(8)) axpy_tile<kRows, 1, false>(x, w, w_stride, count, out, write, 0);
  if (cols > 0) axpy_tile<kRows, 1, true>(x, w, w_stride, count, out, write, cols);
}

// y(m)[0..cols) (=|+)= sum over s of x(m)[s] * w[s][0..cols) for m in [0, rows).
template <class W, class RowOfX, class RowOfY>
inline void axpy_rows(const RowOfX& x, const W* w, int64_t w_stride, int64_t rows, int64_t count, int64_t cols, const RowOfY& y,
                      Write write) {
  const auto strip = [&]<int kRows>(int64_t m) {
    const float* xs[kRows];
    float* ys[kRows];
    for (int i = 0; i < kRows; ++i) xs[i] = x(m + i), ys[i] = y(m + i);
    axpy_strip<kRows>(xs, w, w_stride, count, cols, ys, write);
  };
  int64_t m = 0;
  for (; m + 6 <= rows; m += 6) strip.template operator()<6>(m);
  for (; m + 4 <= rows; m += 4) strip.template operator()<4>(m);
  if (rows - m >= 2) strip.template operator()<2>(m), m += 2;
  if (rows - m == 1) strip.template operator()<1>(m);
}

}  // namespace ingot::kernels::native
