// Reference of latent_store: the numbers each token leaves in its slot, (T, latent_dim + rope_dim); for padding, zeros that mean nothing.
#pragma once

#include "kernels/ref/latent_rows.h"

namespace ingot::kernels::ref {

inline std::vector<double> latent_store(const LatentStoreParams& p) {
  const bool scaled = p.cache_format == LatentFormat::fp8_scaled;
  const DType latent_type = p.cache_format == LatentFormat::f32    ? DType::f32
                            : p.cache_format == LatentFormat::bf16 ? DType::bf16
                                                                   : DType::f8_e4m3;
  const DType rope_type = scaled ? DType::bf16 : latent_type;
  std::vector<double> out;
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    const bool padding = p.slots[t] < 0;
    const float* latent = p.latent + t * p.latent_stride;
    for (int64_t i = 0; i < p.latent_dim; ++i) {
      const int64_t group = i / 128 * 128;
      const double scale = scaled ? latent_scale(latent + group, std::min<int64_t>(128, p.latent_dim - group)) : 1.0;
      out.push_back(padding ? 0.0 : rounded(latent[i] / scale, latent_type) * scale);
    }
    for (int64_t i = 0; i < p.rope_dim; ++i) out.push_back(padding ? 0.0 : rounded(p.k_pe[t * p.k_pe_stride + i], rope_type));
  }
  return out;
}

}  // namespace ingot::kernels::ref
