// WeightView: a linear weight (rows, cols) in the format it has in the checkpoint. Plain data; does not own the bytes,
// which stay in the mapped file. A kernel gets one by value.
#pragma once

#include <cstdint>

namespace ingot::tensor {

enum class WeightFormat : uint8_t {
  bf16,       // data: (rows, cols) bf16
  f32,        // data: (rows, cols) f32
  fp8_block,  // data: (rows, cols) e4m3; scale: f32 (ceil(rows_of_tensor/128), ceil(cols/128)); value = e4m3 * scale
  mxfp4,      // data: (rows, cols/2) bytes, element 2j in the low nibble; scale: e8m0 (rows, cols/32)
};

struct WeightView {
  const uint8_t* data = nullptr;   // first byte of row 0 of this view
  const uint8_t* scale = nullptr;  // fp8_block: the tensor's whole scale table; mxfp4: scales of row 0 of this view
  int64_t rows = 0;                // output features
  int64_t cols = 0;                // input features
  int64_t first_row = 0;           // fp8_block: index of row 0 of this view within the tensor (a scale block is 128 rows)
  WeightFormat format = WeightFormat::bf16;

  constexpr int64_t row_bytes() const {  // constexpr: device compilers take these as their own
    switch (format) {
      case WeightFormat::bf16: return cols * 2;
      case WeightFormat::f32: return cols * 4;
      case WeightFormat::fp8_block: return cols;
      case WeightFormat::mxfp4: return cols / 2;
    }
    return 0;
  }
  constexpr int64_t scale_cols() const {
    return format == WeightFormat::fp8_block ? (cols + 127) / 128 : format == WeightFormat::mxfp4 ? cols / 32 : 0;
  }

  // Rows [begin, begin + count) of this view.
  constexpr WeightView row_slice(int64_t begin, int64_t count) const {
    WeightView v = *this;
    v.data += begin * row_bytes();
    v.rows = count;
    if (format == WeightFormat::fp8_block) v.first_row += begin;
    if (format == WeightFormat::mxfp4) v.scale += begin * scale_cols();
    return v;
  }
};

}  // namespace ingot::tensor
