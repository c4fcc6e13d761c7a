// y = x * w, the weight not transposed: one block has 64 columns of one row of y, one thread a column, so that the threads read a
// weight row side by side. Each thread adds over n in rising order: the order of the sum depends on w.rows alone.
#pragma once

#include "kernels/numbers.kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct MatmulTransposed {
  using Params = MatmulTransposedParams;
  static constexpr int64_t kColumns = 64;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    run(g, p, g.block());
  }

  // Block number `block` of the product.
  template <class G>
  GPU_FN static void run(G& g, const Params& p, int64_t block) {
    const int64_t tiles = (p.w.cols + kColumns - 1) / kColumns;
    const int64_t m = block / tiles;
    const int64_t begin = block % tiles * kColumns + g.thread();
    const float* x = p.x + m * p.x_stride;
    float* y = p.y + m * p.y_stride;
    constexpr int kOwn = G::lanes == 1 ? kColumns : 1;  // the CPU's one thread has all columns
    with_weight(p.w, [&](auto weight) {
      float sum[kOwn] = {};
      const int64_t own = p.w.cols - begin < kOwn ? p.w.cols - begin : kOwn;
      for (int64_t n = 0; n < p.w.rows; ++n) {
        const auto row = weight.row(n);
        for (int64_t j = 0; j < own; ++j) sum[j] += x[n] * row[begin + j];
      }
      for (int64_t j = 0; j < own; ++j) y[begin + j] = sum[j];
    });
  }
};

}  // namespace ingot::kernels
