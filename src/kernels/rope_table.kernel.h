// The cosines and sines of a batch's positions, made once a step and used by every layer. One block a token.
#pragma once

#include "gpu/kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct RopeTable {
  using Params = RopeTableParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const int64_t pairs = p.rope_dim / 2;
    float* out = p.cos_sin + g.block() * p.rope_dim;
    const auto position = static_cast<float>(p.positions[g.block()]);
    for (int64_t j = g.thread(); j < pairs; j += g.threads()) {
      // Rounded to f32 before the cosine, as the reference runtimes do: at a million the exact product would differ by 0.06 rad.
      const float angle = position * p.inv_freq[j];
      out[2 * j] = g.cos(angle);
      out[2 * j + 1] = g.sin(angle);
    }
  }
};

}  // namespace ingot::kernels
