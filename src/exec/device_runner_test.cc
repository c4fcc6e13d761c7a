// Steps whose drafts, draws and verification stay on a GPU (emulated here) give what the host's sampler and drafter give. Symptoms: an
// answer that depends on where it was drawn, or on whether there were drafts; a logprob of another position; a step that waits for every
// pass of a chain.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "base/rng.h"
#include "exec/sampler.h"
#include "gpu/cpu.h"
#include "kernels/sample.kernel.h"
#include "support/emulated_device.h"
#include "support/sanitizer.h"
#include "support/speculation_house.h"
#include "support/tiny_glm.h"

namespace ingot::exec {
namespace {

using sched::FinishReason;
using sched::Request;
using sched::RequestId;
using sched::SamplingParams;
using test_support::Answer;
using test_support::demo_prompts;
using test_support::House;
using test_support::kNumVariants;
using test_support::options;
using test_support::variant;

const std::filesystem::path kDemo = INGOT_SOURCE_DIR "/models/demo";

// Logits as models have them: a few likely tokens far above the rest.
std::vector<float> model_logits(Rng& rng, size_t vocab) {
  std::vector<float> logits(vocab);
  const float spread = rng.uniform_float(0.5f, 3.0f);
  for (float& logit : logits) {
    const double radius = std::sqrt(-2 * std::log(1 - rng.uniform()));
    logit = static_cast<float>(spread * radius * std::cos(6.283185307179586 * rng.uniform()));
  }
  for (uint64_t peaks = rng.below(20); peaks > 0; --peaks) logits[rng.below(vocab)] += rng.uniform_float(2.0f, 12.0f);
  // Half of them as bf16 has them: with many ties.
  if (rng.below(2) == 0) {
    for (float& logit : logits) logit = gpu::bf16_value(gpu::to_bf16(logit));
  }
  return logits;
}

SamplingParams random_params(Rng& rng) {
  SamplingParams params;
  params.temperature = rng.below(8) == 0 ? 0.0f : rng.uniform_float(0.2f, 2.0f);
  if (rng.below(2) == 0) params.top_k = static_cast<int32_t>(1 + rng.below(200));
  if (rng.below(2) == 0) params.top_p = rng.uniform_float(0.05f, 0.999f);
  if (rng.below(3) == 0) params.min_p = rng.uniform_float(0.0f, 0.3f);
  params.seed = rng.bits();
  return params;
}

// The kernel adds in fixed point and the host in doubles: they may differ where a random number, or top_p, falls within the rounding.
TEST(DeviceDraws, TheTokensAreThoseOfTheHostsSampler) {
  Sampler sampler;
  Verifier verifier;
  ThreadPool pool(2);
  gpu::Stream stream{&pool};
  Rng rng(1);
  const auto compare = [&](size_t vocab, int cases) {
    int different = 0;
    for (int i = 0; i < cases; ++i) {
      const std::vector<float> logits = model_logits(rng, vocab);
      const SamplingParams params = random_params(rng);
      sched::BatchItem item;
      item.sampling = &params;
      const kernels::DrawRow row = verifier.describe(item, 0);
      kernels::SampledRow result{};
      gpu::cpu_launch<kernels::SampleRows>(stream,
                                           {&result, logits.data(), &row, nullptr, nullptr, nullptr, 1, static_cast<int64_t>(vocab)});
      const auto expected = sampler.sample(logits, params, 0);
      different += result.token_id != expected->token_id;
    }
    std::printf("vocabulary of %zu: %d of %d draws differ\n", vocab, different, cases);
    return different;
  };
  const int scale = test_support::kUnderSanitizer ? 1 : 10;
  EXPECT_EQ(compare(160, 2000 * scale), 0);
  EXPECT_EQ(compare(6144, 200 * scale), 0);
  EXPECT_EQ(compare(154880, 20 * scale), 0);
}

class OnTheDevice : public ::testing::Test {
 protected:
  std::shared_ptr<gpu::Accelerator> device_ = test_support::emulated_device();
};

void expect_close(const Answer& answer, const Answer& expected, const std::string& where) {
  EXPECT_EQ(answer.tokens, expected.tokens) << where;
  EXPECT_EQ(answer.finish, expected.finish) << where;
  ASSERT_EQ(answer.logprobs.size(), expected.logprobs.size()) << where;
  ASSERT_EQ(answer.top.size(), expected.top.size()) << where;
  // A sum of 44 places and more, rounded to a float at last.
  for (size_t i = 0; i < answer.logprobs.size(); ++i) EXPECT_NEAR(answer.logprobs[i], expected.logprobs[i], 2e-6) << where;
  for (size_t i = 0; i < answer.top.size(); ++i) {
    EXPECT_EQ(answer.top[i].first, expected.top[i].first) << where;
    EXPECT_NEAR(answer.top[i].second, expected.top[i].second, 2e-6) << where;
  }
}

// The rule of rejection keeps all on the host; without random drafts its tokens are those of the other rule.
const GlmRunnerOptions kOnHost{.speculate = false, .verify = {.rejection_sampling = true}};

class TinyOnTheDevice : public OnTheDevice {
 protected:
  void SetUp() override {
    test_support::TinyGlmBuilder(3, [](const std::string&) { return tensor::WeightFormat::bf16; }).build().write(dir_.path());
  }
  // Requests of every kind that the sampler knows, over twenty families of prompts that share beginnings of all lengths.
  static Request request(size_t i) {
    Request r;
    for (size_t t = 0; t < 3 + i * 7 % 40; ++t) r.prompt.push_back(static_cast<int32_t>(1 + random_bits(i % 20, t) % 150));
    SamplingParams& s = r.sampling;
    s.temperature = i % 3 == 0 ? 0.0f : 1.0f;
    s.seed = i;
    s.max_tokens = static_cast<int32_t>(1 + i % 17);
    s.top_logprobs = static_cast<int32_t>(i % 6) - 1;
    if (i % 4 == 1) s.presence_penalty = 0.5f, s.frequency_penalty = 0.3f;
    if (i % 8 == 1) s.repetition_penalty = 1.2f;
    if (i % 5 == 2) s.logit_bias = {{3, 2.0f}, {70, -100.0f}, {static_cast<int32_t>(i % 150), 4.0f}};
    if (i % 7 == 3) s.top_p = 0.8f;
    if (i % 11 == 4) s.top_k = 5;
    if (i % 9 == 5) s.stop_token_ids = {static_cast<int32_t>(i % 100), 17};
    if (i % 10 == 6) r.constraint = std::make_shared<test_support::Rhythm>();
    return r;
  }
  void fill(House& house, size_t count) {
    size_t next = 0;
    while (next < count || house.scheduler.has_work()) {
      for (size_t i = 0; i < 3 && next < count; ++i, ++next) house.submit(next, request(next));
      house.step();
    }
  }
  static sched::SchedulerOptions small(int32_t num_steps) {
    auto o = options(48, 4, 80, num_steps);
    o.max_running_requests = 5;
    o.host_pages = 200;
    return o;
  }
  test_support::TempDir dir_;
};

constexpr size_t kNumRequests = test_support::kUnderSanitizer ? 60 : 120;

TEST_F(TinyOnTheDevice, DrawsAreThoseOfTheHostWhateverTheRequestAsksFor) {
  House host(dir_.path(), small(0), kOnHost, device_), device(dir_.path(), small(0), {}, device_);
  fill(host, kNumRequests);
  fill(device, kNumRequests);
  for (size_t i = 0; i < kNumRequests; ++i) expect_close(device.answers[i], host.answers[i], "request " + std::to_string(i));
  // One wait a step, and no logits come back but those that a constraint asked for.
  EXPECT_EQ(device.glm->device_counts().waits, device.steps);
  EXPECT_LT(device.glm->device_counts().bytes_down, host.glm->device_counts().bytes_down / 4);
}

TEST_F(TinyOnTheDevice, DraftsAreInvisibleWithBadOnesInASmallPool) {
  House plain(dir_.path(), small(0), {}, device_), drafts(dir_.path(), small(5), {.speculate = true, .verify = {}}, device_);
  fill(plain, kNumRequests);
  fill(drafts, kNumRequests);
  EXPECT_GT(drafts.scheduler.stats().draft_tokens, 100);
  EXPECT_GT(drafts.scheduler.stats().preemptions + drafts.scheduler.stats().evicted_pages, 20);
  for (size_t i = 0; i < kNumRequests; ++i) EXPECT_EQ(drafts.answers[i], plain.answers[i]) << "request " << i;
  EXPECT_EQ(drafts.glm->device_counts().waits, drafts.steps) << "the passes of a chain do not wait";
}

// A trained MTP layer: drafts hold. Those of the device are those of the host's drafter, pass for pass.
TEST_F(OnTheDevice, ChainsAreThoseOfTheHostsDrafterAndNothingTellsOfThem) {
  if (test_support::kUnderSanitizer) GTEST_SKIP() << "minutes under a sanitizer";
  const auto prompts = demo_prompts(kNumVariants);
  const auto fill = [&](House& house) {
    for (size_t i = 0; i < prompts.size(); ++i) house.submit(i, variant(static_cast<int>(i % kNumVariants), i, prompts[i]));
    house.run();
  };
  House plain(kDemo, options(200, 16, test_support::kContext, 0), {}, device_);
  fill(plain);
  for (const int32_t num_steps : {1, 5}) {
    House house(kDemo, options(60, 4, test_support::kContext, num_steps), {.speculate = true, .verify = {}}, device_);
    fill(house);
    EXPECT_GT(house.scheduler.stats().accepted_tokens, house.scheduler.stats().draft_tokens / 4);
    for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(house.answers[i], plain.answers[i]) << "depth " << num_steps << ", prompt " << i;
    EXPECT_EQ(house.glm->device_counts().waits, house.steps);
  }
}

TEST_F(OnTheDevice, AsManyDraftsHoldAsOfTheHostsDrafter) {
  if (test_support::kUnderSanitizer) GTEST_SKIP() << "minutes under a sanitizer";
  const auto prompts = demo_prompts(10);
  const auto fill = [&](House& house) {
    for (size_t i = 0; i < prompts.size(); ++i) house.submit(i, variant(i % 2 == 0 ? 2 : 4, i, prompts[i]));
    house.run();
  };
  auto o = options(200, 8, test_support::kContext, 5);
  o.prefix_cache = false;
  House host(kDemo, o, {.speculate = true, .verify = {.rejection_sampling = true}}, device_);
  House device(kDemo, o, {.speculate = true, .verify = {}}, device_);
  fill(host);
  fill(device);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(device.answers[i].tokens, host.answers[i].tokens) << i;
    EXPECT_EQ(device.answers[i].drafted, host.answers[i].drafted) << i;
    EXPECT_EQ(device.answers[i].accepted, host.answers[i].accepted) << i;
  }
  EXPECT_GT(device.scheduler.stats().accepted_tokens, 30);
  const auto a = host.glm->device_counts(), b = device.glm->device_counts();
  const auto per = [](int64_t count, int64_t steps) { return static_cast<double>(count) / static_cast<double>(steps); };
  std::printf("a step of 5 drafts, host and device: waits %.1f and %.1f, bytes up %.0f and %.0f, bytes down %.0f and %.0f\n",
              per(a.waits, host.steps), per(b.waits, device.steps), per(a.bytes_up, host.steps), per(b.bytes_up, device.steps),
              per(a.bytes_down, host.steps), per(b.bytes_down, device.steps));
}

// What the prefix cache publishes has its MTP rows, whoever ran them.
TEST_F(OnTheDevice, TheMtpRowsOfAPublishedPageDoNotDependOnDrafts) {
  if (test_support::kUnderSanitizer) GTEST_SKIP() << "minutes under a sanitizer";
  const auto prompts = demo_prompts(4);
  std::map<sched::PageKey, sched::PageBytes> expected;
  for (const int32_t num_steps : {0, 3}) {
    auto o = options(400, 8, 256, num_steps);
    o.host_pages = 400;
    House house(kDemo, o, {.speculate = true, .verify = {}}, device_);
    for (size_t i = 0; i < prompts.size(); ++i) {
      Request request = variant(2, i, prompts[i]);
      request.sampling.max_tokens = 40;
      if (i % 4 == 0) request.max_draft_tokens = 0;
      house.submit(i, std::move(request));
      if (i % 2 == 1) house.run();
    }
    house.run();
    EXPECT_GT(house.saved.size(), 20u);
    if (num_steps == 0)
      expected = house.saved;
    else
      EXPECT_EQ(house.saved.size(), expected.size());
    for (const auto& [key, page] : house.saved) ASSERT_EQ(page, expected.at(key)) << "depth " << num_steps << ", page " << key;
  }
}

// Rows that cannot be drawn from, and stop tokens, as the host's verify() has them.
class AcceptTest : public ::testing::Test {
 protected:
  AcceptTest() {
    params_.stop_token_ids = {9};
    item_.request = 7;
    item_.context = context_;
    item_.sample = true;
    item_.sampling = &params_;
    item_.num_draft = 3;
    for (const int32_t token : {4, 5, 6}) draft_.append_to_chain(token);
  }
  static kernels::SampledRow row(int32_t token) { return {{token, -1, 0}, {token, -1, 0}, token, 1.0f, 1.0f, 1.0}; }
  Result<sched::SampledTokens> accept(std::vector<kernels::SampledRow> rows) {
    return Verifier().accept(item_, draft_, 10, [&](size_t r) { return Verifier::DrawnRow{&rows.at(r), {}}; });
  }
  std::vector<int32_t> context_{1, 2, 3};
  SamplingParams params_;
  sched::BatchItem item_;
  Draft draft_;
};

TEST_F(AcceptTest, DraftsHoldUntilOneIsNotWhatWasDrawn) {
  EXPECT_EQ(accept({row(4), row(5), row(6), row(7)})->token_ids, (std::vector<int32_t>{4, 5, 6, 7}));
  EXPECT_EQ(accept({row(4), row(8), row(6), row(7)})->token_ids, (std::vector<int32_t>{4, 8}));
  EXPECT_EQ(accept({row(3), row(5), row(6), row(7)})->token_ids, (std::vector<int32_t>{3}));
  EXPECT_EQ(accept({row(3), row(5), row(6), row(7)})->num_drafted, 3);
}

TEST_F(AcceptTest, NothingComesBehindAStopToken) {
  draft_.token_ids = {4, 9, 6};
  EXPECT_EQ(accept({row(4), row(9), row(6), row(7)})->token_ids, (std::vector<int32_t>{4, 9}));
}

TEST_F(AcceptTest, ARowOfNoNumbersIsFatalAndARowOfNoTokensEndsTheRequest) {
  kernels::SampledRow bad = row(5);
  bad.raw = {-1, 6, std::numeric_limits<float>::quiet_NaN()};
  bad.token_id = -1;
  const auto fatal = accept({row(4), bad, row(6), row(7)});
  ASSERT_FALSE(fatal.has_value());
  EXPECT_EQ(fatal.error().message, "request 7, position 4: the logit of token 6 is nan, which is not a number to draw from");
  EXPECT_TRUE(accept({row(8), bad, row(6), row(7)}).has_value()) << "a row behind a draft that did not hold says nothing";
  kernels::SampledRow none = row(5);
  none.adjusted = {-1, -1, 0};
  none.token_id = -1;
  const auto ended = accept({row(4), none, row(6), row(7)});
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->token_ids, (std::vector<int32_t>{4}));
  EXPECT_EQ(ended->error, "request 7, position 4: all 10 logits are -inf: there is no token to draw");
}

}  // namespace
}  // namespace ingot::exec
