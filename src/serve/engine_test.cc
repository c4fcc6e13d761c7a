// The engine under threads. Symptoms: a client that is never told the end or is told after it, pages held for a client who left (H1), a
// queue without limit (H9), a dead runner behind a healthy face, a scrape that waits for a step (K3), text that depends on the neighbours.
#include "serve/engine.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "support/scripted_runner.h"

namespace ingot::serve {
namespace {

using namespace std::chrono_literals;
using sched::FinishReason;
using sched::Request;
using sched::RequestId;
using sched::TokenEvent;
using testing::ScriptedRunner;

Engine::Options small_options() {
  Engine::Options options;
  options.scheduler.num_pages = 64;
  options.scheduler.page_size = 4;
  options.scheduler.chunked_prefill_size = 32;
  options.scheduler.max_running_requests = 8;
  options.scheduler.context_length = 128;
  return options;
}

// The next token hashes all before it; 0 is the stop token.
int32_t next_token(std::span<const int32_t> tokens) {
  uint64_t hash = 0;
  for (const int32_t token : tokens) hash = mix64(hash ^ static_cast<uint64_t>(token));
  return static_cast<int32_t>(hash % 40 == 0 ? 0 : 1 + hash % 99);
}

std::unique_ptr<ScriptedRunner> make_runner(const Engine::Options& options, ScriptedRunner::BeforeStep before_step = {}) {
  return std::make_unique<ScriptedRunner>(ScriptedRunner::Options{options.scheduler.num_pages, options.scheduler.page_size, 100,
                                                                  [](const ScriptedRunner::Context& context, std::span<float> logits) {
                                                                    logits[static_cast<size_t>(next_token(context.tokens))] = 50.0f;
                                                                  },
                                                                  std::move(before_step), nullptr});
}

// What one client hears. Checks the order of events.
class Client {
 public:
  Request request(std::vector<int32_t> prompt, int32_t max_tokens) {
    prompt_ = prompt;
    Request made;
    made.prompt = std::move(prompt);
    made.sampling.max_tokens = max_tokens;
    made.sampling.temperature = 0;
    made.sampling.stop_token_ids = {0};
    made.sink = [this](const TokenEvent& event) {
      const std::lock_guard lock(mutex_);
      EXPECT_EQ(finish_, FinishReason::none) << "an event after the last one";
      tokens_.insert(tokens_.end(), event.token_ids.begin(), event.token_ids.end());
      finish_ = event.finish;
      error_ = event.error;
      changed_.notify_all();
    };
    return made;
  }
  FinishReason wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return finish_ != FinishReason::none; })) << "the client was never told the end";
    return finish_;
  }
  void wait_for_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return tokens_.size() >= count || finish_ != FinishReason::none; }));
  }
  FinishReason finish() const {
    const std::lock_guard lock(mutex_);
    return finish_;
  }
  std::string error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  std::vector<int32_t> tokens() const {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }
  // Each token is the one that follows the text before it.
  void expect_true_text() const {
    const std::lock_guard lock(mutex_);
    std::vector<int32_t> text = prompt_;
    for (const int32_t token : tokens_) {
      ASSERT_EQ(token, next_token(text)) << "after " << text.size() << " tokens";
      text.push_back(token);
    }
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> prompt_;
  std::vector<int32_t> tokens_;
  FinishReason finish_ = FinishReason::none;
  std::string error_;
};

// Holds the runner at the door of its next step until opened.
class Gate {
 public:
  ScriptedRunner::BeforeStep hook() {
    return [this](const sched::BatchPlan&) -> Result<> {
      std::unique_lock lock(mutex_);
      inside_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return open_; });
      return {};
    };
  }
  void wait_inside() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return inside_; }));
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool inside_ = false;
  bool open_ = false;
};

