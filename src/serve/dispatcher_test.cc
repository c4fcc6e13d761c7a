// Several replicas behind one door. Symptoms: waiting piles up on a few replicas while others idle (N1), a stream's load is forgotten when
// it starts (N3), one replica without work stops the others (N4), a conversation that changes its replica and loses its prefix.
#include "serve/dispatcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <set>

#include "base/rng.h"
#include "support/scripted_runner.h"

namespace ingot::serve {
namespace {

using namespace std::chrono_literals;
using sched::FinishReason;
using testing::ScriptedRunner;

// Replicas whose steps wait at a gate while it is shut; every answer is max_tokens long.
class House {
 public:
  explicit House(int replicas, bool open = true, int64_t max_running = 8, int64_t max_queued = 4096) : open_(open) {
    std::vector<std::unique_ptr<Engine>> engines;
    for (int i = 0; i < replicas; ++i) {
      Engine::Options options;
      options.scheduler = {.num_pages = kPages,
                           .page_size = kPageSize,
                           .chunked_prefill_size = 256,
                           .max_running_requests = max_running,
                           .context_length = 2048};
      options.max_queued_requests = max_queued;
      options.replica = i;
      engines.push_back(std::make_unique<Engine>(
          options, std::make_unique<ScriptedRunner>(ScriptedRunner::Options{kPages, kPageSize, 10, ScriptedRunner::says({5}),
                                                                            [this, i](const auto&) { return wait(i); }, nullptr})));
    }
    dispatcher = std::make_unique<Dispatcher>(std::move(engines), kPageSize, kPages);
  }
  ~House() {
    open();
    dispatcher->drain(60s);
  }
  tl::expected<Dispatcher::Ticket, Refusal> submit(std::vector<int32_t> prompt, int32_t max_tokens) {
    sched::Request request;
    request.prompt = std::move(prompt);
    request.sampling.max_tokens = max_tokens;
    request.sink = [this](const sched::TokenEvent& event) {
      const std::lock_guard lock(mutex_);
      if (event.finish == FinishReason::none) {
        least_load = std::min(least_load, dispatcher->load(0).tokens);
        return;
      }
      ++ended;
      cached += event.cached_tokens;
      changed_.notify_all();
    };
    return dispatcher->submit(std::move(request));
  }
  void wait_ended(int64_t count) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, 60s, [&] { return ended >= count; }));
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void kill(int replica) {
    const std::lock_guard lock(mutex_);
    dead_.insert(replica);
  }

  static constexpr int64_t kPages = 512;
  static constexpr int64_t kPageSize = 16;
  int64_t ended = 0;
  int64_t cached = 0;
  int64_t least_load = INT64_MAX;  // of replica 0, while tokens flow
  std::unique_ptr<Dispatcher> dispatcher;

 private:
  Result<> wait(int replica) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
    if (dead_.contains(replica)) return fail("device lost");
    return {};
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_;
  std::set<int> dead_;
};

std::vector<int32_t> prompt(uint64_t seed, size_t length) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>(random_bits(seed, i) % 10));
  return tokens;
}

TEST(Dispatcher, MixedLengthsSpreadByTokensInFlight) {  // N1
  constexpr int kReplicas = 8;
  House house(kReplicas, false);
  Rng rng(5);
  for (uint64_t client = 0; client < 512; ++client) {
    // One in eight is long: counting requests would put most of the work on whoever gets those.
    const bool is_long = rng.below(8) == 0;
    const size_t length = is_long ? 800 + rng.below(400) : 10 + rng.below(50);
    ASSERT_TRUE(house.submit(prompt(client, length), static_cast<int32_t>(is_long ? 500 : 20)).has_value());
  }
  std::vector<int64_t> tokens;
  int64_t requests = 0;
  for (int i = 0; i < kReplicas; ++i) {
    tokens.push_back(house.dispatcher->load(i).tokens);
    requests += house.dispatcher->load(i).requests;
  }
  const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
  EXPECT_EQ(requests, 512);
  EXPECT_LE(*most - *least, 1700) << "more than the longest request apart";
  house.open();
  house.wait_ended(512);
  house.dispatcher->drain(60s);
  for (int i = 0; i < kReplicas; ++i) EXPECT_EQ(house.dispatcher->load(i).tokens + house.dispatcher->load(i).requests, 0);
}

