// Copies rows of 4-byte numbers, in order or those that a list names. One block a row.
#pragma once

#include "gpu/kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct CopyRows {
  using Params = CopyRowsParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const int64_t row = p.source_rows == nullptr ? g.block() : p.source_rows[g.block()];
    const uint32_t* from = static_cast<const uint32_t*>(p.from) + row * p.from_stride;
    uint32_t* to = static_cast<uint32_t*>(p.to) + g.block() * p.to_stride;
    for (int64_t i = g.thread(); i < p.count; i += g.threads()) to[i] = from[i];
  }
};

}  // namespace ingot::kernels
