// Rows of the latent cache by the definition of their format (tensor/latent_format.h), for the references of what reads and writes them.
#pragma once

#include "kernels/ref/numbers.h"

namespace ingot::kernels::ref {

// The scale of a group of an fp8_scaled latent. NaNs do not count; infinities as the greatest finite number.
inline double latent_scale(const float* group, int64_t count) {
  double amax = 0.0;
  for (int64_t i = 0; i < count; ++i)
    if (!std::isnan(group[i])) amax = std::max(amax, std::min<double>(std::fabs(group[i]), std::numeric_limits<float>::max()));
  return std::exp2(std::ceil(std::log2(std::max(amax / 448.0, 1e-4))));
}

// The i-th of the latent_dim + rope_dim numbers in slot `slot`.
inline double latent_number(const void* cache, LatentFormat format, int64_t latent_dim, int64_t rope_dim, int64_t slot, int64_t i) {
  const int64_t dim = latent_dim + rope_dim;
  switch (format) {
    case LatentFormat::f32: return number(cache, DType::f32, slot * dim + i);
    case LatentFormat::bf16: return number(cache, DType::bf16, slot * dim + i);
    case LatentFormat::fp8: return number(cache, DType::f8_e4m3, slot * dim + i);
    case LatentFormat::fp8_scaled: break;
  }
  const int64_t groups = (latent_dim + 127) / 128;
  const uint8_t* row = static_cast<const uint8_t*>(cache) + slot * (latent_dim + 4 * groups + 2 * rope_dim);
  if (i >= latent_dim) {
    uint16_t bits;
    std::memcpy(&bits, row + latent_dim + 4 * groups + 2 * (i - latent_dim), 2);
    return bf16_number(bits);
  }
  float scale;
  std::memcpy(&scale, row + latent_dim + i / 128 * 4, 4);
  return e4m3_number(row[i]) * static_cast<double>(scale);
}

}  // namespace ingot::kernels::ref
