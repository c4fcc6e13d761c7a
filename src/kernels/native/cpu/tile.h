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

// A long dot product is the sum, in order, of the sums of blocks of this many elements: 12 widened weight rows then fit the L1 cache
// of 32 KB. Part of the arithmetic: changing it changes bits.
constexpr int64_t kDotBlock = 512;

enum class Write : uint8_t { replace, add };

// Calls f<kRows>(m) for strips of consecutive rows that cover [0, rows), with kRows up to kMost (3 or 6), or a little more for the last.
// Twelve accumulators hide the latency of FMA and are what sixteen registers hold: six rows by two columns (or vectors), or three by
// four. Strips of one or two rows take nearly the time of three, so 7 and 8 rows go as 4 + 3 and 4 + 4.
template <int kMost, class F>
inline void for_strips(int64_t rows, const F& f) {
  int64_t m = 0;
  for (; rows - m > kMost + kMost / 3 || rows - m == kMost; m += kMost) f.template operator()<kMost>(m);
  if (rows - m >= 7) {
    f.template operator()<4>(m);
    m += 4;
  }
  switch (rows - m) {
    case 1: return f.template operator()<1>(m);
    case 2: return f.template operator()<2>(m);
    case 3: return f.template operator()<3>(m);
    case 4: return f.template operator()<4>(m);
    case 5: return f.template operator()<5>(m);
    default: return;
  }
}

// sums[m * kCols + n] = x[m][0..k) . w[n][0..k) for m < kRows, n < kCols; lane j of an accumulator takes the elements j, j+8, ...
template <int kRows, int kCols, class W>
inline void dot_tile(const float* const* x, const W* w, int64_t w_stride, int64_t k, float* sums) {
  F32x8 acc[kRows * kCols];
#pragma GCC unroll 12
  for (int i = 0; i < kRows * kCols; ++i) acc[i] = zero8();
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) {
    // The shorter side is held in registers, the longer one passes by: sixteen registers are just enough for 12 + 3 + 1.
    if constexpr (kRows < kCols) {
      F32x8 a[kRows];
#pragma GCC unroll 6
      for (int m = 0; m < kRows; ++m) a[m] = in_register(load8(x[m] + i));
#pragma GCC unroll 8
      for (int n = 0; n < kCols; ++n) {
        const W* at = w + n * w_stride + i;
        const F32x8 b = in_register(kRows * kCols + kRows + 1 < 16 ? load8(at) : load8_tight(at));
#pragma GCC unroll 6
        for (int m = 0; m < kRows; ++m) acc[m * kCols + n] = fma8(a[m], b, acc[m * kCols + n]);
      }
    } else {
      F32x8 b[kCols];
#pragma GCC unroll 8
      for (int n = 0; n < kCols; ++n) b[n] = in_register(load8(w + n * w_stride + i));
#pragma GCC unroll 6
      for (int m = 0; m < kRows; ++m) {
        const F32x8 a = in_register(load8(x[m] + i));
#pragma GCC unroll 8
        for (int n = 0; n < kCols; ++n) acc[m * kCols + n] = fma8(a, b[n], acc[m * kCols + n]);
      }
    }
  }
  if (i < k) {
#pragma GCC unroll 8
    for (int n = 0; n < kCols; ++n) {
      const F32x8 b = load_part(w + n * w_stride + i, k - i);
#pragma GCC unroll 6
      for (int m = 0; m < kRows; ++m) acc[m * kCols + n] = fma8(load_part(x[m] + i, k - i), b, acc[m * kCols + n]);
    }
  }
  constexpr int kWhole = kRows * kCols / 4 * 4;
#pragma GCC unroll 3
  for (int s = 0; s < kWhole; s += 4) _mm_storeu_ps(sums + s, sum_lanes4(acc[s], acc[s + 1], acc[s + 2], acc[s + 3]));
#pragma GCC unroll 3
  for (int s = kWhole; s < kRows * kCols; ++s) sums[s] = sum_lanes(acc[s]);
}

// dot_tile for the columns w, w + w_stride, ... and their sums to (or onto) y[m][n * y_step].
template <int kRows, int kCols, class W>
inline void dot_columns(const float* const* x, const W* w, int64_t w_stride, int64_t k, float* const* y, int64_t y_step, Write write) {
  float sums[kRows * kCols];
  dot_tile<kRows, kCols>(x, w, w_stride, k, sums);
#pragma GCC unroll 6
  for (int m = 0; m < kRows; ++m) {
    if (kCols % 4 == 0 && y_step == 1) {
#pragma GCC unroll 2
      for (int n = 0; n < kCols; n += 4) {
        __m128 sum = _mm_loadu_ps(sums + m * kCols + n);
        if (write == Write::add) sum = _mm_add_ps(_mm_loadu_ps(y[m] + n), sum);
        _mm_storeu_ps(y[m] + n, sum);
      }
      continue;
    }
#pragma GCC unroll 8
    for (int n = 0; n < kCols; ++n) {
      float& out = y[m][n * y_step];
      out = write == Write::add ? out + sums[m * kCols + n] : sums[m * kCols + n];
    }
  }
}

