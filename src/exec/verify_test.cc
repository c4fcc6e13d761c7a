// Symptoms: an answer that depends on whether there were drafts, or on how many; a penalty, logit_bias or min_p that drafts get round (C4,
// C5); logprobs of another position or of none (C6); a draft that breaks a grammar and the server with it (F2).
#include "exec/verify.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>

#include "base/rng.h"
#include "exec/sampler_ref.h"
#include "support/scripted_runner.h"

namespace ingot::exec {
namespace {

using sched::SamplingParams;
using testing::ScriptedDrafts;
using testing::ScriptedRunner;

constexpr int32_t kVocab = 40;
constexpr int32_t kPageSize = 4;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Normal logits that are a function of the last two tokens.
ScriptedRunner::Script random_script(uint64_t seed, double spread) {
  return [=](const ScriptedRunner::Context& context, std::span<float> logits) {
    uint64_t state = mix64(seed);
    for (const int32_t token : context.tokens.last(std::min<size_t>(2, context.tokens.size()))) {
      state = mix64(state ^ static_cast<uint64_t>(token + 1));
    }
    Rng rng(state);
    for (float& logit : logits) {
      const double radius = std::sqrt(-2 * std::log(1 - rng.uniform()));
      logit = static_cast<float>(spread * radius * std::cos(6.283185307179586 * rng.uniform()));
    }
  };
}

// Forbids a third of the tokens, which third depends on the tokens so far; notes what it was asked and told.
class ThirdsForbidden final : public sched::TokenConstraint {
 public:
  void restrict(std::span<float> logits) override {
    EXPECT_FALSE(asked_) << "asked twice for one token";
    asked_ = true;
    for (size_t i = 0; i < logits.size(); ++i) {
      if ((i + state_) % 3 == 0) logits[i] = -kInfinity;
    }
  }
  void on_token(int32_t token_id) override {
    EXPECT_TRUE(asked_) << "told of a token that it was not asked about";
    EXPECT_NE((static_cast<size_t>(token_id) + state_) % 3, 0u) << "a forbidden token was drawn";
    asked_ = false;
    state_ += static_cast<size_t>(token_id) + 1;
    told.push_back(token_id);
  }
  std::vector<int32_t> told;

 private:
  size_t state_ = 0;
  bool asked_ = false;
};

// Chains of the tokens of a known answer, each with the given probability, else of others.
class KnownDrafts final : public DraftSource {
 public:
  KnownDrafts(std::vector<int32_t> answer, double truth) : answer_(std::move(answer)), truth_(truth) {}
  void propose(const sched::BatchItem& item, Draft& draft) override {
    const auto begin = static_cast<size_t>(item.num_generated);
    for (size_t i = begin; i < begin + static_cast<size_t>(item.num_draft); ++i) {
      const int32_t token = answer_.at(i);
      draft.append_to_chain(rng_.uniform() < truth_ ? token : (token + 1) % kVocab);
    }
  }

 private:
  std::vector<int32_t> answer_;
  double truth_;
  Rng rng_{5};
};

// The same token, always.
class StubbornDrafts final : public DraftSource {
 public:
  explicit StubbornDrafts(int32_t token) : token_(token) {}
  void propose(const sched::BatchItem& item, Draft& draft) override {
    for (int32_t i = 0; i < item.num_draft; ++i) draft.append_to_chain(token_);
  }

