#include "tensor/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/dtype.h"

namespace ingot::tensor {

uint8_t mxfp4_scale_even(float amax) {
  if (std::isnan(amax)) return 255;
  const uint32_t bits = std::bit_cast<uint32_t>(std::fabs(amax));
  const auto exponent = static_cast<int>(((bits + 0x00200000u) & 0x7f800000u) >> 23);  // biased; carries at mantissa 1.75
  return static_cast<uint8_t>(std::clamp(exponent - 2, 0, 254));
}

uint8_t mxfp4_encode(float x, uint8_t scale) {
  const uint8_t sign = std::signbit(x) ? 8 : 0;
  const double magnitude = std::fabs(static_cast<double>(x)) / std::ldexp(1.0, static_cast<int>(scale) - 127);
  // Upper bounds of codes 0..6; a bound that belongs to the lower code (ties to even) is included there.
  constexpr double kBounds[7] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0};
  uint8_t code = 7;
  for (uint8_t i = 0; i < 7; ++i) {
    if (magnitude < kBounds[i] || (magnitude == kBounds[i] && i % 2 == 0)) {
      code = i;
      break;
    }
  }
  return code == 0 ? 0 : static_cast<uint8_t>(sign | code);
}

void round_activations(float* x, int64_t rows, int64_t cols, ActivationFormat format) {
  if (format == ActivationFormat::f32) return;
  const int64_t block = format == ActivationFormat::fp8 ? 128 : 32;
  INGOT_CHECK(format == ActivationFormat::fp8 || cols % block == 0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t begin = 0; begin < cols; begin += block) {
      const std::span<float> values(x + r * cols + begin, static_cast<size_t>(std::min(block, cols - begin)));
      float amax = 0;
      for (const float v : values) amax = std::max(amax, std::fabs(v));
      if (format == ActivationFormat::fp8) {
        const float scale = amax / 448.0f > 0 ? amax / 448.0f : 1.0f;  // not amax > 0: the quotient may vanish
        for (float& v : values) v = e4m3_to_f32(f32_to_e4m3(v / scale)) * scale;
      } else {
        const uint8_t scale = mxfp4_scale_even(amax);
        for (float& v : values) v = e2m1_to_f32(mxfp4_encode(v, scale)) * e8m0_to_f32(scale);
      }
    }
  }
}

PackedWeight pack_weight(std::span<const float> values, int64_t rows, int64_t cols, WeightFormat format) {
  INGOT_CHECK(static_cast<int64_t>(values.size()) == rows * cols);
  PackedWeight out{format, rows, cols, {}, {}};
  const auto at = [&](int64_t r, int64_t c) { return values[static_cast<size_t>(r * cols + c)]; };
  switch (format) {
    case WeightFormat::f32:
      out.data.resize(values.size() * 4);
      std::memcpy(out.data.data(), values.data(), out.data.size());
      break;
    case WeightFormat::bf16:
      out.data.resize(values.size() * 2);
      for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t bits = f32_to_bf16(values[i]);
        std::memcpy(&out.data[i * 2], &bits, 2);
      }
      break;
    case WeightFormat::fp8_block: {
      const int64_t block_rows = (rows + 127) / 128, block_cols = (cols + 127) / 128;
      out.data.resize(values.size());
      out.scale.resize(static_cast<size_t>(block_rows * block_cols * 4));
      for (int64_t br = 0; br < block_rows; ++br) {
        for (int64_t bc = 0; bc < block_cols; ++bc) {
          const int64_t r1 = std::min(rows, br * 128 + 128), c1 = std::min(cols, bc * 128 + 128);
          float amax = 0;
          for (int64_t r = br * 128; r < r1; ++r) {
            for (int64_t c = bc * 128; c < c1; ++c) amax = std::max(amax, std::fabs(at(r, c)));
          }
          const float scale = amax / 448.0f > 0 ? amax / 448.0f : 1.0f;  // not amax > 0: the quotient may vanish
          std::memcpy(&out.scale[static_cast<size_t>((br * block_cols + bc) * 4)], &scale, 4);
          for (int64_t r = br * 128; r < r1; ++r) {
            for (int64_t c = bc * 128; c < c1; ++c) out.data[static_cast<size_t>(r * cols + c)] = f32_to_e4m3(at(r, c) / scale);
          }
        }
      }
      break;
    }
    case WeightFormat::mxfp4:
      INGOT_CHECK(cols % 32 == 0, "MXFP4 needs columns in multiples of 32, found {}", cols);
      out.data.resize(values.size() / 2);
      out.scale.resize(values.size() / 32);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t g = 0; g < cols / 32; ++g) {
          float amax = 0;
          for (int64_t c = g * 32; c < g * 32 + 32; ++c) {
            if (std::isnan(at(r, c))) amax = at(r, c);
            if (!std::isnan(amax)) amax = std::max(amax, std::fabs(at(r, c)));
          }
          const uint8_t scale = mxfp4_scale_even(amax);
          out.scale[static_cast<size_t>(r * (cols / 32) + g)] = scale;
          for (int64_t c = g * 32; c < g * 32 + 32; c += 2) {
            out.data[static_cast<size_t>((r * cols + c) / 2)] =
                static_cast<uint8_t>(mxfp4_encode(at(r, c), scale) | mxfp4_encode(at(r, c + 1), scale) << 4);
          }
        }
      }
      break;
  }
  return out;
}

void dequantize_row(const WeightView& view, int64_t row, float* out) {
  const uint8_t* data = view.data + row * view.row_bytes();
  switch (view.format) {
    case WeightFormat::f32: std::memcpy(out, data, static_cast<size_t>(view.cols) * 4); break;
    case WeightFormat::bf16:
      for (int64_t c = 0; c < view.cols; ++c) {
        uint16_t bits = 0;
        std::memcpy(&bits, data + c * 2, 2);
        out[c] = bf16_to_f32(bits);
      }
      break;
    case WeightFormat::fp8_block:
      for (int64_t c = 0; c < view.cols; ++c) {
        float scale = 0;
        std::memcpy(&scale, view.scale + ((view.first_row + row) / 128 * view.scale_cols() + c / 128) * 4, 4);
        out[c] = e4m3_to_f32(data[c]) * scale;
      }
      break;
    case WeightFormat::mxfp4: {
      const uint8_t* scale = view.scale + row * view.scale_cols();
      for (int64_t c = 0; c < view.cols; ++c) {
        const auto code = static_cast<uint8_t>(c % 2 == 0 ? data[c / 2] & 15 : data[c / 2] >> 4);
        out[c] = e2m1_to_f32(code) * e8m0_to_f32(scale[c / 32]);
      }
      break;
    }
  }
}

std::vector<float> dequantize(const WeightView& view) {
  std::vector<float> out(static_cast<size_t>(view.rows * view.cols));
  for (int64_t r = 0; r < view.rows; ++r) dequantize_row(view, r, &out[static_cast<size_t>(r * view.cols)]);
  return out;
}

}  // namespace ingot::tensor
