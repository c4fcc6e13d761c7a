#include "tensor/dtype.h"

#include <bit>
#include <cmath>

namespace ingot::tensor {

size_t dtype_bytes(DType type) {
  switch (type) {
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::u8:
    case DType::i8:
    case DType::boolean: return 1;
    case DType::bf16:
    case DType::f16:
    case DType::i16:
    case DType::u16: return 2;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 4;
    case DType::f64:
    case DType::i64:
    case DType::u64: return 8;
  }
  return 0;
}

std::string_view dtype_name(DType type) {
  switch (type) {
    case DType::f32: return "F32";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
    case DType::f8_e4m3: return "F8_E4M3";
    case DType::u8: return "U8";
    case DType::i32: return "I32";
    case DType::i64: return "I64";
    case DType::boolean: return "BOOL";
    case DType::f64: return "F64";
    case DType::f8_e5m2: return "F8_E5M2";
    case DType::i8: return "I8";
    case DType::i16: return "I16";
    case DType::u16: return "U16";
    case DType::u32: return "U32";
    case DType::u64: return "U64";
  }
  return "?";
}

float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  // A NaN whose payload lies in the low half would round to infinity: keep the sign and set the quiet bit.
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float e4m3_to_f32(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t exponent = (bits >> 3) & 15u;
  const uint32_t mantissa = bits & 7u;
  if ((bits & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;  // subnormal step 2^-9
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));  // bias 7 to bias 127
}

uint8_t f32_to_e4m3(float value) {
  const auto sign = static_cast<uint8_t>((std::bit_cast<uint32_t>(value) >> 24) & 0x80u);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7fu);
  if (magnitude >= 448.0f) return static_cast<uint8_t>(sign | 0x7eu);
  if (magnitude < 0x1p-6f) {
    // Below the least normal number: multiples of 2^-9; 8 of them carry into the exponent, which is the right code.
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyintf(magnitude * 0x1p9f)));
  }
  const auto bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = bits + 0x7ffffu + ((bits >> 20) & 1u);  // to 3 bits of mantissa, nearest even
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return static_cast<uint8_t>(sign | (code > 0x7eu ? 0x7eu : code));
}

float e2m1_to_f32(uint8_t code) {
  constexpr float kValues[16] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  return kValues[code & 15u];
}

float e8m0_to_f32(uint8_t bits) {
  if (bits == 0) return 0x1p-127f;
  if (bits == 255) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 23);
}

}  // namespace ingot::tensor
