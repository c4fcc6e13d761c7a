// The row quantisers against ml_dtypes (hashes in tests/golden/quantize, whose inputs are generated here and in
// tools/make_quantize_goldens.py by one formula), against pack_weight, and against plain arithmetic in double.
#include "tensor/quantize_rows.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/file_map.h"
#include "base/json.h"
#include "base/rng.h"
#include "support/canary.h"
#include "tensor/dtype.h"
#include "tensor/quantize.h"

namespace ingot::tensor {
namespace {

using ingot::testing::Buffer;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr ScaleMode kModes[] = {ScaleMode::even, ScaleMode::floor, ScaleMode::ceil, ScaleMode::mse};

const Json& golden() {
  static const Json json = [] {
    const auto text = read_file(INGOT_SOURCE_DIR "/tests/golden/quantize/hashes.json", 1 << 20);
    return parse_json(text.value(), "hashes.json").value();
  }();
  return json;
}

uint64_t seed() { return golden()["seed"].get<uint64_t>(); }

ScaleMode mode_of(const std::string& name) {
  return name == "even" ? ScaleMode::even : name == "floor" ? ScaleMode::floor : name == "ceil" ? ScaleMode::ceil : ScaleMode::mse;
}

std::string hex(const std::vector<uint8_t>& bytes) { return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size())); }

// Elements at and below exponent field `base`: many ties, some zeros of both signs, some far smaller.
uint32_t near(uint64_t index, uint64_t base) {
  const uint64_t r = random_bits(seed(), index);
  const uint64_t drop = (r >> 32) % 8 + ((r >> 35) % 16 == 0 ? 20 : 0);
  const uint64_t exponent = base > drop ? base - drop : 0;
  const uint64_t mantissa = (r >> 40) % 2 == 0 ? r & 0x7fffff : r & 0x600000;
  const uint64_t bits = (r >> 43) % 32 == 0 ? 0 : exponent << 23 | mantissa;
  return static_cast<uint32_t>(bits | ((r >> 42) % 2) << 31);
}

uint32_t with_zero_blocks(uint32_t bits, uint64_t block_bits) { return (block_bits >> 32) % 64 == 0 ? bits & 0x80000000u : bits; }

// (blocks * 32) elements of an input set of the golden.
std::vector<float> make_blocks(const std::string& set, int64_t blocks) {
  constexpr uint64_t kEdges[8] = {0, 0x400000, 0x400001, 0x5fffff, 0x600000, 0x600001, 0x6147ae, 0x7fffff};
  std::vector<float> x(static_cast<size_t>(blocks * 32));
  for (uint64_t b = 0; b < static_cast<uint64_t>(blocks); ++b) {
    const uint64_t rb = random_bits(seed() + 1, b);
    for (uint64_t i = b * 32; i < b * 32 + 32; ++i) {
      uint32_t bits = 0;
      if (set == "any") {
        bits = static_cast<uint32_t>(random_bits(seed(), i));
      } else if (set == "blocks") {
        bits = with_zero_blocks(near(i, 1 + rb % 254), rb);
      } else if (set == "edges") {
        const uint64_t field = b / 8 % 255;
        bits = near(i, field > 0 ? field - 1 : 0);
        if (i % 32 == rb % 32) bits = static_cast<uint32_t>(field << 23 | kEdges[b % 8]) | (bits & 0x80000000u);
      } else {
        bits = near(i, 112 + rb % 12);
      }
      x[i] = std::bit_cast<float>(bits);
    }
  }
  return x;
}

std::vector<float> make_matrix(const std::string& set, int64_t rows, int64_t cols) {
  std::vector<float> x(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t r = i / static_cast<size_t>(cols), c = i % static_cast<size_t>(cols);
    const uint64_t rb = random_bits(seed() + 1, r / 128 * 1000 + c / 128);
    x[i] = std::bit_cast<float>(set == "blocks" ? with_zero_blocks(near(i, 1 + rb % 254), rb) : near(i, 112 + rb % 12));
  }
  return x;
}

