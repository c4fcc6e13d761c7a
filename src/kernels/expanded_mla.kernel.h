// Expanded MLA of one sequence, keys and values per head: one block a token and head.
#pragma once

#include "kernels/attend.kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct ExpandedMla {
  using Params = ExpandedMlaParams;
  using Shared = Attend::Shared;

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    const int64_t token = g.block() / p.heads, head = g.block() % p.heads;
    const int64_t dim = p.nope_dim + p.rope_dim;
    const int64_t kv_dim = p.nope_dim + p.v_dim;
    const float* q = p.q + g.block() * dim;
    const int32_t* chosen = p.indices == nullptr ? nullptr : p.indices + token * p.topk;
    const int64_t last = p.positions[token];
    const int64_t count = chosen == nullptr ? last + 1 : p.topk;
    const auto position = [&](int64_t j) { return chosen == nullptr ? j : static_cast<int64_t>(chosen[j]); };
    const auto kv = [&](int64_t j) { return p.kv + (position(j) * p.heads + head) * kv_dim; };
    const auto score = [&](int64_t j) {
      if (position(j) < 0 || position(j) > last) return Attend::kNoKey;
      const float* key = kv(j);
      const float* k_pe = p.k_pe + position(j) * p.k_pe_stride;
      return p.scale * gpu::warp_total(g, dim, [&](int64_t i) { return q[i] * (i < p.nope_dim ? key[i] : k_pe[i - p.nope_dim]); });
    };
    const auto value = [&](int64_t j, int64_t d) { return kv(j)[p.nope_dim + d]; };
    Attend::run(g, s, p.out + g.block() * p.v_dim, p.v_dim, count, score, value);
  }
};

}  // namespace ingot::kernels
