#include "serve/step_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "base/json.h"
#include "support/checkpoint_writer.h"

namespace ingot::serve {
namespace {

namespace fs = std::filesystem;
using test_support::TempDir;

std::string read(const fs::path& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

fs::path trace_file(const fs::path& dir, int number) { return dir / fmt::format("trace-{}-{}.json", ::getpid(), number); }

StepRecord step_at(int replica, int64_t number, int64_t start_ns) {
  return {.replica = replica,
          .step = number,
          .start_ns = start_ns,
          .plan_ns = 12'345,
          .run_ns = 2'000'001,
          .commit_ns = 7,
          .prefill_rows = 100,
          .decode_rows = 4,
          .pages_saved = 1,
          .pages_loaded = 2};
}

// Of microseconds in the trace; exact, since the writer gives three decimals.
int64_t ns(const Json& micros) { return std::llround(micros.get<double>() * 1000.0); }

TEST(StepTrace, AClosedFileIsJsonWhoseSpansNestAndAddUp) {
  const TempDir dir;
  const int64_t start = 98'765'432'109'877;  // a steady clock after a day
  {
    auto trace = StepTrace::open(dir.path()).value();
    trace->on_state({.replica = 1, .running = 9});  // before any time is known: nowhere to put it
    trace->on_step(step_at(1, 42, start));
    ReplicaState state;
    state.replica = 1;
    state.running = 3;
    state.waiting = 5;
    state.free_pages = 10;
    state.cached_pages = 20;
    state.total_pages = 100;
    trace->on_state(state);
    RequestRecord done;
    done.id = 77;
    done.replica = 1;
    done.name = "chatcmpl-\"x\"";
    done.completion_tokens = 3;
    done.submitted_ns = start - 500;
    done.scheduled_ns = start;
    done.first_token_ns = start + 1000;
    done.last_token_ns = start + 5000;
    done.finished_ns = start + 6000;
    trace->on_finished(done);
    RequestRecord gone = done;  // its client left while it waited
    gone.id = 78;
    gone.scheduled_ns = gone.first_token_ns = gone.last_token_ns = 0;
    trace->on_finished(gone);
  }
  const Json events = parse_json(read(trace_file(dir.path(), 1)), "trace").value();
  ASSERT_TRUE(events.is_array());
  std::map<std::string, Json> spans, counters;
  std::map<std::string, std::vector<std::pair<std::string, int64_t>>> requests;  // id -> ("b queued", time)
  std::vector<std::string> names;
  for (const Json& e : events) {
    EXPECT_EQ(e.at("pid"), 1);
    const std::string phase = e.at("ph");
    if (phase == "X") spans[e.at("name")] = e;
    if (phase == "C") counters[e.at("name")] = e;
    if (phase == "b" || phase == "e") requests[e.at("id")].emplace_back(phase + " " + e.at("name").get<std::string>(), ns(e.at("ts")));
    if (phase == "M" && e.at("name") != "thread_sort_index") names.push_back(e.at("args").at("name"));
    EXPECT_TRUE(phase == "M" || e.at("tid") == 1) << e;
  }
  EXPECT_THAT(names, testing::ElementsAre("ingot", "replica 1"));

  ASSERT_EQ(spans.size(), 4u);
  const auto from = [&](const char* name) { return ns(spans.at(name).at("ts")); };
  const auto to = [&](const char* name) { return from(name) + ns(spans.at(name).at("dur")); };
  // 1e14 ns is 1e11 us with three decimals: a double holds it to within 16 ns.
  constexpr int64_t kSlack = 16;
  EXPECT_NEAR(from("step"), start, kSlack);
  EXPECT_NEAR(from("plan"), start, kSlack);
  EXPECT_EQ(ns(spans.at("plan").at("dur")), 12'345);
  EXPECT_NEAR(from("run"), to("plan"), kSlack);
  EXPECT_EQ(ns(spans.at("run").at("dur")), 2'000'001);
  EXPECT_NEAR(from("commit"), to("run"), kSlack);
  EXPECT_EQ(ns(spans.at("commit").at("dur")), 7);
  EXPECT_NEAR(to("commit"), to("step"), kSlack);
  EXPECT_EQ(spans.at("run").at("args").dump(), R"({"step":42,"prefill_rows":100,"decode_rows":4,"pages_saved":1,"pages_loaded":2})");

  EXPECT_EQ(counters.size(), 2u);
  EXPECT_EQ(counters.at("requests, replica 1").at("args").dump(), R"({"running":3,"waiting":5})");
  EXPECT_EQ(counters.at("pages, replica 1").at("args").dump(), R"({"used":70,"cached":20,"free":10})");
  EXPECT_NEAR(ns(counters.at("pages, replica 1").at("ts")), to("step"), kSlack);

  ASSERT_EQ(requests.size(), 2u);
  const auto order = [](const auto& edges) {
    std::vector<std::string> out;
    for (const auto& edge : edges) out.push_back(edge.first);
    return out;
  };
  const auto& done = requests.begin()->second;
  const auto& gone = requests.rbegin()->second;
  EXPECT_THAT(order(done),
              testing::ElementsAre("b request", "b queued", "e queued", "b prefill", "e prefill", "b decode", "e decode", "e request"));
  EXPECT_THAT(order(gone), testing::ElementsAre("b request", "b queued", "e queued", "e request"));
  const std::vector<int64_t> times{-500, -500, 0, 0, 1000, 1000, 5000, 6000};
  for (size_t i = 0; i < times.size(); ++i) EXPECT_NEAR(done[i].second - start, times[i], kSlack) << done[i].first;
}

TEST(StepTrace, TheFileOfAKilledProcessLacksOnlyItsBracket) {
  const TempDir dir;
  auto trace = StepTrace::open(dir.path()).value();
  EXPECT_EQ(read(trace_file(dir.path(), 1)), "[");
  for (int i = 1; i <= 3; ++i) trace->on_step(step_at(0, i, i * 10'000'000));
  trace->flush();
  const std::string text = read(trace_file(dir.path(), 1));  // what a kill would leave now
  EXPECT_EQ(parse_json(text + "]", "trace").value().size(), 3u + 3 * 4);
}

TEST(StepTrace, FilesAreRotatedTheOldestDeletedAndEachStandsAlone) {
  const TempDir dir;
  constexpr uint64_t kFileBytes = 4000;
  constexpr int kSteps = 100;
  {
    auto trace = StepTrace::open(dir.path(), {.file_bytes = kFileBytes, .files = 3}).value();
    for (int i = 1; i <= kSteps; ++i) {
      trace->on_step(step_at(i % 2, i, i * 10'000'000));
      trace->flush();
    }
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dir.path())) files.push_back(entry.path());
  ASSERT_EQ(files.size(), 3u);
  std::vector<int64_t> steps;
  int last_number = 0;
  while (!fs::exists(trace_file(dir.path(), last_number + 1))) ++last_number;
  EXPECT_GE(last_number, 2);  // some were deleted
  for (int n = last_number + 1; n <= last_number + 3; ++n) {
    const std::string text = read(trace_file(dir.path(), n));
    EXPECT_LT(text.size(), kFileBytes + 2000);
    bool named = false;
    const Json events = parse_json(text, "trace").value();
    for (const Json& e : events) {
      named |= e.at("name") == "thread_name";
      if (e.at("name") == "step") steps.push_back(e.at("args").at("step"));
    }
    EXPECT_TRUE(named || text == "[\n]\n") << n;
  }
  ASSERT_FALSE(steps.empty());
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], kSteps - static_cast<int64_t>(steps.size() - 1 - i));
}

// In a container every run has the same pid: a restart must not write over the trace that shows why.
TEST(StepTrace, ANewRunGoesOnWithTheNumbersOfTheLast) {
  const TempDir dir;
  { std::ofstream(trace_file(dir.path(), 41)) << "[ ]"; }
  { std::ofstream(dir.path() / "trace-notes.json") << "mine"; }
  auto trace = StepTrace::open(dir.path(), {.file_bytes = 1 << 20, .files = 2}).value();
  trace.reset();
  EXPECT_EQ(read(trace_file(dir.path(), 41)), "[ ]");
  EXPECT_TRUE(parse_json(read(trace_file(dir.path(), 42)), "trace").value().empty());
  trace = StepTrace::open(dir.path(), {.file_bytes = 1 << 20, .files = 2}).value();
  EXPECT_FALSE(fs::exists(trace_file(dir.path(), 41)));
  EXPECT_TRUE(fs::exists(trace_file(dir.path(), 43)));
  EXPECT_TRUE(fs::exists(dir.path() / "trace-notes.json"));
}

TEST(StepTrace, AFolderThatCannotBeWrittenIsAnError) {
  const auto in_proc = StepTrace::open("/proc/ingot-traces");  // refuses even root
  ASSERT_FALSE(in_proc);
  EXPECT_THAT(in_proc.error().text(), testing::HasSubstr("/proc/ingot-traces"));
  const TempDir dir;
  { std::ofstream(dir.path() / "file") << "x"; }
  const auto under_file = StepTrace::open(dir.path() / "file" / "traces");
  ASSERT_FALSE(under_file);
  EXPECT_THAT(under_file.error().text(), testing::HasSubstr("file/traces"));
}

}  // namespace
}  // namespace ingot::serve