std::vector<float> importance_of(int64_t blocks) {
  std::vector<float> w(static_cast<size_t>(blocks * 32));
  for (size_t i = 0; i < w.size(); ++i) {
    const uint64_t r = random_bits(seed() + 2, i);
    w[i] = r % 8 == 0 ? 0.0f : static_cast<float>(r >> 44);
  }
  return w;
}

std::vector<uint16_t> top_halves(const std::vector<float>& x) {
  std::vector<uint16_t> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(x[i]) >> 16);
  return out;
}

struct Mxfp4 {
  std::vector<uint8_t> codes, scales;
  bool operator==(const Mxfp4&) const = default;
};

Mxfp4 quantize(const std::vector<float>& x, ScaleMode mode, const float* importance = nullptr, QuantError* error = nullptr) {
  Mxfp4 out{std::vector<uint8_t>(x.size() / 2), std::vector<uint8_t>(x.size() / 32)};
  quantize_row_mxfp4(x.data(), static_cast<int64_t>(x.size()), mode, importance, out.codes.data(), out.scales.data(), error);
  return out;
}

Mxfp4 quantize(const std::vector<uint16_t>& x, ScaleMode mode, QuantError* error = nullptr) {
  Mxfp4 out{std::vector<uint8_t>(x.size() / 2), std::vector<uint8_t>(x.size() / 32)};
  quantize_row_mxfp4_bf16(x.data(), static_cast<int64_t>(x.size()), mode, out.codes.data(), out.scales.data(), error);
  return out;
}

template <typename T>
PackedWeight quantize_fp8(const std::vector<T>& x, int64_t rows, int64_t cols, QuantError* error = nullptr) {
  const int64_t blocks = (cols + 127) / 128;
  PackedWeight out{WeightFormat::fp8_block, rows, cols, std::vector<uint8_t>(x.size()), {}};
  std::vector<float> scales(static_cast<size_t>((rows + 127) / 128 * blocks));
  for (int64_t r = 0; r < rows; r += 128) {
    const int64_t n = std::min<int64_t>(128, rows - r);
    if constexpr (sizeof(T) == 4) {
      quantize_band_fp8(x.data() + r * cols, n, cols, out.data.data() + r * cols, scales.data() + r / 128 * blocks, error);
    } else {
      quantize_band_fp8_bf16(x.data() + r * cols, n, cols, out.data.data() + r * cols, scales.data() + r / 128 * blocks, error);
    }
  }
  out.scale.resize(scales.size() * 4);
  std::memcpy(out.scale.data(), scales.data(), out.scale.size());
  return out;
}

// Plain twins ------------------------------------------------------------------------------------------------------

double decoded(const Mxfp4& q, size_t i) {
  const uint8_t pair = q.codes[i / 2];
  return static_cast<double>(e2m1_to_f32(i % 2 == 0 ? pair & 15 : pair >> 4)) * std::ldexp(1.0, q.scales[i / 32] - 127);
}

// What scale byte `scale` costs 32 elements, in units of x: plain sums in double.
double plain_cost(const float* x, const float* importance, int scale) {
  double sum = 0;
  for (int i = 0; i < 32; ++i) {
    const double q = static_cast<double>(e2m1_to_f32(mxfp4_encode(x[i], static_cast<uint8_t>(scale)))) * std::ldexp(1.0, scale - 127);
    const double d = static_cast<double>(x[i]) - q;
    sum += d * d * (importance == nullptr ? 1.0 : static_cast<double>(importance[i]));
  }
  return sum;
}

int plain_scale(const float* x, ScaleMode mode) {
  double amax = 0;
  for (int i = 0; i < 32; ++i) {
    if (std::isnan(x[i])) return 255;
    amax = std::max(amax, std::fabs(static_cast<double>(x[i])));
  }
  if (std::isinf(amax)) amax = std::ldexp(1.0, 128);
  if (amax == 0) return 0;
  int exponent = std::ilogb(amax) - 2;
  if (mode == ScaleMode::ceil && amax > std::ldexp(6.0, exponent)) ++exponent;
  if (mode == ScaleMode::even && amax >= std::ldexp(7.0, exponent)) ++exponent;
  return std::clamp(exponent, -127, 127) + 127;
}

