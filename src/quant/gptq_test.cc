// Second-order rounding: better than plain rounding where inputs are correlated, equal to it where they are not.
#include "quant/gptq.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "tensor/quantize_rows.h"

namespace ingot::quant {
namespace {

constexpr uint64_t kSeed = 77;

struct Problem {
  int64_t rows = 0, cols = 0, tokens = 0;
  std::vector<float> w;  // (rows, cols)
  std::vector<float> x;  // (tokens, cols)

  InputMoments moments(gpu::Stream& stream) const {
    InputMoments out(cols, 0);
    for (int64_t t = 0; t < tokens; ++t) out.add(stream, x.data() + t * cols, x.data() + t * cols, nullptr, 1.0f);
    out.finish(stream);
    return out;
  }
  // sum over tokens and rows of (W x - Q x)^2, per element.
  double output_error(const tensor::PackedWeight& q) const {
    const std::vector<float> values = tensor::dequantize(q.view());
    double sum = 0;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t r = 0; r < rows; ++r) {
        double y = 0;
        for (int64_t k = 0; k < cols; ++k) {
          const auto at = static_cast<size_t>(r * cols + k);
          y += (static_cast<double>(w[at]) - values[at]) * x[static_cast<size_t>(t * cols + k)];
        }
        sum += y * y;
      }
    return sum / static_cast<double>(tokens * rows);
  }
};

// Inputs mixed from a few sources, as the channels of a real residual stream are.
Problem correlated(uint64_t seed, int64_t rows, int64_t cols, int64_t tokens) {
  Problem p{rows, cols, tokens, {}, {}};
  Rng rng(seed);
  for (int64_t i = 0; i < rows * cols; ++i) p.w.push_back(rng.uniform_float(-1, 1));
  const int64_t sources = cols / 4;
  std::vector<float> mixing;
  for (int64_t i = 0; i < sources * cols; ++i) mixing.push_back(rng.uniform_float(-1, 1));
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<float> source;
    for (int64_t s = 0; s < sources; ++s) source.push_back(rng.uniform_float(-1, 1));
    for (int64_t k = 0; k < cols; ++k) {
      float v = rng.uniform_float(-0.1f, 0.1f);
      for (int64_t s = 0; s < sources; ++s) v += source[static_cast<size_t>(s)] * mixing[static_cast<size_t>(s * cols + k)];
      p.x.push_back(v);
    }
  }
  return p;
}

tensor::PackedWeight rounded(const Problem& p, tensor::ScaleMode mode) {
  tensor::PackedWeight q{tensor::WeightFormat::mxfp4, p.rows, p.cols, {}, {}};
  q.data.resize(static_cast<size_t>(p.rows * p.cols / 2));
  q.scale.resize(static_cast<size_t>(p.rows * p.cols / 32));
  for (int64_t r = 0; r < p.rows; ++r)
    tensor::quantize_row_mxfp4(p.w.data() + r * p.cols, p.cols, mode, nullptr, q.data.data() + r * p.cols / 2,
                               q.scale.data() + r * p.cols / 32, nullptr);
  return q;
}

TEST(Gptq, OutputErrorIsAFractionOfRoundingsWhereInputsAreCorrelated) {
  ThreadPool pool(2);
  gpu::Stream stream{&pool};
  const Problem p = correlated(kSeed, 40, 96, 400);
  const double plain = std::min(p.output_error(rounded(p, tensor::ScaleMode::even)), p.output_error(rounded(p, tensor::ScaleMode::mse)));
  double last = plain;
  for (const int passes : {0, 2}) {
    auto solver = GptqSolver::create(p.moments(stream).second(), p.cols, {.passes = passes}, stream);
    ASSERT_TRUE(solver) << solver.error().text();
    const double error = p.output_error(solver->quantize(p.w, {}, p.rows, stream));
    EXPECT_LT(error, plain * 0.4) << passes << " passes";
    EXPECT_LT(error, last) << passes << " passes: coordinate descent only accepts what lowers the error";
    last = error;
  }
}

TEST(Gptq, EqualsRoundingWithTheBestScaleWhereInputsAreIndependent) {
  ThreadPool pool(1);
  gpu::Stream stream{&pool};
  const Problem p = correlated(kSeed + 1, 24, 128, 1);
  for (const float energy : {0.0f, 1.0f, 1e-6f, 3e8f}) {
    std::vector<float> diagonal(static_cast<size_t>(p.cols * p.cols));
    for (int64_t k = 0; k < p.cols; ++k) diagonal[static_cast<size_t>(k * p.cols + k)] = energy;
    auto solver = GptqSolver::create(diagonal, p.cols, {}, stream);
    ASSERT_TRUE(solver) << solver.error().text();
    const tensor::PackedWeight q = solver->quantize(p.w, {}, p.rows, stream), plain = rounded(p, tensor::ScaleMode::mse);
    EXPECT_EQ(q.data, plain.data) << energy;
    EXPECT_EQ(q.scale, plain.scale) << energy;
  }
}

