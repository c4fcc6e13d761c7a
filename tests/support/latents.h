// Rows of the latent cache for tests, made without the kernel that stores them.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/inputs.h"
#include "tensor/latent_format.h"

namespace ingot::testing {

using tensor::LatentFormat;

inline constexpr LatentFormat kLatentFormats[] = {LatentFormat::f32, LatentFormat::bf16, LatentFormat::fp8, LatentFormat::fp8_scaled};

// Rows of latent_dim + rope_dim numbers each as a cache of `format` keeps them.
inline std::vector<uint8_t> encoded_latents(const std::vector<float>& values, LatentFormat format, int64_t latent_dim, int64_t rope_dim) {
  using tensor::DType;
  if (format == LatentFormat::f32) return encoded(values, DType::f32);
  if (format == LatentFormat::bf16) return encoded(values, DType::bf16);
  if (format == LatentFormat::fp8) return encoded(values, DType::f8_e4m3);
  std::vector<uint8_t> out;
  const auto append = [&out](const std::vector<uint8_t>& bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); };
  for (auto row = values.begin(); row != values.end(); row += latent_dim + rope_dim) {
    std::vector<float> scales;
    for (int64_t first = 0; first < latent_dim; first += 128) {
      std::vector<float> group(row + first, row + std::min(first + 128, latent_dim));
      double amax = 0;
      for (const float v : group) amax = std::max(amax, std::fabs(static_cast<double>(v)));
      scales.push_back(static_cast<float>(std::exp2(std::ceil(std::log2(std::max(amax / 448, 1e-4))))));
      for (float& v : group) v /= scales.back();
      append(encoded(group, DType::f8_e4m3));
    }
    append(encoded(scales, DType::f32));
    append(encoded({row + latent_dim, row + latent_dim + rope_dim}, DType::bf16));
  }
  return out;
}

}  // namespace ingot::testing