QuantError plain_error(const std::vector<float>& x, const Mxfp4& q) {
  QuantError e;
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = static_cast<double>(x[i]), d = v - decoded(q, i);
    e.add({v * v, d * d, static_cast<float>(std::fabs(d)), 1, std::fabs(v) > std::ldexp(6.0, q.scales[i / 32] - 127) ? 1 : 0,
           v != 0 && decoded(q, i) == 0 ? 1 : 0});
  }
  return e;
}

void expect_near(const QuantError& got, const QuantError& want, const std::string& what) {
  EXPECT_NEAR(got.signal / want.signal, 1, 1e-6) << what;
  EXPECT_NEAR(got.noise / want.noise, 1, 1e-6) << what;
  EXPECT_FLOAT_EQ(got.max_error, want.max_error) << what;
  EXPECT_EQ(got.elements, want.elements) << what;
  EXPECT_EQ(got.saturated, want.saturated) << what;
  EXPECT_EQ(got.zeroed, want.zeroed) << what;
}

QuantError error_of(const Json& e) {
  return {e["signal"].get<double>(),    e["noise"].get<double>(),      e["max_error"].get<float>(),
          e["elements"].get<int64_t>(), e["saturated"].get<int64_t>(), e["zeroed"].get<int64_t>()};
}

// MXFP4 ------------------------------------------------------------------------------------------------------------

TEST(QuantizeRows, every_mode_gives_the_bytes_of_ml_dtypes_on_ten_million_values) {
  ASSERT_GE(golden()["mxfp4"].size(), 25u);
  std::string set;
  std::vector<float> x, weights;
  std::vector<uint16_t> halves;
  for (const Json& e : golden()["mxfp4"]) {
    const auto blocks = e["blocks"].get<int64_t>();
    if (e["set"] != set || static_cast<int64_t>(x.size()) != blocks * 32) {
      set = e["set"].get<std::string>();
      x = make_blocks(set, blocks);
      halves = top_halves(x);
    }
    const bool weighted = e["weighted"].get<bool>();
    if (weighted) weights = importance_of(blocks);
    const ScaleMode mode = mode_of(e["mode"].get<std::string>());
    const Mxfp4 got = e["bf16"].get<bool>() ? quantize(halves, mode) : quantize(x, mode, weighted ? weights.data() : nullptr);
    EXPECT_EQ(hex(got.scales), e["scales"].get<std::string>()) << e;
    EXPECT_EQ(hex(got.codes), e["codes"].get<std::string>()) << e;
  }
}

TEST(QuantizeRows, even_is_pack_weight_bit_for_bit) {
  for (const char* set : {"any", "blocks", "edges"}) {
    const std::vector<float> x = make_blocks(set, 8160);
    const PackedWeight want = pack_weight(x, 1, static_cast<int64_t>(x.size()), WeightFormat::mxfp4);
    const Mxfp4 got = quantize(x, ScaleMode::even);
    EXPECT_EQ(got.codes, want.data) << set;
    EXPECT_EQ(got.scales, want.scale) << set;
  }
}

TEST(QuantizeRows, every_mode_is_the_plain_rule_and_the_plain_code) {
  for (const char* set : {"any", "blocks", "edges"}) {
    const std::vector<float> x = make_blocks(set, 8160);
    for (const ScaleMode mode : {ScaleMode::even, ScaleMode::floor, ScaleMode::ceil}) {
      const Mxfp4 got = quantize(x, mode);
      for (size_t b = 0; b < x.size() / 32; ++b) {
        ASSERT_EQ(got.scales[b], plain_scale(&x[b * 32], mode)) << set << " mode " << static_cast<int>(mode) << " block " << b;
        for (size_t i = b * 32; i < b * 32 + 32; ++i) {
          const int code = i % 2 == 0 ? got.codes[i / 2] & 15 : got.codes[i / 2] >> 4;
          ASSERT_EQ(code, mxfp4_encode(x[i], got.scales[b])) << set << " element " << i << " = " << x[i];
        }
      }
    }
  }
}

