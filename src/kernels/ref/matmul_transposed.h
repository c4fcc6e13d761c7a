// Reference of matmul_transposed: (M, w.cols).
#pragma once

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<double> matmul_transposed(const MatmulTransposedParams& p) {
  std::vector<double> y;
  for (int64_t m = 0; m < p.rows; ++m) {
    for (int64_t k = 0; k < p.w.cols; ++k) {
      double sum = 0.0;
      for (int64_t n = 0; n < p.w.rows; ++n) sum += p.x[m * p.x_stride + n] * weight(p.w, n, k);
      y.push_back(sum);
    }
  }
  return y;
}

}  // namespace ingot::kernels::ref
