// Reference of latent_store: the numbers each token leaves in its slot, (T, latent_dim + rope_dim); for padding, zeros that mean nothing.
#pragma once

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<double> latent_store(const LatentStoreParams& p) {
  std::vector<double> out;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    const bool padding = p.slots[t] < 0;
    for (int64_t i = 0; i < p.latent_dim; ++i) out.push_back(padding ? 0.0 : rounded(p.latent[t * p.latent_stride + i], p.cache_dtype));
    for (int64_t i = 0; i < p.rope_dim; ++i) out.push_back(padding ? 0.0 : rounded(p.k_pe[t * p.k_pe_stride + i], p.cache_dtype));
  }
  return out;
}

}  // namespace ingot::kernels::ref
