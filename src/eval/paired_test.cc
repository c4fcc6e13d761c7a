// A difference that is said to be real and is chance, or the other way.
#include "eval/paired.h"

#include <gmock/gmock.h>

#include <cmath>

#include "base/rng.h"

namespace ingot::eval {
namespace {

std::vector<Pair> pairs_of(int lost, int won, int same_right, int same_wrong) {
  std::vector<Pair> pairs;
  const auto add = [&](int count, bool before, bool now) {
    for (int i = 0; i < count; ++i) pairs.push_back({"q" + std::to_string(pairs.size()), "", before, now});
  };
  add(lost, true, false), add(won, false, true), add(same_right, true, true), add(same_wrong, false, false);
  return pairs;
}

TEST(Paired, CountsAndTheExactTest) {
  const auto d = paired_difference(pairs_of(7, 1, 80, 12));
  EXPECT_EQ(d.pairs, 100);
  EXPECT_EQ(d.lost.size(), 7u);
  EXPECT_EQ(d.won.size(), 1u);
  EXPECT_NEAR(d.difference.value, -0.06, 1e-12);
  EXPECT_NEAR(d.p, 2 * 9 / 256.0, 1e-9);  // 1 + 8 of 2^8 splits, both sides
  EXPECT_LT(d.difference.low, -0.06);
  EXPECT_GT(d.difference.high, -0.06);
}

// The likelihood of the pairs when the difference is held at delta, maximised by brute force: what the closed form solves.
double score_by_search(double b, double c, double n, double delta) {
  double best = -1e300, at = 0;
  for (int i = 1; i < 20000; ++i) {
    const double lost = i / 20000.0, won = lost + delta, same = 1 - lost - won;
    if (won <= 0 || same <= 0) continue;
    const double log = b * std::log(lost) + c * std::log(won) + (n - b - c) * std::log(same);
    if (log > best) best = log, at = lost;
  }
  return (c - b - n * delta) / std::sqrt(n * (2 * at + delta - delta * delta));
}

TEST(Paired, TheIntervalsEndsAreWhereTheScoreIsAtItsQuantile) {
  for (const auto& [b, c, n] : {std::tuple(7, 1, 100), std::tuple(3, 12, 60), std::tuple(20, 18, 400)}) {
    const auto interval = tango_interval(b, c, n);
    EXPECT_NEAR(score_by_search(b, c, n, interval.low), 1.96, 0.02) << b;
    EXPECT_NEAR(score_by_search(b, c, n, interval.high), -1.96, 0.02) << b;
  }
}

TEST(Paired, TheIntervalHoldsTheTruthNineteenTimesInTwenty) {
  Rng rng(11);
  const double lose = 0.06, win = 0.03;
  int held = 0;
  constexpr int kRuns = 2000, kPairs = 150;
  for (int run = 0; run < kRuns; ++run) {
    int b = 0, c = 0;
    for (int i = 0; i < kPairs; ++i) {
      const double u = rng.uniform();
      b += u < lose, c += u >= lose && u < lose + win;
    }
    const auto interval = tango_interval(b, c, kPairs);
    held += interval.low <= win - lose && win - lose <= interval.high;
  }
  EXPECT_GT(held, kRuns * 0.935);
  EXPECT_LT(held, kRuns * 0.965);
}

TEST(Paired, NoPairThatDiffersIsNoProofOfEquality) {
  const auto d = paired_difference(pairs_of(0, 0, 30, 20));
  EXPECT_EQ(d.p, 1);
  EXPECT_EQ(d.difference.value, 0);
  EXPECT_LT(d.difference.low, -0.03) << "fifty questions cannot exclude a few points";
  EXPECT_GT(d.difference.high, 0.03);
  EXPECT_FALSE(d.questions_to_resolve.has_value());
  EXPECT_TRUE(std::isnan(d.resolvable));
}

TEST(Paired, QuestionsToResolveGiveTheirPower) {
  // 2 % lost, 1 % won of 200: far from resolved.
  const auto d = paired_difference(pairs_of(4, 2, 150, 44));
  ASSERT_TRUE(d.questions_to_resolve.has_value());
  const auto needed = static_cast<int>(*d.questions_to_resolve);
  EXPECT_GT(needed, 1500);
  // McNemar's test on so many questions finds it about four times in five (the exact test is a little shy).
  Rng rng(5);
  int found = 0;
  constexpr int kRuns = 300;
  for (int run = 0; run < kRuns; ++run) {
    int b = 0, c = 0;
    for (int i = 0; i < needed; ++i) {
      const double u = rng.uniform();
      b += u < 0.02, c += u >= 0.02 && u < 0.03;
    }
    found += quant::mcnemar_exact(b, c) < 0.05;
  }
  EXPECT_GT(found, kRuns * 0.70);
  EXPECT_LT(found, kRuns * 0.90);
  EXPECT_TRUE(std::isnan(d.resolvable)) << "six of 200, all on one side, are not enough";
  const auto many = paired_difference(pairs_of(40, 20, 1500, 440)), more = paired_difference(pairs_of(400, 200, 15000, 4400));
  EXPECT_NEAR(many.resolvable, 0.0108, 0.0002);
  EXPECT_NEAR(more.resolvable, many.resolvable / std::sqrt(10.0), 0.0002) << "the error falls with the root of the number";
}

TEST(Paired, RepeatsOfOneQuestionAreNotIndependent) {
  // Two questions, ten repeats each: all of one lost, nothing else changed.
  std::vector<Pair> pairs;
  for (int i = 0; i < 10; ++i) {
    pairs.push_back({"a" + std::to_string(i), "a", true, false});
    pairs.push_back({"b" + std::to_string(i), "b", true, true});
  }
  const auto d = paired_difference(pairs);
  EXPECT_EQ(d.clusters, 2);
  EXPECT_EQ(d.test(), "normal test over questions");
  EXPECT_EQ(paired_difference(std::span(pairs).first(2)).test(), "McNemar exact") << "one answer of each";
  EXPECT_DOUBLE_EQ(d.difference.value, -0.5);
  EXPECT_GT(d.p, 0.05) << "ten lost answers of one question are one";
}

TEST(ClusteredMean, IsTheBinomialErrorWithoutRepeats) {
  std::vector<std::pair<std::string, double>> items;
  for (int i = 0; i < 200; ++i) items.emplace_back(std::to_string(i), i < 190 ? 1 : 0);
  const auto mean = clustered_mean(items);
  EXPECT_DOUBLE_EQ(mean.mean, 0.95);
  EXPECT_NEAR(mean.standard_error, std::sqrt(0.95 * 0.05 / 200), 1e-12);
  EXPECT_TRUE(std::isnan(clustered_mean({}).mean));
}

}  // namespace
}  // namespace ingot::eval
