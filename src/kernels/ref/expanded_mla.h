// Reference of expanded_mla: (T, heads, v_dim).
#pragma once

#include "kernels/ref/numbers.h"
#include "kernels/ref/softmax.h"

namespace ingot::kernels::ref {

inline std::vector<double> expanded_mla(const ExpandedMlaParams& p) {
  std::vector<double> out;
  const int64_t dim = p.nope_dim + p.rope_dim, kv_dim = p.nope_dim + p.v_dim;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    std::vector<int64_t> keys;
    for (int64_t s = 0; s <= p.positions[t]; ++s) {
      bool listed = p.indices == nullptr;
      for (int64_t j = 0; j < p.topk && !listed; ++j) listed = p.indices[t * p.topk + j] == s;
      if (listed) keys.push_back(s);
    }
    for (int64_t h = 0; h < p.heads; ++h) {
      const float* q = p.q + (t * p.heads + h) * dim;
      std::vector<double> scores;
      for (const int64_t s : keys) {
        double dot = 0.0;
        for (int64_t i = 0; i < p.nope_dim; ++i) dot += static_cast<double>(q[i]) * p.kv[(s * p.heads + h) * kv_dim + i];
        for (int64_t i = 0; i < p.rope_dim; ++i) dot += static_cast<double>(q[p.nope_dim + i]) * p.k_pe[s * p.k_pe_stride + i];
        scores.push_back(p.scale * dot);
      }
      const std::vector<double> weights = softmax(scores);
      for (int64_t d = 0; d < p.v_dim; ++d) {
        double sum = 0.0;
        for (size_t j = 0; j < keys.size(); ++j) sum += weights[j] * p.kv[(keys[j] * p.heads + h) * kv_dim + p.nope_dim + d];
        out.push_back(sum);
      }
    }
  }
  return out;
}

}  // namespace ingot::kernels::ref
