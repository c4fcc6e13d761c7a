// The scheduler against a plain model of its clients and a cache that remembers what was written where. Symptoms: lost or doubled pages,
// a sequence that reads another's cache, text that changes when a sequence is preempted, and a queue that never moves.
#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>

#include "base/rng.h"

namespace ingot::sched {
namespace {

SchedulerOptions small_options() {
  SchedulerOptions options;
  options.num_pages = 12;
  options.page_size = 4;
  options.chunked_prefill_size = 10;
  options.max_running_requests = 5;
  options.context_length = 40;
  return options;
}

// The model of the tests: the next token hashes all tokens before it. One in sixteen is 0, the stop token.
int32_t next_token(const std::vector<int32_t>& tokens) {
  uint64_t hash = 0;
  for (const int32_t token : tokens) hash = mix64(hash ^ static_cast<uint64_t>(token));
  return static_cast<int32_t>(hash % 16 == 0 ? 0 : hash % 50000 + 1);
}

// Runs a plan as the model would: writes the rows into their slots, reads the whole context back through the page table.
class TokenCache {
 public:
  explicit TokenCache(const SchedulerOptions& options)
      : page_size_(options.page_size), slots_(static_cast<size_t>(options.num_pages * options.page_size), -1) {}

  BatchResult run(const BatchPlan& plan) {
    for (const BatchItem& item : plan.items) {
      for (size_t i = 0; i < item.token_ids.size(); ++i) slot(item, item.start + static_cast<int64_t>(i)) = item.token_ids[i];
    }
    BatchResult result;
    for (const BatchItem& item : plan.items) {
      if (!item.sample) continue;
      std::vector<int32_t> context;
      const int64_t end = item.start + static_cast<int64_t>(item.token_ids.size());
      for (int64_t position = 0; position < end; ++position) context.push_back(slot(item, position));
      result.sampled.push_back({item.request, next_token(context), {}});
    }
    return result;
  }

 private:
  int32_t& slot(const BatchItem& item, int64_t position) {
    const int32_t page = item.pages.at(static_cast<size_t>(position / page_size_));
    return slots_.at(static_cast<size_t>(page * page_size_ + position % page_size_));
  }
  int64_t page_size_;
  std::vector<int32_t> slots_;
};

// A client of the model: what it must get is known when it asks.
struct Client {
  std::vector<int32_t> tokens;  // prompt, then what came
  int64_t prompt_len = 0;
  int64_t max_len = 0;
  int64_t cached = 0;  // rows committed since the last preemption
  int32_t num_preempted = 0;
  bool cancelled = false;
  FinishReason finish = FinishReason::none;
};

// The house as its rules say it must look, and clients that check each event against the token they expect.
class House {
 public:
  explicit House(const SchedulerOptions& options) : options_(options), scheduler_(options), cache_(options) {}

  void submit(int64_t prompt_len, int32_t max_tokens) {
    const RequestId id = ++last_id_;
    Request request;
    request.id = id;
    for (int64_t i = 0; i < prompt_len; ++i)
      request.prompt.push_back(static_cast<int32_t>(random_bits(id, static_cast<uint64_t>(i)) & 0xffff));
    request.sampling.max_tokens = max_tokens;
    request.sampling.stop_token_ids = {0};
    request.sink = [this, id](const TokenEvent& event) { took(id, event); };
    const int64_t room = std::min(options_.context_length, options_.num_pages * options_.page_size);
    const bool fits = prompt_len > 0 && prompt_len < room;
    ASSERT_EQ(Scheduler::admissible(request, options_).has_value(), fits);
    if (!fits) return;
    clients[id] = {request.prompt, prompt_len, std::min(room, prompt_len + max_tokens), 0, 0, false, FinishReason::none};
    live.insert(id);
    scheduler_.submit(std::move(request));
    scheduler_.verify();
  }

  void cancel(RequestId id) {
    clients[id].cancelled = true;
    const bool in_flight = in_flight_.contains(id);
    scheduler_.cancel(id);
    ASSERT_EQ(live.contains(id), in_flight) << "the last event comes at once unless the rows are running";
    scheduler_.verify();
  }

