// The H200's native kernels for products with weights, through ops.h: odd shapes against sums in double, the same bits in every company,
// and that they are what runs. The others are in native_sm90_attention_test.cc. On the GPU alone (--device).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "kernels/native/sm90/stream_matmul.h"
#include "kernels/native/sm90/wide_matmul.h"
#include "kernels/ops.h"
#include "kernels/ref/combine.h"
#include "kernels/ref/grouped_matmul.h"
#include "kernels/ref/matmul.h"
#include "kernels/ref/matmul_transposed.h"
#include "kernels/ref/permute.h"
#include "support/compare.h"
#include "support/inputs.h"
#include "support/machines.h"
#include "support/native_kernels.h"

namespace ingot::kernels {
namespace {

using namespace ingot::testing;
using tensor::WeightFormat;

constexpr WeightFormat kFormats[] = {WeightFormat::bf16, WeightFormat::fp8_block, WeightFormat::mxfp4};
const std::vector<std::string> kStream{"sm90 stream"}, kWide{"sm90 wide"};

// Operands are exact in bf16, so what is left is how the matrix units add: with some bits less than f32 has, and cutting instead of
// rounding, at each of the up to 400 steps of a sum.
constexpr Tolerance kSum{4e-5, 1e-9};
// The errors of gate and up together; the gate's is stretched by the slope of silu, at most 1.1.
constexpr Tolerance kGated{8e-5, 2e-9};
// Half a step of bf16, at most 2^-8 of a number, beside which the sums' own errors are small.
constexpr Tolerance kRounded{4.1e-3, 3e-6};
// A few roundings of f32.
constexpr Tolerance kFewTerms{1e-6, 1e-11};

// What a product writes to: numbers to add to, or NaNs.
std::vector<float> output_rows(Rng& rng, int64_t count, bool accumulate) {
  if (accumulate) return random_floats(rng, count);
  return std::vector<float>(static_cast<size_t>(count), std::numeric_limits<float>::quiet_NaN());
}

std::vector<uint8_t> first_bytes(const std::vector<uint8_t>& bytes, int64_t count) { return {bytes.begin(), bytes.begin() + count}; }

// ---- dense products

void expect_matmul(const MatmulParams& p, Buffer<float>& y, const std::vector<std::string>& kernels) {
  const std::vector<double> expected = ref::matmul(p);
  run_native(
      kernels, [&](gpu::Stream& stream) { matmul(stream, p); }, y);
  EXPECT_TRUE(all_close(expected, strided(y, p.rows, p.y_stride, p.w.rows), kSum)) << p.rows << " " << p.w.rows << " " << p.w.cols;
  EXPECT_TRUE(gaps_untouched(y, p.y_stride, p.w.rows));
}

TEST_F(OnSm90, StreamMatmulOfOddShapes) {
  struct Shape {
    int64_t m, n, k;
  };
  for (const WeightFormat format : kFormats) {
    SeededRng rng(1);
    for (const Shape s : {Shape{0, 5, 64},
                          {1, 1, 64},
                          {1, 67, 96},
                          {6, 131, 2048},
                          {6, 259, 80},
                          {9, 67, 96},
                          {9, 33, 6400},
                          {65, 35, 2048},
                          {65, 130, 224},
                          {512, 9, 2048},
                          {512, 67, 64}}) {
      if (format == WeightFormat::mxfp4 && s.k % 32 != 0) continue;
      for (const bool accumulate : {false, true}) {
        const int64_t gap = accumulate ? 3 : 0;  // rows of x that are aligned, and some that are not
        const auto w = random_weight(rng, format, s.n, s.k, 100);
        Buffer<float> x(input_rows(rng, s.m, s.k, s.k + gap)), y(output_rows(rng, s.m * (s.n + 2), accumulate));
        expect_matmul({y.data(), s.n + 2, x.data(), s.k + gap, w->view, s.m, accumulate}, y, kStream);
        EXPECT_TRUE(x.unchanged() && w->data.unchanged() && w->scale.unchanged());
      }
    }
  }
}

// A shape for which clusters share what they read: tiles enough for few slices of a long sum.
constexpr int64_t kTeamN = 2131, kTeamK = 4096;

bool is_team(const WeightView& w, int64_t rows) {
  sm90::StreamDenseParams p = {};
  p.outputs[0].w = w;
  p.count = 1;
  p.rows = rows;
  p.plan();
  return p.many();
}

TEST_F(OnSm90, StreamMatmulOfTeams) {
  for (const WeightFormat format : kFormats) {
    SeededRng rng(2);
    const auto w = random_weight(rng, format, kTeamN, kTeamK, 100);
    for (const int64_t m : {9, 65, 130}) {
      ASSERT_TRUE(is_team(w->view, m));
      Buffer<float> x(input_rows(rng, m, kTeamK, kTeamK + 1)), y(m * (kTeamN + 2));
      const MatmulParams p{y.data(), kTeamN + 2, x.data(), kTeamK + 1, w->view, m, false};
      run_native(
          kStream, [&](gpu::Stream& stream) { matmul(stream, p); }, y);
      EXPECT_TRUE(gaps_untouched(y, kTeamN + 2, kTeamN));
      // Some columns only: all would take the reference long.
      for (const int64_t begin : {int64_t{0}, int64_t{1045}, kTeamN - 9}) {
        MatmulParams part = p;
        part.y += begin;
        part.w = p.w.row_slice(begin, 9);
        std::vector<double> actual;
        for (int64_t r = 0; r < m; ++r) {
          for (int64_t i = 0; i < 9; ++i) actual.push_back(static_cast<double>(y[r * (kTeamN + 2) + begin + i]));
        }
        EXPECT_TRUE(all_close(ref::matmul(part), actual, kSum)) << m << ", columns from " << begin;
      }
      for (int64_t i = 0; i < y.size(); ++i)
        ASSERT_TRUE(i % (kTeamN + 2) >= kTeamN || std::isfinite(y[i])) << "element " << i << " was not written";
    }
  }
}

// Up to four products of one x are one launch; another x or another format ends it.
TEST_F(OnSm90, SeveralProductsInOneCall) {
  for (const WeightFormat format : kFormats) {
    SeededRng rng(3);
    const int64_t m = 7, k = 224;
    const WeightFormat other = format == WeightFormat::bf16 ? WeightFormat::mxfp4 : WeightFormat::bf16;
    Buffer<float> x(input_rows(rng, m, k, k)), second_x(input_rows(rng, m, k, k + 2));
    std::vector<std::unique_ptr<OwnedWeight>> weights;
    std::vector<std::unique_ptr<Buffer<float>>> outputs;
    std::vector<MatmulParams> products;
    const auto add = [&](WeightFormat of, int64_t n, int64_t first_row, const Buffer<float>& input, int64_t x_stride) {
      const WeightView w = weights.emplace_back(random_weight(rng, of, n, k, first_row))->view;
      float* y = outputs.emplace_back(std::make_unique<Buffer<float>>(m * (n + 3)))->data();
      products.push_back({y, n + 3, input.data(), x_stride, w, m, false});
    };
    add(format, 5, 0, x, k);
    add(format, 67, 130, x, k);
    add(format, 128, 0, x, k);
    add(format, 33, 77, x, k);
    add(format, 19, 0, x, k);
    add(format, 40, 0, second_x, k + 2);
    add(other, 21, 0, second_x, k + 2);
    run_native(
        {"sm90 stream", "sm90 stream", "sm90 stream", "sm90 stream"},
        [&](gpu::Stream& stream) { matmul(stream, std::span<const MatmulParams>(products)); }, *outputs[0], *outputs[1], *outputs[2],
        *outputs[3], *outputs[4], *outputs[5], *outputs[6]);
    for (size_t i = 0; i < products.size(); ++i) {
      const MatmulParams& p = products[i];
      EXPECT_TRUE(all_close(ref::matmul(p), strided(*outputs[i], m, p.y_stride, p.w.rows), kSum)) << "product " << i;
      EXPECT_TRUE(gaps_untouched(*outputs[i], p.y_stride, p.w.rows)) << "product " << i;
    }
  }
}

// Batch invariance of steps that decode or verify: how many rows there are, and a row's place among them, change no bit.
TEST_F(OnSm90, ARowOfAStreamMatmulHasItsBitsInEveryCompany) {
  for (const WeightFormat format : kFormats) {
    SeededRng rng(4);
    struct Size {
      int64_t n, k;
    };
    for (const Size s : {Size{37, 2048}, {130, 96}, {kTeamN, kTeamK}}) {
      const int64_t all = 384, n = s.n, k = s.k;
      const auto w = random_weight(rng, format, n, k, 100);
      const Buffer<float> x(input_rows(rng, all, k, k));
      const auto product = [&](int64_t first, int64_t rows) {
        Buffer<float> y(rows * n);
        const MatmulParams p{y.data(), n, x.data() + first * k, k, w->view, rows, false};
        run_native(
            kStream, [&](gpu::Stream& stream) { matmul(stream, p); }, y);
        return all_bytes(y);
      };
      const std::vector<uint8_t> together = product(0, all);
      for (const int64_t rows : {1, 2, 7, 8, 9, 64, 65}) EXPECT_EQ(product(0, rows), first_bytes(together, rows * n * 4)) << rows;
      for (const int64_t row : {5, 70, 383}) {
        const std::vector<uint8_t> here(together.begin() + row * n * 4, together.begin() + (row + 1) * n * 4);
        EXPECT_EQ(product(row, 1), here) << "row " << row << " of " << n << " x " << k;
      }
    }
  }
}

// ---- products of many rows

TEST_F(OnSm90, RoundedRowsLieInTheWideOrder) {
  SeededRng rng(5);
  for (const int64_t cols : {1, 96, 128, 200, 2048}) {
    const int64_t rows = 5, stride = cols + 3, wide = wide_cols(cols);
    std::vector<float> numbers = random_floats(rng, rows * stride, -3.0f, 3.0f);
    numbers[0] = 0x1.01p0f;                              // halfway between two numbers of bf16: to the even one
    numbers[static_cast<size_t>(stride)] = 0x1.03p0f;    // the same, upwards
    numbers[static_cast<size_t>(2 * stride)] = 3.4e38f;  // past the greatest
    const Buffer<float> x(numbers);
    Buffer<uint16_t> out(rows * wide);
    run_native(
        {"sm90"}, [&](gpu::Stream& stream) { round_rows(stream, out.data(), x.data(), stride, rows, cols); }, out);
    for (int64_t i = 0; i < rows * wide; ++i) {
      const int64_t row = i / wide, col = i % wide;
      const int64_t place = row * wide + col / 128 * 128 + sm90::wide_position(static_cast<int>(col % 128));
      ASSERT_EQ(out[place], col < cols ? gpu::to_bf16(x[row * stride + col]) : 0) << "row " << row << ", column " << col << " of " << cols;
    }
  }
}

// x in the order that kernels for many rows read.
void make_wide(Buffer<uint16_t>& out, const Buffer<float>& x, int64_t stride, int64_t rows, int64_t cols) {
  run_native(
      {"sm90"}, [&](gpu::Stream& stream) { round_rows(stream, out.data(), x.data(), stride, rows, cols); }, out);
}

TEST_F(OnSm90, WideMatmulOfOddShapes) {
  struct Shape {
    int64_t m, n, k;
  };
  for (const WeightFormat format : kFormats) {
    SeededRng rng(6);
    for (const Shape s : {Shape{513, 131, 96}, {700, 67, 224}, {513, 9, 2048}, {700, 1, 64}, {700, 400, 32}}) {
      const auto w = random_weight(rng, format, s.n, s.k, 100);
      Buffer<float> x(input_rows(rng, s.m, s.k, s.k + 1));
      Buffer<uint16_t> x_wide(s.m * wide_cols(s.k));
      make_wide(x_wide, x, s.k + 1, s.m, s.k);
      for (const bool accumulate : {false, true}) {
        Buffer<float> y(output_rows(rng, s.m * (s.n + 2), accumulate));
        MatmulParams p{y.data(), s.n + 2, x.data(), s.k + 1, w->view, s.m, accumulate};
        p.x_wide = x_wide.data();
        p.x_wide_stride = wide_cols(s.k);
        const gpu::Stream stream{nullptr, device_under_test, gpu::DeviceMatmul::fast};
        EXPECT_TRUE(is_wide(stream, p.w, s.m));
        EXPECT_FALSE(is_wide(stream, p.w, gpu::kMaxStreamRows));
        expect_matmul(p, y, kWide);
      }
      EXPECT_TRUE(w->data.unchanged() && w->scale.unchanged());
    }
  }
}

// ---- experts

// Weights of experts as parts of one tensor, so those in FP8 begin within a block of scales.
struct ExpertWeights {
  std::unique_ptr<OwnedWeight> owned;
  std::vector<WeightView> host;
  Buffer<WeightView> views;

