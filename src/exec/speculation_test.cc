// Speculation is invisible: with and without drafts the real model under the real scheduler gives the same tokens, logprobs and ends, bit
// for bit. Symptoms that this is about: answers that change with speculation, or that go bad until a restart because rejected rows were
// cached (D3), caps that mask an earlier stop (C1), penalties and bias that drafts escape (C4, C5), missing logprobs (C6), an MTP cache
// that drifts (C15) or was never filled (C16).
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "base/json.h"
#include "base/rng.h"
#include "exec/glm_runner.h"
#include "sched/scheduler.h"
#include "support/sanitizer.h"
#include "support/tiny_glm.h"
#include "text/tokenizer.h"

namespace ingot::exec {
namespace {

using sched::BatchPlan;
using sched::FinishReason;
using sched::Request;
using sched::RequestId;
using sched::Scheduler;
using sched::TokenEvent;

constexpr size_t kNumPrompts = 200;

constexpr size_t kNumInterleaved = test_support::kUnderSanitizer ? 150 : 1000;
// The tests with few requests, and that of the tiny model, take the same paths.
constexpr const char* kTooSlow = "minutes under a sanitizer";

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::pair<int32_t, float>> top;
  FinishReason finish = FinishReason::none;
  int64_t drafted = 0, accepted = 0, cached = 0;
  bool operator==(const Answer& other) const {
    return tokens == other.tokens && logprobs == other.logprobs && top == other.top && finish == other.finish;
  }
};

// Stands for a stop string: done with the n-th token.
struct StopAfter final : sched::TokenWatcher {
  explicit StopAfter(int count) : left(count) {}
  bool on_token(int32_t) override { return --left == 0; }
  int left;
};

// Stands for a grammar: what may come next depends on what came before.
struct Rhythm final : sched::TokenConstraint {
  void restrict(std::span<float> logits) override {
    for (size_t id = static_cast<size_t>(sum % 3); id < logits.size(); id += 3) logits[id] = -std::numeric_limits<float>::infinity();
  }
  void on_token(int32_t token_id) override { sum += token_id; }
  int64_t sum = 1;
};

class House {
 public:
  House(const std::filesystem::path& model, const sched::SchedulerOptions& options, const GlmRunnerOptions& runner)
      : scheduler(options), runner_(make(model, options, runner)) {}

  void submit(RequestId id, Request request) {
    request.id = id;
    request.sink = [this, id](const TokenEvent& event) {
      Answer& answer = answers[id];
      answer.tokens.insert(answer.tokens.end(), event.token_ids.begin(), event.token_ids.end());
      for (const auto& l : event.logprobs) {
        answer.logprobs.push_back(l.logprob);
        answer.top.insert(answer.top.end(), l.top.begin(), l.top.end());
      }
      answer.finish = event.finish;
      answer.drafted += event.num_drafted;
      answer.accepted += event.num_accepted;
      answer.cached = event.cached_tokens;
    };
    scheduler.submit(std::move(request));
  }
  void step() {
    const BatchPlan plan = scheduler.plan(1);
    const auto result = runner_->run(plan);
    INGOT_CHECK(result.has_value(), "{}", result.error().text());
    for (const sched::PageSave& save : plan.saves) saved[save.key] = *save.to;
    scheduler.commit(plan, *result);
    scheduler.verify();
  }
  void run() {
    while (scheduler.has_work()) step();
  }

  Scheduler scheduler;
  std::map<RequestId, Answer> answers;
  std::map<sched::PageKey, sched::PageBytes> saved;  // pages that went to the host tier

 private:
  static std::unique_ptr<GlmRunner> make(const std::filesystem::path& model, const sched::SchedulerOptions& options,
                                         const GlmRunnerOptions& runner) {
    auto glm = model::Glm::load(model).value();
    auto cache = model::KvCache::create(glm->config(), {tensor::DType::bf16, options.num_pages, options.page_size}).value();
    return std::make_unique<GlmRunner>(std::shared_ptr<model::Glm>(std::move(glm)), std::move(cache), std::make_shared<ThreadPool>(2),
                                       runner);
  }
  std::unique_ptr<GlmRunner> runner_;
};

sched::SchedulerOptions options(int64_t num_pages, int64_t page_size, int64_t context_length, int32_t num_steps) {
  sched::SchedulerOptions o;
  o.num_pages = num_pages;
  o.page_size = page_size;
  o.chunked_prefill_size = 96;
  o.max_running_requests = 12;
  o.context_length = context_length;
  o.draft.num_steps = num_steps;
  return o;
}

// Conversations cut where the model is to speak.
std::vector<std::vector<int32_t>> demo_prompts(size_t count) {
  const auto tokenizer = text::Tokenizer::load(INGOT_SOURCE_DIR "/models/demo/tokenizer.json").value();
  std::ifstream file(INGOT_SOURCE_DIR "/models/demo-calibration.jsonl");
  std::vector<std::vector<int32_t>> prompts;
  const std::string turn = "<|assistant|>";
  for (std::string line; prompts.size() < count && std::getline(file, line);) {
    const std::string text = Json::parse(line)["text"];
    for (size_t at = text.find(turn); at != std::string::npos && prompts.size() < count; at = text.find(turn, at + 1)) {
      const size_t thought = text.compare(at + turn.size(), 15, "<think></think>") == 0 ? 15 : 7;
      auto ids = tokenizer->encode(text.substr(0, at + turn.size() + thought)).value();
      if (ids.size() < 90) prompts.push_back(std::move(ids));
    }
  }
  INGOT_CHECK(prompts.size() == count, "{} prompts", prompts.size());
  return prompts;
}

constexpr int kNumVariants = 11;
constexpr int64_t kContext = 112;

// The same request in one of the ways that have gone wrong elsewhere.
Request variant(int number, size_t index, std::vector<int32_t> prompt) {
  Request request;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 14;
  request.sampling.stop_token_ids = {6108, 6115, 6117};
  request.sampling.top_logprobs = 0;
  request.sampling.seed = 1000 + index;
  const auto i = static_cast<int32_t>(index);
  switch (number) {
    case 0: break;
    case 1: request.sampling.max_tokens = 1 + i % 10; break;
    case 2: request.sampling.ignore_eos = true, request.sampling.stop_token_ids = {}; break;  // runs over its own end
    case 3: request.watcher = std::make_shared<StopAfter>(1 + i % 9); break;
    case 4:
      request.sampling.presence_penalty = 0.7f, request.sampling.frequency_penalty = 0.4f, request.sampling.repetition_penalty = 1.3f;
      break;
    case 5:
      for (int32_t id = 0; id < 300; ++id) request.sampling.logit_bias.emplace_back(id * 19 + i % 19, id % 2 == 0 ? -100.0f : 2.0f);
      break;
    case 6: request.sampling.temperature = 1.0f, request.sampling.min_p = 0.05f; break;
    case 7: request.sampling.temperature = 0.8f, request.sampling.top_p = 0.9f, request.sampling.top_k = 40; break;
    case 8: request.constraint = std::make_shared<Rhythm>(); break;
    case 9: request.sampling.max_tokens = 1000, request.sampling.stop_token_ids = {}; break;  // to the context limit
    case 10: request.sampling.top_logprobs = 3; break;
    default: INGOT_CHECK(false);
  }
  // Those at the context limit are long anyway; some of the others ask for less speculation.
  if (number != 9) request.max_draft_tokens = index % 5 == 0 ? i % 4 : sched::kMaxDraftTokens;
  request.prompt = std::move(prompt);
  return request;
}

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
