// Exact top-k of a row of scores without sorting it: one block a token. Four passes over the row find the k-th largest value byte
// by byte (a histogram of the next byte among the candidates); two more write the positions above it, and the first ones equal to
// it, in rising order. The row may have any length; shared memory holds counts alone.
#pragma once

#include "gpu/kernel.h"
#include "gpu/numbers.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct TopK {
  using Params = TopKParams;
  static constexpr int kThreads = 256;
  static constexpr int kBins = 256;
  struct Shared {
    uint32_t bins[kBins];
    uint32_t byte;            // the byte that the k-th largest value has
    int64_t wanted;           // how many of the candidates with that byte are in the top k
    int64_t above[kThreads];  // of each thread's part of the row: scores above the k-th largest
    int64_t equal[kThreads];  // and those equal to it
  };

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    int32_t* out = p.indices + g.block() * p.k;
    const float* scores = p.scores + g.block() * p.score_stride;
    const int64_t count = static_cast<int64_t>(p.positions[g.block()]) + 1;  // 0 for a padding row at position -1
    if (count <= p.k) {
      for (int64_t i = g.thread(); i < p.k; i += g.threads()) out[i] = i < count ? static_cast<int32_t>(i) : -1;
      return;  // the whole block: count is the same for all threads
    }

    uint32_t prefix = 0, mask = 0;  // the bytes of the k-th largest that are known
    int64_t wanted = p.k;
    for (int shift = 24; shift >= 0; shift -= 8) {
      for (int i = g.thread(); i < kBins; i += g.threads()) s.bins[i] = 0;
      g.sync();
      for (int64_t i = g.thread(); i < count; i += g.threads()) {
        const uint32_t key = gpu::ordered_bits(scores[i]);
        if ((key & mask) == prefix) g.block_add(&s.bins[(key >> shift) & 255u], 1u);
      }
      g.sync();
      if (g.thread() == 0) {
        int byte = kBins - 1;
        while (wanted > static_cast<int64_t>(s.bins[byte])) wanted -= s.bins[byte--];
        s.byte = static_cast<uint32_t>(byte);
        s.wanted = wanted;
      }
      g.sync();
      prefix |= s.byte << shift;
      mask |= 255u << shift;
      wanted = s.wanted;
    }

    // Each thread has one run of the row, so that positions come out in order with one sum over the threads before it.
    const int64_t part = (count + g.threads() - 1) / g.threads();
    const int64_t begin = part * g.thread() < count ? part * g.thread() : count;
    const int64_t end = begin + part < count ? begin + part : count;
    int64_t above = 0, equal = 0;
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t key = gpu::ordered_bits(scores[i]);
      above += key > prefix;
      equal += key == prefix;
    }
    s.above[g.thread()] = above;
    s.equal[g.thread()] = equal;
    g.sync();
    above = equal = 0;
    for (int t = 0; t < g.thread(); ++t) {
      above += s.above[t];
      equal += s.equal[t];
    }
    // Ties go to the smaller position: the first `wanted` of the equal ones are in.
    int64_t place = above + (equal < wanted ? equal : wanted);
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t key = gpu::ordered_bits(scores[i]);
      const bool tie = key == prefix && equal++ < wanted;
      if (key > prefix || tie) out[place++] = static_cast<int32_t>(i);
    }
  }
};

}  // namespace ingot::kernels
