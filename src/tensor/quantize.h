// Quantiser arithmetic, one row or block at a time, and its inverse: the reference for `ingot quantize` and for every kernel that
// unpacks a weight. Plain loops, exact by definition.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/weight_view.h"

namespace ingot::tensor {

// The e8m0 byte of a 32-element block in Quark's mode "even": amax rounded to a power of two at mantissa 1.75, exponent minus 2.
// Source: spec section 6.3. A NaN gives 255.
uint8_t mxfp4_scale_even(float amax);

// The e2m1 code (0..15) of x / 2^(scale - 127): nearest, ties to the even code, saturating at +-6.
// What rounds to zero is code 0 whatever its sign: Quark writes no minus zero (code 8).
uint8_t mxfp4_encode(float x, uint8_t scale);

// What a linear's input is rounded to before it meets a quantised weight.
enum class ActivationFormat : uint8_t {
  f32,    // as it is
  fp8,    // per row and 128 columns: scale amax / 448, e4m3 (spec section 5)
  mxfp4,  // per row and 32 columns: e8m0 scale of mode "even", e2m1 (spec section 6.6)
};

// Rounds x (rows, cols) in place to what the format can hold. cols: a multiple of 32 for mxfp4; ragged last blocks are fine for fp8.
void round_activations(float* x, int64_t rows, int64_t cols, ActivationFormat format);

// A weight in memory of its own, in the layout a checkpoint has.
struct PackedWeight {
  WeightFormat format = WeightFormat::bf16;
  int64_t rows = 0, cols = 0;
  std::vector<uint8_t> data;
  std::vector<uint8_t> scale;  // f32 for fp8_block, e8m0 for mxfp4, empty otherwise

  WeightView view() const { return {data.data(), scale.data(), rows, cols, 0, format}; }
};

// Packs a (rows, cols) f32 matrix. fp8_block: scale = amax(block) / 448 (1 for a zero block), value = e4m3(x / scale).
// mxfp4: cols must be a multiple of 32.
PackedWeight pack_weight(std::span<const float> values, int64_t rows, int64_t cols, WeightFormat format);

// Row `row` of the view as f32, (cols). Exact for every format.
void dequantize_row(const WeightView& view, int64_t row, float* out);
std::vector<float> dequantize(const WeightView& view);  // (rows, cols)

}  // namespace ingot::tensor
