// Number formats for the references, by the definition of each format in double arithmetic: slow, and no code in common with the
// kernels or with tensor/dtype.h. Every reference takes the Params of its kernel and returns its outputs dense, without strides:
// numbers as double, indices as int32_t.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/params.h"

namespace ingot::kernels::ref {

inline double bf16_number(uint16_t bits) {
  const int exponent = (bits >> 7) & 255, fraction = bits & 127;
  const double sign = bits >> 15 != 0 ? -1.0 : 1.0;
  if (exponent == 255) return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent == 0 ? std::ldexp(fraction, -133) : std::ldexp(128 + fraction, exponent - 134));
}

inline double e4m3_number(uint8_t byte) {
  const int exponent = (byte >> 3) & 15, fraction = byte & 7;
  if (exponent == 15 && fraction == 7) return std::nan("");
  return (byte >> 7 != 0 ? -1.0 : 1.0) * (exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10));
}

inline double e2m1_number(int code) {
  constexpr double kValues[] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
  return code >= 8 ? -kValues[code - 8] : kValues[code];
}

inline double e8m0_number(uint8_t byte) { return byte == 255 ? std::nan("") : std::ldexp(1.0, byte - 127); }

// The i-th number of an array of f32, bf16 or f8_e4m3.
inline double number(const void* data, DType type, int64_t i) {
  if (type == DType::f32) return static_cast<const float*>(data)[i];
  if (type == DType::bf16) return bf16_number(static_cast<const uint16_t*>(data)[i]);
  return e4m3_number(static_cast<const uint8_t*>(data)[i]);
}

// `value` (an f32 number) as the type keeps it: nearest, ties to the even code; e4m3 saturates.
inline double rounded(double value, DType type) {
  if (type == DType::f32 || std::isnan(value)) return value;
  if (type == DType::bf16) {
    if (std::isinf(value) || value == 0.0) return value;
    const double step = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
    const double near = std::nearbyint(value / step) * step;
    return std::fabs(near) >= std::ldexp(1.0, 128) ? std::copysign(std::numeric_limits<double>::infinity(), value) : near;
  }
  uint8_t best = 0;
  for (uint8_t code = 1; code <= 0x7e; ++code) {
    const double was = std::fabs(std::fabs(value) - e4m3_number(best)), now = std::fabs(std::fabs(value) - e4m3_number(code));
    if (now < was || (now == was && code % 2 == 0)) best = code;
  }
  if (std::isinf(value)) best = 0x7e;
  return std::copysign(e4m3_number(best), value);
}

// Element (n, k) of a weight.
inline double weight(const WeightView& w, int64_t n, int64_t k) {
  using tensor::WeightFormat;
  if (w.format == WeightFormat::f32) return number(w.data, DType::f32, n * w.cols + k);
  if (w.format == WeightFormat::bf16) return number(w.data, DType::bf16, n * w.cols + k);
  if (w.format == WeightFormat::fp8_block) {
    float scale;
    std::memcpy(&scale, w.scale + ((w.first_row + n) / 128 * ((w.cols + 127) / 128) + k / 128) * 4, 4);
    return e4m3_number(w.data[n * w.cols + k]) * static_cast<double>(scale);
  }
  const uint8_t pair = w.data[n * (w.cols / 2) + k / 2];
  return e2m1_number(k % 2 == 0 ? pair & 15 : pair >> 4) * e8m0_number(w.scale[n * (w.cols / 32) + k / 32]);
}

}  // namespace ingot::kernels::ref
