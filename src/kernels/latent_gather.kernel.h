// Reads the cached latents of one sequence, in order of position, widened to f32. One block a position.
#pragma once

#include "kernels/latent_rows.kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct LatentGather {
  using Params = LatentGatherParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const int64_t position = g.block();
    const int64_t slot = static_cast<int64_t>(p.pages[position / p.page_size]) * p.page_size + position % p.page_size;
    with_latents(p.cache, p.cache_format, p.latent_dim, p.rope_dim, [&](auto cache) {
      const auto row = cache.row(slot);
      for (int64_t i = g.thread(); i < p.latent_dim; i += g.threads()) p.latent[position * p.latent_dim + i] = row[i];
      for (int64_t i = g.thread(); i < p.rope_dim; i += g.threads()) p.k_pe[position * p.rope_dim + i] = row[p.latent_dim + i];
    });
  }
};

}  // namespace ingot::kernels
