// Reference of rope_table: (T, rope_dim/2, 2). The angle is the product rounded to f32: that rounding is part of the definition.
#pragma once

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<double> rope_table(const RopeTableParams& p) {
  std::vector<double> out;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    for (int64_t j = 0; j < p.rope_dim / 2; ++j) {
      const auto angle = static_cast<float>(static_cast<double>(p.positions[t]) * p.inv_freq[j]);
      out.push_back(std::cos(static_cast<double>(angle)));
      out.push_back(std::sin(static_cast<double>(angle)));
    }
  }
  return out;
}

}  // namespace ingot::kernels::ref
