#include "tensor/quantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/file_map.h"
#include "base/json.h"
#include "base/rng.h"
#include "tensor/dtype.h"

namespace ingot::tensor {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Quantise, ScaleBytesOfTheSpecsExamples) {
  EXPECT_EQ(mxfp4_scale_even(6.0f), 127);
  EXPECT_EQ(mxfp4_scale_even(1.74f), 125);
  EXPECT_EQ(mxfp4_scale_even(1.75f), 126) << "mantissa 1.75 rounds the power up";
  EXPECT_EQ(mxfp4_scale_even(7.0f), 128);
  EXPECT_EQ(mxfp4_scale_even(0.0f), 0);
  EXPECT_EQ(mxfp4_scale_even(std::ldexp(1.0f, -126)), 0);
  EXPECT_EQ(mxfp4_scale_even(std::ldexp(1.0f, -149)), 0);
  EXPECT_EQ(mxfp4_scale_even(kNan), 255);
}

// The definition in words, with frexp: 2^floor(log2 amax), doubled from mantissa 1.75 on; exponent minus 2, clamped.
TEST(Quantise, ScaleBytesByDefinitionOverAllExponents) {
  for (int exponent = -126; exponent <= 127; ++exponent) {
    for (const float mantissa : {1.0f, 1.25f, 1.5f, 1.7499999f, 1.75f, 1.75000012f, 1.9999999f}) {
      const float amax = std::ldexp(mantissa, exponent);
      const int log2 = exponent + (mantissa >= 1.75f ? 1 : 0);
      EXPECT_EQ(mxfp4_scale_even(amax), std::max(log2 - 2, -127) + 127) << amax;
    }
  }
}

TEST(Quantise, Fp4CodesAreThoseOfMlDtypesAtEveryBoundary) {
  const auto text = read_file(INGOT_SOURCE_DIR "/tests/golden/numbers/conversions.json", 1 << 20);
  ASSERT_TRUE(text.has_value());
  const Json golden = parse_json(*text, "conversions.json").value();
  ASSERT_GT(golden["f32_to_e2m1"].size(), 60u);
  for (const Json& pair : golden["f32_to_e2m1"]) {
    const float x = std::bit_cast<float>(pair[0].get<uint32_t>());
    const int code = pair[1].get<int>() == 8 ? 0 : pair[1].get<int>();  // ml_dtypes has a minus zero, Quark writes none
    EXPECT_EQ(mxfp4_encode(x, 127), code) << x;
    EXPECT_EQ(mxfp4_encode(std::ldexp(x, 20), 147), code) << x << " * 2^20";
  }
}

TEST(Quantise, Fp4TiesGoToTheEvenCodeAndLargeValuesSaturate) {
  const std::pair<float, float> ties[] = {{0.25f, 0}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2}, {2.5f, 2},
                                          {3.5f, 4},  {5.0f, 4},  {6.96f, 6}, {1e30f, 6}};
  for (const auto& [x, want] : ties) {
    EXPECT_EQ(e2m1_to_f32(mxfp4_encode(x, 127)), want) << x;
    EXPECT_EQ(e2m1_to_f32(mxfp4_encode(-x, 127)), -want) << -x;
  }
}

TEST(Quantise, Mxfp4PacksTheEvenColumnInTheLowNibble) {
  std::vector<float> row(32, 0.0f);
  row[0] = 6.0f;   // code 7, low nibble of byte 0
  row[1] = -1.0f;  // code 10, high nibble of byte 0
  row[31] = 0.5f;  // code 1, high nibble of byte 15
  const PackedWeight packed = pack_weight(row, 1, 32, WeightFormat::mxfp4);
  ASSERT_EQ(packed.data.size(), 16u);
  ASSERT_EQ(packed.scale.size(), 1u);
  EXPECT_EQ(packed.scale[0], 127);
  EXPECT_EQ(packed.data[0], 0xa7);
  EXPECT_EQ(packed.data[15], 0x10);
  EXPECT_EQ(dequantize(packed.view()), row);
}

TEST(Quantise, AmaxSevenRoundsUpToEight) {
  std::vector<float> row(32, 0.0f);
  row[5] = 7.0f;
  const PackedWeight packed = pack_weight(row, 1, 32, WeightFormat::mxfp4);
  EXPECT_EQ(packed.scale[0], 128);
  EXPECT_EQ(dequantize(packed.view())[5], 8.0f);
}

TEST(Quantise, ANanAnywhereInABlockGivesTheNanScale) {
  for (int at : {0, 1, 15, 31}) {
    std::vector<float> row(64, 3.0f);
    row[static_cast<size_t>(at)] = kNan;
    const PackedWeight packed = pack_weight(row, 1, 64, WeightFormat::mxfp4);
    EXPECT_EQ(packed.scale[0], 255) << at;
    EXPECT_EQ(packed.scale[1], 127 - 1) << "the next block is untouched";
  }
}

