// Number types, packing and unpacking, against arithmetic written a second time (ldexp and exhaustive search).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/rng.h"
#include "tensor/dtype.h"
#include "tensor/quantize.h"

namespace ingot::tensor {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

// The OCP definition of e4m3 "fn", in double.
double e4m3_by_definition(int code) {
  const int sign = code >> 7, exponent = (code >> 3) & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 7 - 3);
  return sign != 0 ? -magnitude : magnitude;
}

// The finite code nearest to x, an even code on ties: that is the rule, and beyond the greatest it saturates.
int nearest_e4m3(float x) {
  const double magnitude = std::fabs(static_cast<double>(x));
  int best = 0;
  double best_distance = kInf;
  for (int code = 0; code <= 0x7e; ++code) {
    const double distance = std::isinf(magnitude) ? (code == 0x7e ? 0.0 : 1.0) : std::fabs(e4m3_by_definition(code) - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

double e2m1_by_definition(int code) {
  const int exponent = (code >> 1) & 3, mantissa = code & 1;
  const double magnitude = exponent == 0 ? mantissa * 0.5 : std::ldexp(1.0 + 0.5 * mantissa, exponent - 1);
  return code >= 8 ? -magnitude : magnitude;
}

// A float of any exponent, for searches.
float any_float(Rng& rng) { return std::bit_cast<float>(static_cast<uint32_t>(rng.bits())); }

TEST(Numbers, every_e8m0_scale_times_every_e2m1_code_is_exact) {
  for (int scale = 0; scale < 255; ++scale) {
    EXPECT_EQ(static_cast<double>(e8m0_to_f32(static_cast<uint8_t>(scale))), std::ldexp(1.0, scale - 127)) << scale;
    for (int code = 0; code < 16; ++code) {
      const WeightView view{nullptr, nullptr, 1, 32, 0, WeightFormat::mxfp4};
      WeightView v = view;
      std::vector<uint8_t> data(16, static_cast<uint8_t>(code));  // the code in the low nibble, 0 in the high one
      const auto s = static_cast<uint8_t>(scale);
      v.data = data.data();
      v.scale = &s;
      float row[32];
      dequantize_row(v, 0, row);
      const double want = std::ldexp(e2m1_by_definition(code), scale - 127);
      // 6 * 2^127 and 4 * 2^127 and 3 * 2^127 and 2 * 2^127 are beyond float: infinity, as IEEE multiplication gives.
      const float want_f32 =
          std::fabs(want) > std::numeric_limits<float>::max() ? std::copysign(kInf, static_cast<float>(want)) : static_cast<float>(want);
      EXPECT_EQ(bits_of(row[0]), bits_of(want_f32)) << "scale " << scale << " code " << code;
      EXPECT_EQ(bits_of(row[30]), bits_of(want_f32)) << "scale " << scale << " code " << code;
      EXPECT_EQ(row[1], 0.0f) << "the high nibble is the odd element";
    }
  }
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
  for (int code = 0; code < 16; ++code) {
    EXPECT_TRUE(std::isnan(e2m1_to_f32(static_cast<uint8_t>(code)) * e8m0_to_f32(255))) << code;
    EXPECT_EQ(bits_of(e2m1_to_f32(static_cast<uint8_t>(code))), bits_of(static_cast<float>(e2m1_by_definition(code)))) << code;
  }
  EXPECT_TRUE(std::signbit(e2m1_to_f32(8))) << "code 8 is minus zero";
}

TEST(Numbers, every_e4m3_code_has_the_value_of_the_definition) {
  int num_nan = 0;
  for (int code = 0; code < 256; ++code) {
    const double want = e4m3_by_definition(code);
    const float got = e4m3_to_f32(static_cast<uint8_t>(code));
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << code;
      ++num_nan;
    } else {
      EXPECT_EQ(bits_of(got), bits_of(static_cast<float>(want))) << code;
    }
  }
  EXPECT_EQ(num_nan, 2) << "only 0x7f and 0xff; there is no infinity";
  EXPECT_EQ(e4m3_to_f32(0x7e), 448.0f);
  EXPECT_EQ(e4m3_to_f32(0x01), std::ldexp(1.0f, -9));
}

TEST(Numbers, f32_to_e4m3_saturates_and_keeps_nan) {
  EXPECT_EQ(f32_to_e4m3(447.0f), 0x7e);
  EXPECT_EQ(f32_to_e4m3(448.0f), 0x7e);
  EXPECT_EQ(f32_to_e4m3(449.0f), 0x7e);
  EXPECT_EQ(f32_to_e4m3(464.0f), 0x7e) << "half way to the missing 480 must not become NaN";
  EXPECT_EQ(f32_to_e4m3(1e4f), 0x7e);
  EXPECT_EQ(f32_to_e4m3(kInf), 0x7e);
  EXPECT_EQ(f32_to_e4m3(-464.0f), 0xfe);
  EXPECT_EQ(f32_to_e4m3(-1e4f), 0xfe);
  EXPECT_EQ(f32_to_e4m3(-kInf), 0xfe);
  EXPECT_TRUE(std::isnan(e4m3_to_f32(f32_to_e4m3(kNan))));
  EXPECT_TRUE(std::isnan(e4m3_to_f32(f32_to_e4m3(-kNan))));
  EXPECT_TRUE(std::isnan(e4m3_to_f32(f32_to_e4m3(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(f32_to_e4m3(0.0f), 0x00);
  EXPECT_EQ(f32_to_e4m3(-0.0f), 0x80);
}

TEST(Numbers, f32_to_e4m3_is_the_nearest_code_and_ties_go_to_even) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_f32(static_cast<uint8_t>(code));
    if (std::isnan(value)) continue;
    EXPECT_EQ(f32_to_e4m3(value), code) << "a representable number must come back";
    if ((code & 0x7f) == 0x7e) continue;
    // The tie with the next code and its two neighbours among floats.
    const float next = e4m3_to_f32(static_cast<uint8_t>(code + 1));
    const float tie = (value + next) / 2;
    EXPECT_EQ(f32_to_e4m3(tie), nearest_e4m3(tie)) << tie;
    EXPECT_EQ(f32_to_e4m3(tie) % 2, 0) << tie;
    EXPECT_EQ(f32_to_e4m3(std::nextafter(tie, value)), code) << tie;
    EXPECT_EQ(f32_to_e4m3(std::nextafter(tie, next)), code + 1) << tie;
  }
  constexpr uint64_t kSeed = 20260731;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Rng rng(kSeed);
  for (int i = 0; i < 100'000; ++i) {
    const float x = i % 2 == 0 ? any_float(rng) : rng.uniform_float(-500, 500) * std::ldexp(1.0f, -static_cast<int>(rng.below(20)));
    if (std::isnan(x)) continue;
    ASSERT_EQ(f32_to_e4m3(x), nearest_e4m3(x)) << x << " bits " << bits_of(x);
  }
}

TEST(Numbers, bf16_rounds_to_nearest_even_and_never_turns_nan_into_infinity) {
  EXPECT_EQ(f32_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80) << "tie to the even code below";
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82) << "tie to the even code above";
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f807fffu)), 0x3f80);
  EXPECT_EQ(f32_to_bf16(kInf), 0x7f80);
  EXPECT_EQ(f32_to_bf16(-kInf), 0xff80);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80) << "above the greatest bf16 by more than half a step";
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7f7f7fffu)), 0x7f7f);
  EXPECT_EQ(f32_to_bf16(-0.0f), 0x8000);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x00008000u)), 0x0000) << "subnormal tie to even";
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x00018000u)), 0x0002);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x007fffffu)), 0x0080) << "the greatest subnormal rounds to the least normal";
  for (uint32_t nan : {0x7f800001u, 0x7fc00000u, 0xff800001u, 0x7f80ffffu, 0xffffffffu}) {
    const uint16_t got = f32_to_bf16(std::bit_cast<float>(nan));
    EXPECT_TRUE(std::isnan(bf16_to_f32(got))) << std::hex << nan;
    EXPECT_EQ(got >> 15, nan >> 31) << "the sign stays";
    EXPECT_NE(got & 0x40, 0) << "quiet";
  }
  for (uint32_t code = 0; code < 65536; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    const float value = bf16_to_f32(bits);
    ASSERT_EQ(bits_of(value), code << 16);
    if (std::isnan(value)) continue;
    ASSERT_EQ(f32_to_bf16(value), bits);
  }
  constexpr uint64_t kSeed = 77;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Rng rng(kSeed);
  for (int i = 0; i < 200'000; ++i) {
    const float x = any_float(rng);
    if (!(std::fabs(x) < 0x1.fep127f)) continue;
    // The two candidates around x; the nearer one in double, the even one on a tie.
    const auto low = static_cast<uint16_t>(bits_of(x) >> 16);
    const auto high = static_cast<uint16_t>(low + 1);
    const double d_low = std::fabs(static_cast<double>(x) - bf16_to_f32(low)),
                 d_high = std::fabs(static_cast<double>(x) - bf16_to_f32(high));
    const uint16_t want = d_low < d_high || (d_low == d_high && low % 2 == 0) ? low : high;
    ASSERT_EQ(f32_to_bf16(x), want) << x;
  }
}

