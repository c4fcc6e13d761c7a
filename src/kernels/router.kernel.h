// The expert router: one block a token, whose first warp does the work, so that the rounds need no barrier. Each round finds the best
// (biased score, smaller index first) below the last one found, so nothing is marked, and there is no limit on the number of experts or
// choices; a lane keeps what it knows of its first kOwn experts.
#pragma once

#include "gpu/kernel.h"
#include "gpu/numbers.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct Router {
  using Params = RouterParams;
  static constexpr int kThreads = 64;
  static constexpr int kOwn = 8;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const float* logits = p.logits + g.block() * p.num_experts;
    int32_t* experts = p.experts + g.block() * p.k;
    float* weights = p.weights + g.block() * p.k;
    const auto sigmoid = [&](int64_t e) { return 1.0f / (1.0f + g.exp(-logits[e])); };
    // The order of (score, -index) as one number. The bias is for choosing alone: about 34, it would drown the weight.
    const auto key = [&](int64_t e) {
      return static_cast<uint64_t>(gpu::ordered_bits(sigmoid(e) + p.bias[e])) << 32 | (0xffffffffu - static_cast<uint32_t>(e));
    };
    if (g.warp() == 0) {
      uint64_t own[kOwn];
      for (int j = 0; j < kOwn; ++j) own[j] = g.lane() + j * G::lanes < p.num_experts ? key(g.lane() + j * G::lanes) : 0;
      uint64_t last = ~0ull;
      for (int64_t rank = 0; rank < p.k; ++rank) {
        uint64_t best = 0;
        for (int j = 0; j < kOwn; ++j) best = own[j] < last && own[j] > best ? own[j] : best;
        for (int64_t e = g.lane() + kOwn * G::lanes; e < p.num_experts; e += G::lanes) {
          const uint64_t other = key(e);
          best = other < last && other > best ? other : best;
        }
        last = gpu::warp_max(g, best);
        // The lanes take turns in having a choice, so that what follows is done for many at once.
        if (rank % G::lanes == g.lane()) experts[rank] = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(last));
      }
      for (int64_t rank = g.lane(); rank < p.k; rank += G::lanes) weights[rank] = sigmoid(experts[rank]);
    }
    g.sync();
    float sum = 0.0f;
    for (int64_t rank = 0; rank < p.k; ++rank) sum += weights[rank];
    g.sync();  // all have read before they are scaled
    for (int64_t rank = g.thread(); rank < p.k; rank += g.threads())
      weights[rank] = (p.normalize ? weights[rank] / (sum + 1e-20f) : weights[rank]) * p.scale;
  }
};

}  // namespace ingot::kernels
