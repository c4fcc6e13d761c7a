// Symptom: text that is subtly not the model's. A verification that accepts a little too much, or redraws from the wrong distribution,
// shows in no single answer; chi-square over 200,000 sequences shows it. Wrong rules are run through the same check, so that it is known to
// see.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "exec/sampler_ref.h"
#include "exec/verify.h"
#include "support/sanitizer.h"

namespace ingot::exec {
namespace {

// Millions of draws; every path they take is taken by verify_test.cc.
constexpr const char* kTooSlow = "minutes under a sanitizer";

using sched::SamplingParams;

constexpr size_t kVocab = 7;
constexpr size_t kNumDraft = 3;
constexpr size_t kNumTokens = kNumDraft + 1;  // the draws that one step can make
constexpr size_t kNumTexts = kVocab * kVocab * kVocab * kVocab;
constexpr int kNumSamples = 200000;
constexpr int32_t kPrompt = 2;
constexpr double kSigmas = 4;  // a right rule is below: 1 in 30,000, and the seeds are fixed

using Tokens = std::array<int32_t, kNumTokens>;
// The first tokens of a completion, of the stream of random numbers `seed`.
using Generator = std::function<Tokens(uint64_t seed)>;
using Row = std::array<float, kVocab>;

// Target and draft model: logits that depend on the token before.
struct Models {
  std::array<Row, kVocab> target;
  std::array<Row, kVocab> draft;