TEST(Gptq, MakesUpForAnInputThatIsNotTheSources) {
  ThreadPool pool(2);
  gpu::Stream stream{&pool};
  Problem p = correlated(kSeed + 2, 16, 64, 500);
  // What earlier layers' errors make of the input: it lost a tenth, and the residual stream lacks the output of channel 0.
  InputMoments moments(p.cols, p.rows);
  std::vector<float> residual(static_cast<size_t>(p.rows)), arrived(static_cast<size_t>(p.cols));
  const auto wanted = [&](int64_t t, int64_t r) { return 0.5f * p.x[static_cast<size_t>(t * p.cols + r)]; };
  for (int64_t t = 0; t < p.tokens; ++t) {
    const float* x0 = p.x.data() + t * p.cols;
    for (int64_t k = 0; k < p.cols; ++k) arrived[static_cast<size_t>(k)] = 0.9f * x0[k];
    for (int64_t r = 0; r < p.rows; ++r) residual[static_cast<size_t>(r)] = wanted(t, r);
    moments.add(stream, arrived.data(), x0, residual.data(), 1.0f);
  }
  moments.finish(stream);
  EXPECT_EQ(moments.tokens(), p.tokens);
  auto solver = GptqSolver::create(moments.second(), p.cols, {}, stream);
  ASSERT_TRUE(solver) << solver.error().text();
  std::vector<float> shift(p.w.size());
  for (int64_t r = 0; r < p.rows; ++r)
    for (int64_t k = 0; k < p.cols; ++k) {
      double sum = moments.residual()[static_cast<size_t>(r * p.cols + k)];
      for (int64_t a = 0; a < p.cols; ++a)
        sum += static_cast<double>(p.w[static_cast<size_t>(r * p.cols + a)]) * moments.cross()[static_cast<size_t>(a * p.cols + k)];
      shift[static_cast<size_t>(r * p.cols + k)] = static_cast<float>(sum);
    }
  const auto error = [&](const tensor::PackedWeight& q) {
    const std::vector<float> values = tensor::dequantize(q.view());
    double sum = 0;
    for (int64_t t = 0; t < p.tokens; ++t)
      for (int64_t r = 0; r < p.rows; ++r) {
        double y = wanted(t, r);
        for (int64_t k = 0; k < p.cols; ++k) {
          const auto at = static_cast<size_t>(r * p.cols + k);
          y += (static_cast<double>(p.w[at]) - 0.9 * values[at]) * p.x[static_cast<size_t>(t * p.cols + k)];
        }
        sum += y * y;
      }
    return sum;
  };
  EXPECT_LT(error(solver->quantize(p.w, shift, p.rows, stream)), 0.2 * error(solver->quantize(p.w, {}, p.rows, stream)));
}

TEST(Gptq, TokensOfWeightZeroDoNotCountAndOthersAsTheirWeight) {
  ThreadPool pool(1);
  gpu::Stream stream{&pool};
  const Problem p = correlated(kSeed + 3, 1, 32, 300);  // more tokens than are added at once
  InputMoments weighted(p.cols, 0), twice(p.cols, 0), half(p.cols, 0);
  for (int64_t t = 0; t < p.tokens; ++t) {
    const float* x = p.x.data() + t * p.cols;
    weighted.add(stream, x, x, nullptr, t % 3 == 0 ? 0.0f : 2.0f);
    if (t % 3 != 0) {
      twice.add(stream, x, x, nullptr, 1.0f);
      half.add(stream, x, x, nullptr, 0.5f);
    }
  }
  for (InputMoments* m : {&weighted, &twice, &half}) m->finish(stream);
  twice.mix(half, 2.0f);
  EXPECT_EQ(weighted.tokens(), 200);
  EXPECT_DOUBLE_EQ(weighted.weight(), 400);
  double exact = 0;
  for (int64_t t = 0; t < p.tokens; ++t)
    if (t % 3 != 0) exact += 2.0 * p.x[static_cast<size_t>(t * p.cols)] * p.x[static_cast<size_t>(t * p.cols + 5)];
  EXPECT_NEAR(weighted.second()[5], exact, 1e-3);
  for (size_t i = 0; i < weighted.second().size(); ++i) EXPECT_NEAR(weighted.second()[i], twice.second()[i], 2e-3) << i;
}

TEST(Gptq, BytesDoNotDependOnThreadsAndAreValidMxfp4) {
  const Problem p = correlated(kSeed + 4, 70, 160, 200);
  std::vector<tensor::PackedWeight> results;
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    gpu::Stream stream{&pool};
    auto solver = GptqSolver::create(p.moments(stream).second(), p.cols, {}, stream);
    ASSERT_TRUE(solver) << solver.error().text();
    results.push_back(solver->quantize(p.w, {}, p.rows, stream));
    EXPECT_EQ(results.back().data, results.front().data) << threads;
    EXPECT_EQ(results.back().scale, results.front().scale) << threads;
  }
  const tensor::PackedWeight& q = results.front();
  EXPECT_EQ(q.data.size(), static_cast<size_t>(p.rows * p.cols / 2));
  EXPECT_EQ(q.scale.size(), static_cast<size_t>(p.rows * p.cols / 32));
  for (const uint8_t s : q.scale) EXPECT_NE(s, 255);
}

TEST(Gptq, SumsThatAreNotFiniteAreAnError) {
  ThreadPool pool(1);
  gpu::Stream stream{&pool};
  std::vector<float> second(32 * 32);
  second[40] = std::nanf("");
  const auto solver = GptqSolver::create(second, 32, {}, stream);
  ASSERT_FALSE(solver);
  EXPECT_NE(solver.error().message.find("not finite"), std::string::npos);
}

}  // namespace
}  // namespace ingot::quant
