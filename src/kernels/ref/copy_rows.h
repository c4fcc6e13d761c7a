// Reference of copy_rows: (rows, count).
#pragma once

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

inline std::vector<uint32_t> copy_rows(const CopyRowsParams& p) {
  std::vector<uint32_t> out;
  for (int64_t r = 0; r < p.rows; ++r) {
    const int64_t row = p.source_rows == nullptr ? r : p.source_rows[r];
    for (int64_t i = 0; i < p.count; ++i) out.push_back(static_cast<const uint32_t*>(p.from)[row * p.from_stride + i]);
  }
  return out;
}

}  // namespace ingot::kernels::ref
