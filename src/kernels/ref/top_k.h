// Reference of top_k: (T, k), by sorting.
#pragma once

#include <algorithm>
#include <numeric>

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<int32_t> top_k(const TopKParams& p) {
  std::vector<int32_t> out;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    const float* scores = p.scores + t * p.score_stride;
    std::vector<int32_t> order(static_cast<size_t>(p.positions[t] + 1));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      if (std::isnan(scores[a]) || std::isnan(scores[b])) return !std::isnan(scores[a]) && std::isnan(scores[b]);
      return scores[a] > scores[b];
    });
    if (static_cast<int64_t>(order.size()) > p.k) order.resize(static_cast<size_t>(p.k));
    std::sort(order.begin(), order.end());
    order.resize(static_cast<size_t>(p.k), -1);
    out.insert(out.end(), order.begin(), order.end());
  }
  return out;
}

}  // namespace ingot::kernels::ref
