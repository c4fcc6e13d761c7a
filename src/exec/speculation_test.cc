// Speculation is invisible: with and without drafts the real model under the real scheduler gives the same tokens, logprobs and ends, bit
// for bit. Symptoms that this is about: answers that change with speculation, or that go bad until a restart because rejected rows were
// cached (D3), caps that mask an earlier stop (C1), penalties and bias that drafts escape (C4, C5), missing logprobs (C6), an MTP cache
// that drifts (C15) or was never filled (C16).
#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "support/sanitizer.h"
#include "support/speculation_house.h"
#include "support/tiny_glm.h"

namespace ingot::exec {
namespace {

using sched::FinishReason;
using sched::Request;
using sched::RequestId;
using test_support::Answer;
using test_support::demo_prompts;
using test_support::House;
using test_support::kContext;
using test_support::kNumVariants;
using test_support::options;
using test_support::variant;

constexpr size_t kNumPrompts = 200;

constexpr size_t kNumInterleaved = test_support::kUnderSanitizer ? 150 : 1000;
// The tests with few requests, and that of the tiny model, take the same paths.
constexpr const char* kTooSlow = "minutes under a sanitizer";

TEST(Speculation, NothingButTheSpeedTellsWhetherThereAreDrafts) {
  if (test_support::kUnderSanitizer) GTEST_SKIP() << kTooSlow;
  const std::filesystem::path demo = INGOT_SOURCE_DIR "/models/demo";
  const auto prompts = demo_prompts(kNumPrompts);
  const auto fill = [&](House& house) {
    for (size_t i = 0; i < prompts.size(); ++i) house.submit(i, variant(static_cast<int>(i % kNumVariants), i, prompts[i]));
    house.run();
  };
  House plain(demo, options(200, 16, kContext, 0), {});
  fill(plain);
  int64_t preemptions = 0;  // with drafts outstanding
  for (const int32_t num_steps : {0, 1, 2, 3, 4, 5, 6, 7, 8}) {
    // Few pages: sequences are preempted with drafts outstanding; they resume from what the cache still has.
    House house(demo, options(110, 4, kContext, num_steps), {.speculate = true, .verify = {}});
    fill(house);
    const auto stats = house.scheduler.stats();
    if (num_steps > 0) preemptions += stats.preemptions;
    EXPECT_GT(stats.cache_hit_tokens, 0) << num_steps;
    if (num_steps > 0) {
      EXPECT_GT(stats.accepted_tokens, stats.draft_tokens / 4) << num_steps << ": the drafts of a trained layer are often right";
      EXPECT_LT(stats.accepted_tokens, stats.draft_tokens) << num_steps;
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(house.answers[i], plain.answers[i])
          << "depth " << num_steps << ", prompt " << i << ", variant " << i % kNumVariants << ": "
          << ::testing::PrintToString(house.answers[i].tokens) << " and " << ::testing::PrintToString(plain.answers[i].tokens);
    }
  }
}

TEST(Speculation, AdaptiveDepthsChangeNothingEither) {
  if (test_support::kUnderSanitizer) GTEST_SKIP() << kTooSlow;
  const std::filesystem::path demo = INGOT_SOURCE_DIR "/models/demo";
  const auto prompts = demo_prompts(kNumVariants * 2);
  House plain(demo, options(200, 16, kContext, 0), {});
  auto adaptive = options(200, 16, kContext, 6);
  adaptive.draft.adaptive = true;
  adaptive.draft.cost.step.points = {{1, 1.0}, {4, 1.2}, {16, 3.0}, {64, 10.0}};
  adaptive.draft.cost.pass.points = {{1, 0.1}, {16, 0.3}};
  House house(demo, adaptive, {.speculate = true, .verify = {}});
  for (House* h : {&plain, &house}) {
    for (size_t i = 0; i < prompts.size(); ++i) h->submit(i, variant(static_cast<int>(i % kNumVariants), i, prompts[i]));
    h->run();
  }
  EXPECT_GT(house.scheduler.stats().accepted_tokens, 0);
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(house.answers[i], plain.answers[i]) << "prompt " << i;
}

// Pages of the prefix cache hold the MTP layer's rows too: the same bits whatever was drafted, accepted and rejected on the way there, and
// also of requests that do not speculate.
TEST(Speculation, TheMtpRowsOfAPublishedPageDoNotDependOnDrafts) {  // C15, C16
  if (test_support::kUnderSanitizer) GTEST_SKIP() << kTooSlow;
  const std::filesystem::path demo = INGOT_SOURCE_DIR "/models/demo";
  const auto prompts = demo_prompts(12);
  std::map<sched::PageKey, sched::PageBytes> expected;
  for (const int32_t num_steps : {0, 1, 3, 8}) {
    auto o = options(400, 8, 256, num_steps);
    o.host_pages = 400;
    House house(demo, o, {.speculate = true, .verify = {}});
    for (size_t i = 0; i < prompts.size(); ++i) {
      Request request = variant(2, i, prompts[i]);
      request.sampling.max_tokens = 60;
      if (i % 4 == 0) request.max_draft_tokens = 0;
      house.submit(i, std::move(request));
      if (i % 3 == 2) house.run();  // some together, some after each other
    }
    house.run();
    EXPECT_GT(house.saved.size(), 60u);
    if (num_steps == 0)
      expected = house.saved;
    else
      EXPECT_EQ(house.saved.size(), expected.size());
    for (const auto& [key, page] : house.saved) ASSERT_EQ(page, expected.at(key)) << "depth " << num_steps << ", page " << key;
  }
}

// Acceptance after a cache hit, and after a preemption, is that of a sequence that computed everything itself.
TEST(Speculation, APromptFromTheCacheDraftsAsWellAsAColdOne) {  // C16, D1
  if (test_support::kUnderSanitizer) GTEST_SKIP() << kTooSlow;
  const std::filesystem::path demo = INGOT_SOURCE_DIR "/models/demo";
  House house(demo, options(200, 8, 256, 5), {.speculate = true, .verify = {}});
  int64_t cold = 0, warm = 0;
  const auto prompts = demo_prompts(16);
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (const RequestId round : {0u, 1u}) {
      house.submit(100 * round + i, variant(0, i, prompts[i]));
      house.run();
    }
    EXPECT_EQ(house.answers[100 + i], house.answers[i]);
    EXPECT_GE(house.answers[100 + i].cached, static_cast<int64_t>(prompts[i].size() - 1) / 8 * 8);
    cold += house.answers[i].accepted;
    warm += house.answers[100 + i].accepted;
  }
  EXPECT_GT(cold, 100);
  EXPECT_NEAR(static_cast<double>(warm), static_cast<double>(cold), 0.02 * static_cast<double>(cold));
}

// Symptom: one client's broken grammar stops the engine, and everybody's answer with it (F2).
TEST(Speculation, AGrammarThatLeavesNothingEndsItsRequestAlone) {
  struct DeadEnd final : sched::TokenConstraint {
    explicit DeadEnd(int count) : left(count) {}
    void restrict(std::span<float> logits) override {
      if (left == 0) std::fill(logits.begin(), logits.end(), -std::numeric_limits<float>::infinity());
    }
    void on_token(int32_t) override { --left; }
    int left;
  };
  const std::filesystem::path demo = INGOT_SOURCE_DIR "/models/demo";
  const auto prompts = demo_prompts(6);
  House plain(demo, options(200, 8, 256, 0), {});
  House house(demo, options(200, 8, 256, 5), {.speculate = true, .verify = {}});
  for (size_t i = 0; i < prompts.size(); ++i) {
    plain.submit(i, variant(2, i, prompts[i]));
    Request request = variant(2, i, prompts[i]);
    if (i % 2 == 0) request.constraint = std::make_shared<DeadEnd>(static_cast<int>(i));
    house.submit(i, std::move(request));
  }
  plain.run();
  house.run();
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (i % 2 == 1) {
      EXPECT_EQ(house.answers[i], plain.answers[i]) << i;
      continue;
    }
    EXPECT_EQ(house.answers[i].finish, FinishReason::error);
    const std::vector<int32_t> begin(plain.answers[i].tokens.begin(), plain.answers[i].tokens.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_EQ(house.answers[i].tokens, begin) << i;
  }
}

// A model whose MTP layer was never trained: nearly all drafts are wrong, in a small pool that a thousand requests share.
TEST(Speculation, AThousandInterleavedRequestsWithBadDraftsEqualACold) {  // D3
  const auto dir = std::filesystem::temp_directory_path() / ("ingot_speculation_" + std::to_string(::getpid()));
  test_support::TinyGlmBuilder(3, [](const std::string&) { return tensor::WeightFormat::bf16; }).build().write(dir);
  const auto request = [](size_t i) {
    Request r;
    // Twenty families of prompts that share beginnings of all lengths.
    for (size_t t = 0; t < 3 + i * 7 % 40; ++t) r.prompt.push_back(static_cast<int32_t>(1 + random_bits(i % 20, t) % 150));
    r.sampling.temperature = i % 3 == 0 ? 0.0f : 1.0f;
    r.sampling.seed = i;
    r.sampling.max_tokens = static_cast<int32_t>(1 + i % 17);
    r.sampling.top_logprobs = 0;
    return r;
  };
  auto o = options(48, 4, 80, 5);
  o.max_running_requests = 5;
  o.host_pages = 200;
  House house(dir, o, {.speculate = true, .verify = {}});
  auto alone = options(40, 4, 80, 0);
  alone.prefix_cache = false;
  House cold(dir, alone, {});
  size_t next = 0;
  while (next < kNumInterleaved || house.scheduler.has_work()) {
    for (size_t i = 0; i < 3 && next < kNumInterleaved; ++i, ++next) house.submit(next, request(next));
    house.step();
  }
  const auto stats = house.scheduler.stats();
  EXPECT_LT(stats.accepted_tokens, stats.draft_tokens / 5);
  EXPECT_GT(stats.preemptions + stats.evicted_pages, kNumInterleaved / 10);
  EXPECT_GT(stats.cache_hit_tokens, kNumInterleaved);
  for (size_t i = 0; i < kNumInterleaved; ++i) {
    cold.submit(i, request(i));
    cold.run();
    ASSERT_EQ(house.answers[i], cold.answers[i]) << "request " << i;
  }
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace ingot::exec
