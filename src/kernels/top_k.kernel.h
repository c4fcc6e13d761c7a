// Exact top-k of a row of scores without sorting it: one block a token. Up to three passes over the row find the k-th largest value, 11
// bits at a time (a histogram of the next bits among the candidates); two more write the positions above it, and the first ones equal to
// it, in rising order. Each warp has one run of the row and reads it in order, all lanes side by side. The row may have any length;
// shared memory holds counts alone.
#pragma once

#include "gpu/kernel.h"
#include "gpu/numbers.h"
#include "kernels/params.h"
#include "kernels/prefix_sum.kernel.h"

namespace ingot::kernels {

struct TopK {
  using Params = TopKParams;
  static constexpr int kThreads = 1024;  // at most
  static constexpr int kBins = 2048;
  static constexpr int kAhead = 8;  // scores of a lane that are on the way at a time; their flags are counted in the bytes of one number
  struct Shared {
    uint32_t bins[kBins];
    uint32_t warps[kThreads / 32];  // scratch
    uint32_t above[kThreads / 32];  // of each warp's run: scores above the k-th largest
    uint32_t equal[kThreads / 32];  // and those equal to it
    uint32_t digit;                 // the bits that the k-th largest value has
    uint32_t wanted;                // how many of the candidates with those bits are in the top k
    uint32_t inside;                // of how many
  };

  // Scores of `kAhead` times a warp's lanes, as ordered numbers; `valid` tells those that exist.
  struct Span {
    uint32_t keys[kAhead];
    bool valid[kAhead];
  };
  // A warp's run of the row.
  struct Run {
    const float* scores;
    int64_t begin, end;
    template <class G, class F>
    GPU_FN void each_span(G& g, F f) const {
      for (int64_t first = begin; first < end; first += kAhead * G::lanes) {
        Span span;
        float scores_here[kAhead];
        for (int j = 0; j < kAhead; ++j) {
          const int64_t i = first + j * G::lanes + g.lane();
          span.valid[j] = i < end;
          scores_here[j] = span.valid[j] ? scores[i] : 0.0f;
        }
        for (int j = 0; j < kAhead; ++j) span.keys[j] = gpu::ordered_bits(scores_here[j]);
        f(first, span);
      }
    }
  };

  // One flag for each score of a span, in the bytes of a number: up to 64 lanes can be added without a carry.
  template <class Flag>
  GPU_FN static uint64_t flags(const Span& span, Flag flag) {
    uint64_t packed = 0;
    for (int j = 0; j < kAhead; ++j) packed |= static_cast<uint64_t>(span.valid[j] && flag(j)) << (8 * j);
    return packed;
  }
  GPU_FN static uint32_t byte_of(uint64_t packed, int j) { return static_cast<uint32_t>(packed >> (8 * j)) & 255u; }

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    int32_t* out = p.indices + g.block() * p.k;
    const int64_t count = static_cast<int64_t>(p.positions[g.block()]) + 1;  // 0 for a padding row at position -1
    if (count <= p.k) {
      for (int64_t i = g.thread(); i < p.k; i += g.threads()) out[i] = i < count ? static_cast<int32_t>(i) : -1;
      return;  // the whole block: count is the same for all threads
    }
    constexpr int64_t kSpan = kAhead * G::lanes;
    const int64_t part = (count + g.warps() * kSpan - 1) / (g.warps() * kSpan) * kSpan;
    const int64_t begin = part * g.warp() < count ? part * g.warp() : count;
    const Run run{p.scores + g.block() * p.score_stride, begin, begin + part < count ? begin + part : count};

    uint32_t least = 0, mask = 0;  // the bits of the k-th largest that are known
    auto wanted = static_cast<uint32_t>(p.k);
    for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift - 10) {
      const int bins = shift == 0 ? kBins / 2 : kBins;
      for (int i = g.thread(); i < bins; i += g.threads()) s.bins[i] = 0;
      g.sync();
      run.each_span(g, [&](int64_t, const Span& span) {
        for (int j = 0; j < kAhead; ++j) {
          if (span.valid[j] && (span.keys[j] & mask) == least) g.block_add(&s.bins[(span.keys[j] >> shift) & (bins - 1u)], 1u);
        }
      });
      g.sync();
      // Each thread has some neighbouring bins, the first one the greatest.
      const int own_bins = (bins + g.threads() - 1) / g.threads();
      const int high = bins - own_bins * g.thread(), low = high > own_bins ? high - own_bins : 0;
      uint32_t own = 0;
      for (int i = low; i < high; ++i) own += s.bins[i];
      uint32_t above = block_prefix_sum(g, s.warps, own).before;
      if (above < wanted && wanted <= above + own) {
        int digit = high - 1;
        for (; above + s.bins[digit] < wanted; --digit) above += s.bins[digit];
        s.digit = static_cast<uint32_t>(digit);
        s.wanted = wanted - above;
        s.inside = s.bins[digit];
      }
      g.sync();
      least |= s.digit << shift;
      mask |= (bins - 1u) << shift;
      wanted = s.wanted;
      const bool all = s.inside == wanted;
      g.sync();        // all have read before the next round's bins are counted
      if (all) break;  // what has these bits is in, whatever its others
    }

    // A number whose known bits are `least` is a tie, also when the others are not known: then all of the ties are in.
    const auto above = [&](const Span& span, int j) { return (span.keys[j] & mask) > least; };
    const auto equal = [&](const Span& span, int j) { return (span.keys[j] & mask) == least; };
    uint32_t own_above = 0, own_equal = 0;
    run.each_span(g, [&](int64_t, const Span& span) {
      for (int j = 0; j < kAhead; ++j) {
        own_above += span.valid[j] && above(span, j);
        own_equal += span.valid[j] && equal(span, j);
      }
    });
    own_above = warp_prefix_sum(g, own_above).all;
    own_equal = warp_prefix_sum(g, own_equal).all;
    if (g.lane() == 0) {
      s.above[g.warp()] = own_above;
      s.equal[g.warp()] = own_equal;
    }
    g.sync();
    uint32_t place = 0, equal_before = 0;
    for (int w = 0; w < g.warp(); ++w) {
      place += s.above[w];
      equal_before += s.equal[w];
    }
    // Ties go to the smaller position: the first `wanted` of them are in. Most warps have all of theirs in, or none.
    place += equal_before < wanted ? equal_before : wanted;
    uint32_t left = equal_before < wanted ? wanted - equal_before : 0;
    const bool some = left > 0 && left < own_equal;
    run.each_span(g, [&](int64_t first, const Span& span) {
      uint64_t chosen = flags(span, [&](int j) { return above(span, j); });
      const uint64_t ties = flags(span, [&](int j) { return equal(span, j); });
      if (some) {
        const PrefixSum<uint64_t> sum = warp_prefix_sum(g, ties);
        uint32_t rank = 0;
        for (int j = 0; j < kAhead; ++j) {
          if (rank + byte_of(sum.before, j) < left) chosen |= ties & (uint64_t{255} << (8 * j));
          rank += byte_of(sum.all, j);
        }
        left = rank < left ? left - rank : 0;
      } else if (left > 0) {
        chosen |= ties;
      }
      const PrefixSum<uint64_t> sum = warp_prefix_sum(g, chosen);
      for (int j = 0; j < kAhead; ++j) {
        if (byte_of(chosen, j) != 0) out[place + byte_of(sum.before, j)] = static_cast<int32_t>(first + j * G::lanes + g.lane());
        place += byte_of(sum.all, j);
      }
    });
  }
};

}  // namespace ingot::kernels