TEST(QuantizeRows, the_specs_check_values) {
  const std::tuple<float, int, float> checks[] = {
      {6.0f, 127, 6.0f}, {1.74f, 125, 1.5f}, {1.75f, 126, 2.0f}, {7.0f, 128, 8.0f}, {0.0f, 0, 0.0f}};
  for (const auto& [amax, scale, value] : checks) {
    std::vector<float> x(32);
    x[5] = -amax;
    const Mxfp4 got = quantize(x, ScaleMode::even);
    EXPECT_EQ(got.scales[0], scale) << amax;
    EXPECT_EQ(decoded(got, 5), -value) << amax;
    EXPECT_EQ(got.codes[2] >> 4 & 8, amax == 0 ? 0 : 8) << "what rounds to zero has no sign";
  }
}

TEST(QuantizeRows, ties_go_to_the_even_code_in_every_place_of_the_block) {
  const std::pair<float, float> ties[] = {{0.25f, 0}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2}, {2.5f, 2}, {3.5f, 4}, {5.0f, 4}};
  for (size_t place = 0; place < 32; ++place) {
    for (const auto& [tie, want] : ties) {
      std::vector<float> x(32);
      x[(place + 1) % 32] = 6;
      x[place] = tie;
      const Mxfp4 got = quantize(x, ScaleMode::even);
      EXPECT_EQ(decoded(got, place), want) << tie << " at " << place;
      EXPECT_EQ(decoded(got, (place + 1) % 32), 6) << place;
    }
  }
}

TEST(QuantizeRows, ceil_never_saturates_and_is_the_smallest_scale_that_does_not) {
  const std::vector<float> x = make_blocks("blocks", 20000);
  QuantError error;
  const Mxfp4 got = quantize(x, ScaleMode::ceil, nullptr, &error);
  EXPECT_EQ(error.saturated, 0);
  for (size_t b = 0; b < got.scales.size(); ++b) {
    if (got.scales[b] == 0) continue;
    double amax = 0;
    for (size_t i = b * 32; i < b * 32 + 32; ++i) amax = std::max(amax, std::fabs(static_cast<double>(x[i])));
    ASSERT_GT(amax, std::ldexp(6.0, got.scales[b] - 128)) << "half the scale would have been enough for block " << b;
  }
}

TEST(QuantizeRows, mse_takes_the_least_error_of_its_candidates_and_is_never_worse_than_even) {
  const std::vector<float> x = make_blocks("weights", 8000), weights = importance_of(8000);
  int moved[4] = {};  // blocks whose scale lies -2, -1, 0, +1 from even's
  for (const float* importance : {static_cast<const float*>(nullptr), weights.data()}) {
    const Mxfp4 even = quantize(x, ScaleMode::even), mse = quantize(x, ScaleMode::mse, importance);
    for (size_t b = 0; b < mse.scales.size(); ++b) {
      const float* w = importance == nullptr ? nullptr : importance + b * 32;
      const double chosen = plain_cost(&x[b * 32], w, mse.scales[b]);
      for (int step = -2; step <= 1; ++step) {
        const double other = plain_cost(&x[b * 32], w, even.scales[b] + step);
        ASSERT_LE(chosen, other * (1 + 1e-12)) << "block " << b << " step " << step;
      }
      ASSERT_GE(mse.scales[b], even.scales[b] - 2);
      ASSERT_LE(mse.scales[b], even.scales[b] + 1);
      ++moved[mse.scales[b] - even.scales[b] + 2];
    }
  }
  EXPECT_GT(moved[0], 10) << "only unequal weights can ask for it";
  EXPECT_GT(moved[1], 100);
  EXPECT_GT(moved[2], 100);
  EXPECT_EQ(moved[3], 0) << "even + 1 can only tie";
}

