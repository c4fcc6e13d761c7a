// Logprobs of prompt tokens are those of the whole prompt run at once, however it was run. Symptoms: logprobs that are wrong for some
// requests with drafts and chunked prefill (C7), that depend on the chunk, the neighbours or a warm prefix cache, or that come twice after
// a preemption.
#include "exec/prompt_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "support/emulated_device.h"
#include "support/glm_run.h"
#include "support/golden.h"
#include "support/sanitizer.h"
#include "support/speculation_house.h"
#include "support/tiny_glm.h"

namespace ingot::exec {
namespace {

using sched::FinishReason;
using sched::Request;
using test_support::Answer;
using test_support::demo_prompts;
using test_support::House;
using test_support::options;
using test_support::variant;

const std::filesystem::path kDemo = INGOT_SOURCE_DIR "/models/demo";
constexpr size_t kTop = 3;

// log softmax, in doubles.
std::vector<double> logprobs_of(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(logit - max);
  std::vector<double> logprobs;
  for (const float logit : logits) logprobs.push_back(logit - max - std::log(total));
  return logprobs;
}

// Against the logits (vocab_size) of all rows of the prompt.
void expect_scores(const Answer& answer, const std::vector<int32_t>& prompt, const std::vector<std::vector<float>>& rows, size_t num_top,
                   double tolerance, const std::string& what) {
  ASSERT_EQ(answer.prompt_logprobs.size(), prompt.size() - 1) << what;
  ASSERT_EQ(answer.prompt_top.size(), (prompt.size() - 1) * num_top) << what;
  for (size_t i = 1; i < prompt.size(); ++i) {
    const std::vector<double> expected = logprobs_of(rows[i - 1]);
    ASSERT_NEAR(answer.prompt_logprobs[i - 1], expected[static_cast<size_t>(prompt[i])], tolerance) << what << ", token " << i;
    std::vector<int32_t> order(expected.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return rows[i - 1][static_cast<size_t>(a)] > rows[i - 1][static_cast<size_t>(b)]; });
    for (size_t k = 0; k < num_top; ++k) {
      const auto& [token, logprob] = answer.prompt_top[(i - 1) * num_top + k];
      ASSERT_EQ(token, order[k]) << what << ", token " << i;
      ASSERT_NEAR(logprob, expected[static_cast<size_t>(token)], tolerance) << what << ", token " << i;
    }
  }
}

std::vector<std::vector<float>> all_logits(model::Glm& glm, const std::vector<int32_t>& prompt) {
  test_support::GlmRun run(glm, {.format = tensor::LatentFormat::bf16, .page_size = 16, .max_len = 256});
  return run.prefill(prompt, prompt.size(), static_cast<int64_t>(prompt.size()));
}

Request scored(std::vector<int32_t> prompt, int32_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.top_logprobs = 0;
  request.sampling.prompt_logprobs = kTop;
  return request;
}

// Every other request is scored; the rest of them decode beside it, in every way that requests know.
void fill(House& house, const std::vector<std::vector<int32_t>>& prompts) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request = variant(static_cast<int>(i % test_support::kNumVariants), i, prompts[i]);
    if (i % 2 == 0) request.sampling.prompt_logprobs = kTop;
    if (i % 8 == 4) request.sampling.max_tokens = 0;
    house.submit(i, std::move(request));
    if (i % 3 == 2) house.step();
  }
  house.run();
}

struct How {
  std::string name;
  int64_t chunk = 0, num_pages = 0;
  int32_t num_steps = 0;
  bool warm = false;
};

const How kHows[] = {{"one chunk", 512, 200, 0},
                     {"chunks of 96", 96, 200, 0},
                     {"chunks of 16", 16, 200, 0},
                     {"drafts, chunks of 16", 16, 200, 5},
                     {"drafts, a warm cache", 96, 400, 5, true},
                     {"a warm cache", 512, 400, 0, true},
                     {"a small pool", 96, 36, 0},
                     {"a small pool with drafts", 16, 36, 3}};

