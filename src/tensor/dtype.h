// Number types and their exact conversions. Scalar forms; the vector forms in kernels are tested against these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ingot::tensor {

enum class DType : uint8_t { f32, bf16, f16, f8_e4m3, u8, i32, i64, boolean, f64, f8_e5m2, i8, i16, u16, u32, u64 };

size_t dtype_bytes(DType type);
std::string_view dtype_name(DType type);  // as safetensors writes it: "F32", "BF16", "F8_E4M3", ...

float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);  // nearest even; NaN stays NaN (quiet)
float e4m3_to_f32(uint8_t bits);    // OCP "fn": +-448, 0x7f and 0xff are NaN
uint8_t f32_to_e4m3(float value);   // nearest even, saturates finite and infinite values to +-448, NaN stays NaN
float e2m1_to_f32(uint8_t code);    // code 0..15; 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives
float e8m0_to_f32(uint8_t bits);    // 2^(bits-127); 0 is 2^-127 (subnormal), 255 is NaN

}  // namespace ingot::tensor