TEST(QuantizeRows, mse_ties_stay_with_even) {
  // 1.5 and zeros are exact in three of the four candidates' grids; even's must stay.
  std::vector<float> x(32);
  x[3] = 1.5f;
  EXPECT_EQ(quantize(x, ScaleMode::mse).scales, quantize(x, ScaleMode::even).scales);
  EXPECT_EQ(quantize(std::vector<float>(32), ScaleMode::mse).scales[0], 0);
  // No weight anywhere: every candidate costs nothing.
  const std::vector<float> none(32);
  x[4] = 1.3f;
  EXPECT_EQ(quantize(x, ScaleMode::mse, none.data()).scales, quantize(x, ScaleMode::even).scales);
}

TEST(QuantizeRows, importance_decides_between_the_outlier_and_the_rest) {
  std::vector<float> x(32, 0.19f);
  x[0] = 1.74f;
  std::vector<float> outlier(32), rest(32, 1.0f);
  outlier[0] = 1;
  rest[0] = 0;
  const Mxfp4 for_outlier = quantize(x, ScaleMode::mse, outlier.data()), for_rest = quantize(x, ScaleMode::mse, rest.data());
  EXPECT_LT(std::fabs(decoded(for_outlier, 0) - 1.74), std::fabs(decoded(for_rest, 0) - 1.74));
  EXPECT_LT(std::fabs(decoded(for_rest, 7) - 0.19), std::fabs(decoded(for_outlier, 7) - 0.19));
}

TEST(QuantizeRows, bf16_rows_give_the_bytes_and_the_error_of_their_f32_values) {
  for (const ScaleMode mode : kModes) {
    const std::vector<uint16_t> halves = top_halves(make_blocks("weights", 500));
    std::vector<float> x;
    for (const uint16_t h : halves) x.push_back(bf16_to_f32(h));
    QuantError a, b;
    EXPECT_EQ(quantize(halves, mode, &a), quantize(x, mode, nullptr, &b));
    EXPECT_EQ(quantize(halves, mode), quantize(x, mode)) << "without the error, the same bytes";
    EXPECT_EQ(a.noise, b.noise);
    EXPECT_EQ(a.signal, b.signal);
    EXPECT_EQ(a.zeroed, b.zeroed);
  }
}

TEST(QuantizeRows, the_mxfp4_error_is_that_of_numpy_and_of_plain_sums) {
  ASSERT_EQ(golden()["mxfp4_errors"].size(), 4u);
  for (const Json& e : golden()["mxfp4_errors"]) {
    const std::vector<float> x = make_blocks("weights", e["blocks"].get<int64_t>());
    QuantError got;
    const Mxfp4 q = quantize(x, mode_of(e["mode"].get<std::string>()), nullptr, &got);
    expect_near(got, error_of(e), e.dump());
    expect_near(got, plain_error(x, q), "plain " + e.dump());
    EXPECT_NEAR(got.sqnr_db(), 10 * std::log10(got.signal / got.noise), 1e-12);
  }
  EXPECT_GT(golden()["mxfp4_errors"][0]["saturated"].get<int64_t>(), 0);
  EXPECT_GT(golden()["mxfp4_errors"][0]["zeroed"].get<int64_t>(), 0);
}

// Squares of 1e-30 vanish in f32 and those of 1e30 overflow: the sums must not.
TEST(QuantizeRows, the_error_holds_at_both_ends_of_the_range) {
  for (const float size : {1e-42f, 1e-36f, 1e-30f, 1.0f, 1e30f, 1e38f}) {
    Rng rng(11);
    std::vector<float> x(320);
    for (float& v : x) v = size * rng.uniform_float(-3, 3);
    for (const ScaleMode mode : kModes) {
      QuantError got;
      const Mxfp4 q = quantize(x, mode, nullptr, &got);
      expect_near(got, plain_error(x, q), fmt::format("size {} mode {}", size, static_cast<int>(mode)));
    }
    QuantError got;
    const PackedWeight q = quantize_fp8(x, 10, 32, &got);
    const std::vector<float> back = dequantize(q.view());
    double noise = 0;
    for (size_t i = 0; i < x.size(); ++i) noise += std::pow(static_cast<double>(x[i]) - static_cast<double>(back[i]), 2);
    EXPECT_NEAR(got.noise / noise, 1, 1e-6) << size;
  }
}

