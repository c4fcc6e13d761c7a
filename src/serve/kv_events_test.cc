// What goes over the wire for KV-aware routers. Symptoms: frames that a subscriber cannot parse, a run of pages that is told page by page,
// a flag that is taken although it says nothing, an engine that waits for a slow publisher, a mirror that never recovers.
#include "serve/kv_events.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <zmq.hpp>

#include "base/json.h"
#include "serve/engine.h"
#include "support/scripted_runner.h"

// ThreadSanitizer sees libzmq's sockets but not the atomics by which its threads hand them over: without this it reports libzmq itself.
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libzmq.so\n"; }  // NOLINT: the sanitizer's name

namespace ingot::serve {
namespace {

using namespace std::chrono_literals;
using sched::CacheEvent;

CacheEvent stored(sched::PageKey key, sched::PageKey parent, std::vector<int32_t> tokens,
                  CacheEvent::Tier tier = CacheEvent::Tier::device) {
  return {CacheEvent::Kind::stored, tier, key, parent, std::move(tokens)};
}
CacheEvent removed(sched::PageKey key, CacheEvent::Tier tier = CacheEvent::Tier::device) { return {CacheEvent::Kind::removed, tier, key}; }

Json decoded(const std::string& bytes) { return Json::from_msgpack(bytes.begin(), bytes.end()); }

TEST(KvEvents, RunsOfPagesBecomeOneEventAndBreaksDoNot) {
  constexpr sched::PageKey kBig = 0xfedcba9876543210ULL;  // beyond int64: must arrive unsigned
  const std::vector<CacheEvent> events{{.kind = CacheEvent::Kind::cleared},
                                       stored(kBig, sched::kRootPageKey, {1, 2}),
                                       stored(11, kBig, {3, 4}),
                                       stored(12, kBig, {5, 6}),  // a sibling: no continuation
                                       stored(11, kBig, {3, 4}, CacheEvent::Tier::host),
                                       removed(12),
                                       removed(11),
                                       removed(11, CacheEvent::Tier::host)};
  const Json batch = decoded(encode_kv_events(1.5, events, 2, 3));
  const Json expected = Json::array({1.5,
                                     {{"AllBlocksCleared"},
                                      {"BlockStored", {kBig, 11}, nullptr, {1, 2, 3, 4}, 2, nullptr, "GPU"},
                                      {"BlockStored", {12}, kBig, {5, 6}, 2, nullptr, "GPU"},
                                      {"BlockStored", {11}, kBig, {3, 4}, 2, nullptr, "CPU"},
                                      {"BlockRemoved", {12, 11}, "GPU"},
                                      {"BlockRemoved", {11}, "CPU"}},
                                     3});
  EXPECT_EQ(batch, expected) << batch.dump();
}

TEST(KvEvents, TheFlagIsObeyedOrRefusedByName) {
  EXPECT_FALSE(parse_kv_events_config("")->enabled);
  EXPECT_FALSE(parse_kv_events_config(R"({"publisher": "null"})")->enabled);
  EXPECT_FALSE(parse_kv_events_config(R"({"enable_kv_cache_events": false})")->enabled);
  const auto config = parse_kv_events_config(
      R"({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:1", "replay_endpoint": "tcp://*:2", "topic": "t", "buffer_steps": 3})");
  ASSERT_TRUE(config.has_value()) << config.error().text();
  EXPECT_TRUE(config->enabled);
  EXPECT_EQ(config->buffer_steps, 3);
  EXPECT_EQ(config->topic, "t");
  const std::pair<const char*, const char*> bad[] = {{"zmq", "--kv-events-config"},
                                                     {"[]", "--kv-events-config"},
                                                     {R"({"publisher": "kafka"})", "publisher"},
                                                     {R"({"buffer_steps": -1})", "buffer_steps"},
                                                     {R"({"endpont": "tcp://*:5557"})", "endpont"}};
  for (const auto& [text, name] : bad) {
    const auto refused = parse_kv_events_config(text);
    ASSERT_FALSE(refused.has_value()) << text;
    EXPECT_NE(refused.error().text().find(name), std::string::npos) << refused.error().text();
  }
}

TEST(KvEvents, AnEndpointThatCannotBeUsedStopsTheStart) {
  KvEventsConfig config;
  config.endpoint = "tcp://*:notaport";
  const auto refused = KvEventPublisher::start(config, "m", 4);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().text().find("endpoint \"tcp://*:notaport\""), std::string::npos) << refused.error().text();
}

// Reads what is replayed from `start` on, until the end marker.
std::vector<std::pair<uint64_t, Json>> replay(const std::string& endpoint, uint64_t start) {
  zmq::context_t context{1};
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::rcvtimeo, 10'000);
  socket.set(zmq::sockopt::linger, 0);
  socket.connect(endpoint);
  std::string number(8, '\0');
  for (size_t i = 0; i < 8; ++i) number[i] = static_cast<char>(start >> (56 - 8 * i));
  socket.send(zmq::message_t(), zmq::send_flags::sndmore);
  socket.send(zmq::buffer(number), zmq::send_flags::none);
  std::vector<std::pair<uint64_t, Json>> batches;
  while (true) {
    std::vector<std::string> frames;
    zmq::message_t frame;
    do {
      if (!socket.recv(frame)) {
        ADD_FAILURE() << "no end of the replay";
        return batches;
      }
      frames.push_back(frame.to_string());
    } while (frame.more());
    EXPECT_EQ(frames.size(), 3u);
    if (frames.size() != 3 || frames[2].empty()) {
      EXPECT_EQ(frames.at(1), std::string(8, '\xff'));
      return batches;
    }
    uint64_t sequence = 0;
    for (const char byte : frames[1]) sequence = sequence << 8 | static_cast<unsigned char>(byte);
    batches.emplace_back(sequence, decoded(frames[2]));
  }
}

KvEventsConfig local(int64_t buffer_steps = 10'000) {
  KvEventsConfig config;
  config.endpoint = "tcp://127.0.0.1:*";
  config.replay_endpoint = "tcp://127.0.0.1:*";
  config.buffer_steps = buffer_steps;
  return config;
}

TEST(KvEvents, WhatWasMissedIsReplayedFromABoundedBuffer) {
  auto publisher = KvEventPublisher::start(local(3), "m", 2);
  ASSERT_TRUE(publisher.has_value()) << publisher.error().text();
  for (sched::PageKey key = 0; key < 5; ++key) {
    std::vector<CacheEvent> events{removed(key)};
    ASSERT_TRUE((*publisher)->push(0, events));
    EXPECT_TRUE(events.empty());
  }
  std::vector<std::pair<uint64_t, Json>> got;
  for (int i = 0; i < 1000 && (got.empty() || got.back().first < 4); ++i) got = replay((*publisher)->replay_endpoint(), 0);
  ASSERT_EQ(got.size(), 3u) << "five were sent and three are kept";
  EXPECT_EQ(got[0].first, 2u);
  EXPECT_EQ(got[2].second[1][0][1][0], 4u);
  EXPECT_EQ(replay((*publisher)->replay_endpoint(), 4).size(), 1u);
  EXPECT_TRUE(replay((*publisher)->replay_endpoint(), 5).empty());
}

TEST(KvEvents, AFullQueueRefusesAtOnceAndLosesNothingQuietly) {
  KvEventsConfig config = local();
  config.max_queue_size = 1;
  auto publisher = KvEventPublisher::start(config, "m", 2);
  ASSERT_TRUE(publisher.has_value());
  int64_t taken = 0;
  int64_t refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<CacheEvent> events{removed(1)};
    const bool has_room = (*publisher)->push(0, events);
    EXPECT_EQ(events.empty(), has_room) << "what is refused stays with the engine";
    ++(has_room ? taken : refused);
  }
  EXPECT_GT(taken, 0);
  EXPECT_GT(refused, 0) << "one thread pushes faster than the other sends";
}

// An engine whose listener has no room for a while.
TEST(KvEvents, AListenerThatFellBehindGetsASnapshotAndThenOnlyNews) {
  std::mutex mutex;
  std::vector<CacheEvent> heard;
  bool room = true;
  Engine::Options options;
  options.scheduler = {.num_pages = 64, .page_size = 4, .chunked_prefill_size = 32, .max_running_requests = 8, .context_length = 128};
  options.scheduler.cache_events = true;
  options.cache_events = [&](int, std::vector<CacheEvent>& events) {
    const std::lock_guard lock(mutex);
    if (room) heard.insert(heard.end(), events.begin(), events.end());
    return room;
  };
  Engine engine(options, std::make_unique<testing::ScriptedRunner>(
                             testing::ScriptedRunner::Options{64, 4, 100, testing::ScriptedRunner::says({5}), {}, nullptr}));
  const auto run = [&](int32_t first) {
    std::mutex done_mutex;
    std::condition_variable changed;
    bool done = false;
    sched::Request request;
    request.prompt.assign(8, first);
    request.sampling.max_tokens = 2;
    request.sink = [&](const sched::TokenEvent& event) {
      if (event.finish == sched::FinishReason::none) return;
      const std::lock_guard lock(done_mutex);
      done = true;
      changed.notify_all();
    };
    ASSERT_TRUE(engine.submit(std::move(request)).has_value());
    std::unique_lock lock(done_mutex);
    ASSERT_TRUE(changed.wait_for(lock, 60s, [&] { return done; }));
  };
  const auto keys_of = [](int32_t first) { return sched::page_keys(std::vector<int32_t>(8, first), 4); };
  const auto wait_for = [&](size_t count) {
    for (int i = 0; i < 6000; ++i) {
      {
        const std::lock_guard lock(mutex);
        if (heard.size() >= count) return;
      }
      std::this_thread::sleep_for(1ms);
    }
    FAIL() << "only " << heard.size() << " events came";
  };
  run(1);
  wait_for(3);
  EXPECT_EQ(heard[0].kind, CacheEvent::Kind::cleared) << "who knew this address before forgets";
  EXPECT_EQ(heard[1].key, keys_of(1)[0]);
  {
    const std::lock_guard lock(mutex);
    room = false;
    heard.clear();
  }
  run(2);
  {
    const std::lock_guard lock(mutex);
    room = true;
  }
  wait_for(5);  // comes although the engine is idle
  EXPECT_EQ(heard[0].kind, CacheEvent::Kind::cleared);
  std::set<sched::PageKey> keys;
  for (size_t i = 1; i < heard.size(); ++i) keys.insert(heard[i].key);
  EXPECT_EQ(keys, (std::set<sched::PageKey>{keys_of(1)[0], keys_of(1)[1], keys_of(2)[0], keys_of(2)[1]}));
}

}  // namespace
}  // namespace ingot::serve