TEST(Numbers, every_dtype_has_a_size_and_a_name_of_its_own) {
  std::vector<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(DType::u64); ++i) {
    const auto type = static_cast<DType>(i);
    EXPECT_GT(dtype_bytes(type), 0u) << i;
    for (std::string_view other : names) EXPECT_NE(dtype_name(type), other);
    names.push_back(dtype_name(type));
  }
  EXPECT_EQ(dtype_bytes(DType::bf16), 2u);
  EXPECT_EQ(dtype_bytes(DType::f8_e4m3), 1u);
  EXPECT_EQ(dtype_bytes(DType::i64), 8u);
}

TEST(Mxfp4, scale_is_what_quark_even_mode_gives) {
  EXPECT_EQ(mxfp4_scale_even(6.0f), 127);
  EXPECT_EQ(mxfp4_scale_even(1.74f), 125);
  EXPECT_EQ(mxfp4_scale_even(1.75f), 126);
  EXPECT_EQ(mxfp4_scale_even(7.0f), 128);
  EXPECT_EQ(mxfp4_scale_even(0.0f), 0);
  EXPECT_EQ(mxfp4_scale_even(std::bit_cast<float>(1u)), 0) << "the least subnormal";
  EXPECT_EQ(mxfp4_scale_even(kNan), 255);
  EXPECT_EQ(mxfp4_scale_even(std::nextafter(7.0f, 0.0f)), 127);
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Rng rng(kSeed);
  for (int i = 0; i < 100'000; ++i) {
    const float amax = std::fabs(any_float(rng));
    if (!(amax >= std::numeric_limits<float>::min()) || std::isinf(amax)) continue;
    int exponent = 0;
    const double mantissa = 2 * std::frexp(static_cast<double>(amax), &exponent);  // [1, 2)
    const int power = exponent - 1 + (mantissa >= 1.75 ? 1 : 0);
    ASSERT_EQ(mxfp4_scale_even(amax), std::clamp(power - 2, -127, 127) + 127) << amax;
  }
}

