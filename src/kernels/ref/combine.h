// Reference of combine: (T, dim), from out as it was before when accumulating.
#pragma once

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<double> combine(const CombineParams& p) {
  std::vector<double> out;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    for (int64_t d = 0; d < p.dim; ++d) {
      double sum = p.accumulate ? p.out[t * p.out_stride + d] : 0.0;
      for (int64_t j = 0; j < p.k; ++j) sum += static_cast<double>(p.weights[t * p.k + j]) * p.y[p.inverse[t * p.k + j] * p.y_stride + d];
      out.push_back(sum);
    }
  }
  return out;
}

}  // namespace ingot::kernels::ref
