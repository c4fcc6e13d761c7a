// Reference of index_key_store: the numbers each token leaves in its slot, (T, dim); for padding, zeros that mean nothing.
#pragma once

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<double> index_key_store(const IndexKeyStoreParams& p) {
  std::vector<double> out;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    for (int64_t i = 0; i < p.dim; ++i) out.push_back(p.slots[t] < 0 ? 0.0 : rounded(p.keys[t * p.key_stride + i], p.cache_dtype));
  }
  return out;
}

}  // namespace ingot::kernels::ref