TEST(Mxfp4, encode_is_the_nearest_code_and_midpoints_go_to_the_even_code) {
  const std::pair<double, int> kTies[] = {{0.25, 0}, {0.75, 2}, {1.25, 2}, {1.75, 4}, {2.5, 4}, {3.5, 6}, {5.0, 6}};
  for (int scale : {0, 1, 60, 125, 127, 128, 200, 250, 254}) {
    const auto s = static_cast<uint8_t>(scale);
    for (const auto& [tie, code] : kTies) {
      const double x = std::ldexp(tie, scale - 127);
      if (x > std::numeric_limits<float>::max()) continue;
      EXPECT_EQ(mxfp4_encode(static_cast<float>(x), s), code) << tie << " scale " << scale;
      EXPECT_EQ(mxfp4_encode(static_cast<float>(-x), s), code == 0 ? 0 : code + 8) << tie << " scale " << scale;
    }
    for (int code = 0; code < 16; ++code) {
      const double x = std::ldexp(e2m1_by_definition(code), scale - 127);
      if (std::fabs(x) > std::numeric_limits<float>::max()) continue;
      EXPECT_EQ(mxfp4_encode(static_cast<float>(x), s), code == 8 ? 0 : code) << "scale " << scale;
    }
  }
  EXPECT_EQ(mxfp4_encode(6.96f, 127), 7) << "saturates";
  EXPECT_EQ(mxfp4_encode(-1e30f, 127), 15);
  EXPECT_EQ(mxfp4_encode(kInf, 127), 7);
  EXPECT_EQ(mxfp4_encode(3.5f, 127), 6) << "7.0 at scale 128";
  constexpr uint64_t kSeed = 6;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Rng rng(kSeed);
  for (int i = 0; i < 100'000; ++i) {
    const auto scale = static_cast<uint8_t>(100 + rng.below(60));
    const float x = rng.uniform_float(-8, 8) * static_cast<float>(std::ldexp(1.0, scale - 127));
    const double scaled = std::ldexp(std::fabs(static_cast<double>(x)), 127 - scale);
    int best = 0;
    for (int code = 1; code < 8; ++code) {
      const double now = std::fabs(e2m1_by_definition(code) - scaled), before = std::fabs(e2m1_by_definition(best) - scaled);
      if (now < before || (now == before && code % 2 == 0)) best = code;
    }
    ASSERT_EQ(mxfp4_encode(x, scale), best + (std::signbit(x) && best != 0 ? 8 : 0)) << x << " scale " << int{scale};
  }
}

