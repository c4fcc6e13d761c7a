// Stable counting sort of the (token, slot) pairs by expert. Each block counts all pairs (those before its own and the rest apart), so
// that it knows where the rows of every expert start for its own pairs, and no block waits for another. It then places its own, one a
// thread at a time: the pairs of the same expert before it in its warp are counted by looking at all lanes, those of the warps before in
// shared memory. Experts are taken kSlab at a time, as a rule all of them at once.
#pragma once

#include "gpu/kernel.h"
#include "kernels/params.h"
#include "kernels/prefix_sum.kernel.h"

namespace ingot::kernels {

struct Permute {
  using Params = PermuteParams;
  static constexpr int kThreads = 1024;  // at most
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kSlab = 256;
  static constexpr int kAhead = 8;  // numbers that a thread has on the way at a time
  struct Shared {
    int32_t before[kSlab];        // of each expert: pairs before this block's
    int32_t after[kSlab];         // and from its first on
    int32_t next[kSlab];          // row of its next pair
    int32_t rows[kWarps][kSlab];  // of the pairs in work, by warp: how many, then the row of the first
    int32_t scratch[kWarps];
  };

  template <class G>
  GPU_FN static void count(G& g, Shared& s, const Params& p, int32_t first_expert, int32_t slab, int64_t first_pair) {
    for (int e = g.thread(); e < slab; e += g.threads()) s.before[e] = s.after[e] = 0;
    g.sync();
    const int64_t pairs = p.num_tokens * p.k;
    for (int64_t begin = g.thread(); begin < pairs; begin += kAhead * g.threads()) {
      int32_t expert[kAhead];
      for (int j = 0; j < kAhead; ++j) {
        const int64_t i = begin + j * g.threads();
        expert[j] = i < pairs ? p.experts[i] - first_expert : -1;
      }
      for (int j = 0; j < kAhead; ++j) {
        if (expert[j] >= 0 && expert[j] < slab)
          g.block_add(begin + j * g.threads() < first_pair ? &s.before[expert[j]] : &s.after[expert[j]], 1);
      }
    }
    g.sync();
  }

  // Rows of one pair a thread, by expert. -1: it has none.
  template <class G>
  GPU_FN static int32_t place(G& g, Shared& s, int32_t expert, int32_t slab, int warps) {
    if constexpr (G::lanes == 1) return expert < 0 ? -1 : s.next[expert]++;
    for (int e = g.lane(); e < slab; e += G::lanes) s.rows[g.warp()][e] = 0;
    int32_t before = 0, same = 1;
    for (int mask = 1; mask < G::lanes; ++mask) {
      const bool equal = g.shfl_xor(expert, mask) == expert;
      same += equal;
      before += equal && (g.lane() ^ mask) < g.lane();
    }
    g.sync();  // the rows are zero
    if (expert >= 0 && before == same - 1) s.rows[g.warp()][expert] = same;
    g.sync();
    for (int e = g.thread(); e < slab; e += g.threads()) {
      int32_t row = s.next[e];
      for (int w = 0; w < warps; w += kAhead) {
        int32_t counts[kAhead];
        for (int j = 0; j < kAhead; ++j) counts[j] = w + j < warps ? s.rows[w + j][e] : 0;
        for (int j = 0; j < kAhead; ++j) {
          if (w + j < warps) s.rows[w + j][e] = row;
          row += counts[j];
        }
      }
      s.next[e] = row;
    }
    g.sync();
    const int32_t row = expert < 0 ? -1 : s.rows[g.warp()][expert] + before;
    g.sync();  // all have read before the rows are cleared again
    return row;
  }

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    constexpr int64_t each = Params::kPairsPerBlock;
    const int64_t pairs = p.num_tokens * p.k, first = g.block() * each, last = first + each < pairs ? first + each : pairs;
    int32_t placed = 0;  // pairs of the experts of the slabs before
    for (int64_t e0 = 0; e0 < p.num_experts; e0 += kSlab) {
      const auto slab = static_cast<int32_t>(p.num_experts - e0 < kSlab ? p.num_experts - e0 : kSlab);
      count(g, s, p, static_cast<int32_t>(e0), slab, first);
      // A thread has some neighbouring experts.
      const int own = (slab + g.threads() - 1) / g.threads();
      const int begin = own * g.thread() < slab ? own * g.thread() : slab, end = begin + own < slab ? begin + own : slab;
      int32_t sum = 0;
      for (int e = begin; e < end; ++e) sum += s.before[e] + s.after[e];
      const PrefixSum<int32_t> starts = block_prefix_sum(g, s.scratch, sum);
      int32_t start = placed + starts.before;
      for (int e = begin; e < end; ++e) {
        if (g.block() == 0) p.offsets[e0 + e] = start;
        s.next[e] = start + s.before[e];
        start += s.before[e] + s.after[e];
      }
      placed += starts.all;
      g.sync();
      for (int64_t round = first; round < last; round += g.threads()) {
        const int64_t i = round + g.thread(), here = last - round < g.threads() ? last - round : g.threads();
        int32_t expert = i < last ? p.experts[i] - static_cast<int32_t>(e0) : -1;
        if (expert >= slab) expert = -1;
        const int32_t row = place(g, s, expert < 0 ? -1 : expert, slab, static_cast<int>((here + G::lanes - 1) / G::lanes));
        if (row < 0) continue;
        p.order[row] = static_cast<int32_t>(i);
        p.inverse[i] = row;
      }
    }
    if (g.block() == 0 && g.thread() == 0) p.offsets[p.num_experts] = placed;
  }
};

}  // namespace ingot::kernels
