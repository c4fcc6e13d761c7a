// Token embedding: one block a token copies its row of the table, widened to f32.
#pragma once

#include "kernels/numbers.kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct Embed {
  using Params = EmbedParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const int64_t hidden = p.table.cols;
    float* out = p.out + g.block() * hidden;
    with_weight(p.table, [&](auto table) {
      const auto row = table.row(p.token_ids[g.block()]);
      for (int64_t i = g.thread(); i < hidden; i += g.threads()) out[i] = row[i];
    });
  }
};

}  // namespace ingot::kernels