std::vector<float> random_matrix(Rng& rng, int64_t rows, int64_t cols) {
  std::vector<float> out(static_cast<size_t>(rows * cols));
  for (float& x : out) x = rng.uniform_float(-1, 1) * std::ldexp(1.0f, static_cast<int>(rng.below(12)) - 8);
  return out;
}

constexpr WeightFormat kFormats[] = {WeightFormat::bf16, WeightFormat::f32, WeightFormat::fp8_block, WeightFormat::mxfp4};

// Sizes with ragged last blocks in both directions; 576 rows is the latent projection, whose last FP8 block has 64 rows.
constexpr std::pair<int64_t, int64_t> kSizes[] = {{1, 32}, {3, 96}, {127, 160}, {128, 128}, {129, 32}, {257, 288}, {576, 64}};

TEST(PackWeight, error_of_every_format_is_within_half_a_step) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Rng rng(kSeed);
  for (WeightFormat format : kFormats) {
    for (const auto& [rows, cols] : kSizes) {
      const auto values = random_matrix(rng, rows, cols);
      const PackedWeight packed = pack_weight(values, rows, cols, format);
      ASSERT_EQ(static_cast<int64_t>(packed.data.size()), rows * packed.view().row_bytes());
      const auto got = dequantize(packed.view());
      ASSERT_EQ(got.size(), values.size());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          const auto i = static_cast<size_t>(r * cols + c);
          double bound = 0;
          if (format == WeightFormat::bf16) bound = std::fabs(values[i]) / 256.0;
          if (format == WeightFormat::fp8_block) {
            float scale = 0;
            const int64_t scale_cols = (cols + 127) / 128;
            std::memcpy(&scale, &packed.scale[static_cast<size_t>((r / 128 * scale_cols + c / 128) * 4)], 4);
            bound = std::max(std::fabs(values[i]) / 16.0, scale * 0x1p-10) * 1.00001;  // the division rounds once
          }
          if (format == WeightFormat::mxfp4) {
            // Steps 0.5 up to 2, then 1, then 2; above 6 the value saturates, at most 7 * (1 - 2^-24) of the scale.
            const double scale = std::ldexp(1.0, packed.scale[static_cast<size_t>(r * (cols / 32) + c / 32)] - 127);
            const double scaled = std::fabs(values[i]) / scale;
            ASSERT_LE(scaled, 7.0) << "the scale is too small for its block";
            bound = scale * (scaled <= 2 ? 0.25 : scaled <= 4 ? 0.5 : 1.0);
          }
          ASSERT_LE(std::fabs(static_cast<double>(got[i]) - values[i]), bound)
              << "format " << static_cast<int>(format) << " (" << rows << ", " << cols << ") at " << r << ", " << c << ": " << values[i];
        }
      }
    }
  }
}

