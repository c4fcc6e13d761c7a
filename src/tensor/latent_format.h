// The row that a token has in a layer of the KV cache: latent_dim numbers of its latent, then rope_dim of its rotated key. Declared once,
// for the kernels of every machine and for whoever counts bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ingot::tensor {

enum class LatentFormat : uint8_t {
  f32,
  bf16,
  fp8,         // e4m3 throughout, scale 1, saturating: 576 bytes for GLM-5.2
  fp8_scaled,  // FlashMLA's: the latent e4m3 with one scale per 128, the rotated key bf16: 656 bytes for GLM-5.2
};

// fp8_scaled: latent_dim bytes of e4m3, an f32 scale for each group of 128 of them (the last group may be shorter), rope_dim bf16
// numbers. A scale is the smallest power of two, of 2^-13 and more, with which the group's greatest magnitude is not beyond 448: the same
// as 2^ceil(log2(max(amax / 448, 1e-4))). So that scales are aligned in every row, latent_dim is a multiple of 4 and rope_dim of 2.
inline constexpr int64_t kLatentGroup = 128;

constexpr int64_t latent_groups(int64_t latent_dim) { return (latent_dim + kLatentGroup - 1) / kLatentGroup; }

constexpr int64_t latent_row_bytes(LatentFormat format, int64_t latent_dim, int64_t rope_dim) {
  switch (format) {
    case LatentFormat::f32: return 4 * (latent_dim + rope_dim);
    case LatentFormat::bf16: return 2 * (latent_dim + rope_dim);
    case LatentFormat::fp8: return latent_dim + rope_dim;
    case LatentFormat::fp8_scaled: break;
  }
  return latent_dim + 4 * latent_groups(latent_dim) + 2 * rope_dim;
}

static_assert(latent_row_bytes(LatentFormat::bf16, 512, 64) == 1152 && latent_row_bytes(LatentFormat::fp8, 512, 64) == 576 &&
              latent_row_bytes(LatentFormat::fp8_scaled, 512, 64) == 656);

// Whether rows of these widths can be kept so.
constexpr bool latent_fits(LatentFormat format, int64_t latent_dim, int64_t rope_dim) {
  return format != LatentFormat::fp8_scaled || (latent_dim % 4 == 0 && rope_dim % 2 == 0);
}

// Names as vLLM and SGLang have them in --kv-cache-dtype: f32, bf16, fp8_e4m3, fp8_ds_mla.
std::string_view latent_format_name(LatentFormat format);
std::optional<LatentFormat> latent_format_of(std::string_view name);

}  // namespace ingot::tensor
