// RMSNorm: one block a row. Statistics and the product with the weight in f32.
#pragma once

#include "kernels/numbers.kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct RmsNorm {
  using Params = RmsNormParams;
  static constexpr int kThreads = 256;
  struct Shared {
    float scratch[kThreads];
  };

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    const float* x = p.x + g.block() * p.x_stride;
    float* y = p.y + g.block() * p.y_stride;
    const float sum = gpu::block_total<kThreads>(g, s.scratch, p.dim, [&](int64_t i) { return x[i] * x[i]; });
    const float scale = g.rsqrt(sum / static_cast<float>(p.dim) + p.eps);
    with_numbers(p.weight, p.weight_dtype, [&](auto weight) {
      for (int64_t i = g.thread(); i < p.dim; i += g.threads()) y[i] = x[i] * scale * weight[i];
    });
  }
};

}  // namespace ingot::kernels