  ExpertWeights(Rng& rng, WeightFormat format, int64_t experts, int64_t n, int64_t k)
      : owned(random_weight(rng, format, experts * n, k, 100)), host(slices(owned->view, experts, n)), views(host) {}

 private:
  static std::vector<WeightView> slices(const WeightView& all, int64_t experts, int64_t n) {
    std::vector<WeightView> out;
    for (int64_t e = 0; e < experts; ++e) out.push_back(all.row_slice(e * n, n));
    return out;
  }
};

// Nobody chose expert 0, every token chose expert 1, and the other slots any of the rest.
std::vector<int32_t> crowded_choices(Rng& rng, int64_t tokens, int64_t slots, int64_t experts) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < tokens * slots; ++i)
    out.push_back(i % slots == 0 ? 1 : static_cast<int32_t>(2 + rng.below(static_cast<uint64_t>(experts - 2))));
  return out;
}

// Rows sorted by expert.
struct Routing {
  ref::PermuteOutput sorted;
  Buffer<int32_t> order, inverse, offsets;

  Routing(const std::vector<int32_t>& choices, int64_t slots, int64_t experts)
      : sorted(ref::permute({nullptr, nullptr, nullptr, choices.data(), static_cast<int64_t>(choices.size()) / slots, experts, slots})),
        order(sorted.order),
        inverse(sorted.inverse),
        offsets(sorted.offsets) {}
};

