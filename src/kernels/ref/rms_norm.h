// Reference of rms_norm: (rows, dim).
#pragma once

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<double> rms_norm(const RmsNormParams& p) {
  std::vector<double> y;
  for (int64_t r = 0; r < p.rows; ++r) {
    const float* x = p.x + r * p.x_stride;
    double squares = 0.0;
    for (int64_t i = 0; i < p.dim; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double norm = std::sqrt(squares / static_cast<double>(p.dim) + p.eps);
    for (int64_t i = 0; i < p.dim; ++i) y.push_back(x[i] / norm * number(p.weight, p.weight_dtype, i));
  }
  return y;
}

}  // namespace ingot::kernels::ref