TEST(Engine, ManyClientsComeAndGoFromManyThreads) {
  const uint64_t seed = 11;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  const Engine::Options options = small_options();
  Engine engine(options, make_runner(options));
  constexpr int kThreads = 8;
  constexpr int kClients = 25;  // a thread: 200 in all
  std::vector<Client> clients(kThreads * kClients);
  std::atomic<int64_t> num_tokens{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(seed * 100 + static_cast<uint64_t>(t));
      std::vector<RequestId> ids;
      for (int c = 0; c < kClients; ++c) {
        std::vector<int32_t> prompt(1 + rng.below(60));
        for (int32_t& token : prompt) token = static_cast<int32_t>(rng.below(100));
        auto id = engine.submit(
            clients[static_cast<size_t>(t * kClients + c)].request(std::move(prompt), 1 + static_cast<int32_t>(rng.below(60))));
        ASSERT_TRUE(id.has_value()) << id.error().message;
        ids.push_back(*id);
        if (rng.below(3) == 0) engine.cancel(ids[rng.below(ids.size())]);
        const ReplicaState stats = engine.state();
        EXPECT_LE(stats.running, options.scheduler.max_running_requests);
        EXPECT_LE(stats.free_pages, stats.total_pages);
        EXPECT_TRUE(engine.healthy());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int num_cancelled = 0;
  for (Client& client : clients) {
    num_cancelled += client.wait() == FinishReason::cancelled;
    EXPECT_NE(client.finish(), FinishReason::error);
    client.expect_true_text();
    num_tokens += static_cast<int64_t>(client.tokens().size());
  }
  EXPECT_GT(num_cancelled, 0);
  engine.drain(60s);
  const ReplicaState stats = engine.state();
  EXPECT_EQ(stats.finished_requests, kThreads * kClients);
  EXPECT_EQ(stats.completion_tokens, num_tokens);
  EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.total_pages);
  EXPECT_EQ(stats.running + stats.waiting, 0);
}

TEST(Engine, AFullQueueRefusesAtOnceAndTheGaugesAreRight) {  // H9
  Engine::Options options = small_options();
  options.max_queued_requests = 16;
  options.scheduler.max_running_requests = 2;
  Gate gate;
  Engine engine(options, make_runner(options, gate.hook()));
  std::vector<Client> clients(500);
  ASSERT_TRUE(engine.submit(clients[0].request({1}, 3)).has_value());
  gate.wait_inside();
  int num_accepted = 1;
  for (size_t i = 1; i < clients.size(); ++i) {
    const auto id = engine.submit(clients[i].request({1, 2, 3}, 3));
    num_accepted += id.has_value();
    EXPECT_TRUE(id.has_value() || id.error().kind == Refusal::Kind::queue_full);
  }
  EXPECT_EQ(num_accepted, 18) << "two run, sixteen wait";
  EXPECT_EQ(engine.state().waiting, 17) << "the one whose place is free comes in when the step has ended";
  gate.open();
  engine.drain(60s);
  EXPECT_EQ(engine.state().finished_requests, num_accepted);
}

TEST(Engine, ARequestThatCanNeverFitIsRefusedWithTheReason) {
  const Engine::Options options = small_options();
  Engine engine(options, make_runner(options));
  Client client;
  const auto id = engine.submit(client.request(std::vector<int32_t>(128, 1), 1));
  ASSERT_FALSE(id.has_value());
  EXPECT_EQ(id.error().kind, Refusal::Kind::too_long);
  EXPECT_NE(id.error().message.find("128"), std::string::npos) << id.error().message;
}

TEST(Engine, ACancelledClientsPagesAreFreeWithinTwoSteps) {  // H1
  const Engine::Options options = small_options();
  Engine engine(options, make_runner(options, [](const sched::BatchPlan&) -> Result<> {
                  std::this_thread::sleep_for(2ms);
                  return {};
                }));
  for (int round = 0; round < 10; ++round) {
    Client client;
    auto request = client.request({5, 6, 7}, 100);
    request.sampling.stop_token_ids.clear();
    const auto id = engine.submit(std::move(request));
    ASSERT_TRUE(id.has_value());
    client.wait_for_tokens(3);
    const int64_t steps = engine.state().steps;
    engine.cancel(*id);
    EXPECT_EQ(client.wait(), FinishReason::cancelled);
    const ReplicaState stats = engine.state();
    EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.total_pages);
    EXPECT_LE(stats.steps, steps + 2);
  }
}

