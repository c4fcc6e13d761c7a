// The indexer's score of every visible position for every token: one block a token, one warp a position at a time.
#pragma once

#include "kernels/numbers.kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct IndexScores {
  using Params = IndexScoresParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const int64_t token = g.block();
    const int64_t seq = p.where.seq_of_token[token];
    const int64_t count = static_cast<int64_t>(p.where.positions[token]) + 1;
    const float* weights = p.weights + token * p.weight_stride;
    with_numbers(p.cache, p.cache_dtype, [&](auto cache) {
      for (int64_t position = g.warp(); position < count; position += g.warps()) {
        const int64_t key = p.where.slot(seq, position) * p.dim;
        float score = 0.0f;
        for (int64_t h = 0; h < p.heads; ++h) {
          const float* q = p.q + (token * p.heads + h) * p.dim;
          const float dot = gpu::warp_total(g, p.dim, [&](int64_t i) { return q[i] * cache[key + i]; });
          score += weights[h] * (dot < 0.0f ? 0.0f : dot);  // written so that a NaN stays one
        }
        if (g.lane() == 0) p.scores[token * p.score_stride + position] = score * p.scale;
      }
    });
  }
};

}  // namespace ingot::kernels
