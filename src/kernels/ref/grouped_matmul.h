// Reference of grouped_matmul: (num_rows, n).
#pragma once

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<double> grouped_matmul(const GroupedMatmulParams& p) {
  std::vector<double> y;
  for (int64_t i = 0; i < p.num_rows; ++i) {
    int64_t expert = 0;
    while (p.offsets[expert + 1] <= i) ++expert;
    const float* x = p.x + (p.order == nullptr ? i : p.order[i] / p.rows_per_source) * p.x_stride;
    for (int64_t n = 0; n < p.n; ++n) {
      double sum = 0.0;
      for (int64_t k = 0; k < p.weights[expert].cols; ++k) sum += x[k] * weight(p.weights[expert], n, k);
      y.push_back(sum);
    }
  }
  return y;
}

}  // namespace ingot::kernels::ref