TEST(Engine, ADeadRunnerIsToldToAllAndToTheHealthCheck) {
  for (const bool throws : {false, true}) {
    const Engine::Options options = small_options();
    std::atomic<int> steps{0};
    Engine engine(options, make_runner(options, [&](const sched::BatchPlan&) -> Result<> {
                    if (++steps < 4) return {};
                    if (throws) throw std::runtime_error("device lost");
                    return fail("device lost");
                  }));
    std::vector<Client> clients(20);
    std::vector<bool> accepted;
    for (Client& client : clients) {
      auto request = client.request({1, 2, 3, 4, 5, 6, 7, 8, 9}, 50);
      request.sampling.stop_token_ids.clear();
      accepted.push_back(engine.submit(std::move(request)).has_value());
    }
    ASSERT_TRUE(accepted[0]);
    for (size_t i = 0; i < clients.size(); ++i) {
      if (!accepted[i]) continue;
      EXPECT_EQ(clients[i].wait(), FinishReason::error);
      EXPECT_NE(clients[i].error().find("device lost"), std::string::npos);
    }
    std::string reason;
    EXPECT_FALSE(engine.healthy(&reason));
    EXPECT_NE(reason.find("device lost"), std::string::npos);
    Client late;
    const auto id = engine.submit(late.request({1}, 1));
    ASSERT_FALSE(id.has_value());
    EXPECT_EQ(id.error().kind, Refusal::Kind::engine_failed);
    engine.drain(1s);
    EXPECT_EQ(engine.state().free_pages + engine.state().cached_pages, engine.state().total_pages);
  }
}

TEST(Engine, StatsAndHealthDoNotWaitForASlowStep) {  // K3
  const Engine::Options options = small_options();
  Gate gate;
  Engine engine(options, make_runner(options, gate.hook()));
  Client client;
  ASSERT_TRUE(engine.submit(client.request({1, 2}, 2)).has_value());
  gate.wait_inside();
  for (int i = 0; i < 100; ++i) engine.state();  // would hang here: the gate is shut
  EXPECT_TRUE(engine.healthy());
  EXPECT_EQ(client.finish(), FinishReason::none);
  gate.open();
  client.wait();
}

TEST(Engine, DrainLetsTheRunningFinishRefusesTheNewAndCancelsTheLate) {  // H7
  const Engine::Options options = small_options();
  Engine engine(options, make_runner(options, [](const sched::BatchPlan&) -> Result<> {
                  std::this_thread::sleep_for(3ms);
                  return {};
                }));
  Client quick;
  Client slow;
  ASSERT_TRUE(engine.submit(quick.request({1, 2}, 2)).has_value());
  auto request = slow.request({3, 4}, 120);
  request.sampling.stop_token_ids.clear();
  ASSERT_TRUE(engine.submit(std::move(request)).has_value());
  engine.drain(60ms);
  EXPECT_NE(quick.finish(), FinishReason::none) << "drain() returned before the last event";
  EXPECT_NE(quick.finish(), FinishReason::cancelled);
  EXPECT_EQ(slow.finish(), FinishReason::cancelled);
  Client late;
  const auto id = engine.submit(late.request({1}, 1));
  ASSERT_FALSE(id.has_value());
  EXPECT_EQ(id.error().kind, Refusal::Kind::stopping);
}

TEST(Engine, TheDestructorTellsWhoStillRuns) {
  const Engine::Options options = small_options();
  std::vector<Client> clients(20);
  {
    Engine engine(options, make_runner(options));
    for (Client& client : clients) ASSERT_TRUE(engine.submit(client.request({1, 2, 3}, 100)).has_value());
  }
  for (const Client& client : clients) EXPECT_NE(client.finish(), FinishReason::none);
}

TEST(Engine, AThrowingSinkCostsItsOwnRequestOnly) {
  const Engine::Options options = small_options();
  Engine engine(options, make_runner(options));
  Client good;
  Request bad;
  bad.prompt = {1, 2, 3};
  bad.sampling.max_tokens = 100;
  std::atomic<bool> ended{false};
  bad.sink = [&](const TokenEvent& event) {
    if (event.finish != FinishReason::none) ended = true;
    throw std::runtime_error("client code");
  };
  ASSERT_TRUE(engine.submit(std::move(bad)).has_value());
  ASSERT_TRUE(engine.submit(good.request({4, 5, 6}, 20)).has_value());
  good.wait();
  good.expect_true_text();
  engine.drain(60s);
  EXPECT_TRUE(ended);
  EXPECT_TRUE(engine.healthy());
}

