// y = silu(gate) * up: one block a row.
#pragma once

#include "gpu/kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct SwiGlu {
  using Params = SwiGluParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const float* gate = p.gate + g.block() * p.in_stride;
    const float* up = p.up + g.block() * p.in_stride;
    float* y = p.y + g.block() * p.y_stride;
    for (int64_t i = g.thread(); i < p.dim; i += g.threads()) y[i] = gate[i] / (1.0f + g.exp(-gate[i])) * up[i];
  }
};

}  // namespace ingot::kernels
