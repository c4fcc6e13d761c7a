// Quantisers of whole rows and bands, for `ingot quantize`: what tensor/quantize.h does element by element, at memory speed and with the
// error that rounding made. Owns the rules of the MXFP4 scale modes. Pure functions over the caller's buffers; any thread, no allocation.
// Inputs must be finite (first_non_finite finds the offender; the caller names the tensor). What happens otherwise is defined, not useful:
// a NaN makes an MXFP4 block's scale 255 (NaN) and its own code 7, an infinity saturates under scale 253; in e4m3 a NaN stays one and
// takes no part in its block's scale, an infinity makes the scale infinite. Error figures are then meaningless.
#pragma once

#include <cstdint>

namespace ingot::tensor {

// How the e8m0 scale of 32 elements follows from their largest magnitude (spec section 6.3).
enum class ScaleMode : uint8_t {
  even,   // amax rounded to a power of two at mantissa 1.75, exponent minus 2: what Quark writes
  floor,  // 2^(floor(log2 amax) - 2), the OCP rule
  ceil,   // the smallest power of two s with amax / s <= 6: nothing saturates
  // Of the exponents from even - 2 to even + 1 the one with the least squared error, ties to `even`, then to the smaller. Differences in
  // f32 (exact), squares, weights and their sums in double: four lanes of elements j, j + 4, ..., then (l0 + l2) + (l1 + l3).
  mse,
};

// What rounding did to some elements; sums over disjoint pieces add up.
struct QuantError {
  double signal = 0;      // sum of x^2
  double noise = 0;       // sum of (x - q)^2
  float max_error = 0;    // largest |x - q|
  int64_t elements = 0;   // elements seen
  int64_t saturated = 0;  // elements beyond the largest value that their scale can hold: 6, or 448 give or take f32's rounding, times it
  int64_t zeroed = 0;     // nonzero elements that became zero

  void add(const QuantError& other);
  // Signal to quantisation noise in dB; infinity when nothing was lost.
  double sqnr_db() const;
};

// One row of `cols` f32 values (cols: a multiple of 32) to e2m1 codes (cols / 2 bytes, element 2j in the low nibble) and e8m0 scales
// (cols / 32). importance: (cols) non-negative weights of the squared error in mode mse, or null for equal ones; other modes ignore it.
// error: added to when not null.
void quantize_row_mxfp4(const float* x, int64_t cols, ScaleMode mode, const float* importance, uint8_t* codes, uint8_t* scales,
                        QuantError* error);

// The same bytes from bf16 bits.
void quantize_row_mxfp4_bf16(const uint16_t* x, int64_t cols, ScaleMode mode, uint8_t* codes, uint8_t* scales, QuantError* error);

// A band of 1 to 128 rows, x (rows, cols) row-major, to e4m3 `out` (rows, cols) and one f32 scale for each 128 columns, (ceil(cols / 128));
// the last block may be ragged. scale = amax / 448, or 1 where that is zero in f32 (a zero block, or amax up to 1.75 * 2^-142);
// value = e4m3(x / scale). Source: spec section 5. error: added to when not null.
void quantize_band_fp8(const float* x, int64_t rows, int64_t cols, uint8_t* out, float* scales, QuantError* error);
void quantize_band_fp8_bf16(const uint16_t* x, int64_t rows, int64_t cols, uint8_t* out, float* scales, QuantError* error);

// Index of the first NaN or infinity among `count` values, or -1.
int64_t first_non_finite(const float* x, int64_t count);
int64_t first_non_finite_bf16(const uint16_t* x, int64_t count);

}  // namespace ingot::tensor