struct StopAfter final : sched::TokenWatcher {
  explicit StopAfter(int count) : left(count) {}
  bool on_token(int32_t) override { return --left == 0; }
  int left;
};

TEST(Engine, AWatcherEndsItsRequest) {
  const Engine::Options options = small_options();
  Engine engine(options, make_runner(options));
  Client client;
  auto request = client.request({9, 8, 7}, 100);
  request.sampling.stop_token_ids.clear();
  request.watcher = std::make_shared<StopAfter>(5);
  ASSERT_TRUE(engine.submit(std::move(request)).has_value());
  EXPECT_EQ(client.wait(), FinishReason::stop_string);
  EXPECT_EQ(client.tokens().size(), 5u);
}

// E1, E9: the same seed among 20 unseeded neighbours gives the same text.
TEST(Engine, ASeededTextDoesNotDependOnItsNeighbours) {
  const Engine::Options options = small_options();
  std::vector<std::vector<int32_t>> texts;
  for (const uint64_t seed : {42u, 42u, 43u}) {
    Engine engine(options, std::make_unique<ScriptedRunner>(
                               ScriptedRunner::Options{options.scheduler.num_pages,
                                                       options.scheduler.page_size,
                                                       100,
                                                       [](const ScriptedRunner::Context& context, std::span<float> logits) {
                                                         for (size_t i = 0; i < logits.size(); ++i)
                                                           logits[i] = static_cast<float>((i * 7 + context.tokens.size()) % 5);
                                                       },
                                                       {},
                                                       nullptr}));
    std::vector<Client> neighbours(texts.empty() ? 0 : 20);
    for (Client& neighbour : neighbours) ASSERT_TRUE(engine.submit(neighbour.request({1, 2, 3, 4, 5}, 60)).has_value());
    Client client;
    auto request = client.request({1, 2, 3}, 40);
    request.sampling.temperature = 1;
    request.sampling.seed = seed;
    request.sampling.stop_token_ids.clear();
    ASSERT_TRUE(engine.submit(std::move(request)).has_value());
    EXPECT_EQ(client.wait(), FinishReason::length);
    texts.push_back(client.tokens());
    engine.drain(60s);
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_NE(texts[0], texts[2]);
}

TEST(Engine, AStuckStepIsNamedByHealthAndForgivenWhenItGoesOn) {  // H8
  Engine::Options options = small_options();
  options.stall_limit = 50ms;
  Gate gate;
  Engine engine(options, make_runner(options, gate.hook()));
  std::string reason;
  std::this_thread::sleep_for(120ms);
  EXPECT_TRUE(engine.healthy(&reason)) << "an idle engine is no stuck one: " << reason;
  Client client;
  ASSERT_TRUE(engine.submit(client.request({1, 2, 3}, 2)).has_value());
  gate.wait_inside();
  for (int i = 0; i < 2000 && engine.healthy(&reason); ++i) std::this_thread::sleep_for(5ms);
  EXPECT_FALSE(engine.healthy(&reason));
  EXPECT_NE(reason.find("running a step on the model"), std::string::npos) << reason;
  EXPECT_NE(reason.find("1 requests, 3 rows"), std::string::npos) << reason;
  gate.open();
  client.wait();
  for (int i = 0; i < 2000 && !engine.healthy(); ++i) std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(engine.healthy());
}

TEST(Engine, AStuckEngineDoesNotHoldUpTheDrainForEver) {
  Engine::Options options = small_options();
  options.cancel_grace = 20ms;
  Gate gate;
  Engine engine(options, make_runner(options, gate.hook()));
  Client client;
  ASSERT_TRUE(engine.submit(client.request({1, 2, 3}, 2)).has_value());
  gate.wait_inside();
  EXPECT_FALSE(engine.drain(10ms));
  gate.open();
  client.wait();
}

TEST(Engine, WhoWaitsOrTakesTooLongIsToldWhich) {
  Engine::Options options = small_options();
  options.scheduler.max_running_requests = 1;
  options.queue_timeout = 30ms;
  options.request_timeout = 150ms;
  Engine engine(options, make_runner(options, [](const sched::BatchPlan&) -> Result<> {
                  std::this_thread::sleep_for(5ms);
                  return {};
                }));
  Client running;
  Client waiting;
  for (Client* client : {&running, &waiting}) {
    auto request = client->request({1, 2, 3}, 100);
    request.sampling.stop_token_ids.clear();
    ASSERT_TRUE(engine.submit(std::move(request)).has_value());
  }
  EXPECT_EQ(waiting.wait(), FinishReason::queue_timeout);
  EXPECT_EQ(running.wait(), FinishReason::timeout);
  EXPECT_GT(running.tokens().size(), 2u);
  EXPECT_EQ(engine.state().free_pages + engine.state().cached_pages, engine.state().total_pages);
}

// What an observer hears must add up to what the clients got.
class Counting final : public EngineObserver {
 public:
  void on_step(const StepRecord& step) override {
    rows += step.prefill_rows + step.decode_rows;
    saved += step.pages_saved;
    loaded += step.pages_loaded;
  }
  void on_tokens(int, double, int64_t count) override { tokens += count; }
  void on_first_token(int, double) override { ++first_tokens; }
  void on_finished(const RequestRecord& record) override {
    const std::lock_guard lock(mutex);
    records.push_back(record);
  }
  std::atomic<int64_t> rows{0}, saved{0}, loaded{0}, tokens{0}, first_tokens{0};
  std::mutex mutex;
  std::vector<RequestRecord> records;
};

TEST(Engine, ObserversHearEachRequestOnceWithItsTimesInOrder) {
  Engine::Options options = small_options();
  options.scheduler.draft.num_steps = 3;
  Counting counting;
  options.observers = {&counting};
  const ScriptedRunner::Script script = [](const ScriptedRunner::Context& context, std::span<float> logits) {
    logits[static_cast<size_t>(next_token(context.tokens))] = 50.0f;
  };
  int64_t completion = 0;
  {
    Engine engine(options,
                  std::make_unique<ScriptedRunner>(ScriptedRunner::Options{options.scheduler.num_pages,
                                                                           options.scheduler.page_size,
                                                                           100,
                                                                           script,
                                                                           {},
                                                                           std::make_shared<testing::ScriptedDrafts>(script, 100, 0.6)}));
    std::vector<Client> clients(40);
    for (size_t i = 0; i < clients.size(); ++i)
      ASSERT_TRUE(engine.submit(clients[i].request(std::vector<int32_t>(20, static_cast<int32_t>(i % 3) + 1), 30)).has_value());
    for (Client& client : clients) {
      client.wait();
      client.expect_true_text();  // drafts, right or wrong, change nothing
      completion += static_cast<int64_t>(client.tokens().size());
    }
    engine.drain(60s);
    const ReplicaState state = engine.state();
    EXPECT_EQ(state.completion_tokens, completion);
    EXPECT_GT(state.accepted_tokens, 0);
    EXPECT_LT(state.accepted_tokens, state.draft_tokens);
    EXPECT_GT(state.cache_hit_tokens, 0) << "the same prompt again finds nothing when tokens are drafted (D1)";
    SpeculationCounts all;
    for (const RequestRecord& r : counting.records) all.add(r.speculation);
    EXPECT_EQ(all.steps(), state.drafts);
    EXPECT_EQ(all.drafted(), state.draft_tokens);
    EXPECT_EQ(all.accepted(), state.accepted_tokens);
    EXPECT_EQ(all.accepted_per_position(), Json(std::vector(state.accepted_at.begin(), state.accepted_at.begin() + 3)));
    EXPECT_EQ(std::accumulate(state.drafted_at.begin(), state.drafted_at.end(), int64_t{0}), state.draft_tokens);
  }
  ASSERT_EQ(counting.records.size(), 40u);
  EXPECT_EQ(counting.first_tokens, 40);
  EXPECT_LE(counting.tokens, completion);
  int64_t told = 0;
  for (const RequestRecord& r : counting.records) {
    told += r.completion_tokens;
    EXPECT_TRUE(0 < r.submitted_ns && r.submitted_ns <= r.scheduled_ns && r.scheduled_ns <= r.first_token_ns &&
                r.first_token_ns <= r.last_token_ns && r.last_token_ns <= r.finished_ns);
    EXPECT_EQ(r.prompt_tokens, 20);
    EXPECT_TRUE(r.finish == FinishReason::stop_token || r.finish == FinishReason::length);
  }
  EXPECT_EQ(told, completion);
}

// The tiers below the device, through the engine: a folder for the pages that is gone at the end.
class EngineStore : public ::testing::Test {
 protected:
  EngineStore() : dir_(std::filesystem::temp_directory_path() / ("ingot_engine_store_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(dir_);
  }
  ~EngineStore() override { std::filesystem::remove_all(dir_); }
  std::unique_ptr<exec::PageStore> open(const Engine::Options& options) {
    exec::PageStore::Options store;
    store.dir = dir_;
    store.max_bytes = 1 << 20;
    store.model_identity = 1;
    store.page_size = options.scheduler.page_size;
    store.page_bytes = options.scheduler.page_size * 4;
    return exec::PageStore::open(store).value();
  }
  std::filesystem::path dir_;
};

TEST_F(EngineStore, APrefixSurvivesARestart) {
  Engine::Options options = small_options();
  options.scheduler.host_pages = 64;
  const std::vector<int32_t> prompt(101, 7);
  for (int life = 0; life < 3; ++life) {
    Counting counting;
    const auto store = open(options);
    options.store = store.get();
    options.observers = {&counting};
    {
      Engine engine(options, make_runner(options));
      Client client;
      ASSERT_TRUE(engine.submit(client.request(prompt, 5)).has_value());
      client.wait();
      client.expect_true_text();  // what was loaded is what was saved: the runner reads its context from the pages
      engine.drain(60s);
    }
    EXPECT_EQ(counting.records.at(0).cached_tokens, life == 0 ? 0 : 100);
    EXPECT_EQ(counting.loaded, life == 0 ? 0 : 25);
    store->flush();
    EXPECT_EQ(store->stats().pages, 26) << "25 of the prompt, one that the answer filled";
  }
}

TEST_F(EngineStore, ADamagedFileCostsARecomputationAndNothingElse) {
  Engine::Options options = small_options();
  options.scheduler.host_pages = 64;
  const std::vector<int32_t> prompt(101, 7);
  for (int life = 0; life < 2; ++life) {
    const auto store = open(options);
    options.store = store.get();
    Counting counting;
    options.observers = {&counting};
    {
      Engine engine(options, make_runner(options));
      Client client;
      ASSERT_TRUE(engine.submit(client.request(prompt, 5)).has_value());
      client.wait();
      client.expect_true_text();
    }
    store->flush();
    if (life == 0) {
      // The tenth page of the prompt.
      const auto key = sched::page_keys(prompt, 4).at(9);
      const auto file = dir_ / "0000000000000001" / fmt::format("{:016x}", key).substr(0, 2) / fmt::format("{:016x}.page", key);
      ASSERT_TRUE(std::filesystem::exists(file)) << file;
      std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
    } else {
      EXPECT_LE(counting.records.at(0).cached_tokens, 36);
      EXPECT_EQ(store->stats().pages, 26) << "it was stored anew";
    }
  }
}

TEST_F(EngineStore, ManyClientsWithFetchesCancelsAndEvictionsHearTheTruth) {
  Engine::Options options = small_options();
  options.scheduler.host_pages = 40;
  const auto store = open(options);
  options.store = store.get();
  for (int life = 0; life < 2; ++life) {
    Engine engine(options, make_runner(options));
    std::vector<Client> clients(4 * 40);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        Rng rng(100 + t);
        for (size_t c = 0; c < 40; ++c) {
          std::vector<int32_t> prompt(20 + rng.below(80), static_cast<int32_t>(1 + rng.below(6)));
          const auto id = engine.submit(clients[t * 40 + c].request(std::move(prompt), 20));
          ASSERT_TRUE(id.has_value());
          if (rng.below(4) == 0) engine.cancel(*id);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (Client& client : clients) {
      EXPECT_NE(client.wait(), FinishReason::error);
      client.expect_true_text();
    }
    EXPECT_TRUE(engine.drain(60s));
    EXPECT_EQ(engine.state().finished_requests, 160);
    EXPECT_EQ(engine.state().free_pages + engine.state().cached_pages, engine.state().total_pages);
  }
  EXPECT_GT(store->stats().pages_read, 0);
}

}  // namespace
}  // namespace ingot::serve
