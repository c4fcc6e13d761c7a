#include "tensor/latent_format.h"

namespace ingot::tensor {

std::string_view latent_format_name(LatentFormat format) {
  switch (format) {
    case LatentFormat::f32: return "f32";
    case LatentFormat::bf16: return "bf16";
    case LatentFormat::fp8: return "fp8_e4m3";
    case LatentFormat::fp8_scaled: break;
  }
  return "fp8_ds_mla";
}

std::optional<LatentFormat> latent_format_of(std::string_view name) {
  for (const auto format : {LatentFormat::f32, LatentFormat::bf16, LatentFormat::fp8, LatentFormat::fp8_scaled})
    if (name == latent_format_name(format)) return format;
  return std::nullopt;
}

}  // namespace ingot::tensor
