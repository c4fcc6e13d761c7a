// What logprobs are made of, from the model's own logits: the greatest one, the sum of e^(logit - greatest), and the likeliest tokens in
// order. One block a row. The host takes the logarithm: one a row.
#pragma once

#include "kernels/sample_row.kernel.h"

namespace ingot::kernels {

struct LogprobRows {
  using Params = LogprobRowsParams;
  static constexpr int kThreads = kRowThreads;
  using Shared = RowShared;

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    const int32_t num_top = p.rows[g.block()].num_top;
    if (num_top < 0) return;  // the whole block
    const float* logits = p.logits + g.block() * p.vocab_size;
    const RowCheck check = check_row(g, s, logits, p.vocab_size);
    if (check.likeliest < 0) return;  // SampleRows says so
    const float max = logits[check.likeliest];
    const int bits = mass_bits(p.vocab_size);
    Mass total = 0;
    // Nothing is looked for: the place of the last one, for the total on the way.
    place_of(
        g, s, p.vocab_size,
        [&](int64_t i) { return mass_of(exp_of_negative(static_cast<double>(logits[i]) - static_cast<double>(max)), bits); },
        [&](Mass sum) {
          total = sum;
          return Mass{0};
        });
    if (g.thread() == 0) {
      p.results[g.block()].max = max;
      p.results[g.block()].total = static_cast<double>(total) / static_cast<double>(Mass{1} << bits);
    }
    // Each thread holds the best of its own logits that was not taken yet, so that after a round one thread alone looks again.
    const auto best_below = [&](uint64_t limit) {
      uint64_t best = 0;
      for (int64_t i = g.thread(); i < p.vocab_size; i += g.threads()) {
        const uint64_t rank = rank_of(logits[i], i);
        best = rank < limit && rank > best ? rank : best;
      }
      return best;
    };
    uint64_t own = num_top > 0 ? best_below(~uint64_t{0}) : 0;
    for (int32_t place = 0; place < num_top; ++place) {
      const uint64_t best = gpu::block_max(g, s.best, own);
      if (best == own) {
        const int64_t id = id_of_rank(best);
        p.top[g.block() * p.max_top + place] = {static_cast<int32_t>(id), logits[id]};
        own = best_below(best);
      }
    }
  }
};

}  // namespace ingot::kernels
