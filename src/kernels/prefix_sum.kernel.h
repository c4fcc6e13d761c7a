// Sums over the lanes of a warp, or the threads of a block, that come before one's own.
#pragma once

#include "gpu/kernel.h"

namespace ingot::kernels {

template <class T>
struct PrefixSum {
  T before;  // of those with a smaller number
  T all;
};

// Every lane of the warp must reach it.
template <class G, class T>
GPU_FN PrefixSum<T> warp_prefix_sum(G& g, T v) {
  PrefixSum<T> sum{T{}, v};
  for (int mask = 1; mask < G::lanes; mask *= 2) {  // `all` is that of the 2, 4, 8... neighbours that one is among
    const T other = g.shfl_xor(sum.all, mask);
    if ((g.lane() & mask) != 0) sum.before += other;
    sum.all += other;
  }
  return sum;
}

// Every thread of the block must reach it. `scratch` holds one value a warp and may have been used before.
template <class G, class T>
GPU_FN PrefixSum<T> block_prefix_sum(G& g, T* scratch, T v) {
  const PrefixSum<T> own = warp_prefix_sum(g, v);
  g.sync();
  if (g.lane() == 0) scratch[g.warp()] = own.all;
  g.sync();
  PrefixSum<T> sum{own.before, T{}};
  for (int w = 0; w < g.warps(); ++w) {
    if (w < g.warp()) sum.before += scratch[w];
    sum.all += scratch[w];
  }
  return sum;
}

}  // namespace ingot::kernels