// silu(x gate^T) * (x up^T)
std::vector<double> gated_reference(const GatedMatmulParams& p) {
  GroupedMatmulParams gate = p;
  gate.weights = p.gates;
  const std::vector<double> gates = ref::grouped_matmul(gate);
  std::vector<double> out = ref::grouped_matmul(p);
  for (size_t i = 0; i < out.size(); ++i) out[i] *= gates[i] / (1.0 + std::exp(-gates[i]));
  return out;
}

TEST_F(OnSm90, ExpertsOfFewRows) {
  const int64_t slots = 3, n = 70, k = 160;
  for (const WeightFormat format : kFormats) {
    SeededRng rng(7);
    for (const int64_t experts : {5, 48}) {
      const ExpertWeights up(rng, format, experts, n, k), gate(rng, format, experts, n, k);
      for (const int64_t tokens : {0, 1, 6, 40, 150}) {
        const Routing routing(crowded_choices(rng, tokens, slots, experts), slots, experts);
        const int64_t rows = tokens * slots;
        Buffer<float> x(input_rows(rng, rows, k, k + 1)), y(rows * (n + 3)), scratch(rows * (n + 3));
        GroupedMatmulParams p{y.data(),        n + 3, x.data(), k + 1, routing.order.data(), slots, routing.offsets.data(),
                              up.views.data(), rows,  experts,  n,     up.host.data()};
        const auto run_grouped = [&] {
          run_native(
              kStream, [&](gpu::Stream& stream) { grouped_matmul(stream, p); }, y);
          EXPECT_TRUE(all_close(ref::grouped_matmul(p), strided(y, rows, n + 3, n), kSum)) << tokens << " tokens, " << experts;
          EXPECT_TRUE(gaps_untouched(y, n + 3, n));
        };
        run_grouped();
        const GatedMatmulParams gated{p, gate.views.data(), gate.host.data(), scratch.data()};
        run_native(
            kStream, [&](gpu::Stream& stream) { gated_matmul(stream, gated); }, y);
        EXPECT_TRUE(all_close(gated_reference(gated), strided(y, rows, n + 3, n), kGated)) << tokens << " tokens, " << experts;
        EXPECT_TRUE(gaps_untouched(y, n + 3, n));
        // As the down product is: a row of x for each of y.
        p.order = nullptr;
        p.rows_per_source = 1;
        run_grouped();
      }
    }
  }
}