  // One step; `between` runs while the plan is in flight.
  template <class Between>
  void step(Between between) {
    const BatchPlan plan = scheduler_.plan();
    scheduler_.verify();
    ASSERT_EQ(plan.empty(), live.empty()) << "work in the house, but nobody runs";
    check(plan);
    between(plan);
    const BatchResult result = cache_.run(plan);
    for (const BatchItem& item : plan.items) clients[item.request].cached += static_cast<int64_t>(item.token_ids.size());
    std::set<RequestId> expected;
    for (const BatchItem& item : plan.items) {
      if (item.sample || clients[item.request].cancelled) expected.insert(item.request);
    }
    told_.clear();
    in_flight_.clear();
    scheduler_.commit(plan, result);
    ASSERT_EQ(told_, expected) << "who was told in this step";
    scheduler_.verify();
    int64_t held = 0;
    for (const RequestId id : live) held += static_cast<int64_t>(scheduler_.find(id)->pages.size());
    ASSERT_EQ(scheduler_.stats().free_pages, options_.num_pages - held);
  }
  void step() {
    step([](const BatchPlan&) {});
  }

  std::map<RequestId, Client> clients;
  std::set<RequestId> live;
  std::map<RequestId, std::vector<int32_t>> counters;  // draw counters seen in plans
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  void check(const BatchPlan& plan) {
    int64_t num_rows = 0;
    bool prefills_began = false;
    std::set<RequestId> ids;
    std::set<int32_t> pages;
    for (const BatchItem& item : plan.items) {
      ASSERT_TRUE(live.contains(item.request) && ids.insert(item.request).second);
      Client& client = clients[item.request];
      const Sequence* sequence = scheduler_.find(item.request);
      if (sequence->num_preempted != client.num_preempted) client.cached = 0;
      client.num_preempted = sequence->num_preempted;
      const auto len = static_cast<int64_t>(client.tokens.size());
      const auto rows = static_cast<int64_t>(item.token_ids.size());
      ASSERT_EQ(item.start, client.cached) << "request " << item.request;
      ASSERT_GE(rows, 1);
      ASSERT_LE(item.start + rows, len);
      ASSERT_TRUE(std::equal(item.token_ids.begin(), item.token_ids.end(), client.tokens.begin() + item.start));
      ASSERT_EQ(item.sample, item.start + rows == len);
      ASSERT_EQ(item.num_generated, len - client.prompt_len);
      if (item.sample) {
        ASSERT_NE(item.sampling, nullptr);
        counters[item.request].push_back(item.num_generated);
      }
      const bool decode = client.cached == len - 1 && len > client.prompt_len;
      ASSERT_FALSE(decode && prefills_began) << "decodes come first";
      prefills_began = prefills_began || !decode;
      ASSERT_GE(static_cast<int64_t>(item.pages.size()) * options_.page_size, item.start + rows);
      for (const int32_t page : item.pages) ASSERT_TRUE(pages.insert(page).second) << "page " << page << " is in two sequences";
      num_rows += rows;
      in_flight_.insert(item.request);
    }
    ASSERT_EQ(plan.num_tokens, num_rows);
    ASSERT_LE(num_rows, options_.chunked_prefill_size);
    ASSERT_LE(scheduler_.stats().running, options_.max_running_requests);
    ASSERT_EQ(scheduler_.stats().running + scheduler_.stats().waiting, static_cast<int64_t>(live.size()));
    // First come, first served: who ever ran came before who never did.
    for (const RequestId id : ids) newest_ran_ = std::max(newest_ran_, id);
    for (const RequestId id : live) {
      const Sequence* sequence = scheduler_.find(id);
      ASSERT_TRUE(id <= newest_ran_ || (sequence->num_computed == 0 && sequence->num_preempted == 0));
    }
    // The oldest of all always goes on when the budget allows.
    ASSERT_TRUE(live.empty() || num_rows == options_.chunked_prefill_size || ids.contains(*live.begin())) << "the oldest stands still";
  }

  void took(RequestId id, const TokenEvent& event) {
    Client& client = clients[id];
    told_.insert(id);
    EXPECT_TRUE(live.contains(id)) << "event after the last one, request " << id;
    for (const int32_t token : event.token_ids) {
      EXPECT_EQ(token, next_token(client.tokens)) << "request " << id << " went astray";
      client.tokens.push_back(token);
    }
    FinishReason expected = FinishReason::none;
    if (client.cancelled) {
      EXPECT_TRUE(event.token_ids.empty());
      expected = FinishReason::cancelled;
    } else if (client.tokens.back() == 0) {
      expected = FinishReason::stop_token;
    } else if (static_cast<int64_t>(client.tokens.size()) == client.max_len) {
      expected = FinishReason::length;
    }
    EXPECT_EQ(event.finish, expected) << "request " << id;
    client.finish = event.finish;
    if (event.finish != FinishReason::none) live.erase(id);
  }

