// Reference of router. The biased score is rounded to f32, as the definition says: it decides ties.
#pragma once

#include <algorithm>

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

struct RouterOutput {
  std::vector<int32_t> experts;  // (T, k)
  std::vector<double> weights;   // (T, k)
};

inline RouterOutput router(const RouterParams& p) {
  RouterOutput out;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    std::vector<double> score;
    std::vector<float> biased;
    std::vector<int32_t> order;
    for (int64_t e = 0; e < p.num_experts; ++e) {
      score.push_back(1.0 / (1.0 + std::exp(-static_cast<double>(p.logits[t * p.num_experts + e]))));
      biased.push_back(static_cast<float>(score.back()) + p.bias[e]);
      order.push_back(static_cast<int32_t>(e));
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return biased[static_cast<size_t>(a)] > biased[static_cast<size_t>(b)]; });
    order.resize(static_cast<size_t>(p.k));
    double sum = 1e-20;
    for (const int32_t e : order) sum += score[static_cast<size_t>(e)];
    for (const int32_t e : order) {
      out.experts.push_back(e);
      out.weights.push_back(score[static_cast<size_t>(e)] / (p.normalize ? sum : 1.0) * p.scale);
    }
  }
  return out;
}

}  // namespace ingot::kernels::ref
