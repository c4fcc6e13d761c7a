// Reference of matmul: (M, w.rows), from y as it was before when accumulating.
#pragma once

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<double> matmul(const MatmulParams& p) {
  std::vector<double> y;
  for (int64_t m = 0; m < p.rows; ++m) {
    for (int64_t n = 0; n < p.w.rows; ++n) {
      double sum = p.accumulate ? p.y[m * p.y_stride + n] : 0.0;
      for (int64_t k = 0; k < p.w.cols; ++k) sum += p.x[m * p.x_stride + k] * weight(p.w, n, k);
      y.push_back(sum);
    }
  }
  return y;
}

}  // namespace ingot::kernels::ref