  const SchedulerOptions options_;
  Scheduler scheduler_;
  TokenCache cache_;
  RequestId last_id_ = 0;
  RequestId newest_ran_ = 0;
  std::set<RequestId> told_;
  std::set<RequestId> in_flight_;
};

int64_t property_run(uint64_t seed, int num_actions) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  SchedulerOptions options;
  options.num_pages = 4 + static_cast<int64_t>(rng.below(16));
  options.page_size = 1 + static_cast<int64_t>(rng.below(6));
  options.chunked_prefill_size = 1 + static_cast<int64_t>(rng.below(20));
  options.max_running_requests = 1 + static_cast<int64_t>(rng.below(8));
  options.context_length = 2 + static_cast<int64_t>(rng.below(60));
  House house(options);
  for (int action = 0; action < num_actions && !::testing::Test::HasFailure(); ++action) {
    const uint64_t dice = rng.below(10);
    if (dice < 2) {
      house.submit(static_cast<int64_t>(rng.below(30)), 1 + static_cast<int32_t>(rng.below(60)));
    } else if (dice == 2 && !house.live.empty()) {
      house.cancel(*std::next(house.live.begin(), static_cast<std::ptrdiff_t>(rng.below(house.live.size()))));
    } else if (dice == 3) {
      house.step([&](const BatchPlan& plan) {
        if (!plan.empty()) house.cancel(plan.items[rng.below(plan.items.size())].request);
        house.submit(3, 2);
      });
    } else {
      house.step();
    }
  }
  for (int steps = 0; !house.live.empty() && !::testing::Test::HasFailure(); ++steps) {
    EXPECT_LT(steps, 100000) << "the house never empties";
    house.step();
  }
  EXPECT_EQ(house.scheduler().stats().free_pages, options.num_pages);
  return house.scheduler().stats().preemptions;
}

TEST(Scheduler, RandomArrivalsCancelsAndFinishesKeepTheRules) {
  int64_t num_preemptions = 0;
  for (uint64_t seed = 1; seed <= 40 && !HasFailure(); ++seed) num_preemptions += property_run(seed, 1000);
  EXPECT_GT(num_preemptions, 20) << "the cases were meant to preempt";
}

TEST(Scheduler, SequencesThatOutgrowThePoolAllEndWithTheTextTheyHaveAlone) {
  SchedulerOptions options = small_options();
  options.num_pages = 10;
  House house(options);
  for (int i = 0; i < 8; ++i) house.submit(5, 30);
  for (int steps = 0; !house.live.empty(); ++steps) {
    ASSERT_LT(steps, 2000);
    house.step();
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(house.scheduler().stats().preemptions, 0) << "the case was meant to preempt";
  EXPECT_EQ(house.scheduler().stats().prompt_tokens, 8 * 5) << "a prompt computed twice is counted once (K1)";
  for (const auto& [id, client] : house.clients) {
    const auto generated = static_cast<int32_t>(static_cast<int64_t>(client.tokens.size()) - client.prompt_len);
    // The draw counter goes on after a preemption: (seed, num_generated) is all that a draw may depend on.
    std::vector<int32_t> counters;
    for (int32_t i = 0; i < generated; ++i) counters.push_back(i);
    EXPECT_EQ(house.counters[id], counters) << "request " << id;
  }
}

TEST(Scheduler, ACompletionIsCutByThePoolWhenThatIsSmallerThanTheContext) {
  SchedulerOptions options = small_options();
  options.num_pages = 2;
  Request request;
  request.prompt = {1, 2, 3, 4, 5, 6, 7, 8};
  request.sampling.max_tokens = 1;
  const auto checked = Scheduler::admissible(request, options);
  ASSERT_FALSE(checked.has_value());
  EXPECT_NE(checked.error().message.find("8 tokens"), std::string::npos) << checked.error().message;
}

struct StopAfter final : TokenWatcher {
  explicit StopAfter(int count) : left(count) {}
  bool on_token(int32_t token) override {
    seen.push_back(token);
    return --left == 0;
  }
  int left;
  std::vector<int32_t> seen;
};

// What one request with these draws ends with.
std::vector<FinishReason> finishes_of(std::shared_ptr<StopAfter> watcher, int32_t max_tokens, const std::vector<int32_t>& draws) {
  Scheduler scheduler(small_options());
  std::vector<FinishReason> finishes;
  Request request;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = max_tokens;
  request.sampling.stop_token_ids = {100, 101, 102};
  request.watcher = std::move(watcher);
  request.sink = [&](const TokenEvent& event) { finishes.push_back(event.finish); };
  scheduler.submit(std::move(request));
  size_t next = 0;
  for (BatchPlan plan = scheduler.plan(); !plan.empty(); plan = scheduler.plan()) {
    scheduler.commit(plan, {.sampled = {{plan.items[0].request, draws.at(next++), {}}}});
  }
  return finishes;
}

TEST(Scheduler, AStopStringEndsTheSequenceAfterItsToken) {
  EXPECT_EQ(finishes_of(std::make_shared<StopAfter>(2), 9, {1, 2, 3}),
            (std::vector<FinishReason>{FinishReason::none, FinishReason::stop_string}));
}

TEST(Scheduler, TheWatcherSeesTheStopTokenToo) {
  const auto watcher = std::make_shared<StopAfter>(100);
  finishes_of(watcher, 9, {1, 2, 101});
  EXPECT_EQ(watcher->seen, (std::vector<int32_t>{1, 2, 101}));
}

TEST(Scheduler, AStopOnTheLastAllowedTokenIsAStopAndEveryEosCounts) {  // C1, E8
  for (const int32_t stop : {100, 101, 102})
    EXPECT_EQ(finishes_of(nullptr, 2, {1, stop}), (std::vector<FinishReason>{FinishReason::none, FinishReason::stop_token}));
  EXPECT_EQ(finishes_of(std::make_shared<StopAfter>(2), 2, {1, 2}).back(), FinishReason::stop_string);
  EXPECT_EQ(finishes_of(nullptr, 2, {1, 2, 100}), (std::vector<FinishReason>{FinishReason::none, FinishReason::length}));
}

TEST(Scheduler, AFailedStepEndsAllWithTheReasonAndFreesAllPages) {
  Scheduler scheduler(small_options());
  std::vector<std::string> errors;
  for (RequestId id = 1; id <= 9; ++id) {
    Request request;
    request.id = id;
    request.prompt = {1, 2, 3, 4, 5, 6};
    request.sampling.max_tokens = 9;
    request.sink = [&](const TokenEvent& event) { errors.push_back(event.error); };
    scheduler.submit(std::move(request));
  }
  ASSERT_FALSE(scheduler.plan().empty());
  scheduler.fail_all("device lost");
  EXPECT_EQ(errors, std::vector<std::string>(9, "device lost"));
  EXPECT_EQ(scheduler.stats().free_pages, small_options().num_pages);
  EXPECT_EQ(scheduler.stats().finished_requests, 9);
  EXPECT_TRUE(scheduler.idle());
  scheduler.verify();
}

TEST(PagePool, APageFreedTwiceIsCaught) {
  PagePool pool(4);
  std::vector<int32_t> pages;
  pool.take(2, pages);
  std::vector<int32_t> copy = pages;
  pool.give_back(pages);
  EXPECT_EQ(pool.num_free(), 4);
  EXPECT_DEATH(pool.give_back(copy), "");
  EXPECT_DEATH(pool.take(5, pages), "");
}

TEST(PagePool, ALostPageIsFound) {
  PagePool pool(4);
  std::vector<int32_t> pages;
  pool.take(2, pages);
  const std::vector<const std::vector<int32_t>*> all = {&pages};
  pool.verify(all);
  const std::vector<const std::vector<int32_t>*> twice = {&pages, &pages};
  EXPECT_DEATH(pool.verify(twice), "");
  const std::vector<const std::vector<int32_t>*> none;
  EXPECT_DEATH(pool.verify(none), "");
}

// Prints the cost; no limit is asserted, the machine is shared.
TEST(Scheduler, StepCostAt32RunningSequencesIsPrinted) {
  SchedulerOptions options;
  options.num_pages = 4096;
  options.context_length = 8000;
  Scheduler scheduler(options);
  int64_t num_events = 0;
  for (RequestId id = 1; id <= 32; ++id) {
    Request request;
    request.id = id;
    request.prompt.assign(2000, 1);
    request.sampling.max_tokens = 3000;
    request.sink = [&](const TokenEvent&) { ++num_events; };
    scheduler.submit(std::move(request));
  }
  int64_t ns = 0;
  int num_steps = 0;
  while (num_steps < 2000) {
    const auto start = std::chrono::steady_clock::now();
    const BatchPlan plan = scheduler.plan();
    const auto planned = std::chrono::steady_clock::now();
    ASSERT_FALSE(plan.empty());
    BatchResult result;
    for (const BatchItem& item : plan.items) {
      if (item.sample) result.sampled.push_back({item.request, 1, {}});
    }
    const auto ran = std::chrono::steady_clock::now();
    scheduler.commit(plan, result);
    const auto end = std::chrono::steady_clock::now();
    if (plan.num_tokens != 32) continue;
    ns += std::chrono::duration_cast<std::chrono::nanoseconds>((planned - start) + (end - ran)).count();
    ++num_steps;
  }
  EXPECT_GE(num_events, 32 * num_steps);
  std::printf("plan + commit, 32 decodes of 2,000 to 4,000 tokens: %.1f us a step\n", static_cast<double>(ns) / num_steps / 1000);
}

}  // namespace
}  // namespace ingot::sched