TEST(QuantizeRows, errors_add_up_and_nothing_lost_is_infinite) {
  const std::vector<float> x = make_blocks("weights", 100);
  QuantError whole, parts;
  quantize(x, ScaleMode::even, nullptr, &whole);
  quantize(std::vector<float>(x.begin(), x.begin() + 640), ScaleMode::even, nullptr, &parts);
  quantize(std::vector<float>(x.begin() + 640, x.end()), ScaleMode::even, nullptr, &parts);
  expect_near(parts, whole, "parts");
  QuantError exact;
  quantize(std::vector<float>(32, 1.5f), ScaleMode::even, nullptr, &exact);
  EXPECT_EQ(exact.sqnr_db(), kInf);
  EXPECT_EQ(exact.signal, 72.0);
  EXPECT_EQ(exact.elements, 32);
}

TEST(QuantizeRows, nan_makes_the_scale_nan_and_infinity_saturates) {
  for (const ScaleMode mode : kModes) {
    for (size_t place = 0; place < 32; ++place) {
      std::vector<float> x(64, 1.0f);
      x[place] = -kNan;
      x[63] = -kInf;
      const Mxfp4 got = quantize(x, mode);
      EXPECT_EQ(got.scales[0], 255) << place;
      EXPECT_EQ((place % 2 == 0 ? got.codes[place / 2] & 15 : got.codes[place / 2] >> 4), mxfp4_encode(x[place], 255)) << place;
      EXPECT_EQ(got.scales[1], 253) << place;
      EXPECT_EQ(got.codes[31], 0xf0) << place;
    }
  }
}

TEST(QuantizeRows, nothing_is_written_or_read_beyond_the_row) {
  const int64_t cols = 96;
  Buffer<float> x(make_blocks("weights", 3));
  Buffer<uint16_t> halves(top_halves(x.contents()));
  for (const ScaleMode mode : kModes) {
    Buffer<uint8_t> codes(cols / 2), scales(cols / 32);
    QuantError error;
    quantize_row_mxfp4(x.data(), cols, mode, x.data(), codes.data(), scales.data(), &error);
    quantize_row_mxfp4_bf16(halves.data(), cols, mode, codes.data(), scales.data(), &error);
    EXPECT_TRUE(codes.canaries_alive());
    EXPECT_TRUE(scales.canaries_alive());
  }
  Buffer<uint8_t> out(2 * 45);
  Buffer<float> scales(1);
  quantize_band_fp8(x.data(), 2, 45, out.data(), scales.data(), nullptr);
  quantize_band_fp8_bf16(halves.data(), 2, 45, out.data(), scales.data(), nullptr);
  EXPECT_TRUE(out.canaries_alive());
  EXPECT_TRUE(scales.canaries_alive());
}

// FP8 --------------------------------------------------------------------------------------------------------------

TEST(QuantizeBand, fp8_blocks_give_the_bytes_of_ml_dtypes_and_the_errors_of_numpy) {
  ASSERT_GE(golden()["fp8"].size(), 12u);
  int errors = 0;
  for (const Json& e : golden()["fp8"]) {
    const auto rows = e["rows"].get<int64_t>(), cols = e["cols"].get<int64_t>();
    const std::vector<float> x = make_matrix(e["set"].get<std::string>(), rows, cols);
    QuantError error;
    const bool bf16 = e["bf16"].get<bool>();
    const PackedWeight got = bf16 ? quantize_fp8(top_halves(x), rows, cols) : quantize_fp8(x, rows, cols);
    const PackedWeight same = bf16 ? quantize_fp8(top_halves(x), rows, cols, &error) : quantize_fp8(x, rows, cols, &error);
    EXPECT_EQ(hex(got.scale), e["scales"].get<std::string>()) << e;
    EXPECT_EQ(hex(got.data), e["codes"].get<std::string>()) << e;
    EXPECT_TRUE(got.data == same.data && got.scale == same.scale) << "with the error, other bytes: " << e;
    if (e.contains("error")) {
      ++errors;
      expect_near(error, error_of(e["error"]), e.dump());
    }
  }
  EXPECT_EQ(errors, 2);
}

