// Reference of swiglu: (rows, dim).
#pragma once

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<double> swiglu(const SwiGluParams& p) {
  std::vector<double> y;
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t i = 0; i < p.dim; ++i) {
      const double gate = p.gate[r * p.in_stride + i];
      y.push_back(gate / (1.0 + std::exp(-gate)) * p.up[r * p.in_stride + i]);
    }
  }
  return y;
}

}  // namespace ingot::kernels::ref