TEST_F(OnSm90, ATokenOfExpertsHasItsBitsInEveryCompany) {
  const int64_t slots = 3, experts = 7, n = 70, k = 1024, all = 150;
  for (const WeightFormat format : kFormats) {
    SeededRng rng(8);
    const ExpertWeights up(rng, format, experts, n, k), gate(rng, format, experts, n, k);
    const std::vector<int32_t> choices = crowded_choices(rng, all, slots, experts);
    const Buffer<float> x(input_rows(rng, all, k, k));
    // The rows of y in the order of tokens and slots: of the gated product, then of the up product alone.
    const auto products = [&](int64_t tokens) {
      const Routing routing({choices.begin(), choices.begin() + tokens * slots}, slots, experts);
      const int64_t rows = tokens * slots;
      Buffer<float> y(rows * n), plain(rows * n), scratch(rows * n);
      const GroupedMatmulParams p{plain.data(),    n,    x.data(), k, routing.order.data(), slots, routing.offsets.data(),
                                  up.views.data(), rows, experts,  n, up.host.data()};
      GatedMatmulParams gated{p, gate.views.data(), gate.host.data(), scratch.data()};
      gated.y = y.data();
      run_native(
          {"sm90 stream", "sm90 stream"},
          [&](gpu::Stream& stream) {
            grouped_matmul(stream, p);
            gated_matmul(stream, gated);
          },
          y, plain);
      std::pair<std::vector<uint32_t>, std::vector<uint32_t>> out;
      for (const int32_t row : routing.sorted.inverse) {
        for (int64_t i = 0; i < n; ++i) {
          out.first.push_back(gpu::float_bits(y[row * n + i]));
          out.second.push_back(gpu::float_bits(plain[row * n + i]));
        }
      }
      return out;
    };
    const auto together = products(all);
    for (const int64_t tokens : {1, 2, 7, 8, 9, 64}) {
      const auto some = products(tokens);
      const auto count = tokens * slots * n;
      EXPECT_EQ(some.first, std::vector<uint32_t>(together.first.begin(), together.first.begin() + count)) << "gated, " << tokens;
      EXPECT_EQ(some.second, std::vector<uint32_t>(together.second.begin(), together.second.begin() + count)) << "plain, " << tokens;
    }
  }
}

