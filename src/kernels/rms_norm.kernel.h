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
      // Reads first, so that they are under way together: y may be x, and the compiler cannot know that they are not the next one's.
      constexpr int kAhead = G::lanes == 1 ? 1 : 8;
      for (int64_t first = g.thread(); first < p.dim; first += int64_t{kAhead} * g.threads()) {
        float v[kAhead], w[kAhead];
        for (int j = 0; j < kAhead; ++j) {
          const int64_t i = first + int64_t{j} * g.threads();
          v[j] = i < p.dim ? x[i] : 0.0f;
          w[j] = i < p.dim ? weight[i] : 0.0f;
        }
        for (int j = 0; j < kAhead; ++j) {
          const int64_t i = first + int64_t{j} * g.threads();
          if (i < p.dim) y[i] = v[j] * scale * w[j];
        }
      }
    });
  }
};

}  // namespace ingot::kernels
