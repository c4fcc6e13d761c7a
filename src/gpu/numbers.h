// Number formats inside kernels: the arithmetic of tensor/dtype.h in a form that every machine can inline, bit for bit the same
// (numbers_test.cc). No tables and no f32 subnormals on the way, since a GPU may be set to flush those.
#pragma once

#include "gpu/kernel.h"

namespace ingot::gpu {

GPU_FN float bf16_value(uint16_t bits) { return bits_float(static_cast<uint32_t>(bits) << 16); }

// Nearest even; a NaN stays one (quiet).
GPU_FN uint16_t to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// OCP e4m3 "fn": largest 448, no infinities, 0x7f and 0xff are NaN.
GPU_FN float e4m3_value(uint8_t byte) {
  const uint32_t magnitude = byte & 0x7fu;
  const uint32_t sign = static_cast<uint32_t>(byte & 0x80u) << 24;
  const float normal = bits_float((magnitude << 20) + (120u << 23));
  const float tiny = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f;  // exponent field 0: steps of 2^-9
  const uint32_t bits = float_bits(magnitude < 8u ? tiny : normal);
  return bits_float((magnitude == 0x7fu ? 0x7fc00000u : bits) | sign);
}

// Nearest even. Values past 448 and infinities become +-448, so that one outlier does not make a row NaN; a NaN stays one.
GPU_FN uint8_t to_e4m3(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (magnitude >= 0x43e80000u) return static_cast<uint8_t>(sign | 0x7eu);  // 464 and more: halfway to the step after 448
  if (magnitude < 0x3c800000u) {                                            // below 2^-6: adding 2^14 rounds to steps of 2^-9
    const uint32_t steps = float_bits(bits_float(magnitude) + 16384.0f) - 0x46800000u;
    return static_cast<uint8_t>(sign | steps);
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return static_cast<uint8_t>(sign | (code > 0x7eu ? 0x7eu : code));
}

// e2m1 codes 0..7: 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign. Higher bits of `code` are ignored.
GPU_FN float e2m1_value(uint32_t code) {
  const uint32_t magnitude = code & 7u;
  const uint32_t sign = (code & 8u) << 28;
  const uint32_t normal = (magnitude << 22) + (126u << 23);
  const uint32_t tiny = magnitude == 0u ? 0u : 0x3f000000u;
  return bits_float((magnitude < 2u ? tiny : normal) | sign);
}

// 2^(byte - 127); 0 is 2^-127, no zero exists, 255 is NaN.
GPU_FN float e8m0_value(uint8_t byte) {
  const uint32_t exponent = byte;
  return bits_float(exponent == 255u ? 0x7fc00000u : exponent == 0u ? 0x00400000u : exponent << 23);
}

// Unsigned numbers in the order of the floats: -0 equals +0, and every NaN is 0, below minus infinity.
GPU_FN uint32_t ordered_bits(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0u;
  if (magnitude == 0u) return 0x80000000u;
  return (bits >> 31) != 0u ? ~bits : bits | 0x80000000u;
}

}  // namespace ingot::gpu