// y[m][0..n) (=|+)= x[m][0..k) . w[0..n)[0..k) for kRows rows.
template <int kRows, class W>
inline void dot_strip(const float* const* x, const W* w, int64_t w_stride, int64_t n, int64_t k, float* const* y, Write write) {
  constexpr int kCols = kRows == 1 ? 8 : kRows <= 3 ? 4 : 2;  // 8 to 12 accumulators
  float* out[kRows];
  for (int m = 0; m < kRows; ++m) out[m] = y[m];
  const auto advance = [&](int by) {
    w += by * w_stride;
    n -= by;
    for (int m = 0; m < kRows; ++m) out[m] += by;
  };
  for (; n >= kCols; advance(kCols)) dot_columns<kRows, kCols>(x, w, w_stride, k, out, 1, write);
  for (; n > 0; advance(1)) dot_columns<kRows, 1>(x, w, w_stride, k, out, 1, write);
}

// y(m)[0..n) (=|+)= x(m)[0..k) . w[0..n)[0..k) for m in [0, rows). `x` and `y` give the start of a row. For f32 in a cache, three rows
// by four columns are some 5% faster than six by two.
template <class W, class RowOfX, class RowOfY>
inline void dot_rows(const RowOfX& x, const W* w, int64_t w_stride, int64_t rows, int64_t n, int64_t k, const RowOfY& y, Write write) {
  for_strips<3>(rows, [&]<int kRows>(int64_t m) {
    const float* xs[kRows];
    float* ys[kRows];
    for (int i = 0; i < kRows; ++i) xs[i] = x(m + i), ys[i] = y(m + i);
    dot_strip<kRows>(xs, w, w_stride, n, k, ys, write);
  });
}

constexpr int64_t kStreamRows = 16;  // rows that dot_stream takes at most

// How many rows of w stand side by side in dot_stream.
constexpr int64_t stream_runs(int64_t rows) { return rows == 1 ? 8 : 4; }

// Part `part` of `parts` of dot_rows for at most kStreamRows rows and weights that come from memory rather than from a cache. The rows of
// w are walked as eight (four) runs side by side, each a contiguous stretch that the processor's prefetcher can follow; neighbouring rows
// as the columns of a tile are runs of one row each, which it cannot. Measured from DRAM with K = 256: 14.5 GB/s a thread against 5.2.
// A run has to be long, for the prefetcher begins anew with each, so a part is a stretch of every run and the next part goes on where
// it ends: eight runs through 64 KB take half the time of four times eight through 16 KB each (Zen 4, memory cold, one row: 2.7 us
// against 5.0). All rows of x pass over a few rows of w before the next ones are touched, so that each comes from memory once.
template <class W, class RowOfX, class RowOfY>
inline void dot_stream(const RowOfX& x, const W* w, int64_t w_stride, int64_t rows, int64_t n, int64_t k, const RowOfY& y, Write write,
                       int64_t part, int64_t parts) {
  const float* xs[kStreamRows];
  float* ys[kStreamRows];
  for (int64_t m = 0; m < rows; ++m) xs[m] = x(m), ys[m] = y(m);
  const int64_t runs = stream_runs(rows);
  const int64_t run = n / runs;
  const int64_t end = run * (part + 1) / parts;
  for (int64_t r = run * part / parts; r < end; ++r) {
    for_strips<6>(rows, [&]<int kRows>(int64_t m) {
      const W* first = w + r * w_stride;
      float* out[kRows];
      for (int i = 0; i < kRows; ++i) out[i] = ys[m + i] + r;
      if constexpr (kRows == 1) {
        if (runs == 8) return dot_columns<1, 8>(xs + m, first, run * w_stride, k, out, run, write);
      }
      if constexpr (kRows <= 3) {
        dot_columns<kRows, 4>(xs + m, first, run * w_stride, k, out, run, write);
      } else {
        dot_columns<kRows, 2>(xs + m, first, run * w_stride, k, out, run, write);
        for (int i = 0; i < kRows; ++i) out[i] += 2 * run;
        dot_columns<kRows, 2>(xs + m, first + 2 * run * w_stride, run * w_stride, k, out, run, write);
      }
    });
  }
  const int64_t done = run * runs;
  if (part + 1 == parts && done < n)
    dot_rows(
        x, w + done * w_stride, w_stride, rows, n - done, k, [&](int64_t m) { return y(m) + done; }, write);
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
    // The shorter side is held in registers, as in dot_tile.
    const auto vec = [&](int v) { return in_register(kPart ? load_part(w + s * w_stride, part) : load8(w + s * w_stride + 8 * v)); };
    if constexpr (kRows < kVecs) {
      F32x8 a[kRows];
#pragma GCC unroll 6
      for (int m = 0; m < kRows; ++m) a[m] = in_register(_mm256_broadcast_ss(x[m] + s));
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        const F32x8 b = vec(v);
#pragma GCC unroll 6
        for (int m = 0; m < kRows; ++m) acc[m][v] = fma8(a[m], b, acc[m][v]);
      }
    } else {
      F32x8 b[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) b[v] = vec(v);
#pragma GCC unroll 6
      for (int m = 0; m < kRows; ++m) {
        const F32x8 a = in_register(_mm256_broadcast_ss(x[m] + s));
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) acc[m][v] = fma8(a, b[v], acc[m][v]);
      }
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
  constexpr int kVecs = kRows >= 4 ? 2 : kRows == 3 ? 3 : kRows == 2 ? 4 : 8;  // 8 to 12 accumulators
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
  for_strips<6>(rows, [&]<int kRows>(int64_t m) {
    const float* xs[kRows];
    float* ys[kRows];
    for (int i = 0; i < kRows; ++i) xs[i] = x(m + i), ys[i] = y(m + i);
    axpy_strip<kRows>(xs, w, w_stride, count, cols, ys, write);
  });
}

}  // namespace ingot::kernels::native