 private:
  int32_t token_;
};

struct Output {
  std::vector<int32_t> token_ids;
  std::vector<sched::TokenLogprob> logprobs;
  int num_steps = 0;  // after the first token
  int num_drafted = 0;
  int num_accepted = 0;
};

struct Scenario {
  ScriptedRunner::Script script;
  std::vector<int32_t> prompt = {3, 1, 4, 1, 5, 9};
  SamplingParams params;
  int32_t num_draft = 0;
  std::shared_ptr<DraftSource> drafts = nullptr;
  sched::TokenConstraint* constraint = nullptr;
  VerifyOptions verify = {};
};

// Runs a request to max_tokens, as an engine does: the prompt, then steps of the last token and at most num_draft drafts.
Output generate(const Scenario& run) {
  const int32_t max_tokens = run.params.max_tokens;
  // Trees write all their rows behind the known tokens.
  const auto num_places = static_cast<int32_t>(run.prompt.size()) + max_tokens + run.num_draft;
  std::vector<int32_t> pages(static_cast<size_t>(num_places / kPageSize + 1));
  std::iota(pages.rbegin(), pages.rend(), 0);
  ScriptedRunner runner({.num_pages = static_cast<int64_t>(pages.size()),
                         .page_size = kPageSize,
                         .vocab_size = kVocab,
                         .script = run.script,
                         .before_step = {},
                         .drafts = run.drafts,
                         .verify = run.verify});
  std::vector<int32_t> tokens = run.prompt;
  Output output;
  for (size_t computed = 0; static_cast<int32_t>(output.token_ids.size()) < max_tokens;) {
    sched::BatchItem item;
    item.request = 77;
    item.context = tokens;
    item.token_ids = item.context.subspan(computed);
    item.start = static_cast<int32_t>(computed);
    item.pages = pages;
    item.sample = true;
    item.sampling = &run.params;
    item.constraint = run.constraint;
    item.num_generated = static_cast<int32_t>(output.token_ids.size());
    const bool decodes = item.num_generated > 0;
    if (decodes) item.num_draft = std::min(run.num_draft, max_tokens - item.num_generated - 1);
    sched::BatchPlan plan;
    plan.items.push_back(item);
    auto result = runner.run(plan);
    if (!result) {
      ADD_FAILURE() << result.error().text();
      return output;
    }
    const sched::SampledTokens& sampled = result->sampled.at(0);
    computed = tokens.size() + sampled.token_ids.size() - 1;
    tokens.insert(tokens.end(), sampled.token_ids.begin(), sampled.token_ids.end());
    output.token_ids.insert(output.token_ids.end(), sampled.token_ids.begin(), sampled.token_ids.end());
    output.logprobs.insert(output.logprobs.end(), sampled.logprobs.begin(), sampled.logprobs.end());
    output.num_steps += decodes;
    output.num_drafted += sampled.num_drafted;
    output.num_accepted += static_cast<int32_t>(sampled.token_ids.size()) - 1;
  }
  return output;
}

void expect_equal(const Output& actual, const Output& expected) {
  ASSERT_EQ(actual.token_ids, expected.token_ids);
  ASSERT_EQ(actual.logprobs.size(), expected.logprobs.size());
  for (size_t i = 0; i < expected.logprobs.size(); ++i) {
    ASSERT_EQ(actual.logprobs[i].logprob, expected.logprobs[i].logprob) << "token " << i;
    ASSERT_EQ(actual.logprobs[i].top, expected.logprobs[i].top) << "token " << i;
  }
}

SamplingParams base_params(float temperature, int32_t max_tokens = 24) {
  SamplingParams params;
  params.temperature = temperature;
  params.seed = 11;
  params.has_client_seed = true;
  params.max_tokens = max_tokens;
  params.top_logprobs = 3;
  return params;
}

std::map<std::string, SamplingParams> variants(float temperature) {
  const SamplingParams base = base_params(temperature);
  std::map<std::string, SamplingParams> all = {{"plain", base}};
  const auto add = [&](const char* name, auto change) { change(all.emplace(name, base).first->second); };
  add("presence", [](SamplingParams& p) { p.presence_penalty = 2; });
  add("frequency", [](SamplingParams& p) { p.frequency_penalty = 1.5; });
  add("negative frequency", [](SamplingParams& p) { p.frequency_penalty = -0.5; });
  add("repetition", [](SamplingParams& p) { p.repetition_penalty = 1.4f; });
  add("bias", [](SamplingParams& p) { p.logit_bias = {{7, -100.0f}, {0, 3.0f}, {39, 2.5f}}; });
  add("min_p", [](SamplingParams& p) { p.min_p = 0.2f; });
  add("top_k", [](SamplingParams& p) { p.top_k = 5; });
  add("top_p", [](SamplingParams& p) { p.top_p = 0.7f; });
  add("everything", [](SamplingParams& p) {
    p.presence_penalty = 0.5;
    p.frequency_penalty = 0.3f;
    p.repetition_penalty = 1.2f;
    p.logit_bias = {{1, -100.0f}, {2, 4.0f}};
    p.min_p = 0.02f;
    p.top_k = 20;
    p.top_p = 0.9f;
  });
  return all;
}

// Token by token from the references in double.
void expect_reference(const Scenario& run, const Output& output) {
  std::vector<int32_t> tokens = run.prompt;
  int num_unequal = 0;
  for (size_t i = 0; i < output.token_ids.size(); ++i) {
    std::vector<float> raw(kVocab);
    run.script({77, tokens, static_cast<int32_t>(i)}, raw);
    double total = 0;
    for (const float logit : raw) total += std::exp(static_cast<double>(logit));
    const int32_t token = output.token_ids[i];
    ASSERT_NEAR(output.logprobs.at(i).logprob, raw[static_cast<size_t>(token)] - std::log(total), 1e-5) << "not of the raw logits";
    const std::vector<float> logits = ref::adjusted(raw, run.params, tokens, i);
    if (run.params.temperature == 0) {
      ASSERT_EQ(token, std::max_element(logits.begin(), logits.end()) - logits.begin()) << "token " << i;
    } else {
      num_unequal += token != ref::draw(ref::distribution(logits, run.params), random_uniform(run.params.seed, i));
    }
    tokens.push_back(token);
  }
  EXPECT_EQ(num_unequal, 0);
}

TEST(Verify, NothingThatIsDraftedChangesAnAnswer) {
  int64_t partly = 0;  // runs where some drafts held and others did not
  for (const uint64_t seed : {101u, 102u, 103u}) {
    for (const float temperature : {0.0f, 0.8f}) {
      for (const auto& [name, params] : variants(temperature)) {
        for (const bool constrained : {false, true}) {
          SCOPED_TRACE(::testing::Message() << "script " << seed << ", temperature " << temperature << ", " << name
                                            << (constrained ? ", constrained" : ""));
          Scenario run{.script = random_script(seed, 2), .params = params};
          ThirdsForbidden alone;
          if (constrained) run.constraint = &alone;
          const Output expected = generate(run);
          ASSERT_EQ(expected.token_ids.size(), 24u);
          if (!constrained) expect_reference(run, expected);
          for (int32_t k = 0; k <= 8; ++k) {
            const std::pair<const char*, std::shared_ptr<DraftSource>> sources[] = {
                {"right", std::make_shared<KnownDrafts>(expected.token_ids, 1)},
                {"wrong", std::make_shared<KnownDrafts>(expected.token_ids, 0)},
                {"mixed", std::make_shared<KnownDrafts>(expected.token_ids, 0.6)},
                {"scripted", std::make_shared<ScriptedDrafts>(run.script, kVocab, 0.8)}};
            for (const auto& [source, drafts] : sources) {
              SCOPED_TRACE(::testing::Message() << "k " << k << ", drafts " << source);
              ThirdsForbidden constraint;
              run.num_draft = k;
              run.drafts = drafts;
              if (constrained) run.constraint = &constraint;
              // The rejection rule is allowed, but not for a greedy request or one with a client's seed.
              run.verify.rejection_sampling = k % 2 == 0;
              const Output actual = generate(run);
              expect_equal(actual, expected);
              if (HasFatalFailure()) return;
              if (constrained) {
                ASSERT_EQ(constraint.told, actual.token_ids) << "it was told of other tokens";
              }
              if (k > 0) {
                ASSERT_GT(actual.num_drafted, 0);
              }
              if (source == std::string("right")) {
                ASSERT_EQ(actual.num_accepted, actual.num_drafted);
              }
              if (source == std::string("right")) {
                ASSERT_EQ(actual.num_steps, (23 + k) / (k + 1));
              }
              if (source == std::string("wrong")) {
                ASSERT_EQ(actual.num_accepted, 0);
              }
              partly += actual.num_accepted > 0 && actual.num_accepted < actual.num_drafted;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(partly, 500);
}

TEST(Verify, TreesChangeNothingAndTheWalkFindsWhatHolds) {
  for (const float temperature : {0.0f, 0.8f}) {
    for (const auto& [name, params] : variants(temperature)) {
      Scenario run{.script = random_script(7, 2), .params = params};
      run.params.max_tokens = 140;
      const Output expected = generate(run);
      int num_accepted = 0;
      for (const int32_t topk : {2, 3, 4}) {
        for (const double truth : {1.0, 0.5, 0.0}) {
          for (const int32_t num_draft : {1, 5, 8, 120}) {
            SCOPED_TRACE(::testing::Message() << name << ", temperature " << temperature << ", topk " << topk << ", truth " << truth << ", "
                                              << num_draft << " drafts");
            run.num_draft = num_draft;
            run.drafts = std::make_shared<ScriptedDrafts>(run.script, kVocab, truth, 1, topk);
            const Output actual = generate(run);
            expect_equal(actual, expected);
            if (HasFatalFailure()) return;
            num_accepted += actual.num_accepted;
            if (name == "plain" && temperature == 0 && truth == 0) {
              EXPECT_EQ(actual.num_accepted, 0);
            }
          }
        }
      }
      EXPECT_GT(num_accepted, 0);
    }
  }
}

TEST(Verify, AFullTreeOfTheLikeliestHoldsToItsDepthWhenGreedy) {
  // 2 + 4 + 8 + 16 drafts: four levels. The likeliest successor is the first or the second child by turns.
  Scenario run{.script = random_script(8, 2), .params = base_params(0, 200)};
  const Output expected = generate(run);
  run.num_draft = 30;
  run.drafts = std::make_shared<ScriptedDrafts>(run.script, kVocab, 1, 1, 2);
  const Output actual = generate(run);
  expect_equal(actual, expected);
  EXPECT_LE(actual.num_steps, 199 / 5 + 10) << "five tokens a step, but for the last few where less is drafted";
  EXPECT_GT(actual.num_drafted, 30 * 30);
}

TEST(Verify, ABannedTokenThatEveryDraftLovesNeverComes) {  // C4
  const auto loves_seven = [](const ScriptedRunner::Context& context, std::span<float> logits) {
    random_script(3, 1)(context, logits);
    logits[7] += 10;
  };
  for (const float temperature : {0.0f, 1.0f}) {
    for (const bool rejection : {false, true}) {
      Scenario run{.script = loves_seven, .params = base_params(temperature, 60)};
      run.params.has_client_seed = !rejection;
      run.params.min_p = 0.05f;
      EXPECT_EQ(generate(run).token_ids, std::vector<int32_t>(60, 7)) << "or the test shows nothing";
      run.params.logit_bias = {{7, -100.0f}};
      const Output expected = generate(run);
      run.num_draft = 5;
      run.drafts = std::make_shared<StubbornDrafts>(7);
      run.verify.rejection_sampling = rejection;
      const Output actual = generate(run);
      EXPECT_EQ(std::count(actual.token_ids.begin(), actual.token_ids.end(), 7), 0);
      EXPECT_EQ(actual.num_accepted, 0);
      EXPECT_GT(actual.num_drafted, 200);
      expect_equal(actual, expected);
    }
  }
}

TEST(Verify, PenaltiesChangeTheAnswerAndDraftsDoNot) {  // C5
  const auto repeats = [](const ScriptedRunner::Context& context, std::span<float> logits) {
    random_script(4, 0.2)(context, logits);
    logits[static_cast<size_t>(context.tokens.back())] += 1.5;
    logits[12] += 1.2f;
  };
  for (const float temperature : {0.0f, 0.7f}) {
    for (const int which : {0, 1, 2}) {
      SCOPED_TRACE(::testing::Message() << "temperature " << temperature << ", penalty " << which);
      Scenario run{.script = repeats, .params = base_params(temperature, 40)};
      const Output without = generate(run);
      if (which == 0) run.params.presence_penalty = 2;
      if (which == 1) run.params.frequency_penalty = 2;
      if (which == 2) run.params.repetition_penalty = 2;
      const Output expected = generate(run);
      EXPECT_NE(without.token_ids, expected.token_ids);
      expect_reference(run, expected);
      for (const int32_t k : {1, 5, 8}) {
        run.num_draft = k;
        run.drafts = std::make_shared<ScriptedDrafts>(repeats, kVocab, 1);
        expect_equal(generate(run), expected);
      }
    }
  }
}

TEST(Verify, ExtremePenaltiesLeaveNumbers) {
  Scenario run{.script = random_script(5, 3), .params = base_params(1)};
  run.params.repetition_penalty = 1e-38f;
  run.params.logit_bias = {{5, 3e38f}, {6, -3e38f}};
  run.num_draft = 3;
  run.drafts = std::make_shared<ScriptedDrafts>(run.script, kVocab, 1);
  EXPECT_EQ(generate(run).token_ids.size(), 24u);
}

TEST(Verify, LogprobsAreThereAndOfTheirOwnPosition) {  // C6
  Scenario run{.script = random_script(6, 2), .params = base_params(0)};
  const Output expected = generate(run);
  run.num_draft = 5;
  run.drafts = std::make_shared<KnownDrafts>(expected.token_ids, 1);
  const Output actual = generate(run);
  expect_equal(actual, expected);
  expect_reference(run, actual);
  EXPECT_EQ(actual.num_accepted, actual.num_drafted);
  for (const sched::TokenLogprob& logprob : actual.logprobs) {
    EXPECT_LT(logprob.logprob, -1e-3);
    EXPECT_EQ(logprob.top.size(), 3u);
  }
}

// Lets one text pass.
class OneText final : public sched::TokenConstraint {
 public:
  explicit OneText(std::vector<int32_t> text) : text_(std::move(text)) {}
  void restrict(std::span<float> logits) override {
    for (size_t i = 0; i < logits.size(); ++i) {
      if (next_ == text_.size() || i != static_cast<size_t>(text_[next_])) logits[i] = -kInfinity;
    }
  }
  void on_token(int32_t token_id) override {
    EXPECT_EQ(token_id, text_.at(next_));
    ++next_;
  }

 private:
  std::vector<int32_t> text_;
  size_t next_ = 0;
};

TEST(Verify, ADraftThatBreaksTheGrammarIsRejectedNotFatal) {  // F2
  std::vector<int32_t> text(24);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>((i * 11 + 2) % (kVocab - 1));
  for (const int32_t k : {0, 1, 5, 8}) {
    OneText all_broken(text);
    Scenario run{.script = random_script(9, 2), .params = base_params(0)};
    run.constraint = &all_broken;
    run.num_draft = k;
    run.drafts = std::make_shared<StubbornDrafts>(39);
    const Output rejected = generate(run);
    EXPECT_EQ(rejected.token_ids, text);
    EXPECT_EQ(rejected.num_accepted, 0);
    OneText some_broken(text);
    run.constraint = &some_broken;
    run.drafts = std::make_shared<KnownDrafts>(text, 0.7);
    EXPECT_EQ(generate(run).token_ids, text);
  }
}

// One call of verify() on rows that are written out.
struct Direct {
  SamplingParams params = base_params(0);
  std::vector<int32_t> context = {1, 2, 3};
  sched::BatchItem item;
  std::vector<std::vector<float>> rows;

  Direct() {
    item.request = 77;
    item.context = context;
    item.sample = true;
    item.sampling = &params;
    item.num_generated = 1;
    item.num_draft = 8;
  }
  Direct(const Direct&) = delete;
  Direct& operator=(const Direct&) = delete;
  Result<sched::SampledTokens> verify(const Draft& draft, const VerifyOptions& options = {}) {
    Verifier verifier(options);
    size_t next = 0;
    return verifier.verify(item, draft, [&](size_t row) {
      EXPECT_GE(row, next) << "rows are asked for in order, each once";
      next = row + 1;
      return std::span<const float>(rows.at(row));
    });
  }
};

std::vector<float> peak(int32_t token) {
  std::vector<float> row(kVocab, 0.0f);
  row[static_cast<size_t>(token)] = 50;
  return row;
}

TEST(Verify, TheWalkGoesDownTheTreeAndStopsWhereNoChildHolds) {
  Direct direct;
  // Root: 4, 5. Under 5: 6, 7. Under 7: 8. Row i follows draft i - 1.
  const Draft draft{.token_ids = {4, 5, 6, 7, 8}, .parents = {-1, -1, 1, 1, 3}, .probabilities = {}};
  direct.rows = {peak(5), peak(0), peak(7), peak(0), peak(8), peak(9)};
  EXPECT_EQ(direct.verify(draft)->token_ids, (std::vector<int32_t>{5, 7, 8, 9}));
  direct.rows[4] = peak(9);
  EXPECT_EQ(direct.verify(draft)->token_ids, (std::vector<int32_t>{5, 7, 9}));
  direct.rows[2] = peak(8);  // 8 is drafted, but not here
  EXPECT_EQ(direct.verify(draft)->token_ids, (std::vector<int32_t>{5, 8}));
  direct.rows[0] = peak(6);
  const auto sampled = direct.verify(draft);
  EXPECT_EQ(sampled->token_ids, std::vector<int32_t>{6});
  EXPECT_EQ(sampled->num_drafted, 5);
  EXPECT_EQ(sampled->request, 77u);
}

TEST(Verify, NothingComesBehindAStopToken) {
  Direct direct;
  direct.params.stop_token_ids = {30, 5};
  Draft draft;
  for (const int32_t token : {4, 5, 6}) draft.append_to_chain(token);
  direct.rows = {peak(4), peak(5), peak(6), peak(7)};
  OneText grammar({4, 5});  // has nothing to say after its end
  direct.item.constraint = &grammar;
  const auto sampled = direct.verify(draft);
  ASSERT_TRUE(sampled.has_value()) << sampled.error().text();
  EXPECT_EQ(sampled->token_ids, (std::vector<int32_t>{4, 5}));
}

TEST(Verify, ErrorsNameRequestPositionAndToken) {
  Direct direct;
  Draft draft;
  for (const int32_t token : {4, 5}) draft.append_to_chain(token);
  direct.rows = {peak(4), peak(5), peak(6)};
  direct.rows[1][13] = std::numeric_limits<float>::quiet_NaN();
  const auto broken = direct.verify(draft);
  ASSERT_FALSE(broken.has_value());
  EXPECT_NE(broken.error().message.find("request 77, position 4: the logit of token 13 is"), std::string::npos) << broken.error().message;
  // A forbidden token with a broken logit is as bad a sign.
  OneText hides({4, 5});
  direct.item.constraint = &hides;
  EXPECT_FALSE(direct.verify(draft).has_value());
  OneText ends({4});
  direct.item.constraint = &ends;
  direct.rows[1] = peak(5);
  const auto empty = direct.verify(draft);  // the request's own fault: the others go on
  ASSERT_TRUE(empty.has_value());
  EXPECT_EQ(empty->token_ids, std::vector<int32_t>{4});
  EXPECT_NE(empty->error.find("request 77, position 4: its constraint leaves no token"), std::string::npos) << empty->error;
  // A broken row that no draft leads to is not looked at.
  direct.item.constraint = nullptr;
  direct.rows[0] = peak(9);
  direct.rows[1][13] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(direct.verify(draft).has_value());
}

TEST(Verify, ExtendDraftsWhatVerifyWouldDrawFromThoseLogits) {
  Direct direct;
  direct.params = base_params(0);
  Verifier verifier;
  std::vector<float> row(kVocab, 0.0f);
  row[8] = 3;
  row[9] = 2.5;
  row[3] = 2;  // in the prompt or completion
  Draft draft;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(verifier.extend(direct.item, row, draft));
  EXPECT_EQ(draft.token_ids, (std::vector<int32_t>{8, 8, 8}));
  EXPECT_EQ(draft.parents, (std::vector<int32_t>{-1, 0, 1}));
  EXPECT_TRUE(draft.probabilities.empty());
  direct.params.presence_penalty = 1;
  draft = {};
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(verifier.extend(direct.item, row, draft));
  EXPECT_EQ(draft.token_ids, (std::vector<int32_t>{8, 9, 8, 8})) << "what is drafted counts; 8, then less than 9, then more than the rest";
  direct.params.logit_bias = {{8, -100.0f}};
  draft = {};
  ASSERT_TRUE(verifier.extend(direct.item, row, draft));
  EXPECT_EQ(draft.token_ids, std::vector<int32_t>{9});
  row[20] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(verifier.extend(direct.item, row, draft));
  EXPECT_EQ(draft.size(), 1);
}

TEST(Verify, DraftsAreDrawnOnlyWhereTheRejectionRuleIsAllowed) {
  Direct direct;
  Verifier plain;
  Verifier rejecting({.rejection_sampling = true});
  for (const bool has_client_seed : {false, true}) {
    for (const float temperature : {0.0f, 1.0f}) {
      for (const int32_t top_k : {0, 1, 2}) {
        direct.params.has_client_seed = has_client_seed;
        direct.params.temperature = temperature;
        direct.params.top_k = top_k;
        EXPECT_FALSE(plain.draws_drafts(direct.item));
        EXPECT_EQ(rejecting.draws_drafts(direct.item), !has_client_seed && temperature == 1 && top_k != 1);
      }
    }
  }
  direct.params.has_client_seed = false;
  Draft draft;
  const std::vector<float> row = peak(3);
  ASSERT_TRUE(rejecting.extend(direct.item, row, draft));
  ASSERT_TRUE(rejecting.extend(direct.item, row, draft));
  ASSERT_EQ(draft.probabilities.size(), 2u * kVocab);
  EXPECT_NEAR(std::accumulate(draft.probabilities.begin() + kVocab, draft.probabilities.end(), 0.0), 1, 1e-12);
}

TEST(Verify, ForcedAcceptanceHasTheMeanThatIsAskedFor) {
  for (const double mean : {1.0, 1.84, 2.5, 3.0, 3.33, 5.99, 6.0}) {
    for (const bool is_tree : {false, true}) {
      Direct direct;
      direct.item.num_draft = 9;
      Draft draft;
      for (int32_t i = 0; i < 5; ++i) {
        draft.append_to_chain(20 + i);
        if (is_tree && i == 4) draft.token_ids.insert(draft.token_ids.end(), {1, 2}), draft.parents.insert(draft.parents.end(), {-1, 4});
      }
      // Drafts that the model would never draw, and one that it always would.
      direct.rows.assign(8, peak(9));
      direct.rows[3] = peak(23);
      constexpr int kSteps = 10000;
      int64_t num_tokens = 0;
      for (int i = 0; i < kSteps; ++i) {
        direct.item.num_generated = static_cast<int32_t>(1 + num_tokens);
        const auto sampled = direct.verify(draft, {.forced_acceptance = mean});
        ASSERT_TRUE(sampled.has_value());
        const auto count = static_cast<double>(sampled->token_ids.size());
        ASSERT_TRUE(count == std::floor(mean) || count == std::ceil(mean)) << count;
        const auto accepted = sampled->token_ids.size() - 1;
        ASSERT_EQ(sampled->token_ids.back(), accepted == 3 ? 23 : 9) << "the last token is the model's";
        ASSERT_EQ(sampled->num_drafted, draft.size());
        num_tokens += static_cast<int64_t>(count);
        if (i == 99) {
          EXPECT_NEAR(static_cast<double>(num_tokens) / 100, mean, 0.01) << "soon, too";
        }
      }
      EXPECT_NEAR(static_cast<double>(num_tokens) / kSteps, mean, mean * 1e-4);
    }
  }
}

TEST(Verify, ForcedAcceptanceIsBoundedByTheDraftsAndFindsBack) {
  Scenario run{.script = random_script(2, 2), .params = base_params(0, 1001)};
  run.verify.forced_acceptance = 3.33;
  run.drafts = std::make_shared<StubbornDrafts>(39);
  run.params.stop_token_ids = {};
  for (const int32_t k : {0, 1, 2}) {
    run.num_draft = k;
    const Output output = generate(run);
    EXPECT_EQ(output.num_steps, (1000 + k) / (k + 1));
  }
  run.num_draft = 5;
  EXPECT_NEAR(1000.0 / generate(run).num_steps, 3.33, 3.33 * 0.005);
  // With a grammar nothing is forced.
  ThirdsForbidden constraint;
  run.constraint = &constraint;
  run.params.max_tokens = 50;
  const Output forced = generate(run);
  run.verify.forced_acceptance = 0;
  run.num_draft = 0;
  ThirdsForbidden alone;
  run.constraint = &alone;
  EXPECT_EQ(forced.token_ids, generate(run).token_ids);
}

// Prints the cost; no limit is asserted, the machine is shared.
TEST(Verify, CostPerTokenIsPrinted) {
  constexpr size_t kVocabSize = 154880;
  std::vector<float> row(kVocabSize);
  Rng rng(8);
  for (float& logit : row) logit = rng.uniform_float(-4, 4);
  std::vector<int32_t> context(8192);
  for (int32_t& token : context) token = static_cast<int32_t>(rng.below(kVocabSize));
  const auto time = [&](const char* name, const SamplingParams& params, bool rejection) {
    sched::BatchItem item;
    item.context = context;
    item.sample = true;
    item.sampling = &params;
    item.num_generated = 1000;
    item.num_draft = 5;
    Verifier verifier({.rejection_sampling = rejection});
    Draft draft;
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(verifier.extend(item, row, draft));
    const auto rows = [&](size_t) { return std::span<const float>(row); };
    constexpr int kRounds = 10;
    size_t num_tokens = 0;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kRounds; ++i) num_tokens += verifier.verify(item, draft, rows)->token_ids.size();
    const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
    std::printf("%zu tokens, 5 drafts, %-24s %8.1f us a token, %.1f tokens a step\n", kVocabSize, name,
                spent.count() / static_cast<double>(num_tokens), static_cast<double>(num_tokens) / kRounds);
  };
  SamplingParams params;
  params.temperature = 0;
  time("greedy", params, false);
  params.presence_penalty = 0.1f;
  time("greedy, presence penalty", params, false);
  params.repetition_penalty = 1.1f;
  time("greedy, repetition, too", params, false);
  params = {};
  time("temperature", params, false);
  time("temperature, rejection", params, true);
  params.top_p = 0.95f;
  time("top_p 0.95, rejection", params, true);
}

}  // namespace
}  // namespace ingot::exec
