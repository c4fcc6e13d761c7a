// Reference of embed: (T, hidden).
#pragma once

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<double> embed(const EmbedParams& p) {
  std::vector<double> out;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    for (int64_t i = 0; i < p.table.cols; ++i) out.push_back(weight(p.table, p.token_ids[t], i));
  }
  return out;
}

}  // namespace ingot::kernels::ref
