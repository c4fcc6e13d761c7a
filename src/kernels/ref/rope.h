// Reference of rope: the rotated numbers alone, (T, heads, rope_dim), from x as it was before.
#pragma once

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<double> rope(const RopeParams& p) {
  std::vector<double> out;
  const int64_t half = p.rope_dim / 2;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    for (int64_t h = 0; h < p.heads; ++h) {
      const float* x = p.x + t * p.token_stride + h * p.head_stride + p.offset;
      std::vector<double> y(static_cast<size_t>(p.rope_dim));
      for (int64_t j = 0; j < half; ++j) {
        const double cosine = p.cos_sin[(t * half + j) * 2], sine = p.cos_sin[(t * half + j) * 2 + 1];
        const int64_t a = p.interleave ? 2 * j : j, b = p.interleave ? 2 * j + 1 : half + j;
        y[static_cast<size_t>(a)] = x[a] * cosine - x[b] * sine;
        y[static_cast<size_t>(b)] = x[b] * cosine + x[a] * sine;
      }
      out.insert(out.end(), y.begin(), y.end());
    }
  }
  return out;
}

}  // namespace ingot::kernels::ref
