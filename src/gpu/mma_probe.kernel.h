// One matrix instruction by one warp, to compare its table with what it does: d = a * b + c. Operands are unpacked, a code each.
#pragma once

#include "gpu/grid.h"
#include "gpu/kernel.h"
#include "gpu/mma.h"

namespace ingot::gpu {

struct MmaProbeParams {
  float* d;                // (M, N)
  const uint16_t* a;       // (M, K) codes of the instruction's A numbers
  const uint16_t* b;       // (K, N)
  const float* c;          // (M, N)
  const uint8_t* a_scale;  // (M, K / 32) e8m0; read by scaled instructions alone
  const uint8_t* b_scale;  // (K / 32, N)
  int lanes;
  Grid grid() const { return {1, lanes}; }
};

template <class I>
struct MmaProbe {
  using Params = MmaProbeParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    typename I::A a = {};
    typename I::B b = {};
    typename I::C c = {};
    constexpr int kABits = matrix_number_bits(I::kAType), kBBits = matrix_number_bits(I::kBType);
    const int lane = g.lane();
    for (int i = 0; i < I::kANumbers; ++i) {
      const Place at = I::a(lane, i);
      a.v[i / (32 / kABits)] |= static_cast<uint32_t>(p.a[at.row * I::kK + at.col]) << (i % (32 / kABits) * kABits);
    }
    for (int i = 0; i < I::kBNumbers; ++i) {
      const Place at = I::b(lane, i);
      b.v[i / (32 / kBBits)] |= static_cast<uint32_t>(p.b[at.row * I::kN + at.col]) << (i % (32 / kBBits) * kBBits);
    }
    for (int i = 0; i < I::kAccumulators; ++i) {
      const Place at = I::c(lane, i);
      c.v[i] = p.c[at.row * I::kN + at.col];
    }
    if constexpr (I::kScaled) {
      const Place as = I::a_scale(lane), bs = I::b_scale(lane);
      mma(g, I{}, c, a, b, p.a_scale[as.row * (I::kK / I::kScaleBlock) + as.col], p.b_scale[bs.row * I::kN + bs.col]);
    } else {
      mma(g, I{}, c, a, b);
    }
    for (int i = 0; i < I::kAccumulators; ++i) {
      const Place at = I::c(lane, i);
      p.d[at.row * I::kN + at.col] = c.v[i];
    }
  }
};

}  // namespace ingot::gpu
