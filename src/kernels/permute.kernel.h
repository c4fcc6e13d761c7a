// Stable counting sort of the (token, slot) pairs by expert, by one block. `offsets` is its own scratch: entry e + 1 first counts
// expert e, then points at its next free row, and when all pairs are placed it has become the end of e, which is the start of e + 1.
#pragma once

#include "gpu/kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct Permute {
  using Params = PermuteParams;
  static constexpr int kThreads = 256;
  struct Shared {
    int32_t expert[kThreads];  // of the pairs in work
  };

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    const int64_t pairs = p.num_tokens * p.k;
    int32_t* next = p.offsets + 1;
    for (int64_t e = g.thread(); e <= p.num_experts; e += g.threads()) p.offsets[e] = 0;
    g.sync();
    for (int64_t i = g.thread(); i < pairs; i += g.threads()) g.block_add(&next[p.experts[i]], 1);
    g.sync();
    if (g.thread() == 0) {
      int32_t start = 0;
      for (int64_t e = 0; e < p.num_experts; ++e) {
        const int32_t count = next[e];
        next[e] = start;
        start += count;
      }
    }
    // One pair a thread at a time. A pair's row is that of its expert's next free one plus the pairs of the same expert before it
    // in this round; the last of an expert moves the pointer on.
    for (int64_t round = 0; round < pairs; round += g.threads()) {
      const int64_t i = round + g.thread();
      const int64_t here = pairs - round < g.threads() ? pairs - round : g.threads();
      const bool active = i < pairs;
      const int32_t expert = active ? p.experts[i] : -1;
      s.expert[g.thread()] = expert;
      g.sync();  // also: the pointers of the last round have moved
      int32_t before = 0, after = 0;
      for (int t = 0; t < here; ++t) {
        if (s.expert[t] != expert) continue;
        before += t < g.thread();
        after += t > g.thread();
      }
      const int32_t row = active ? next[expert] + before : 0;
      g.sync();  // all have read the pointers
      if (active) {
        p.order[row] = static_cast<int32_t>(i);
        p.inverse[i] = row;
        if (after == 0) next[expert] = row + 1;
      }
    }
  }
};

}  // namespace ingot::kernels
