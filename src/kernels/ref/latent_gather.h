// Reference of latent_gather: latent and rotated part of each position together, (num_keys, latent_dim + rope_dim).
#pragma once

#include "kernels/ref/latent_rows.h"

namespace ingot::kernels::ref {

inline std::vector<double> latent_gather(const LatentGatherParams& p) {
  std::vector<double> out;
  const int64_t dim = p.latent_dim + p.rope_dim;
  for (int64_t i = 0; i < p.num_keys; ++i) {
    const int64_t slot = int64_t{p.pages[i / p.page_size]} * p.page_size + i % p.page_size;
    for (int64_t d = 0; d < dim; ++d) out.push_back(latent_number(p.cache, p.cache_format, p.latent_dim, p.rope_dim, slot, d));
  }
  return out;
}

}  // namespace ingot::kernels::ref
