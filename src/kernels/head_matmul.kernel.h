// Products by the heads' own rows of one weight: matmul.kernel.h or matmul_transposed.kernel.h for each, all in one launch.
#pragma once

#include "kernels/matmul.kernel.h"
#include "kernels/matmul_transposed.kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct HeadMatmul {
  using Params = HeadMatmulParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const int64_t blocks = p.head_blocks(), head = g.block() / blocks, block = g.block() % blocks;
    if (p.transposed)
      MatmulTransposed::run(g, p.product_transposed(head), block);
    else
      Matmul::run(g, p.product(head), block);
  }
};

}  // namespace ingot::kernels