// Columns [begin, begin + count) of experts' weights.
std::vector<WeightView> columns(const std::vector<WeightView>& weights, int64_t begin, int64_t count) {
  std::vector<WeightView> out;
  for (const WeightView& w : weights) out.push_back(w.row_slice(begin, count));
  return out;
}

// A gated product of many rows, which gives bf16 in the wide order.
struct WideGated {
  static constexpr int64_t kTokens = 520, kSlots = 3, kRows = kTokens * kSlots;
  int64_t experts, n, k, stride;  // stride: of y_wide
  ExpertWeights up, gate;
  Routing routing;
  Buffer<float> x, y;
  Buffer<uint16_t> x_wide, y_wide;
  GatedMatmulParams p;

  WideGated(Rng& rng, WeightFormat format, int64_t num_experts, int64_t num_columns, int64_t num_inputs)
      : experts(num_experts),
        n(num_columns),
        k(num_inputs),
        stride(wide_cols(n) + 8),
        up(rng, format, experts, n, k),
        gate(rng, format, experts, n, k),
        routing(crowded_choices(rng, kTokens, kSlots, experts), kSlots, experts),
        x(input_rows(rng, kTokens, k, k + 1)),
        y(kRows * n),
        x_wide(kTokens * wide_cols(k)),
        y_wide(kRows * stride),
        p{{y.data(), n, x.data(), k + 1, routing.order.data(), kSlots, routing.offsets.data(), up.views.data(), kRows, experts, n,
           up.host.data(), x_wide.data(), wide_cols(k)},
          gate.views.data(),
          gate.host.data(),
          nullptr,
          y_wide.data(),
          stride} {}

