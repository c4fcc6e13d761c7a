// The rows of the latent cache, whatever their format: rows.row(slot)[i] is the i-th of latent_dim + rope_dim numbers as a float. Used by
// the other *.kernel.h files.
#pragma once

#include "kernels/numbers.kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct F32Latents {
  const float* data;
  int64_t dim;
  GPU_FN F32Numbers row(int64_t slot) const { return {data + slot * dim}; }
};
struct Bf16Latents {
  const uint16_t* data;
  int64_t dim;
  GPU_FN Bf16Numbers row(int64_t slot) const { return {data + slot * dim}; }
};
struct E4m3Latents {
  const uint8_t* data;
  int64_t dim;
  GPU_FN E4m3Numbers row(int64_t slot) const { return {data + slot * dim}; }
};
struct ScaledLatents {
  struct Row {
    const uint8_t* data;
    const float* scales;
    const uint16_t* rope;
    int64_t latent_dim;
    GPU_FN float operator[](int64_t i) const {
      if (i >= latent_dim) return gpu::bf16_value(rope[i - latent_dim]);
      return gpu::e4m3_value(data[i]) * scales[i / tensor::kLatentGroup];
    }
  };
  const uint8_t* data;
  int64_t row_bytes, latent_dim;
  GPU_FN Row row(int64_t slot) const {
    const uint8_t* first = data + slot * row_bytes;
    const void* scales = first + latent_dim;
    const void* rope = first + latent_dim + 4 * tensor::latent_groups(latent_dim);
    return {first, static_cast<const float*>(scales), static_cast<const uint16_t*>(rope), latent_dim};
  }
};

// body(rows) with one of the four above.
template <class Body>
GPU_FN void with_latents(const void* cache, LatentFormat format, int64_t latent_dim, int64_t rope_dim, Body body) {
  const int64_t dim = latent_dim + rope_dim;
  if (format == LatentFormat::f32)
    body(F32Latents{static_cast<const float*>(cache), dim});
  else if (format == LatentFormat::bf16)
    body(Bf16Latents{static_cast<const uint16_t*>(cache), dim});
  else if (format == LatentFormat::fp8)
    body(E4m3Latents{static_cast<const uint8_t*>(cache), dim});
  else
    body(ScaledLatents{static_cast<const uint8_t*>(cache), tensor::latent_row_bytes(format, latent_dim, rope_dim), latent_dim});
}

// The scale of a group whose greatest magnitude is `amax`, from its bits: 448 is 1.75 * 2^8, so it is 2^(exponent - 8), or twice that
// where the mantissa is beyond 1.75. No division or logarithm that machines could round in their own ways. An infinite amax gives 2^120.
GPU_FN float latent_scale(float amax) {
  const uint32_t bits = gpu::float_bits(amax);
  const int32_t exponent = static_cast<int32_t>(bits >> 23) - 8 + ((bits & 0x7fffffu) > 0x600000u ? 1 : 0);
  constexpr int32_t kLeast = 127 - 13;
  return gpu::bits_float(static_cast<uint32_t>(exponent < kLeast ? kLeast : exponent) << 23);
}

}  // namespace ingot::kernels
