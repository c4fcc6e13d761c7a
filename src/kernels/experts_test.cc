// Choosing experts, sorting the chosen pairs, and summing what the experts gave.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/combine.kernel.h"
#include "kernels/permute.kernel.h"
#include "kernels/ref/combine.h"
#include "kernels/ref/permute.h"
#include "kernels/ref/router.h"
#include "kernels/router.kernel.h"
#include "support/compare.h"
#include "support/inputs.h"
#include "support/machines.h"

namespace ingot::kernels {
namespace {

using namespace ingot::testing;

// `weight_scale`: what an error of a weight is relative to; 0 for the greatest weight expected.
void expect_router(const std::vector<float>& logits, const std::vector<float>& bias, int64_t tokens, int64_t k, bool normalize, float scale,
                   double weight_scale = 0.0) {
  Buffer<float> l(logits), b(bias), weights(tokens * k);
  Buffer<int32_t> experts(tokens * k);
  const RouterParams p{experts.data(), weights.data(), l.data(), b.data(), tokens, b.size(), k, normalize, scale};
  run_everywhere<Router>(p, experts, weights);
  const ref::RouterOutput expected = ref::router(p);
  EXPECT_EQ(experts.contents(), expected.experts);
  EXPECT_TRUE(all_close(expected.weights, strided(weights, tokens, k, k), {1e-6, 1e-11, weight_scale}));
}

TEST(Router, OddNumbersOfExpertsAndChoices) {
  SeededRng rng(1);
  struct Shape {
    int64_t tokens, experts, k;
  };
  for (const Shape s : {Shape{0, 8, 2}, {1, 1, 1}, {3, 5, 5}, {4, 67, 3}, {2, 256, 8}, {2, 700, 70}}) {
    for (const bool normalize : {true, false})
      expect_router(random_floats(rng, s.tokens * s.experts, -4.0f, 4.0f), random_floats(rng, s.experts, -0.2f, 0.2f), s.tokens, s.k,
                    normalize, 2.5f);
  }
}

// A bias of about 34, as in the checkpoint, decides who is chosen and must not reach the weights.
TEST(Router, TheBiasChoosesAndDoesNotWeigh) {
  SeededRng rng(2);
  expect_router(random_floats(rng, 3 * 256, -4.0f, 4.0f), random_floats(rng, 256, 33.0f, 35.0f), 3, 8, true, 2.5f);
}

TEST(Router, EqualScoresGoToTheSmallerExpert) {
  expect_router(std::vector<float>(2 * 70, 0.25f), std::vector<float>(70, 34.0f), 2, 6, true, 1.0f);
  std::vector<float> logits(70, -1.0f);
  logits[69] = logits[40] = logits[3] = 1.0f;
  expect_router(logits, std::vector<float>(70, 0.0f), 1, 5, false, 1.0f);
}

TEST(Router, AllScoresNearZeroGiveFiniteWeights) {
  SeededRng rng(3);
  expect_router(random_floats(rng, 16, -60.0f, -50.0f), std::vector<float>(16, 0.0f), 1, 4, true, 2.5f);
  // Here the sigmoid itself is 0 in f32, and the weights of about 1e-67 are too.
  expect_router(std::vector<float>(16, -200.0f), std::vector<float>(16, 0.0f), 1, 4, true, 2.5f, 1.0);
}

void expect_permute(const std::vector<int32_t>& chosen, int64_t k, int64_t num_experts) {
  Buffer<int32_t> experts(chosen);
  Buffer<int32_t> order(experts.size()), inverse(experts.size()), offsets(num_experts + 1);
  const PermuteParams p{order.data(), inverse.data(), offsets.data(), experts.data(), experts.size() / k, num_experts, k};
  run_everywhere<Permute>(p, order, inverse, offsets);
  const ref::PermuteOutput expected = ref::permute(p);
  EXPECT_EQ(order.contents(), expected.order);
  EXPECT_EQ(inverse.contents(), expected.inverse);
  EXPECT_EQ(offsets.contents(), expected.offsets);
}

TEST(Permute, StableForOddShapes) {
  SeededRng rng(4);
  expect_permute({}, 2, 5);
  expect_permute({3, 0}, 2, 5);
  expect_permute(std::vector<int32_t>(300, 6), 3, 7);  // one expert gets all
  for (const int64_t experts : {1, 5, 67, 256, 300}) {
    for (const int64_t pairs : {3, 255, 1023, 1026, 2502}) {  // the last two are for several blocks
      std::vector<int32_t> chosen;
      for (int64_t i = 0; i < pairs; ++i) chosen.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(experts))));
      expect_permute(chosen, 3, experts);
    }
  }
}

TEST(Combine, EveryWidthReplacingAndAccumulating) {
  SeededRng rng(5);
  for (const bool accumulate : {false, true}) {
    for (const int64_t dim : {1, 257, 613}) {
      for (const int64_t tokens : {0, 1, 4}) {
        const int64_t k = 3;
        std::vector<int32_t> rows;
        for (int64_t i = 0; i < tokens * k; ++i) rows.push_back(static_cast<int32_t>((i * 5 + 2) % (tokens * k)));
        Buffer<int32_t> inverse(rows);
        Buffer<float> weights(random_floats(rng, tokens * k)), y(random_floats(rng, tokens * k * (dim + 2))),
            out(random_floats(rng, tokens * (dim + 1)));
        const CombineParams p{out.data(), dim + 1, y.data(), dim + 2, inverse.data(), weights.data(), tokens, k, dim, accumulate};
        const std::vector<double> expected = ref::combine(p);
        run_everywhere<Combine>(p, out);
        EXPECT_TRUE(all_close(expected, strided(out, tokens, dim + 1, dim), {1e-6, 1e-11})) << tokens << " x " << dim;
        EXPECT_TRUE(gaps_untouched(out, dim + 1, dim));
      }
    }
  }
}

// Widths and strides that let a thread read four columns as one, around the columns of a block; more rows a token than are read ahead.
TEST(Combine, FourColumnsAtATime) {
  SeededRng rng(6);
  for (const bool accumulate : {false, true}) {
    for (const int64_t dim : {4, 508, 512, 516, 1028}) {
      for (const int64_t k : {1, 8, 11}) {
        const int64_t tokens = 2;
        std::vector<int32_t> rows;
        for (int64_t i = 0; i < tokens * k; ++i) rows.push_back(static_cast<int32_t>(tokens * k - 1 - i));
        Buffer<int32_t> inverse(rows);
        Buffer<float> weights(random_floats(rng, tokens * k)), y(random_floats(rng, tokens * k * (dim + 8))),
            out(random_floats(rng, tokens * (dim + 4)));
        const CombineParams p{out.data(), dim + 4, y.data(), dim + 8, inverse.data(), weights.data(), tokens, k, dim, accumulate};
        const std::vector<double> expected = ref::combine(p);
        run_everywhere<Combine>(p, out);
        EXPECT_TRUE(all_close(expected, strided(out, tokens, dim + 4, dim), {1e-6, 1e-11})) << k << " of " << dim;
        EXPECT_TRUE(gaps_untouched(out, dim + 4, dim));
      }
    }
  }
}

}  // namespace
}  // namespace ingot::kernels
