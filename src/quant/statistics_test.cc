// Intervals and tests against values that can be checked by hand or were computed elsewhere, and coverage by simulation.
#include "quant/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/rng.h"

namespace ingot::quant {
namespace {

TEST(Wilson, KnownIntervals) {
  // The formula, worked out in Python.
  const Interval most = wilson(487, 500);
  EXPECT_DOUBLE_EQ(most.value, 0.974);
  EXPECT_NEAR(most.low, 0.956029, 1e-6);
  EXPECT_NEAR(most.high, 0.984744, 1e-6);
  const Interval none = wilson(0, 10);
  EXPECT_EQ(none.low, 0);
  EXPECT_NEAR(none.high, 0.277533, 1e-6);
  EXPECT_DOUBLE_EQ(wilson(10, 10).high, 1);
  EXPECT_NEAR(wilson(10, 10).low, 1 - none.high, 1e-12) << "right and wrong are treated alike";
  EXPECT_TRUE(std::isnan(wilson(0, 0).value));
}

TEST(McNemar, SmallCasesByHand) {
  EXPECT_DOUBLE_EQ(mcnemar_exact(0, 0), 1);
  EXPECT_NEAR(mcnemar_exact(0, 5), 2.0 / 32, 1e-12);
  EXPECT_NEAR(mcnemar_exact(1, 5), 2.0 * (1 + 6) / 64, 1e-12);
  EXPECT_NEAR(mcnemar_exact(5, 1), mcnemar_exact(1, 5), 1e-15);
  EXPECT_NEAR(mcnemar_exact(8, 8), 1, 1e-12);
  EXPECT_LT(mcnemar_exact(500, 100), 1e-60) << "no overflow, no underflow to nonsense";
  EXPECT_GT(mcnemar_exact(500, 100), 0);
}

TEST(Quantile, CountsEachDocumentAsOftenAsItWasDrawn) {
  const std::vector<std::vector<double>> documents{{1, 2, 3, 4}, {10, 20}, {}};
  const PooledQuantile pooled(documents);
  const auto at = [&](double share, std::vector<int32_t> times) { return pooled.at(share, times); };
  EXPECT_EQ(at(0.5, {1, 1, 1}), 3);
  EXPECT_EQ(at(0.99, {1, 1, 1}), 20);
  EXPECT_EQ(at(0.5, {1, 0, 2}), 2);
  EXPECT_EQ(at(0.5, {1, 3, 0}), 10);
  EXPECT_EQ(at(1.0, {1, 0, 0}), 4);
  EXPECT_TRUE(std::isnan(at(0.5, {0, 0, 1})));
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({4, 1}), 2.5);
  EXPECT_TRUE(std::isnan(median({})));
}

TEST(Bootstrap, SeededAndDegenerateCases) {
  const std::vector<Share> same{{2, 4}, {1, 2}, {4, 8}};
  const Interval ratio = bootstrap_ratio(same);
  EXPECT_EQ(ratio.value, 0.5);
  EXPECT_EQ(ratio.low, 0.5) << "documents that agree leave no doubt";
  EXPECT_EQ(ratio.high, 0.5);
  const std::vector<Share> unlike{{0, 4}, {3, 3}, {1, 8}, {2, 2}};
  const Interval first = bootstrap_ratio(unlike, {.resamples = 500, .seed = 1}),
                 second = bootstrap_ratio(unlike, {.resamples = 500, .seed = 1});
  EXPECT_EQ(first.low, second.low);
  EXPECT_EQ(first.high, second.high);
  EXPECT_LT(first.low, first.value);
  EXPECT_GT(first.high, first.value);
  EXPECT_TRUE(std::isnan(bootstrap_ratio({}).value));
  const std::vector<Share> nothing{{0, 0}, {0, 0}};
  EXPECT_TRUE(std::isnan(bootstrap_ratio(nothing).value));
}

// Tokens of a document hang together: taking them for independent gives intervals far too narrow. 300 samples of 40 documents whose
// true mean is 0.5 must be covered about 95 times in 100.
TEST(Bootstrap, CoversTheTruthThoughTokensOfADocumentAreAlike) {
  Rng rng(7);
  int covered = 0;
  constexpr int kSamples = 300;
  for (int sample = 0; sample < kSamples; ++sample) {
    std::vector<Share> documents;
    for (int d = 0; d < 40; ++d) {
      const double level = rng.uniform();
      documents.push_back({50 * level, 50});
    }
    const Interval interval = bootstrap_ratio(documents, {.resamples = 300, .seed = static_cast<uint64_t>(sample)});
    covered += interval.low <= 0.5 && 0.5 <= interval.high;
  }
  EXPECT_GE(covered, kSamples * 89 / 100);
  EXPECT_LE(covered, kSamples * 99 / 100);
}

}  // namespace
}  // namespace ingot::quant
