// Rotary embedding in place: one block a token, one thread a pair of one head.
#pragma once

#include "gpu/kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct Rope {
  using Params = RopeParams;
  struct Shared {};

  struct Pair {
    float a, b;
  };
  GPU_FN static Pair turned(float x, float y, float cosine, float sine) { return {x * cosine - y * sine, x * sine + y * cosine}; }

  // The i-th of the rope_dim numbers of one head after the rotation, from part[0 .. rope_dim) before it; `table` is of the token.
  template <class Part>
  GPU_FN static float rotated(const Params& p, const float* table, const Part& part, int64_t i) {
    const int64_t half = p.rope_dim / 2, j = p.interleave ? i / 2 : i % half;
    const bool second = p.interleave ? i % 2 == 1 : i >= half;
    const Pair pair = turned(part[p.interleave ? 2 * j : j], part[p.interleave ? 2 * j + 1 : j + half], table[2 * j], table[2 * j + 1]);
    return second ? pair.b : pair.a;
  }

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    // A division by 64 bits takes a GPU longer than all the rest.
    const auto pairs = static_cast<int32_t>(p.rope_dim / 2), all = static_cast<int32_t>(p.heads) * pairs;
    const float* table = p.cos_sin + g.block() * p.rope_dim;
    float* token = p.x + g.block() * p.token_stride + p.offset;
    for (int32_t i = g.thread(); i < all; i += g.threads()) {
      const int32_t head = i / pairs, j = i % pairs;
      const int32_t first = p.interleave ? 2 * j : j, second = p.interleave ? 2 * j + 1 : j + pairs;
      float* x = token + head * p.head_stride;
      const Pair pair = turned(x[first], x[second], table[2 * j], table[2 * j + 1]);
      x[first] = pair.a;
      x[second] = pair.b;
      if (p.copy == nullptr) continue;
      float* copy = p.copy + g.block() * p.copy_token_stride + head * p.copy_head_stride;
      copy[first] = pair.a;
      copy[second] = pair.b;
    }
  }
};

}  // namespace ingot::kernels
