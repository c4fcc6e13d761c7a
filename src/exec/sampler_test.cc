// Symptoms: a wrong distribution that no single text shows, a seed that depends on the neighbours (E1, E9), NaN at a tiny temperature (E6),
// logprobs that are of another distribution.
#include "exec/sampler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "exec/sampler_ref.h"

namespace ingot::exec {
namespace {

using sched::SamplingParams;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(Rng& rng, size_t size, double spread) {
  std::vector<float> logits(size);
  for (float& logit : logits) {
    // Normal by Box and Muller.
    const double radius = std::sqrt(-2 * std::log(1 - rng.uniform()));
    logit = static_cast<float>(spread * radius * std::cos(6.283185307179586 * rng.uniform()));
  }
  return logits;
}

SamplingParams params_of(float temperature, int32_t top_k, float top_p, float min_p, uint64_t seed = 7) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  params.seed = seed;
  return params;
}

TEST(Sampler, EveryDrawIsThatOfTheReference) {
  const uint64_t seed = 20261130;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  Sampler sampler;
  int num_unequal = 0;
  constexpr int kCases = 10000;
  for (int i = 0; i < kCases; ++i) {
    const size_t size = 1 + rng.below(i % 10 == 0 ? 3000 : 60);
    std::vector<float> logits = random_logits(rng, size, 0.1 + 6 * rng.uniform());
    if (i % 3 == 0) {  // ties, and tokens that cannot come
      for (float& logit : logits) logit = rng.below(5) == 0 ? -kInfinity : std::round(logit);
      logits[rng.below(size)] = 1.0f;
    }
    SamplingParams params = params_of(0.05f + static_cast<float>(rng.uniform()) * 2, 0, 1, 0, rng.bits());
    if (rng.below(2) == 0) params.top_k = 1 + static_cast<int32_t>(rng.below(50));
    if (rng.below(2) == 0) params.top_p = 0.05f + 0.9f * static_cast<float>(rng.uniform());
    if (rng.below(3) == 0) params.min_p = 0.3f * static_cast<float>(rng.uniform());
    const auto counter = static_cast<int64_t>(rng.below(1000));
    const std::vector<double> expected = ref::distribution(logits, params);
    const auto drawn = sampler.sample(logits, params, counter);
    ASSERT_TRUE(drawn.has_value()) << drawn.error().text();
    ASSERT_GT(expected[static_cast<size_t>(drawn->token_id)], 0) << "case " << i << ": token " << drawn->token_id << " was cut";
    num_unequal += drawn->token_id != ref::draw(expected, random_uniform(params.seed, static_cast<uint64_t>(counter)));
  }
  // Sums in another order may move an edge by 1e-16: a draw that lies on it is possible, two are not.
  EXPECT_LE(num_unequal, 1);
}

// Chi-square of 40,000 draws against the reference, bins of less than 8 expected draws put together.
void check_distribution(std::span<const float> logits, const SamplingParams& base) {
  constexpr int kDraws = 40000;
  Sampler sampler;
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    // Half of the draws walk the counter of one seed, half walk the seeds.
    SamplingParams params = base;
    if (i % 2 == 0) params.seed += static_cast<uint64_t>(i);
    const auto drawn = sampler.sample(logits, params, i % 2 == 0 ? 0 : i);
    ASSERT_TRUE(drawn.has_value());
    ++counts[static_cast<size_t>(drawn->token_id)];
  }
  const std::vector<double> expected = ref::distribution(logits, base);
  double chi_square = 0;
  double rest_expected = 0;
  double rest_counted = 0;
  int degrees = -1;
  const auto add = [&](double counted, double wanted) {
    chi_square += (counted - wanted) * (counted - wanted) / wanted;
    ++degrees;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    ASSERT_TRUE(expected[i] > 0 || counts[i] == 0) << "token " << i << " was cut";
    if (expected[i] * kDraws >= 8) {
      add(counts[i], expected[i] * kDraws);
    } else {
      rest_expected += expected[i] * kDraws;
      rest_counted += counts[i];
    }
  }
  if (rest_expected >= 1) add(rest_counted, rest_expected);
  ASSERT_GE(degrees, 1);
  // Wilson and Hilferty: the cube root of chi-square over its degrees is nearly normal. 4 sigma: 1 in 30,000.
  const double d = degrees;
  const double z = (std::cbrt(chi_square / d) - (1 - 2 / (9 * d))) / std::sqrt(2 / (9 * d));
  EXPECT_LT(z, 4) << "chi-square " << chi_square << " of " << degrees << " degrees";
}

