// The kernels' number formats against their definitions in double arithmetic: every code of each format, and every rounding case.
#include "gpu/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tensor/dtype.h"

namespace ingot::gpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double bf16_by_definition(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 7 & 255), fraction = static_cast<int>(bits & 127);
  const double sign = bits >> 15 != 0 ? -1.0 : 1.0;
  if (exponent == 255) return fraction != 0 ? std::nan("") : sign * kInfinity;
  return sign * (exponent == 0 ? std::ldexp(fraction, -133) : std::ldexp(128 + fraction, exponent - 134));
}

double e4m3_by_definition(uint32_t byte) {
  const int exponent = static_cast<int>(byte >> 3 & 15), fraction = static_cast<int>(byte & 7);
  if (exponent == 15 && fraction == 7) return std::nan("");
  return (byte >> 7 != 0 ? -1.0 : 1.0) * (exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10));
}

void expect_same(double expected, float actual, uint32_t code) {
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(actual)) << code;
    return;
  }
  ASSERT_EQ(expected, static_cast<double>(actual)) << code;
  ASSERT_EQ(std::signbit(expected), std::signbit(actual)) << code;
}

// Floats that meet every case of a rounding to the upper bits: each upper half with lower halves at, beside and between the ties.
std::vector<float> rounding_cases() {
  std::vector<float> out;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) out.push_back(bits_float(high << 16 | low));
  }
  return out;
}

TEST(Numbers, EveryBf16CodeHasItsValue) {
  for (uint32_t code = 0; code < 0x10000; ++code) expect_same(bf16_by_definition(code), bf16_value(static_cast<uint16_t>(code)), code);
}

TEST(Numbers, EveryE4m3CodeHasItsValue) {
  for (uint32_t code = 0; code < 256; ++code) expect_same(e4m3_by_definition(code), e4m3_value(static_cast<uint8_t>(code)), code);
}

// Report O1: a scale byte of 0 was taken as 0.0 in one path and as an exponent subtraction in another (0.5 became -inf).
TEST(Numbers, EveryScaleByteTimesEveryNibbleIsExact) {
  constexpr double kMagnitudes[] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (uint32_t code = 0; code < 16; ++code) {
      const double element = code >= 8 ? -kMagnitudes[code - 8] : kMagnitudes[code];
      const double expected = byte == 255 ? std::nan("") : std::ldexp(element, static_cast<int>(byte) - 127);
      const float actual = e2m1_value(code) * e8m0_value(static_cast<uint8_t>(byte));
      if (std::fabs(expected) > std::numeric_limits<float>::max())
        ASSERT_EQ(actual, static_cast<float>(expected)) << byte << " " << code;  // 2^127 times 2 and more
      else
        expect_same(expected, actual, byte * 16 + code);
    }
  }
}

TEST(Numbers, ToBf16IsTheNearestAndTiesGoToEven) {
  for (const float value : rounding_cases()) {
    const uint32_t code = to_bf16(value);
    if (std::isnan(value)) {
      ASSERT_TRUE((code & 0x7fff) > 0x7f80) << std::hex << float_bits(value);
      continue;
    }
    // The candidates are the upper half and its neighbour; a magnitude past the last one is an infinity, which counts as 2^128 here.
    const uint32_t low = float_bits(value) >> 16, high = std::isinf(value) ? low : low + 1;
    const auto magnitude = [](uint32_t c) { return (c & 0x7fff) == 0x7f80 ? std::ldexp(1.0, 128) : std::fabs(bf16_by_definition(c)); };
    const double exact = std::isinf(value) ? std::ldexp(1.0, 128) : std::fabs(static_cast<double>(value));
    const double below = exact - magnitude(low), above = magnitude(high) - exact;
    const uint32_t expected = below < above ? low : above < below ? high : low % 2 == 0 ? low : high;
    ASSERT_EQ(code, expected) << std::hex << float_bits(value);
  }
}

