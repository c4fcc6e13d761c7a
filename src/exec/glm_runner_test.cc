// The real model under the real scheduler. Symptoms: an answer that changes because its prompt was found in the cache, came back from host
// memory (D8: keys of the indexer left behind; D9: a reload that hits a queued prefill) or was computed beside others.
#include "exec/glm_runner.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "sched/scheduler.h"
#include "support/machines.h"
#include "support/tiny_glm.h"

namespace ingot::exec {
namespace {

using sched::BatchPlan;
using sched::Scheduler;
using sched::TokenEvent;

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  int64_t cached_tokens = 0;
  bool operator==(const Answer& other) const { return tokens == other.tokens && logprobs == other.logprobs; }
};

class GlmRunnerTest : public ::testing::Test {
 protected:
  GlmRunnerTest() {
    const auto bf16 = [](const std::string&) { return tensor::WeightFormat::bf16; };
    dir_ = std::filesystem::temp_directory_path() / ("ingot_glm_runner_" + std::to_string(::getpid()));
    test_support::TinyGlmBuilder(3, bf16).build().write(dir_);
  }
  ~GlmRunnerTest() override { std::filesystem::remove_all(dir_); }

  struct House {
    House(const std::filesystem::path& dir, const sched::SchedulerOptions& options) : scheduler(options), runner(load(dir, options)) {}
    static GlmRunner load(const std::filesystem::path& dir, const sched::SchedulerOptions& options) {
      auto glm = model::Glm::load(dir).value();
      auto cache =
          model::KvCache::create(glm->config(),
                                 {.format = tensor::LatentFormat::bf16, .num_pages = options.num_pages, .page_size = options.page_size})
              .value();
      return GlmRunner(std::shared_ptr<model::Glm>(std::move(glm)), std::move(cache), std::make_shared<ThreadPool>(1));
    }
    void submit(sched::RequestId id, std::vector<int32_t> prompt, int32_t max_tokens = 12) {
      sched::Request request;
      request.id = id;
      request.prompt = std::move(prompt);
      request.sampling.max_tokens = max_tokens;
      request.sampling.temperature = 0;
      request.sampling.top_logprobs = 0;
      request.sink = [this, id](const TokenEvent& event) {
        answers[id].tokens.insert(answers[id].tokens.end(), event.token_ids.begin(), event.token_ids.end());
        for (const auto& l : event.logprobs) answers[id].logprobs.push_back(l.logprob);
        answers[id].cached_tokens = event.cached_tokens;
      };
      scheduler.submit(std::move(request));
    }
    void run() {
      while (scheduler.has_work()) {
        const BatchPlan plan = scheduler.plan(1);
        const auto result = runner.run(plan);
        ASSERT_TRUE(result.has_value()) << result.error().text();
        scheduler.commit(plan, *result);
        scheduler.verify();
      }
    }
    Answer ask(std::vector<int32_t> prompt) {
      const sched::RequestId id = ++next_id;
      submit(id, std::move(prompt));
      run();
      return answers[id];
    }
    Scheduler scheduler;
    GlmRunner runner;
    std::map<sched::RequestId, Answer> answers;
    sched::RequestId next_id = 100;
  };

  static std::vector<int32_t> prompt(uint64_t seed, int64_t length) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>(1 + random_bits(seed, static_cast<uint64_t>(i)) % 150));
    return tokens;
  }
  static sched::SchedulerOptions options(int64_t num_pages, int64_t host_pages = 0) {
    sched::SchedulerOptions options;
    options.num_pages = num_pages;
    options.page_size = 4;
    options.chunked_prefill_size = 16;
    options.context_length = 120;
    options.host_pages = host_pages;
    return options;
  }
  Answer cold(const std::vector<int32_t>& tokens) {
    auto o = options(64);
    o.prefix_cache = false;
    return House(dir_, o).ask(tokens);
  }

  std::filesystem::path dir_;
};

TEST_F(GlmRunnerTest, ACachedPromptGivesTheBitsOfAColdOneWhateverIsLeftToCompute) {
  House house(dir_, options(64));
  // Around whole pages and around index_topk (8): 1 to page_size tokens are left to compute.
  for (const int64_t length : {4, 5, 7, 8, 9, 12, 13, 40, 41, 43}) {
    const auto tokens = prompt(1, length);
    const Answer first = house.ask(tokens);
    const Answer second = house.ask(tokens);
    EXPECT_EQ(first, cold(tokens)) << length;
    EXPECT_EQ(second, first) << length;
    EXPECT_EQ(second.cached_tokens, (length - 1) / 4 * 4);
  }
}

TEST_F(GlmRunnerTest, APromptThatComesBackFromTheHostHasItsIndexKeysToo) {  // D8
  House house(dir_, options(32, 160));
  const auto tokens = prompt(1, 41);
  const Answer first = house.ask(tokens);
  for (uint64_t other = 2; other < 6; ++other) house.ask(prompt(other, 90));
  ASSERT_GT(house.scheduler.stats().evicted_pages, 20);
  const Answer again = house.ask(tokens);
  EXPECT_EQ(house.scheduler.stats().host_hit_tokens, 40) << "the case was meant to reload";
  EXPECT_EQ(again.cached_tokens, 40);
  EXPECT_EQ(again, first);
  EXPECT_EQ(again, cold(tokens));
}

TEST_F(GlmRunnerTest, ReloadsBesideQueuedPrefillsAndPreemptionsChangeNoBit) {  // D9
  House house(dir_, options(32, 40));
  std::map<sched::RequestId, std::vector<int32_t>> prompts;
  sched::RequestId id = 0;
  for (int round = 0; round < 6; ++round) {
    for (uint64_t family = 1; family <= 5; ++family) {
      auto tokens = prompt(family, 20 + 7 * static_cast<int64_t>(family));
      prompts[++id] = tokens;
      house.submit(id, tokens, 20);
    }
    house.run();
  }
  EXPECT_GT(house.scheduler.stats().host_hit_tokens, 0);
  EXPECT_GT(house.scheduler.stats().preemptions, 0);
  for (const auto& [number, tokens] : prompts) {
    auto o = options(64);
    o.prefix_cache = false;
    House alone(dir_, o);
    alone.submit(1, tokens, 20);
    alone.run();
    EXPECT_EQ(house.answers[number], alone.answers[1]) << "request " << number;
  }
}

TEST_F(GlmRunnerTest, AnAnswerBetweenTwoOthersOfItsPrefixIsThatOfAColdServer) {  // D3
  House house(dir_, options(64));
  auto a = prompt(1, 22);
  auto b = a;
  const auto more = prompt(9, 80);
  b.insert(b.end(), more.begin(), more.end());
  const Answer first = house.ask(a);
  house.ask(b);
  EXPECT_EQ(house.ask(a), first);
  EXPECT_EQ(house.ask(b), cold(b));
}

}  // namespace
}  // namespace ingot::exec
