// Rotary embedding in place: one block a token, one thread a pair of one head.
#pragma once

#include "gpu/kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct Rope {
  using Params = RopeParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const int64_t pairs = p.rope_dim / 2;
    const float* table = p.cos_sin + g.block() * p.rope_dim;
    float* token = p.x + g.block() * p.token_stride + p.offset;
    for (int64_t i = g.thread(); i < p.heads * pairs; i += g.threads()) {
      const int64_t j = i % pairs;
      float* head = token + i / pairs * p.head_stride;
      float& a = head[p.interleave ? 2 * j : j];
      float& b = head[p.interleave ? 2 * j + 1 : j + pairs];
      const float cosine = table[2 * j], sine = table[2 * j + 1];
      const float x = a, y = b;
      a = x * cosine - y * sine;
      b = x * sine + y * cosine;
    }
  }
};

}  // namespace ingot::kernels