TEST(PromptScores, AreThoseOfTheWholePromptHoweverItIsRun) {  // C7
  if (test_support::kUnderSanitizer) GTEST_SKIP() << "minutes under a sanitizer";
  const auto prompts = demo_prompts(26);
  std::map<sched::RequestId, Answer> first;
  for (const How& how : kHows) {
    auto o = options(how.num_pages, 4, test_support::kContext, how.num_steps);
    o.chunked_prefill_size = how.chunk;
    House house(kDemo, o, {.speculate = how.num_steps > 0, .verify = {}});
    if (how.warm) {
      for (size_t i = 0; i < prompts.size(); ++i) house.submit(1000 + i, variant(0, i, prompts[i]));
      house.run();
    }
    fill(house, prompts);
    EXPECT_EQ(house.scheduler.stats().preemptions > 0, how.num_pages < 100) << how.name;
    EXPECT_EQ(house.scheduler.stats().accepted_tokens > 0, how.num_steps > 0) << how.name;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const std::string what = how.name + ", prompt " + std::to_string(i);
      if (first.size() <= i) {
        const size_t num_top = i % 2 == 0 ? kTop : 0;
        if (num_top > 0) expect_scores(house.answers[i], prompts[i], all_logits(*house.glm, prompts[i]), num_top, 1e-5, what);
        first[i] = house.answers[i];
      }
      EXPECT_EQ(house.answers[i], first[i]) << what;
      EXPECT_TRUE(i % 2 == 1 || house.answers[i].cached == 0) << what;
    }
  }
}

TEST(PromptScores, OfAnAnswerThatComesBackAsAPromptAreThoseItHad) {
  if (test_support::kUnderSanitizer) GTEST_SKIP() << "minutes under a sanitizer";
  House house(kDemo, options(200, 4, test_support::kContext, 0), {});
  const auto prompts = demo_prompts(4);
  for (size_t i = 0; i < prompts.size(); ++i) house.submit(i, scored(prompts[i], 12));
  house.run();
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Answer answer = house.answers[i];
    ASSERT_EQ(answer.tokens.size(), 12u);
    auto whole = prompts[i];
    whole.insert(whole.end(), answer.tokens.begin(), answer.tokens.end());
    house.submit(100 + i, scored(whole, 0));
    house.run();
    const Answer& again = house.answers[100 + i];
    EXPECT_EQ(again.finish, FinishReason::length);
    EXPECT_TRUE(again.tokens.empty());
    std::vector<float> expected = answer.prompt_logprobs;
    expected.insert(expected.end(), answer.logprobs.begin(), answer.logprobs.end());
    EXPECT_EQ(again.prompt_logprobs, expected) << "prompt " << i;
  }
}

// transformers in float32 knows the logits of the last rows.
TEST(PromptScores, OfTheDemoModelAreThoseOfTransformers) {
  if (test_support::kUnderSanitizer) GTEST_SKIP() << "minutes under a sanitizer";
  for (const char* name : {"short", "mid"}) {
    const test_support::Golden golden(name);
    const auto prompt = golden.integers("token_ids");
    const auto logits = golden.as<float>("logits_last8");
    auto o = options(100, 16, 1024, 0);
    sched::Scheduler scheduler(o);
    std::shared_ptr<model::Glm> glm = model::Glm::load(kDemo, {model::MlaForm::absorbed, 1e-6f}).value();
    auto cache = model::KvCache::create(glm->config(), {tensor::LatentFormat::f32, o.num_pages, o.page_size}).value();
    GlmRunner runner(glm, std::move(cache), std::make_shared<ThreadPool>(2));
    Request request = scored(prompt, 0);
    std::vector<sched::TokenLogprob> told;
    request.sink = [&](const sched::TokenEvent& event) { told = event.prompt_logprobs; };
    scheduler.submit(std::move(request));
    while (scheduler.has_work()) {
      const auto plan = scheduler.plan(1);
      scheduler.commit(plan, runner.run(plan).value());
    }
    ASSERT_EQ(told.size(), prompt.size() - 1);
    const size_t vocab_size = logits.size() / 8;
    double worst = 0;
    for (size_t r = 0; r < 7; ++r) {
      const auto expected = logprobs_of(std::span(logits).subspan(r * vocab_size, vocab_size));
      const size_t token = prompt.size() - 7 + r;
      worst = std::max(worst, std::abs(told[token - 1].logprob - expected[static_cast<size_t>(prompt[token])]));
    }
    std::printf("%s: %.2e off\n", name, worst);
    EXPECT_LE(worst, 5e-5) << name << ": float32 over ten layers, as golden_test.cc allows it";
  }
}

