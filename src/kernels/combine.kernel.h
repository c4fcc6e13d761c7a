// Sums the chosen experts' rows of each token with the router's weights, in slot order. One block a token.
#pragma once

#include "gpu/kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct Combine {
  using Params = CombineParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const int32_t* inverse = p.inverse + g.block() * p.k;
    const float* weights = p.weights + g.block() * p.k;
    float* out = p.out + g.block() * p.out_stride;
    for (int64_t d = g.thread(); d < p.dim; d += g.threads()) {
      float sum = 0.0f;
      for (int64_t j = 0; j < p.k; ++j) sum += weights[j] * p.y[inverse[j] * p.y_stride + d];
      out[d] = p.accumulate ? out[d] + sum : sum;
    }
  }
};

}  // namespace ingot::kernels
