// Reference of permute, by a stable sort.
#pragma once

#include <algorithm>
#include <numeric>

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

struct PermuteOutput {
  std::vector<int32_t> order, inverse;  // (T * k)
  std::vector<int32_t> offsets;         // (num_experts + 1)
};

inline PermuteOutput permute(const PermuteParams& p) {
  PermuteOutput out;
  out.order.resize(static_cast<size_t>(p.num_tokens * p.k));
  out.inverse.resize(out.order.size());
  std::iota(out.order.begin(), out.order.end(), 0);
  std::stable_sort(out.order.begin(), out.order.end(), [&](int32_t a, int32_t b) { return p.experts[a] < p.experts[b]; });
  for (size_t i = 0; i < out.order.size(); ++i) out.inverse[static_cast<size_t>(out.order[i])] = static_cast<int32_t>(i);
  for (int64_t e = 0; e <= p.num_experts; ++e) {
    out.offsets.push_back(
        static_cast<int32_t>(std::count_if(p.experts, p.experts + out.order.size(), [&](int32_t chosen) { return chosen < e; })));
  }
  return out;
}

}  // namespace ingot::kernels::ref