// Rows of a step by the hundreds, so that the head is run in pieces, on a GPU and where it comes to the host.
TEST(PromptScores, OfAGpuAreThoseOfTheHost) {
  const test_support::TempDir dir;
  test_support::TinyGlmBuilder(3, [](const std::string&) { return tensor::WeightFormat::bf16; }).build().write(dir.path());
  const auto device = test_support::emulated_device();
  const auto submit = [](House& house) {
    for (size_t i = 0; i < 24; ++i) {
      std::vector<int32_t> prompt;
      for (size_t t = 0; t < 1 + i * 11 % 60; ++t) prompt.push_back(static_cast<int32_t>(1 + random_bits(i % 5, t) % 150));
      Request request = scored(std::move(prompt), static_cast<int32_t>(i % 4 == 3 ? 0 : 1 + i % 7));
      if (i % 5 == 4 && i % 4 != 3) request.sampling.prompt_logprobs = -1;
      if (i % 6 == 1) request.sampling.logit_bias = {{3, 5.0f}};  // of the completion alone
      if (i % 8 == 2) request.constraint = std::make_shared<test_support::Rhythm>();
      house.submit(i, std::move(request));
    }
    house.run();
  };
  auto o = options(200, 4, 80, 0);
  o.chunked_prefill_size = 300;
  // The same forward pass, but all logits come to the host; beside it that of the CPU, whose sums are in another order.
  House host(dir.path(), o, {.speculate = false, .verify = {.rejection_sampling = true}}, device), cpu(dir.path(), o, {});
  submit(host);
  submit(cpu);
  auto few = options(40, 4, 80, 3);
  few.max_running_requests = 5;
  for (const auto& [name, scheduler, runner] : {std::tuple("draws there", o, GlmRunnerOptions{}),
                                                std::tuple("drafts there", few, GlmRunnerOptions{.speculate = true, .verify = {}})}) {
    House there(dir.path(), scheduler, runner, device);
    submit(there);
    for (size_t i = 0; i < 24; ++i) {
      const std::string what = std::string(name) + ", request " + std::to_string(i);
      const Answer &a = there.answers[i], &b = host.answers[i];
      EXPECT_EQ(a.tokens, b.tokens) << what;
      EXPECT_EQ(a.finish, b.finish) << what;
      ASSERT_EQ(a.prompt_logprobs.size(), b.prompt_logprobs.size()) << what;
      ASSERT_EQ(a.prompt_top.size(), b.prompt_top.size()) << what;
      for (size_t k = 0; k < a.prompt_logprobs.size(); ++k) {
        ASSERT_NEAR(a.prompt_logprobs[k], b.prompt_logprobs[k], 1e-5) << what;
        ASSERT_NEAR(a.prompt_logprobs[k], cpu.answers[i].prompt_logprobs.at(k), 1e-3) << what;
      }
      for (size_t k = 0; k < a.prompt_top.size(); ++k) {
        ASSERT_EQ(a.prompt_top[k].first, b.prompt_top[k].first) << what;
        ASSERT_NEAR(a.prompt_top[k].second, b.prompt_top[k].second, 1e-5) << what;
      }
    }
    EXPECT_EQ(there.glm->device_counts().waits, there.steps) << name << ": a step waits once";
  }
}

TEST(PromptScores, ARowOfNoNumbersNamesRequestPositionAndToken) {
  sched::SamplingParams params;
  params.prompt_logprobs = 1;
  const std::vector<int32_t> context{4, 2, 3, 1};
  sched::BatchItem item;
  item.request = 7;
  item.context = context;
  item.token_ids = item.context.subspan(1, 2);
  item.start = 1;
  item.first_scored = 1;
  item.num_scored = 1;
  item.sampling = &params;
  Sampler sampler;
  std::vector<float> logits{0.0f, 1.0f, 2.0f, 0.0f, -std::numeric_limits<float>::infinity()};
  const auto good = score(sampler, item, 0, logits);
  ASSERT_TRUE(good.has_value());
  EXPECT_NEAR(good->logprob, logprobs_of(logits)[1], 1e-6) << "of the token behind the row";
  EXPECT_EQ(good->top.at(0).first, 2);
  logits[4] = std::numeric_limits<float>::quiet_NaN();
  const auto bad = score(sampler, item, 0, logits);
  ASSERT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().message, "request 7, position 3 of its prompt: the logit of token 4 is nan, which is not a number to draw from");
}

}  // namespace
}  // namespace ingot::exec