  // `distance`: 0: the draft is the target; 1: it has nothing to do with it.
  Models(uint64_t seed, float distance) {
    Rng rng(seed);
    for (size_t i = 0; i < kVocab; ++i) {
      for (size_t j = 0; j < kVocab; ++j) {
        target[i][j] = rng.uniform_float(-2, 2);
        draft[i][j] = (1 - distance) * target[i][j] + distance * rng.uniform_float(-2, 2);
      }
    }
  }
};

std::vector<double> distribution_after(const std::array<Row, kVocab>& model, const SamplingParams& params,
                                       std::span<const int32_t> context) {
  const auto logits = ref::adjusted(model[static_cast<size_t>(context.back())], params, context, context.size() - 1);
  return ref::distribution(logits, params);
}

// The probability of each text under the target, by the references: (kVocab, kVocab, kVocab, kVocab), the first token slowest.
std::vector<double> texts_of(const Models& models, const SamplingParams& params) {
  std::vector<double> texts;
  std::vector<int32_t> context = {kPrompt};
  const std::function<void(double)> walk = [&](double probability) {
    if (context.size() == 1 + kNumTokens) {
      texts.push_back(probability);
      return;
    }
    const std::vector<double> next = distribution_after(models.target, params, context);
    for (size_t i = 0; i < kVocab; ++i) {
      context.push_back(static_cast<int32_t>(i));
      walk(probability * next[i]);
      context.pop_back();
    }
  };
  walk(1);
  return texts;
}

// How many sigmas chi-square is above its mean; bins of less than 8 expected draws are put together.
double sigmas(std::span<const double> counted, std::span<const double> expected) {
  double chi_square = 0;
  double rest_counted = 0;
  double rest_expected = 0;
  int degrees = -1;
  const auto add = [&](double x, double wanted) {
    chi_square += (x - wanted) * (x - wanted) / wanted;
    ++degrees;
  };
  for (size_t i = 0; i < counted.size(); ++i) {
    EXPECT_TRUE(expected[i] > 0 || counted[i] == 0) << "bin " << i << " cannot come";
    if (expected[i] >= 8) {
      add(counted[i], expected[i]);
    } else {
      rest_counted += counted[i];
      rest_expected += expected[i];
    }
  }
  if (rest_expected >= 1) add(rest_counted, rest_expected);
  EXPECT_GE(degrees, 1);
  // Wilson and Hilferty: the cube root of chi-square over its degrees is nearly normal.
  const double d = degrees;
  return (std::cbrt(chi_square / d) - (1 - 2 / (9 * d))) / std::sqrt(2 / (9 * d));
}

struct Deviation {
  std::array<double, kNumTokens> by_position;  // of each token alone
  double of_texts = 0;                         // of all of them together
  double largest() const { return std::max(of_texts, *std::max_element(by_position.begin(), by_position.end())); }
};

Deviation deviation(const Models& models, const SamplingParams& params, const Generator& generate) {
  std::vector<double> expected = texts_of(models, params);
  for (double& x : expected) x *= kNumSamples;
  std::vector<double> counted(kNumTexts);
  for (uint64_t i = 0; i < kNumSamples; ++i) {
    size_t text = 0;
    for (const int32_t token : generate(mix64(i))) text = text * kVocab + static_cast<size_t>(token);
    ++counted[text];
  }
  Deviation result;
  result.of_texts = sigmas(counted, expected);
  size_t stride = kNumTexts;
  for (double& of_position : result.by_position) {
    stride /= kVocab;
    std::array<double, kVocab> counted_here{};
    std::array<double, kVocab> expected_here{};
    for (size_t text = 0; text < kNumTexts; ++text) {
      counted_here[text / stride % kVocab] += counted[text];
      expected_here[text / stride % kVocab] += expected[text];
    }
    of_position = sigmas(counted_here, expected_here);
  }
  return result;
}

enum class Drafting { extend, drawn_elsewhere };

struct Statistics {
  int64_t verified = 0;  // drafts that were looked at
  int64_t accepted = 0;
};

// The verifier, step after step until there are tokens enough.
Generator verifier_of(const Models& models, const SamplingParams& params, const VerifyOptions& options, Drafting drafting,
                      Statistics* statistics) {
  return [&models, seeded = params, drafting, statistics, verifier = Verifier(options)](uint64_t seed) mutable {
    seeded.seed = seed;
    std::vector<int32_t> context = {kPrompt};
    while (context.size() < 1 + kNumTokens) {
      sched::BatchItem item;
      item.context = context;
      item.sample = true;
      item.sampling = &seeded;
      item.num_generated = static_cast<int32_t>(context.size() - 1);
      item.num_draft = kNumDraft;
      Draft draft;
      const auto last = [&](size_t row) { return static_cast<size_t>(row == 0 ? context.back() : draft.token_ids[row - 1]); };
      for (size_t i = 0; i < kNumDraft; ++i) {
        if (drafting == Drafting::extend) {
          EXPECT_TRUE(verifier.extend(item, models.draft[last(i)], draft));
        } else {
          draft.append_to_chain(static_cast<int32_t>(mix64(seed ^ (context.size() * 8 + i)) % kVocab));
        }
      }
      const auto sampled = verifier.verify(item, draft, [&](size_t row) { return std::span<const float>(models.target[last(row)]); });
      EXPECT_TRUE(sampled.has_value());
      const auto accepted = static_cast<int64_t>(sampled->token_ids.size()) - 1;
      statistics->accepted += accepted;
      statistics->verified += std::min<int64_t>(accepted + 1, kNumDraft);
      context.insert(context.end(), sampled->token_ids.begin(), sampled->token_ids.end());
    }
    Tokens tokens;
    std::copy_n(context.begin() + 1, kNumTokens, tokens.begin());
    return tokens;
  };
}

SamplingParams params_of(float temperature, float top_p, int32_t top_k = 0, float min_p = 0) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_p = top_p;
  params.top_k = top_k;
  params.min_p = min_p;
  return params;
}

std::string name_of(const SamplingParams& params) {
  return fmt::format("temperature {}, top_p {}, top_k {}, min_p {}, presence penalty {}", params.temperature, params.top_p, params.top_k,
                     params.min_p, params.presence_penalty);
}

void expect_right(const Models& models, const SamplingParams& params, const Generator& generate) {
  const Deviation found = deviation(models, params, generate);
  for (size_t i = 0; i < kNumTokens; ++i) EXPECT_LT(found.by_position[i], kSigmas) << name_of(params) << ", position " << i;
  EXPECT_LT(found.of_texts, kSigmas) << name_of(params);
}

TEST(VerifyDistribution, RejectionGivesTheTargets) {
  if (test_support::kUnderSanitizer) GTEST_SKIP() << kTooSlow;
  SamplingParams penalised = params_of(1, 0.95f);
  penalised.presence_penalty = 1;
  penalised.repetition_penalty = 1.3f;
  penalised.logit_bias = {{1, 1.5f}, {4, -100.0f}};
  for (const float distance : {0.2f, 1.0f}) {
    const Models models(1, distance);
    for (const SamplingParams& params : {params_of(1, 1), params_of(0.4f, 1), params_of(2, 0.8f), params_of(0.8f, 1, 4, 0.1f), penalised}) {
      Statistics statistics;
      expect_right(models, params, verifier_of(models, params, {.rejection_sampling = true}, Drafting::extend, &statistics));
      std::printf("distance %.1f, %s: %.3f of the drafts accepted\n", static_cast<double>(distance), name_of(params).c_str(),
                  static_cast<double>(statistics.accepted) / static_cast<double>(statistics.verified));
      EXPECT_GT(statistics.accepted, kNumSamples / 4);
      EXPECT_LT(statistics.accepted, statistics.verified);
    }
  }
}

TEST(VerifyDistribution, TheSameDrawGivesTheTargets) {
  if (test_support::kUnderSanitizer) GTEST_SKIP() << kTooSlow;
  const Models models(2, 0.6f);
  for (const SamplingParams& params : {params_of(1, 1), params_of(0.5f, 0.9f)}) {
    for (const Drafting drafting : {Drafting::extend, Drafting::drawn_elsewhere}) {
      Statistics statistics;
      expect_right(models, params, verifier_of(models, params, {}, drafting, &statistics));
      EXPECT_GT(statistics.accepted, kNumSamples / 10);
    }
  }
}

TEST(VerifyDistribution, RejectionAcceptsWhatTheTwoDistributionsShare) {
  if (test_support::kUnderSanitizer) GTEST_SKIP() << kTooSlow;
  for (const float distance : {0.0f, 0.3f, 1.0f}) {
    const Models models(3, distance);
    const SamplingParams params = params_of(1, 1);
    const std::vector<int32_t> context = {kPrompt};
    const auto p = distribution_after(models.target, params, context);
    const auto q = distribution_after(models.draft, params, context);
    double shared = 0;
    for (size_t i = 0; i < kVocab; ++i) shared += std::min(p[i], q[i]);
    Verifier verifier({.rejection_sampling = true});
    int num_accepted = 0;
    for (uint64_t seed = 0; seed < kNumSamples; ++seed) {
      SamplingParams seeded = params;
      seeded.seed = seed;
      sched::BatchItem item;
      item.context = context;
      item.sample = true;
      item.sampling = &seeded;
      item.num_draft = 1;
      Draft draft;
      ASSERT_TRUE(verifier.extend(item, models.draft[kPrompt], draft));
      const auto sampled = verifier.verify(item, draft, [&](size_t) { return std::span<const float>(models.target[kPrompt]); });
      num_accepted += sampled->token_ids.size() == 2;
    }
    EXPECT_NEAR(static_cast<double>(num_accepted) / kNumSamples, shared, 4 * 0.5 / std::sqrt(kNumSamples)) << "distance " << distance;
  }
}

// The power of the check: rejection by a textbook, and with each of its steps done wrong.
enum class Rule { right, accepts_always, redraws_from_target, does_not_renormalise, reuses_the_uniform, draws_last_from_draft };

Generator textbook_of(const Models& models, const SamplingParams& params, Rule rule) {
  std::array<std::vector<double>, kVocab> target;
  std::array<std::vector<double>, kVocab> draft;
  for (size_t last = 0; last < kVocab; ++last) {
    target[last] = ref::distribution(models.target[last], params);
    draft[last] = ref::distribution(models.draft[last], params);
  }
  return [target, draft, rule](uint64_t seed) {
    Rng rng(seed);
    Tokens tokens;
    size_t last = kPrompt;
    bool drafting = true;
    for (size_t i = 0; i < kNumTokens; ++i) {
      const std::vector<double>& p = target[last];
      const std::vector<double>& q = draft[last];
      int32_t token = -1;
      if (!drafting || i == kNumDraft) {
        token = ref::draw(rule == Rule::draws_last_from_draft ? q : p, rng.uniform());
      } else {
        const double drawn = rng.uniform();
        const int32_t drafted = ref::draw(q, drawn);
        const auto d = static_cast<size_t>(drafted);
        const double uniform = rule == Rule::reuses_the_uniform ? drawn : rng.uniform();
        if (rule == Rule::accepts_always || uniform * q[d] < p[d]) {
          token = drafted;
        } else {
          std::vector<double> rest(kVocab);
          double total = 0;
          for (size_t j = 0; j < kVocab; ++j) total += rest[j] = std::max(p[j] - q[j], 0.0);
          for (double& x : rest) x /= rule == Rule::does_not_renormalise ? 1 : total;
          token = ref::draw(rule == Rule::redraws_from_target ? p : rest, rng.uniform());
          drafting = false;
        }
      }
      tokens[i] = token;
      last = static_cast<size_t>(token);
    }
    return tokens;
  };
}

TEST(VerifyDistribution, TheCheckSeesWrongRules) {
  if (test_support::kUnderSanitizer) GTEST_SKIP() << kTooSlow;
  for (const float distance : {0.2f, 1.0f}) {
    const Models models(1, distance);
    for (const SamplingParams& params : {params_of(1, 1), params_of(0.4f, 1)}) {
      SCOPED_TRACE(fmt::format("distance {}, {}", distance, name_of(params)));
      EXPECT_LT(deviation(models, params, textbook_of(models, params, Rule::right)).largest(), kSigmas);
      for (const Rule rule : {Rule::accepts_always, Rule::redraws_from_target, Rule::does_not_renormalise, Rule::reuses_the_uniform,
                              Rule::draws_last_from_draft}) {
        EXPECT_GT(deviation(models, params, textbook_of(models, params, rule)).largest(), 2 * kSigmas)
            << "rule " << static_cast<int>(rule) << " goes unseen";
      }
    }
  }
}

}  // namespace
}  // namespace ingot::exec
