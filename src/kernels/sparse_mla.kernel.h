// Absorbed MLA over chosen positions of the paged cache: one block a token and head.
#pragma once

#include "kernels/attend.kernel.h"
#include "kernels/latent_rows.kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct SparseMla {
  using Params = SparseMlaParams;
  using Shared = Attend::Shared;

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    const int64_t token = g.block() / p.heads;
    const int64_t seq = p.where.seq_of_token[token];
    const int64_t dim = p.latent_dim + p.rope_dim;
    const float* q = p.q + g.block() * dim;
    const int32_t* chosen = p.indices == nullptr ? nullptr : p.indices + token * p.topk;
    const int64_t count = chosen == nullptr ? static_cast<int64_t>(p.where.positions[token]) + 1 : p.topk;
    with_latents(p.cache, p.cache_format, p.latent_dim, p.rope_dim, [&](auto cache) {
      const auto position = [&](int64_t j) { return chosen == nullptr ? j : static_cast<int64_t>(chosen[j]); };
      const auto score = [&](int64_t j) {
        if (position(j) < 0) return Attend::kNoKey;
        const auto key = cache.row(p.where.slot(seq, position(j)));
        return p.scale * gpu::warp_total(g, dim, [&](int64_t i) { return q[i] * key[i]; });
      };
      const auto value = [&](int64_t j, int64_t d) { return cache.row(p.where.slot(seq, position(j)))[d]; };
      Attend::run(g, s, p.out + g.block() * p.latent_dim, p.latent_dim, count, score, value);
    });
  }
};

}  // namespace ingot::kernels