// Every (scale, code) through the unpacker of a row, against ldexp.
TEST(Quantise, DequantisesEveryScaleByteAndCode) {
  const double magnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int scale = 0; scale < 255; ++scale) {
    PackedWeight w{WeightFormat::mxfp4, 1, 32, std::vector<uint8_t>(16), {static_cast<uint8_t>(scale)}};
    for (int c = 0; c < 32; c += 2) w.data[static_cast<size_t>(c / 2)] = static_cast<uint8_t>((c % 16) | (c + 1) % 16 << 4);
    const auto out = dequantize(w.view());
    for (int c = 0; c < 32; ++c) {
      const int code = c % 16;
      const auto want = static_cast<float>(std::ldexp(magnitude[code & 7], scale - 127) * (code >= 8 ? -1 : 1));
      EXPECT_EQ(std::bit_cast<uint32_t>(out[static_cast<size_t>(c)]), std::bit_cast<uint32_t>(want)) << scale << " " << code;
    }
  }
}

// 576 rows (kv_a_proj_with_mqa) leave a last block of 64; columns may be ragged as well.
TEST(Quantise, Fp8ScalesAreAmaxOfEachBlockOver448WithARaggedEdge) {
  const int64_t rows = 576, cols = 200;
  Rng rng(7);
  std::vector<float> values(static_cast<size_t>(rows * cols));
  for (float& v : values) v = rng.uniform_float(-3, 3);
  for (int64_t r = 0; r < 128; ++r) {
    for (int64_t c = 0; c < 128; ++c) values[static_cast<size_t>(r * cols + c)] = 0;  // a zero block must not divide by zero
  }
  values[static_cast<size_t>(575 * cols + 199)] = -896.0f;  // in the last, smallest block
  const PackedWeight packed = pack_weight(values, rows, cols, WeightFormat::fp8_block);
  ASSERT_EQ(packed.scale.size(), 5u * 2u * 4u);
  float scales[10];
  std::memcpy(scales, packed.scale.data(), sizeof scales);
  EXPECT_EQ(scales[0], 1.0f);
  EXPECT_EQ(scales[9], 2.0f);
  const auto back = dequantize(packed.view());
  EXPECT_EQ(back.back(), -896.0f);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const float scale = scales[r / 128 * 2 + c / 128], x = values[static_cast<size_t>(r * cols + c)];
      // Half a step of e4m3: 2^-4 of the value, or half the subnormal step 2^-9.
      ASSERT_LE(std::fabs(back[static_cast<size_t>(r * cols + c)] - x), std::max(std::fabs(x) * 0x1.01p-4f, scale * 0x1p-10f))
          << r << ", " << c << " seed 7";
    }
  }
}

// A view that begins inside a scale block still uses the tensor's own table.
TEST(Quantise, SlicesOfAViewDequantiseAsTheWholeDoes) {
  Rng rng(11);
  for (WeightFormat format : {WeightFormat::bf16, WeightFormat::f32, WeightFormat::fp8_block, WeightFormat::mxfp4}) {
    std::vector<float> values(300 * 160);
    for (float& v : values) v = rng.uniform_float(-1, 1) * std::exp2(rng.uniform_float(-8, 8));
    const PackedWeight packed = pack_weight(values, 300, 160, format);
    const auto whole = dequantize(packed.view());
    const auto part = dequantize(packed.view().row_slice(100, 60).row_slice(37, 20));
    const std::vector<float> want(whole.begin() + 137 * 160, whole.begin() + 157 * 160);
    EXPECT_EQ(part, want) << "format " << static_cast<int>(format) << " seed 11";
    if (format == WeightFormat::f32) {
      EXPECT_EQ(whole, values);
    }
  }
}

TEST(Quantise, Mxfp4ErrorIsWithinHalfAStep) {
  Rng rng(13);
  std::vector<float> values(64 * 256);
  for (float& v : values) v = rng.uniform_float(-1, 1) * std::exp2(rng.uniform_float(-20, 20));
  const PackedWeight packed = pack_weight(values, 64, 256, WeightFormat::mxfp4);
  const auto back = dequantize(packed.view());
  for (size_t i = 0; i < values.size(); ++i) {
    const float scale = e8m0_to_f32(packed.scale[i / 32]);
    // The widest step is 2 (4 to 6); an amax just below mantissa 1.75 of its power saturates from 7 to 6.
    ASSERT_LE(std::fabs(back[i] - values[i]), scale * 1.0f) << i << " seed 13";
  }
}

}  // namespace
}  // namespace ingot::tensor
