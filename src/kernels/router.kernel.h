// The expert router: one block a token. Each round finds the best (biased score, smaller index first) below the last one found, so
// nothing is marked, and there is no limit on the number of experts or choices.
#pragma once

#include "gpu/kernel.h"
#include "gpu/numbers.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct Router {
  using Params = RouterParams;
  static constexpr int kThreads = 64;
  struct Shared {
    uint64_t best[kThreads / 32];  // one a warp
  };

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    const float* logits = p.logits + g.block() * p.num_experts;
    int32_t* experts = p.experts + g.block() * p.k;
    float* weights = p.weights + g.block() * p.k;
    const auto sigmoid = [&](int64_t e) { return 1.0f / (1.0f + g.exp(-logits[e])); };
    uint64_t last = ~0ull;
    float sum = 0.0f;
    for (int64_t rank = 0; rank < p.k; ++rank) {
      // The order of (score, -index) as one number. The bias is for choosing alone: about 34, it would drown the weight.
      uint64_t best = 0;
      for (int64_t e = g.thread(); e < p.num_experts; e += g.threads()) {
        const uint64_t key =
            static_cast<uint64_t>(gpu::ordered_bits(sigmoid(e) + p.bias[e])) << 32 | (0xffffffffu - static_cast<uint32_t>(e));
        if (key < last && key > best) best = key;
      }
      last = gpu::block_max(g, s.best, best);
      const auto expert = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(last));
      sum += sigmoid(expert);
      if (g.thread() == 0) experts[rank] = expert;
    }
    for (int64_t rank = 0; g.thread() == 0 && rank < p.k; ++rank) {
      const float weight = sigmoid(experts[rank]);
      weights[rank] = (p.normalize ? weight / (sum + 1e-20f) : weight) * p.scale;
    }
  }
};

}  // namespace ingot::kernels