TEST(Sampler, TheDistributionIsThatOfTheReference) {
  const uint64_t seed = 20261201;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  Sampler sampler;
  for (int i = 0; i < 1000; ++i) {
    const size_t size = 1 + rng.below(i % 10 == 0 ? 3000 : 60);
    std::vector<float> logits = random_logits(rng, size, 0.1 + 6 * rng.uniform());
    if (i % 3 == 0) {  // ties
      for (float& logit : logits) logit = std::round(logit);
    }
    SamplingParams params = params_of(0.05f + static_cast<float>(rng.uniform()) * 2, 0, 1, 0);
    if (rng.below(2) == 0) params.top_k = 2 + static_cast<int32_t>(rng.below(50));
    if (rng.below(2) == 0) params.top_p = 0.05f + 0.9f * static_cast<float>(rng.uniform());
    if (rng.below(3) == 0) params.min_p = 0.3f * static_cast<float>(rng.uniform());
    const std::vector<double> expected = ref::distribution(logits, params);
    std::vector<double> actual(size, -1);
    sampler.distribution(logits, *Sampler::max_logit(logits), params, actual);
    for (size_t id = 0; id < size; ++id) ASSERT_NEAR(actual[id], expected[id], 1e-12) << "case " << i << ", token " << id;
  }
}

TEST(Sampler, DrawsFollowTheDistribution) {
  Rng rng(5);
  const std::vector<float> logits = random_logits(rng, 300, 2);
  for (const SamplingParams& params : {params_of(1, 0, 1, 0), params_of(0.6f, 0, 1, 0), params_of(1, 20, 1, 0), params_of(1, 0, 0.8f, 0),
                                       params_of(1, 0, 1, 0.1f), params_of(0.9f, 50, 0.9f, 0.05f), params_of(100, 0, 1, 0)}) {
    SCOPED_TRACE(testing::Message() << "temperature " << params.temperature << " top_k " << params.top_k << " top_p " << params.top_p
                                    << " min_p " << params.min_p);
    check_distribution(logits, params);
  }
}

TEST(Sampler, GreedyTakesTheSmallerIdOfATie) {
  Sampler sampler;
  for (const size_t size : {3u, 8u, 17u, 100u}) {
    std::vector<float> logits(size, -1.0f);
    logits[1] = logits[2] = 5.0f;
    for (const float temperature : {0.0f, 1e-8f, 9e-6f}) {
      const auto drawn = sampler.sample(logits, params_of(temperature, 0, 1, 0), 0);
      ASSERT_TRUE(drawn.has_value());
      EXPECT_EQ(drawn->token_id, 1);
    }
    EXPECT_EQ(sampler.sample(logits, params_of(2, 1, 1, 0), 0)->token_id, 1);
  }
}

TEST(Sampler, TinyAndHugeTemperaturesStayFinite) {  // E6
  Rng rng(3);
  const std::vector<float> logits = random_logits(rng, 500, 10);
  const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  Sampler sampler;
  for (const float temperature : {1e-4f, 2e-5f, 1e-5f, 1e-8f, 0.0f}) {
    for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(sampler.sample(logits, params_of(temperature, 0, 0.9f, 0), i)->token_id, best);
  }
  EXPECT_TRUE(sampler.sample(logits, params_of(100, 0, 1, 0), 0).has_value());
}

TEST(Sampler, ASeedGivesTheSameTokensWhateverWasDrawnBetween) {  // E1, E9
  Rng rng(4);
  const std::vector<float> logits = random_logits(rng, 200, 1);
  const std::vector<float> others = random_logits(rng, 5000, 3);
  Sampler alone;
  Sampler shared;
  int num_unequal = 0;
  for (int64_t i = 0; i < 200; ++i) {
    const int32_t expected = alone.sample(logits, params_of(1, 0, 0.95f, 0, 42), i)->token_id;
    shared.sample(others, params_of(1, static_cast<int32_t>(i), 0.5f, 0, static_cast<uint64_t>(i)), i);
    EXPECT_EQ(shared.sample(logits, params_of(1, 0, 0.95f, 0, 42), i)->token_id, expected);
    num_unequal += shared.sample(logits, params_of(1, 0, 0.95f, 0, 43), i)->token_id != expected;
  }
  EXPECT_GT(num_unequal, 100) << "another seed must give another text";
}

