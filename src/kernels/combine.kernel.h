// Sums the chosen experts' rows of each token with the router's weights, in slot order. A block has some columns of one token, so that
// few tokens keep many multiprocessors busy, and a thread has four neighbouring columns where they can be read as one.
#pragma once

#include "gpu/kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct Combine {
  using Params = CombineParams;
  static constexpr int kAhead = 8;  // rows that a thread has on the way
  struct Shared {};
  template <int kWidth>
  struct alignas(4 * kWidth) Vector {
    float v[kWidth];
  };

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(p.out) | reinterpret_cast<uintptr_t>(p.y);
    const bool aligned = addresses % 16 == 0 && (p.dim | p.out_stride | p.y_stride) % 4 == 0;
    if (aligned)
      columns<4>(g, p);
    else
      columns<1>(g, p);
  }

 private:
  template <int kWidth, class G>
  GPU_FN static void columns(G& g, const Params& p) {
    using V = Vector<kWidth>;
    const int64_t token = g.block() / p.parts(), first = g.block() % p.parts() * Params::kColumns;
    const int64_t end = first + Params::kColumns < p.dim ? first + Params::kColumns : p.dim;
    const int32_t* inverse = p.inverse + token * p.k;
    const float* weights = p.weights + token * p.k;
    for (int64_t d = first + kWidth * g.thread(); d < end; d += kWidth * g.threads()) {
      V& out = *reinterpret_cast<V*>(p.out + token * p.out_stride + d);
      const V before = p.accumulate ? out : V{};
      V sum{};
      for (int64_t j0 = 0; j0 < p.k; j0 += kAhead) {
        V rows[kAhead];
        float factors[kAhead];
        for (int j = 0; j < kAhead; ++j) {
          if (j0 + j >= p.k) continue;
          factors[j] = weights[j0 + j];
          rows[j] = *reinterpret_cast<const V*>(p.y + inverse[j0 + j] * p.y_stride + d);
        }
        for (int j = 0; j < kAhead; ++j) {
          if (j0 + j >= p.k) continue;
          for (int i = 0; i < kWidth; ++i) sum.v[i] += factors[j] * rows[j].v[i];
        }
      }
      for (int i = 0; i < kWidth; ++i) sum.v[i] = p.accumulate ? before.v[i] + sum.v[i] : sum.v[i];
      out = sum;
    }
  }
};

}  // namespace ingot::kernels
