// A benchmark on NaN, on zeros, or on numbers that grow from layer to layer: its times are those of another model.
#include "kernels/fill_random.kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "support/machines.h"
#include "tensor/dtype.h"

namespace ingot::kernels {
namespace {

using testing::Buffer;

struct Moments {
  double mean = 0, deviation = 0, most = 0;
};
Moments moments(const std::vector<float>& values) {
  Moments m;
  for (const float v : values) m.mean += v / static_cast<double>(values.size());
  for (const float v : values) {
    m.deviation += (v - m.mean) * (v - m.mean) / static_cast<double>(values.size());
    m.most = std::max(m.most, std::abs(static_cast<double>(v)));
  }
  m.deviation = std::sqrt(m.deviation);
  return m;
}

std::vector<uint8_t> filled(RandomKind kind, int64_t bytes, uint64_t seed, float mean, float deviation) {
  Buffer<uint8_t> memory(static_cast<size_t>(bytes));
  ingot::testing::run_everywhere<FillRandom>({memory.data(), bytes, kind, seed, mean, deviation}, memory);
  return {memory.data(), memory.data() + bytes};
}

template <class T, class Value>
std::vector<float> numbers(const std::vector<uint8_t>& bytes, Value value) {
  std::vector<float> out(bytes.size() / sizeof(T));
  for (size_t i = 0; i < out.size(); ++i) {
    T bits;
    std::memcpy(&bits, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = value(bits);
  }
  return out;
}

constexpr int64_t kBytes = 3 * FillRandomParams::kChunks * 16 / 2 + 7;  // several blocks, a ragged end

TEST(FillRandom, NumbersHaveTheMeanAndDeviationAskedFor) {
  const auto bf16 =
      moments(numbers<uint16_t>(filled(RandomKind::bf16, kBytes - 1, 1, 1.0f, 0.25f), [](uint16_t b) { return gpu::bf16_value(b); }));
  EXPECT_NEAR(bf16.mean, 1.0, 0.01);
  EXPECT_NEAR(bf16.deviation, 0.25, 0.01);
  EXPECT_LT(bf16.most, 1.0 + 0.25 * 2.5);
  const auto f32 = moments(numbers<float>(filled(RandomKind::f32, kBytes - 3, 2, 34.0f, 0.5f), [](float v) { return v; }));
  EXPECT_NEAR(f32.mean, 34.0, 0.05);
  EXPECT_NEAR(f32.deviation, 0.5, 0.02);
  const auto e4m3 =
      moments(numbers<uint8_t>(filled(RandomKind::e4m3, kBytes, 3, 0.0f, 64.0f), [](uint8_t b) { return gpu::e4m3_value(b); }));
  EXPECT_NEAR(e4m3.mean, 0.0, 1.5);
  EXPECT_NEAR(e4m3.deviation, 64.0, 1.5);
}

TEST(FillRandom, BytesAreUniformAndExponentsAreNeighbours) {
  const auto bytes = filled(RandomKind::bytes, kBytes, 4, 0, 0);
  std::vector<int> counts(16);
  for (const uint8_t b : bytes) ++counts[b & 15], ++counts[b >> 4];
  for (const int count : counts) EXPECT_NEAR(count, 2.0 * static_cast<double>(kBytes) / 16, 6 * std::sqrt(static_cast<double>(kBytes) / 8));
  std::vector<int> exponents(256);
  for (const uint8_t b : filled(RandomKind::e8m0, kBytes, 5, 120, 0)) ++exponents[b];
  for (const int e : {119, 120, 121})
    EXPECT_NEAR(exponents[static_cast<size_t>(e)], static_cast<double>(kBytes) / 3, 6 * std::sqrt(static_cast<double>(kBytes)));
  EXPECT_EQ(exponents[119] + exponents[120] + exponents[121], kBytes);
}

TEST(FillRandom, SeedsAndPlacesDiffer) {
  EXPECT_NE(filled(RandomKind::bytes, 64, 6, 0, 0), filled(RandomKind::bytes, 64, 7, 0, 0));
  const auto bytes = filled(RandomKind::bytes, 64, 6, 0, 0);
  EXPECT_NE(std::vector<uint8_t>(bytes.begin(), bytes.begin() + 16), std::vector<uint8_t>(bytes.begin() + 16, bytes.begin() + 32));
  EXPECT_EQ(filled(RandomKind::bytes, 0, 6, 0, 0).size(), 0u);
}

}  // namespace
}  // namespace ingot::kernels