TEST(PackWeight, mxfp4_of_what_mxfp4_gave_is_the_same_bytes) {
  constexpr uint64_t kSeed = 12;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Rng rng(kSeed);
  const int64_t rows = 64, cols = 256;
  const PackedWeight once = pack_weight(random_matrix(rng, rows, cols), rows, cols, WeightFormat::mxfp4);
  const auto values = dequantize(once.view());
  const PackedWeight twice = pack_weight(values, rows, cols, WeightFormat::mxfp4);
  EXPECT_EQ(dequantize(twice.view()), values) << "a value that MXFP4 holds is kept";
}

TEST(PackWeight, row_slices_give_the_rows_of_the_whole_matrix) {
  constexpr uint64_t kSeed = 13;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Rng rng(kSeed);
  for (WeightFormat format : kFormats) {
    for (const auto& [rows, cols] : kSizes) {
      const PackedWeight packed = pack_weight(random_matrix(rng, rows, cols), rows, cols, format);
      const auto whole = dequantize(packed.view());
      for (int round = 0; round < 8; ++round) {
        const auto begin = static_cast<int64_t>(rng.below(static_cast<uint64_t>(rows)));
        const auto count = 1 + static_cast<int64_t>(rng.below(static_cast<uint64_t>(rows - begin)));
        const WeightView slice = packed.view().row_slice(begin, count);
        const auto skip = static_cast<int64_t>(rng.below(static_cast<uint64_t>(count)));
        const WeightView inner = slice.row_slice(skip, count - skip);  // a slice of a slice
        const auto part = dequantize(slice), part_inner = dequantize(inner);
        ASSERT_EQ(std::memcmp(part.data(), &whole[static_cast<size_t>(begin * cols)], part.size() * 4), 0)
            << "format " << static_cast<int>(format) << " rows " << begin << " + " << count << " of " << rows;
        ASSERT_EQ(std::memcmp(part_inner.data(), &whole[static_cast<size_t>((begin + skip) * cols)], part_inner.size() * 4), 0)
            << "format " << static_cast<int>(format) << " rows " << begin << " + " << skip << " of " << rows;
      }
    }
  }
}

TEST(PackWeight, zeros_and_nan_blocks_do_not_spoil_their_neighbours) {
  std::vector<float> values(2 * 64, 0.0f);
  values[5] = kNan;   // row 0, block 0
  values[40] = 3.0f;  // row 0, block 1
  const PackedWeight packed = pack_weight(values, 2, 64, WeightFormat::mxfp4);
  EXPECT_EQ(packed.scale[0], 255) << "a NaN in the block makes its scale NaN";
  EXPECT_EQ(packed.scale[2], 0);
  const auto got = dequantize(packed.view());
  EXPECT_TRUE(std::isnan(got[5]));
  EXPECT_EQ(got[40], 3.0f);
  for (size_t i = 64; i < 128; ++i) EXPECT_EQ(got[i], 0.0f);
  const PackedWeight zero = pack_weight(std::vector<float>(200 * 130, 0.0f), 200, 130, WeightFormat::fp8_block);
  for (float x : dequantize(zero.view())) ASSERT_EQ(x, 0.0f);
  for (size_t i = 0; i < zero.scale.size(); i += 4) {
    float scale = 0;
    std::memcpy(&scale, &zero.scale[i], 4);
    EXPECT_EQ(scale, 1.0f);
  }
}

TEST(PackWeight, fp8_scale_table_follows_the_blocks_of_the_tensor) {
  // One value a block, so that an exchanged row and column of the table shows.
  const int64_t rows = 300, cols = 260;
  std::vector<float> values(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) values[static_cast<size_t>(r * cols + c)] = static_cast<float>(1 + r / 128 * 10 + c / 128);
  }
  const PackedWeight packed = pack_weight(values, rows, cols, WeightFormat::fp8_block);
  ASSERT_EQ(packed.scale.size(), 3u * 3u * 4u);
  for (int64_t br = 0; br < 3; ++br) {
    for (int64_t bc = 0; bc < 3; ++bc) {
      float scale = 0;
      std::memcpy(&scale, &packed.scale[static_cast<size_t>((br * 3 + bc) * 4)], 4);
      EXPECT_EQ(scale, static_cast<float>(1 + br * 10 + bc) / 448.0f);
    }
  }
  for (uint8_t code : packed.data) ASSERT_EQ(code, 0x7e);
}

}  // namespace
}  // namespace ingot::tensor