TEST(Dispatcher, AStreamIsLoadUntilItEnds) {  // N3
  House house(2);
  ASSERT_EQ(house.submit(prompt(1, 10), 1000)->replica, 0);
  house.wait_ended(1);
  EXPECT_EQ(house.least_load, 1010) << "its tokens flow, and it is still in flight";
  EXPECT_EQ(house.dispatcher->load(0).tokens, 0);
}

TEST(Dispatcher, AConversationStaysWithItsPrefixUntilThatCostsMoreThanItSaves) {
  House house(4, false);
  auto conversation = prompt(1, 400);
  const int home = house.submit(conversation, 10)->replica;
  // Others fill all replicas evenly.
  for (uint64_t other = 100; other < 112; ++other) ASSERT_TRUE(house.submit(prompt(other, 90), 10).has_value());
  for (uint64_t turn = 0; turn < 3; ++turn) {
    const auto more = prompt(50 + turn, 30);
    conversation.insert(conversation.end(), more.begin(), more.end());
    EXPECT_EQ(house.submit(conversation, 10)->replica, home);
  }
  // Now its replica is worse by more than the 400 tokens that are found there.
  for (int i = 0; i < 8; ++i) {
    const auto ticket = house.submit(conversation, 1000);
    if (ticket->replica != home) return;
  }
  FAIL() << "a hot prefix drowns its replica";
}

TEST(Dispatcher, AFullReplicaHandsOverAndAllFullIsRefused) {
  House house(2, false, 1, 2);
  int accepted = 0;
  for (uint64_t i = 0; i < 20; ++i) {
    const auto ticket = house.submit(prompt(1, 100), 10);  // all want the same replica
    accepted += ticket.has_value();
    if (!ticket) {
      EXPECT_EQ(ticket.error().kind, Refusal::Kind::queue_full);
    }
  }
  EXPECT_EQ(accepted, 6) << "one runs and two wait on each";
  EXPECT_EQ(house.dispatcher->load(0).requests, 3);
  EXPECT_EQ(house.dispatcher->load(1).requests, 3) << "a refused request is nobody's load";
}

TEST(Dispatcher, ADeadReplicaIsNamedAndTheOthersServe) {
  House house(2);
  house.kill(0);
  ASSERT_EQ(house.submit(prompt(1, 10), 5)->replica, 0);
  house.wait_ended(1);
  std::string reason;
  EXPECT_FALSE(house.dispatcher->healthy(&reason));
  EXPECT_NE(reason.find("device lost"), std::string::npos);
  for (uint64_t i = 0; i < 10; ++i) {
    const auto ticket = house.submit(prompt(i, 10), 5);
    ASSERT_TRUE(ticket.has_value()) << ticket.error().message;
    EXPECT_EQ(ticket->replica, 1);
  }
  house.wait_ended(11);
}

TEST(Dispatcher, UnevenEndsLeaveNobodyHanging) {  // N4
  House house(4);
  for (uint64_t i = 0; i < 9; ++i) ASSERT_TRUE(house.submit(prompt(i, 20), i == 0 ? 1500 : 2).has_value());
  house.wait_ended(9);
  EXPECT_TRUE(house.dispatcher->healthy());
}

TEST(SeenPrefixes, TheLeastRecentlyUsedAreForgottenAndTheFirstPagesLast) {
  SeenPrefixes seen(4);
  seen.add({1, 2, 3});
  seen.add({7, 8});
  EXPECT_EQ(seen.match({7, 8}), 2);
  EXPECT_EQ(seen.match({1, 2, 3}), 2) << "the end of the older prefix went";
  seen.add({11, 12, 13, 14, 15, 16});
  EXPECT_EQ(seen.match({11, 12, 13, 14, 15, 16}), 4);
  EXPECT_EQ(seen.match({1, 2, 3}), 0);
}

}  // namespace
}  // namespace ingot::serve