TEST(QuantizeBand, fp8_is_pack_weight_bit_for_bit) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{576, 300}, {1, 1}, {129, 257}, {128, 128}, {3, 31}}) {
    const std::vector<float> x = make_matrix("weights", rows, cols);
    const PackedWeight want = pack_weight(x, rows, cols, WeightFormat::fp8_block);
    const PackedWeight got = quantize_fp8(x, rows, cols);
    EXPECT_EQ(got.data, want.data) << rows << " x " << cols;
    EXPECT_EQ(got.scale, want.scale) << rows << " x " << cols;
  }
}

// A block whose amax / 448 is zero in f32 would divide by zero and store NaN for its zeros.
TEST(QuantizeBand, a_block_too_small_for_a_scale_becomes_zero_not_nan) {
  std::vector<float> x(128, 0.0f);
  x[3] = std::ldexp(1.0f, -149);
  QuantError error;
  const PackedWeight got = quantize_fp8(x, 1, 128, &error);
  EXPECT_EQ(got.data, std::vector<uint8_t>(128, 0));
  EXPECT_EQ(dequantize(got.view()), std::vector<float>(128, 0.0f));
  EXPECT_EQ(error.zeroed, 1);
  EXPECT_EQ(error.saturated, 0);
}

// A subnormal scale is coarse: 448 of them may fall short of the block's largest value.
TEST(QuantizeBand, fp8_saturation_is_counted_where_the_scale_is_too_coarse) {
  std::vector<float> x(128, 0.0f);
  x[3] = std::ldexp(448 * 1.4f, -149);
  QuantError error;
  const PackedWeight got = quantize_fp8(x, 1, 128, &error);
  EXPECT_EQ(got.data[3], 0x7e);
  EXPECT_EQ(error.saturated, 1);
}

TEST(QuantizeBand, fp8_of_nan_is_nan_and_leaves_the_block_alone) {
  for (size_t place = 0; place < 40; ++place) {
    std::vector<float> x(40, 448.0f);
    x[place] = kNan;
    const PackedWeight want = pack_weight(x, 1, 40, WeightFormat::fp8_block), got = quantize_fp8(x, 1, 40);
    EXPECT_EQ(got.data, want.data) << place;
    EXPECT_EQ(got.scale, want.scale) << place;
    EXPECT_EQ(got.data[place], 0x7f);
  }
  std::vector<float> x(40, 1.0f);
  x[9] = -kInf;
  EXPECT_EQ(quantize_fp8(x, 1, 40).data, pack_weight(x, 1, 40, WeightFormat::fp8_block).data);
}

TEST(FirstNonFinite, names_the_first_at_every_place) {
  for (const int64_t count : {0, 1, 31, 32, 33, 100}) {
    std::vector<float> x(static_cast<size_t>(count), std::numeric_limits<float>::max());
    for (size_t i = 0; i < x.size(); i += 2) x[i] = -x[i];
    std::vector<uint16_t> halves(x.size(), 0xff7f);
    EXPECT_EQ(first_non_finite(x.data(), count), -1);
    EXPECT_EQ(first_non_finite_bf16(halves.data(), count), -1);
    for (int64_t i = count - 1; i >= 0; --i) {  // backwards: the later offenders stay
      x[static_cast<size_t>(i)] = i % 3 == 0 ? kNan : i % 3 == 1 ? kInf : -kInf;
      halves[static_cast<size_t>(i)] = i % 3 == 0 ? 0xffc1 : i % 3 == 1 ? 0x7f80 : 0xff80;
      EXPECT_EQ(first_non_finite(x.data(), count), i);
      EXPECT_EQ(first_non_finite_bf16(halves.data(), count), i);
    }
  }
}

}  // namespace
}  // namespace ingot::tensor