  void run() {
    make_wide(x_wide, x, k + 1, kTokens, k);
    const gpu::Stream asked{nullptr, device_under_test, gpu::DeviceMatmul::fast};
    EXPECT_TRUE(gives_wide(asked, p));
    run_native(
        kWide, [&](gpu::Stream& stream) { gated_matmul(stream, p); }, y_wide, y);
    EXPECT_TRUE(y.unchanged());
    EXPECT_TRUE(gaps_untouched(y_wide, stride, wide_cols(n)));
  }
  std::vector<float> results() const {  // (kRows, n)
    std::vector<float> out;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < n; ++i) out.push_back(result(r, i));
    }
    return out;
  }
  float result(int64_t row, int64_t column) const {
    return gpu::bf16_value(y_wide[row * stride + column / 128 * 128 + sm90::wide_position(static_cast<int>(column % 128))]);
  }
  // Compares columns [begin, begin + count) with the reference.
  void expect_columns(int64_t begin, int64_t count) const {
    const std::vector<WeightView> ups = columns(up.host, begin, count), gates = columns(gate.host, begin, count);
    GatedMatmulParams part = p;
    part.weights = ups.data();
    part.gates = gates.data();
    part.n = count;
    std::vector<double> actual;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t i = begin; i < begin + count; ++i) actual.push_back(static_cast<double>(result(r, i)));
    }
    EXPECT_TRUE(all_close(gated_reference(part), actual, kRounded)) << experts << " experts, columns from " << begin;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t i = n; i < wide_cols(n); ++i) ASSERT_EQ(result(r, i), 0.0f) << "row " << r << ", column " << i << " of " << n;
    }
  }
};

TEST_F(OnSm90, ExpertsOfManyRows) {
  for (const WeightFormat format : kFormats) {
    SeededRng rng(9);
    for (const int64_t experts : {5, 48}) {
      const int64_t hidden = 72, y_stride = 80;
      WideGated gated(rng, format, experts, 96, 160);
      gated.run();
      gated.expect_columns(0, 96);

      // The down product of what is there now; its reference sees the same rounded numbers.
      const Buffer<float> activated(gated.results());
      const ExpertWeights weights(rng, format, experts, hidden, 96);
      const int64_t rows = WideGated::kRows;
      Buffer<float> y(rows * y_stride);
      Buffer<uint16_t> rounded(rows * y_stride);
      GroupedMatmulParams down{y.data(),
                               y_stride,
                               activated.data(),
                               96,
                               nullptr,
                               1,
                               gated.routing.offsets.data(),
                               weights.views.data(),
                               rows,
                               experts,
                               hidden,
                               weights.host.data(),
                               gated.y_wide.data(),
                               gated.stride};
      const std::vector<double> expected = ref::grouped_matmul(down);
      run_native(
          kWide, [&](gpu::Stream& stream) { grouped_matmul(stream, down); }, y);
      EXPECT_TRUE(all_close(expected, strided(y, rows, y_stride, hidden), kSum)) << experts;
      EXPECT_TRUE(gaps_untouched(y, y_stride, hidden));

      y.restore();
      down.y_rounded = rounded.data();
      run_native(
          kWide, [&](gpu::Stream& stream) { grouped_matmul(stream, down); }, rounded);
      std::vector<float> decoded;
      for (int64_t i = 0; i < rounded.size(); ++i) decoded.push_back(gpu::bf16_value(rounded[i]));
      const Buffer<float> numbers(decoded);
      const std::vector<double> actual = strided(numbers, rows, y_stride, hidden);
      EXPECT_TRUE(all_close(expected, actual, kRounded)) << experts;
      EXPECT_TRUE(y.unchanged());
      EXPECT_TRUE(gaps_untouched(rounded, y_stride, hidden));

      Buffer<float> shares(random_floats(rng, rows));
      for (const bool accumulate : {false, true}) {
        Buffer<float> out(output_rows(rng, WideGated::kTokens * (hidden + 4), accumulate));
        const CombineParams combined{out.data(),    hidden + 4,         numbers.data(),    y_stride, gated.routing.inverse.data(),
                                     shares.data(), WideGated::kTokens, WideGated::kSlots, hidden,   accumulate,
                                     rounded.data()};
        const std::vector<double> sums = ref::combine(combined);
        run_native(
            {"sm90"}, [&](gpu::Stream& stream) { combine(stream, combined); }, out);
        EXPECT_TRUE(all_close(sums, strided(out, WideGated::kTokens, hidden + 4, hidden), kFewTerms)) << experts;
        EXPECT_TRUE(gaps_untouched(out, hidden + 4, hidden));
      }
    }
  }
}