// Report O5: values past 448 became NaN on one machine and were clipped on another.
TEST(Numbers, ToE4m3IsTheNearestAndSaturates) {
  const auto expected_code = [](float value) -> uint32_t {
    const uint32_t sign = std::signbit(value) ? 0x80 : 0;
    if (std::isnan(value)) return sign | 0x7f;
    uint32_t best = 0;
    for (uint32_t code = 1; code <= 0x7e; ++code) {
      const double magnitude = std::fabs(static_cast<double>(value));
      const double was = std::fabs(magnitude - e4m3_by_definition(best)), now = std::fabs(magnitude - e4m3_by_definition(code));
      if (now < was || (now == was && code % 2 == 0)) best = code;
    }
    return sign | (std::isinf(value) ? 0x7e : best);
  };
  for (const float value : {447.0f, 448.0f, 449.0f, 463.9f, 464.0f, 480.0f, 1e4f, 3e38f, static_cast<float>(kInfinity)}) {
    EXPECT_EQ(to_e4m3(value), 0x7e) << value;
    EXPECT_EQ(to_e4m3(-value), 0xfe) << value;
  }
  EXPECT_TRUE(std::isnan(e4m3_value(to_e4m3(std::nanf("")))));
  // Exponents 2^-12 to 2^10 hold every rounding; beyond them all is 0 or 448.
  for (uint32_t high = (127 - 12) << 7; high < (127 + 10) << 7; ++high) {
    for (const uint32_t low : {0u, 1u, 0x8000u, 0xffffu}) {
      const float value = bits_float(high << 16 | low);
      ASSERT_EQ(to_e4m3(value), expected_code(value)) << value;
      ASSERT_EQ(to_e4m3(-value), expected_code(-value)) << value;
    }
  }
  for (uint32_t high = 0; high < (127 - 12) << 7; ++high) ASSERT_EQ(to_e4m3(bits_float(high << 16)), 0) << high;
}

// The kernels' forms and those of the loader are separate code; a number must not change between them.
TEST(Numbers, TheSameBitsAsTheTensorRoom) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    ASSERT_EQ(float_bits(bf16_value(bits)), float_bits(tensor::bf16_to_f32(bits))) << code;
  }
  for (uint32_t code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    ASSERT_EQ(float_bits(e4m3_value(byte)), float_bits(tensor::e4m3_to_f32(byte))) << code;
    ASSERT_EQ(float_bits(e8m0_value(byte)), float_bits(tensor::e8m0_to_f32(byte))) << code;
  }
  for (uint8_t code = 0; code < 16; ++code) {
    ASSERT_EQ(float_bits(e2m1_value(code)), float_bits(tensor::e2m1_to_f32(code))) << int{code};
  }
  std::vector<float> values = rounding_cases();
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 9973) values.push_back(bits_float(static_cast<uint32_t>(bits)));
  for (const float value : values) {
    ASSERT_EQ(to_bf16(value), tensor::f32_to_bf16(value)) << std::hex << float_bits(value);
    ASSERT_EQ(to_e4m3(value), tensor::f32_to_e4m3(value)) << std::hex << float_bits(value);
  }
}

TEST(Numbers, OrderedBitsHaveTheOrderOfTheFloats) {
  const auto inf = static_cast<float>(kInfinity);
  const std::vector<float> rising = {-inf, -3e38f, -1.0f, -1e-40f, 0.0f, 1e-40f, 0.5f, 1.0f, 3e38f, inf};
  for (size_t i = 1; i < rising.size(); ++i) EXPECT_LT(ordered_bits(rising[i - 1]), ordered_bits(rising[i])) << rising[i];
  EXPECT_EQ(ordered_bits(-0.0f), ordered_bits(0.0f));
  EXPECT_EQ(ordered_bits(std::nanf("")), 0u);
  EXPECT_EQ(ordered_bits(-std::nanf("")), 0u);
  EXPECT_LT(ordered_bits(std::nanf("")), ordered_bits(-inf));
}

}  // namespace
}  // namespace ingot::gpu
