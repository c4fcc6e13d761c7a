// Reference of sparse_mla: (T, heads, latent_dim). A token with no key at all gives zeros.
#pragma once

#include "kernels/ref/latent_rows.h"
#include "kernels/ref/softmax.h"

namespace ingot::kernels::ref {

inline std::vector<double> sparse_mla(const SparseMlaParams& p) {
  std::vector<double> out;
  const int64_t dim = p.latent_dim + p.rope_dim;
  const auto cached = [&](int64_t slot, int64_t i) { return latent_number(p.cache, p.cache_format, p.latent_dim, p.rope_dim, slot, i); };
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    std::vector<int64_t> slots;
    for (int64_t j = 0; j < (p.indices == nullptr ? p.where.positions[t] + 1 : p.topk); ++j) {
      const int64_t position = p.indices == nullptr ? j : p.indices[t * p.topk + j];
      if (position < 0) continue;
      const int64_t page = p.where.page_table[p.where.seq_of_token[t] * p.where.max_pages + position / p.where.page_size];
      slots.push_back(page * p.where.page_size + position % p.where.page_size);
    }
    for (int64_t h = 0; h < p.heads; ++h) {
      std::vector<double> scores;
      for (const int64_t slot : slots) {
        double dot = 0.0;
        for (int64_t i = 0; i < dim; ++i) dot += p.q[(t * p.heads + h) * dim + i] * cached(slot, i);
        scores.push_back(p.scale * dot);
      }
      const std::vector<double> weights = softmax(scores);
      for (int64_t d = 0; d < p.latent_dim; ++d) {
        double sum = 0.0;
        for (size_t j = 0; j < slots.size(); ++j) sum += weights[j] * cached(slots[j], d);
        out.push_back(sum);
      }
    }
  }
  return out;
}

}  // namespace ingot::kernels::ref
