// y = x * w^T in every weight format: one block has 64 columns of one row, one warp a column at a time. The lanes stride over K, so
// the weights are read in full lines. This form is right everywhere and fast nowhere: it is what faster ones are compared with.
#pragma once

#include "kernels/numbers.kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct Matmul {
  using Params = MatmulParams;
  static constexpr int64_t kColumns = 64;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    run(g, p, g.block());
  }

  // Block number `block` of the product.
  template <class G>
  GPU_FN static void run(G& g, const Params& p, int64_t block) {
    const int64_t tiles = (p.w.rows + kColumns - 1) / kColumns;
    const int64_t m = block / tiles;
    const int64_t begin = block % tiles * kColumns;
    const int64_t end = begin + kColumns < p.w.rows ? begin + kColumns : p.w.rows;
    const float* x = p.x + m * p.x_stride;
    float* y = p.y + m * p.y_stride;
    with_weight(p.w, [&](auto weight) {
      for (int64_t n = begin + g.warp(); n < end; n += g.warps()) {
        const auto row = weight.row(n);
        const float sum = gpu::warp_total(g, p.w.cols, [&](int64_t k) { return x[k] * row[k]; });
        if (g.lane() == 0) y[n] = p.accumulate ? y[n] + sum : sum;
      }
    });
  }
};

}  // namespace ingot::kernels
