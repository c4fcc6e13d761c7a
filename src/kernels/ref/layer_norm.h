// Reference of layer_norm: (rows, dim).
#pragma once

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<double> layer_norm(const LayerNormParams& p) {
  std::vector<double> y;
  const auto dim = static_cast<double>(p.dim);
  for (int64_t r = 0; r < p.rows; ++r) {
    const float* x = p.x + r * p.x_stride;
    double mean = 0.0, variance = 0.0;
    for (int64_t i = 0; i < p.dim; ++i) mean += x[i] / dim;
    for (int64_t i = 0; i < p.dim; ++i) variance += (x[i] - mean) * (x[i] - mean) / dim;
    for (int64_t i = 0; i < p.dim; ++i) {
      const double normal = (x[i] - mean) / std::sqrt(variance + p.eps);
      y.push_back(normal * number(p.weight, p.weight_dtype, i) + number(p.bias, p.weight_dtype, i));
    }
  }
  return y;
}

}  // namespace ingot::kernels::ref