TEST(Sampler, ABadLogitIsAnErrorThatNamesTheToken) {
  Sampler sampler;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
    for (const size_t place : {0u, 9u, 18u}) {
      std::vector<float> logits(19, 0.0f);
      logits[place] = bad;
      for (const float temperature : {0.0f, 1.0f}) {
        const auto drawn = sampler.sample(logits, params_of(temperature, 0, 1, 0), 0);
        ASSERT_FALSE(drawn.has_value());
        EXPECT_NE(drawn.error().message.find("token " + std::to_string(place)), std::string::npos) << drawn.error().message;
      }
    }
  }
  EXPECT_FALSE(sampler.sample(std::vector<float>(20, -kInfinity), params_of(1, 0, 1, 0), 0).has_value());
}

TEST(Sampler, LogprobsAreOfTheRawDistributionSortedAndTiesById) {
  Rng rng(6);
  std::vector<float> logits = random_logits(rng, 1000, 3);
  logits[10] = logits[700] = 20.0f;
  logits[5] = -kInfinity;
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  Sampler sampler;
  SamplingParams params = params_of(0.3f, 3, 0.9f, 0);
  params.top_logprobs = 20;
  const auto drawn = sampler.sample(logits, params, 1);
  ASSERT_TRUE(drawn.has_value());
  const auto logprob = [&](int32_t id) { return logits[static_cast<size_t>(id)] - std::log(total); };
  EXPECT_NEAR(drawn->logprob.logprob, logprob(drawn->token_id), 1e-6);
  ASSERT_EQ(drawn->logprob.top.size(), 20u);
  EXPECT_EQ(drawn->logprob.top[0].first, 10);
  EXPECT_EQ(drawn->logprob.top[1].first, 700);
  std::vector<float> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(logits[static_cast<size_t>(drawn->logprob.top[i].first)], sorted[i]);
    EXPECT_NEAR(drawn->logprob.top[i].second, logprob(drawn->logprob.top[i].first), 1e-5);
  }
  params.top_logprobs = 0;
  EXPECT_TRUE(sampler.sample(logits, params, 1)->logprob.top.empty());
  params.top_logprobs = 5;
  EXPECT_EQ(sampler.sample(std::vector<float>{0.0f, 1.0f}, params, 1)->logprob.top.size(), 2u) << "more asked for than there are";
}

// Prints the cost; no limit is asserted, the machine is shared.
TEST(Sampler, CostPerTokenIsPrinted) {
  Rng rng(8);
  for (const size_t vocab_size : {6144u, 154880u}) {
    const std::vector<float> logits = random_logits(rng, vocab_size, 2.5);
    SamplingParams with_logprobs = params_of(0, 0, 1, 0);
    with_logprobs.top_logprobs = 5;
    const std::pair<const char*, SamplingParams> cases[] = {
        {"greedy", params_of(0, 0, 1, 0)},         {"temperature", params_of(1, 0, 1, 0)},
        {"top_p 0.95", params_of(1, 0, 0.95f, 0)}, {"top_p 0.5", params_of(1, 0, 0.5f, 0)},
        {"top_k 50", params_of(1, 50, 1, 0)},      {"top_k 50, top_p 0.95", params_of(1, 50, 0.95f, 0)},
        {"min_p 0.05", params_of(1, 0, 1, 0.05f)}, {"greedy, 5 logprobs", with_logprobs}};
    for (const auto& [name, params] : cases) {
      Sampler sampler;
      sampler.sample(logits, params, 0);
      constexpr int kRounds = 20;
      const auto start = std::chrono::steady_clock::now();
      int64_t sum = 0;
      for (int i = 0; i < kRounds; ++i) sum += sampler.sample(logits, params, i)->token_id;
      const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
      EXPECT_GE(sum, 0);
      std::printf("%6zu tokens, %-22s %8.1f us\n", vocab_size, name, time.count() / kRounds);
    }
  }
}

}  // namespace
}  // namespace ingot::exec
