// Reference of index_scores: one list a token, of the scores of positions 0..positions[t].
#pragma once

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<std::vector<double>> index_scores(const IndexScoresParams& p) {
  std::vector<std::vector<double>> out;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    std::vector<double> scores;
    for (int64_t position = 0; position <= p.where.positions[t]; ++position) {
      const int64_t page = p.where.page_table[p.where.seq_of_token[t] * p.where.max_pages + position / p.where.page_size];
      const int64_t slot = page * p.where.page_size + position % p.where.page_size;
      double score = 0.0;
      for (int64_t h = 0; h < p.heads; ++h) {
        double dot = 0.0;
        for (int64_t i = 0; i < p.dim; ++i) dot += p.q[(t * p.heads + h) * p.dim + i] * number(p.cache, p.cache_dtype, slot * p.dim + i);
        if (!(dot <= 0.0)) score += p.weights[t * p.weight_stride + h] * dot;
      }
      scores.push_back(score * p.scale);
    }
    out.push_back(scores);
  }
  return out;
}

}  // namespace ingot::kernels::ref
