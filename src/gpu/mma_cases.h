// Products that show whether an instruction's table is right, with their results in double: for the test in the emulator and for the same
// test on a device. Host only.
//   - A or B is a unit matrix, so that D is the other one: an element in a wrong place shows by its value, exactly
//   - random numbers, which also show a wrong pairing along K
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "gpu/mma.h"
#include "gpu/mma_emulated.h"

namespace ingot::gpu {

struct MmaCase {
  std::string name;
  std::vector<uint16_t> a, b;             // (M, K) and (K, N), a code each
  std::vector<float> c;                   // (M, N)
  std::vector<uint8_t> a_scale, b_scale;  // (M, K / 32), (K / 32, N) e8m0, or empty
  std::vector<double> d;                  // (M, N)
  double tolerance;                       // absolute; 0: to the bit
};

// 1.0 in each format.
constexpr uint16_t matrix_number_one(MatrixNumber type) {
  switch (type) {
    case MatrixNumber::bf16: return 0x3f80;
    case MatrixNumber::e4m3: return 0x38;
    case MatrixNumber::e4m3_fnuz: return 0x40;
    case MatrixNumber::e2m1: return 2;
  }
  return 0;
}

// A finite number of the format, of moderate size: what `pick` chooses.
inline uint16_t matrix_number_code(MatrixNumber type, uint64_t pick) {
  switch (type) {
    case MatrixNumber::bf16: return static_cast<uint16_t>((pick % 2 << 15) | (0x3e00 + pick / 2 % 0x200));  // 1/8 to 2
    case MatrixNumber::e4m3:
    case MatrixNumber::e4m3_fnuz: return static_cast<uint16_t>((pick % 2 << 7) | (0x20 + pick / 2 % 0x28));  // 1/16 to 8
    case MatrixNumber::e2m1: return static_cast<uint16_t>(pick % 16);
  }
  return 0;
}

template <class I>
std::vector<MmaCase> mma_cases(uint64_t seed) {
  constexpr int kBlocks = I::kK / scale_block<I>();
  constexpr size_t kM = I::kM, kN = I::kN, kK = I::kK;
  Rng rng(seed);
  const auto codes = [&rng](MatrixNumber type, size_t count) {
    std::vector<uint16_t> out;
    for (size_t i = 0; i < count; ++i) out.push_back(matrix_number_code(type, rng.bits()));
    return out;
  };
  std::vector<MmaCase> cases;
  const auto add = [&](std::string name, std::vector<uint16_t> a, std::vector<uint16_t> b, std::vector<float> c, bool exact) {
    MmaCase made{std::move(name), std::move(a), std::move(b), std::move(c), {}, {}, {}, 0.0};
    if (I::kScaled) {
      for (size_t i = 0; i < kM * kBlocks; ++i) made.a_scale.push_back(static_cast<uint8_t>(124 + rng.below(7)));
      for (size_t i = 0; i < kN * kBlocks; ++i) made.b_scale.push_back(static_cast<uint8_t>(124 + rng.below(7)));
    }
    double magnitudes = 0.0;
    for (size_t m = 0; m < kM; ++m) {
      for (size_t n = 0; n < kN; ++n) {
        double sum = static_cast<double>(made.c[m * kN + n]), magnitude = std::abs(sum);
        for (size_t k = 0; k < kK; ++k) {
          double term = static_cast<double>(matrix_number_value(I::kAType, made.a[m * kK + k])) *
                        static_cast<double>(matrix_number_value(I::kBType, made.b[k * kN + n]));
          if (I::kScaled)
            term *= static_cast<double>(e8m0_value(made.a_scale[m * kBlocks + k / 32])) *
                    static_cast<double>(e8m0_value(made.b_scale[k / 32 * kN + n]));
          sum += term;
          magnitude += std::abs(term);
        }
        made.d.push_back(sum);
        magnitudes = magnitude > magnitudes ? magnitude : magnitudes;
      }
    }
    // Hardware may align a K's products to the largest and cut what falls off: some 13 bits are left in fp8 units, 23 in bf16 ones.
    if (!exact) made.tolerance = magnitudes * (I::kAType == MatrixNumber::bf16 ? 0x1p-20 : 0x1p-12);
    cases.push_back(std::move(made));
  };
  const std::vector<float> zero(kM * kN, 0.0f);
  for (size_t shift = 0; shift + kM <= kK; shift += kM) {  // A = (0, 1, 0): D is rows `shift`.. of B
    std::vector<uint16_t> a(kM * kK, 0);
    for (size_t m = 0; m < kM; ++m) a[m * kK + shift + m] = matrix_number_one(I::kAType);
    add("A is a unit matrix at " + std::to_string(shift), std::move(a), codes(I::kBType, kK * kN), zero, true);
  }
  for (size_t shift = 0; shift + kN <= kK; shift += kN) {
    std::vector<uint16_t> b(kK * kN, 0);
    for (size_t n = 0; n < kN; ++n) b[(shift + n) * kN + n] = matrix_number_one(I::kBType);
    add("B is a unit matrix at " + std::to_string(shift), codes(I::kAType, kM * kK), std::move(b), zero, true);
  }
  std::vector<float> ramp;
  for (size_t i = 0; i < kM * kN; ++i) ramp.push_back(static_cast<float>(i) - 17.0f);
  add("only C", std::vector<uint16_t>(kM * kK, 0), codes(I::kBType, kK * kN), ramp, true);
  for (int i = 0; i < 3; ++i) add("random " + std::to_string(i), codes(I::kAType, kM * kK), codes(I::kBType, kK * kN), ramp, false);
  return cases;
}

}  // namespace ingot::gpu