TEST_F(OnSm90, GatedProductsOfManyRowsAndOddWidths) {
  for (const WeightFormat format : kFormats) {
    SeededRng rng(10);
    WideGated odd(rng, format, 5, 131, 96);
    odd.run();
    odd.expect_columns(0, 131);

    // So many experts that a tile of x stays for several tiles of weights.
    WideGated many(rng, format, 256, 392, 64);
    ASSERT_GT(sm90::wide_tiling(format, sm90::WideOutput::gated, WideGated::kRows, 256, 392, 64, device_under_test->info().compute_units)
                  .pairs_per_item,
              1);
    many.run();
    for (const int64_t begin : {0, 120, 250, 376}) many.expect_columns(begin, 16);
  }
}

// ---- products by head

struct HeadShape {
  int64_t heads, rows_per_head, first_row, n, k;
};

void expect_heads(Rng& rng, WeightFormat format, const HeadShape& s, int64_t rows, bool transposed) {
  const int64_t in = transposed ? s.n : s.k, out = transposed ? s.k : s.n;
  const auto w = random_weight(rng, format, s.heads * s.rows_per_head, s.k, 100);
  Buffer<float> x(input_rows(rng, rows * s.heads, in, in + 1)), y(rows * s.heads * (out + 2));
  const HeadMatmulParams p{y.data(), s.heads * (out + 2), out + 2,     x.data(), s.heads * (in + 1), in + 1, w->view, rows,
                           s.heads,  s.rows_per_head,     s.first_row, s.n,      transposed};
  run_native(
      kStream, [&](gpu::Stream& stream) { head_matmul(stream, p); }, y);
  EXPECT_TRUE(gaps_untouched(y, out + 2, out));
  for (int64_t h = 0; h < s.heads; ++h) {
    std::vector<double> own;
    for (int64_t m = 0; m < rows; ++m) {
      const float* row = y.data() + (m * s.heads + h) * (out + 2);
      own.insert(own.end(), row, row + out);
    }
    const std::vector<double> expected = transposed ? ref::matmul_transposed(p.product_transposed(h)) : ref::matmul(p.product(h));
    EXPECT_TRUE(all_close(expected, own, kSum)) << "head " << h << " of " << rows << " rows, " << s.n << " x " << s.k;
  }
}

TEST_F(OnSm90, EveryHeadIsTheProductByItsOwnRows) {
  for (const WeightFormat format : kFormats) {
    SeededRng rng(11);
    for (const int64_t rows : {0, 1, 6, 9, 65, 512}) {
      expect_heads(rng, format, {3, 75, 33, 42, 96}, rows, false);
      expect_heads(rng, format, {3, 75, 20, 48, 96}, rows, true);
    }
    // As in GLM-5.2, and more rows a head than a warp keeps in registers.
    expect_heads(rng, format, {4, 448, 192, 256, 512}, 6, false);
    expect_heads(rng, format, {4, 448, 0, 192, 512}, 6, true);
    expect_heads(rng, format, {2, 240, 3, 208, 64}, 200, true);
  }
}

TEST_F(OnSm90, ARowOfHeadsHasItsBitsInEveryCompany) {
  const int64_t heads = 3, rows_per_head = 240, first_row = 16, n = 208, k = 512, all = 200;
  for (const WeightFormat format : kFormats) {
    SeededRng rng(12);
    const auto w = random_weight(rng, format, heads * rows_per_head, k, 100);
    for (const bool transposed : {false, true}) {
      const int64_t in = transposed ? n : k, out = transposed ? k : n;
      const Buffer<float> x(input_rows(rng, all * heads, in, in));
      const auto product = [&](int64_t first, int64_t rows) {
        Buffer<float> y(rows * heads * out);
        const HeadMatmulParams p{
            y.data(),  heads * out, out,       x.data() + first * heads * in, heads * in, in, w->view, rows, heads, rows_per_head,
            first_row, n,           transposed};
        run_native(
            kStream, [&](gpu::Stream& stream) { head_matmul(stream, p); }, y);
        return all_bytes(y);
      };
      const int64_t row_bytes = heads * out * 4;
      const std::vector<uint8_t> together = product(0, all);
      for (const int64_t rows : {1, 2, 7, 8, 9, 64}) EXPECT_EQ(product(0, rows), first_bytes(together, rows * row_bytes)) << rows;
      const std::vector<uint8_t> last(together.end() - row_bytes, together.end());
      EXPECT_EQ(product(all - 1, 1), last) << transposed;
    }
  }
}

}  // namespace
}  // namespace ingot::kernels
