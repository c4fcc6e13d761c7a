// Writes the latent and the rotated key part of each token into its slot of the cache, in the cache's type. One block a token.
#pragma once

#include "kernels/numbers.kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct LatentStore {
  using Params = LatentStoreParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const int64_t slot = p.slots[g.block()];
    if (slot < 0) return;  // padding; the whole block leaves, and there is no barrier
    const float* latent = p.latent + g.block() * p.latent_stride;
    const float* k_pe = p.k_pe + g.block() * p.k_pe_stride;
    const int64_t dim = p.latent_dim + p.rope_dim;
    for (int64_t i = g.thread(); i < dim; i += g.threads()) {
      const float value = i < p.latent_dim ? latent[i] : k_pe[i - p.latent_dim];
      store_number(p.cache, p.cache_dtype, slot * dim + i, value);
    }
  }
};

}  // namespace ingot::kernels
