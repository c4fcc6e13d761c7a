// LayerNorm with bias: one block a row, two passes (mean, then the mean of squared distances), since the one-pass form cancels.
#pragma once

#include "kernels/numbers.kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct LayerNorm {
  using Params = LayerNormParams;
  static constexpr int kThreads = 128;
  struct Shared {
    float scratch[kThreads];
  };

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    const float* x = p.x + g.block() * p.x_stride;
    float* y = p.y + g.block() * p.y_stride;
    const auto dim = static_cast<float>(p.dim);
    const float mean = gpu::block_total<kThreads>(g, s.scratch, p.dim, [&](int64_t i) { return x[i]; }) / dim;
    const float sum = gpu::block_total<kThreads>(g, s.scratch, p.dim, [&](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
    const float scale = g.rsqrt(sum / dim + p.eps);
    with_numbers(p.weight, p.weight_dtype, [&](auto weight) {
      const decltype(weight) bias{static_cast<decltype(weight.data)>(p.bias)};  // of the same type, as Params says
      for (int64_t i = g.thread(); i < p.dim; i += g.threads()) y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
    });
  }
};

}  // namespace ingot::kernels
