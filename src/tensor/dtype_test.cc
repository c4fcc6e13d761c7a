#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/file_map.h"
#include "base/json.h"

namespace ingot::tensor {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t bits(float value) { return std::bit_cast<uint32_t>(value); }

// Same bits, or both NaN (a NaN's payload is nobody's business).
void expect_same(float got, float want, const std::string& what) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << what << ": " << got;
  } else {
    EXPECT_EQ(bits(got), bits(want)) << what << ": " << got << " for " << want;
  }
}

Json golden() {
  const auto text = read_file(INGOT_SOURCE_DIR "/tests/golden/numbers/conversions.json", 1 << 20);
  EXPECT_TRUE(text.has_value());
  return parse_json(*text, "conversions.json").value();
}

float golden_float(const Json& value) { return std::bit_cast<float>(value.get<uint32_t>()); }

TEST(NumberTypes, EveryCodeDecodesAsMlDtypesDecodesIt) {
  const Json g = golden();
  ASSERT_EQ(g["e4m3_to_f32"].size(), 256u);
  ASSERT_EQ(g["e8m0_to_f32"].size(), 256u);
  ASSERT_EQ(g["e2m1_to_f32"].size(), 16u);
  for (unsigned i = 0; i < 256; ++i) {
    expect_same(e4m3_to_f32(static_cast<uint8_t>(i)), golden_float(g["e4m3_to_f32"][i]), fmt::format("e4m3 {:#x}", i));
    expect_same(e8m0_to_f32(static_cast<uint8_t>(i)), golden_float(g["e8m0_to_f32"][i]), fmt::format("e8m0 {}", i));
  }
  for (unsigned i = 0; i < 16; ++i)
    expect_same(e2m1_to_f32(static_cast<uint8_t>(i)), golden_float(g["e2m1_to_f32"][i]), fmt::format("e2m1 {}", i));
}

TEST(NumberTypes, RoundingIsThatOfMlDtypesAtEveryBoundary) {
  const Json g = golden();
  ASSERT_GT(g["f32_to_e4m3"].size(), 1000u);
  for (const Json& pair : g["f32_to_e4m3"]) {
    const float x = golden_float(pair[0]);
    EXPECT_EQ(f32_to_e4m3(x), pair[1].get<int>()) << x;
  }
  ASSERT_GT(g["f32_to_bf16"].size(), 200u);
  for (const Json& pair : g["f32_to_bf16"]) {
    const float x = golden_float(pair[0]);
    EXPECT_EQ(f32_to_bf16(x), pair[1].get<int>()) << x;
  }
}

// From the definitions of the formats, by ldexp: shares no table and no bit trick with the code.
TEST(NumberTypes, EveryE4m3CodeByItsDefinition) {
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15, mantissa = code & 7;
    double value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    if (code & 128) value = -value;
    const float want = (code & 127) == 127 ? kNan : static_cast<float>(value);
    expect_same(e4m3_to_f32(static_cast<uint8_t>(code)), want, fmt::format("code {}", code));
    if (!std::isnan(want)) {
      EXPECT_EQ(f32_to_e4m3(want), code) << "round trip";
    }
  }
}

// O1: byte 0 is 2^-127, not zero and not an exponent underflow; 255 is NaN. All 256 bytes with all 16 codes, bit-equal.
TEST(NumberTypes, EveryScaleByteTimesEveryFp4Code) {
  const double magnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int scale = 0; scale < 256; ++scale) {
    for (int code = 0; code < 16; ++code) {
      const double exact = std::ldexp(magnitude[code & 7], scale - 127) * (code >= 8 ? -1 : 1);
      const float got = e2m1_to_f32(static_cast<uint8_t>(code)) * e8m0_to_f32(static_cast<uint8_t>(scale));
      expect_same(got, scale == 255 ? kNan : static_cast<float>(exact), fmt::format("byte {} code {}", scale, code));
    }
  }
  EXPECT_EQ(e8m0_to_f32(0), std::ldexp(1.0f, -127));
  EXPECT_EQ(e2m1_to_f32(1) * e8m0_to_f32(0), std::ldexp(1.0f, -128)) << "0.5 with byte 0";
}

// O5: activations beyond +-448 become +-448, NaN stays NaN.
TEST(NumberTypes, E4m3SaturatesAndKeepsNan) {
  const std::pair<float, float> cases[] = {{447, 448}, {448, 448},    {449, 448}, {463.9f, 448}, {464, 448},   {464.1f, 448},
                                           {470, 448}, {479.9f, 448}, {480, 448}, {1e4f, 448},   {3e38f, 448}, {kInf, 448}};
  for (const auto& [x, want] : cases) {
    EXPECT_EQ(e4m3_to_f32(f32_to_e4m3(x)), want) << x;
    EXPECT_EQ(e4m3_to_f32(f32_to_e4m3(-x)), -want) << -x;
  }
  EXPECT_TRUE(std::isnan(e4m3_to_f32(f32_to_e4m3(kNan))));
  EXPECT_TRUE(std::isnan(e4m3_to_f32(f32_to_e4m3(-kNan))));
  EXPECT_EQ(f32_to_e4m3(-0.0f), 0x80);
  EXPECT_EQ(f32_to_e4m3(1e-30f), 0) << "half of the least subnormal rounds to zero";
}

TEST(NumberTypes, Bf16RoundsToNearestEven) {
  const std::pair<uint32_t, uint16_t> cases[] = {
      {0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82},  // below, tie, above, tie to even
      {0x00000001, 0x0000}, {0x00008000, 0x0000}, {0x00018000, 0x0002}, {0x807fffff, 0x8080},  // subnormals
      {0x7f7f7fff, 0x7f7f}, {0x7f7f8000, 0x7f80}, {0x7f7fffff, 0x7f80},                        // the greatest rounds to infinity
      {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x80000000, 0x8000}};
  for (const auto& [from, to] : cases) EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(from)), to) << std::hex << from;
  // A NaN whose payload is all in the dropped half must not become infinity.
  for (uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0x7fc00000u}) {
    const uint16_t got = f32_to_bf16(std::bit_cast<float>(nan));
    EXPECT_TRUE(std::isnan(bf16_to_f32(got))) << std::hex << nan;
    EXPECT_EQ(got >> 15, nan >> 31) << std::hex << nan;
  }
}

TEST(NumberTypes, EveryBf16RoundTrips) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const float value = bf16_to_f32(static_cast<uint16_t>(i));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(value))));
    } else {
      EXPECT_EQ(f32_to_bf16(value), i);
    }
  }
}

TEST(NumberTypes, SizesAndNamesAreThoseOfSafetensors) {
  const std::tuple<DType, const char*, size_t> all[] = {
      {DType::f32, "F32", 4}, {DType::bf16, "BF16", 2},       {DType::f16, "F16", 2}, {DType::f8_e4m3, "F8_E4M3", 1},
      {DType::u8, "U8", 1},   {DType::i32, "I32", 4},         {DType::i64, "I64", 8}, {DType::boolean, "BOOL", 1},
      {DType::f64, "F64", 8}, {DType::f8_e5m2, "F8_E5M2", 1}, {DType::i8, "I8", 1},   {DType::i16, "I16", 2},
      {DType::u16, "U16", 2}, {DType::u32, "U32", 4},         {DType::u64, "U64", 8}};
  for (const auto& [type, name, bytes] : all) {
    EXPECT_EQ(dtype_name(type), name);
    EXPECT_EQ(dtype_bytes(type), bytes) << name;
  }
}

}  // namespace
}  // namespace ingot::tensor
