// Writes the indexer key of each token into its slot of the cache, in the cache's type. One block a token.
#pragma once

#include "kernels/numbers.kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct IndexKeyStore {
  using Params = IndexKeyStoreParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const int64_t slot = p.slots[g.block()];
    if (slot < 0) return;  // padding; the whole block leaves, and there is no barrier
    const float* key = p.keys + g.block() * p.key_stride;
    for (int64_t i = g.thread(); i < p.dim; i += g.threads()) store_number(p.cache, p.cache_dtype, slot * p.dim + i, key[i]);
  }
};

}  // namespace ingot::kernels
