// The experts' products: one block has 64 columns of one expert and all its rows, one warp a column at a time. The sum of an
// element is that of matmul.kernel.h, bit for bit: it does not matter how many rows an expert got.
#pragma once

#include "kernels/numbers.kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct GroupedMatmul {
  using Params = GroupedMatmulParams;
  static constexpr int64_t kColumns = 64;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const int64_t tiles = (p.n + kColumns - 1) / kColumns;
    const int64_t expert = g.block() / tiles;
    const int64_t begin = g.block() % tiles * kColumns;
    const int64_t end = begin + kColumns < p.n ? begin + kColumns : p.n;
    const int64_t first = p.offsets[expert], last = p.offsets[expert + 1];
    if (first == last) return;  // an expert nobody chose: its weight is not touched
    const int64_t cols = p.weights[expert].cols;
    with_weight(p.weights[expert], [&](auto weight) {
      for (int64_t n = begin + g.warp(); n < end; n += g.warps()) {
        const auto row = weight.row(n);
        for (int64_t i = first; i < last; ++i) {
          const float* x = p.x + (p.order == nullptr ? i : p.order[i] / p.rows_per_source) * p.x_stride;
          const float sum = gpu::warp_total(g, cols, [&](int64_t k) { return x[k] * row[k]; });
          if (g.lane() == 0) p.y[i * p.y_stride + n] = sum;
        }
      }
    });
  }
};

}  // namespace ingot::kernels
