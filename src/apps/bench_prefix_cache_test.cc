// Symptom: a cache that keeps less than it could looks like a load that shares little. Traces whose hit ratio is known by hand, replayed
// through the scheduler; and errors that name file, line and field.
#include "apps/bench_prefix_cache.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>

#include "base/rng.h"
#include "support/checkpoint_writer.h"

namespace ingot::apps {
namespace {

using test_support::TempDir;
using ::testing::HasSubstr;

class PrefixTraceTest : public ::testing::Test {
 protected:
  std::string write(const std::string& text) {
    const std::string path = (dir_.path() / "trace.jsonl").string();
    std::ofstream(path) << text;
    return path;
  }
  PrefixTrace read(const std::string& text) {
    auto trace = read_prefix_trace(write(text));
    EXPECT_TRUE(trace.has_value()) << trace.error().text();
    return std::move(*trace);
  }
  std::string error_of(const std::string& text) {
    const auto trace = read_prefix_trace(write(text));
    return trace ? "no error" : trace.error().text();
  }

  static ReplayOptions options(int64_t num_pages) {
    ReplayOptions o;
    o.scheduler.num_pages = num_pages;
    o.scheduler.page_size = 64;
    o.scheduler.chunked_prefill_size = 2048;
    return o;
  }

  TempDir dir_;
};

// Arrivals so far apart that each is done before the next.
constexpr const char* kSequential = R"({"timestamp": 0, "input_length": 1100, "output_length": 3, "hash_ids": [7, 8, 9]})"
                                    "\n"
                                    R"({"timestamp": 60000, "input_length": 1100, "output_length": 2, "hash_ids": [7, 8, 9]})"
                                    "\n"
                                    R"({"timestamp": 120000, "input_length": 1300, "output_length": 1, "hash_ids": [7, 8, 10]})"
                                    "\n\n"
                                    R"({"timestamp": 180000, "input_length": 512, "output_length": 0, "hash_ids": [7]})"
                                    "\n"
                                    R"({"timestamp": 240000, "input_length": 1024, "output_length": 5, "hash_ids": [8, 7]})"
                                    "\n";

TEST_F(PrefixTraceTest, HitsOfATraceCountedByHand) {
  const PrefixTrace trace = read(kSequential);
  ASSERT_EQ(trace.requests.size(), 5u);
  EXPECT_EQ(trace.num_blocks, 4);
  const ReplayFigures f = replay_prefix_trace(trace, options(trace.pages_of_all(64)));
  // 2nd: 17 full pages of 1100 tokens. 3rd: two blocks. 4th: one token must be left, so 7 of 8 pages. 5th: block 8 is no beginning.
  EXPECT_EQ(f.hit_tokens, 17 * 64 + 1024 + 7 * 64);
  EXPECT_EQ(f.bound_tokens, f.hit_tokens);
  EXPECT_EQ(f.prompt_tokens, 1100 + 1100 + 1300 + 512 + 1024);
  EXPECT_EQ(f.stats.completion_tokens, 3 + 2 + 1 + 1 + 5);
  EXPECT_EQ(f.stats.finished_requests, 5);
  EXPECT_EQ(f.stats.evicted_pages, 0);
  EXPECT_EQ(f.not_ready_tokens, 0);
  EXPECT_EQ(f.lost_tokens, 0);
  EXPECT_EQ(f.max_waiting, 0);
}

TEST_F(PrefixTraceTest, TokensAreTheBlocksAndAnswersAreNobodyElses) {
  const PrefixTrace trace = read(kSequential);
  const auto first = trace.prompt(trace.requests[0]);
  ASSERT_EQ(first.size(), 1100u);
  EXPECT_EQ(first, trace.prompt(trace.requests[1]));
  const auto swapped = trace.prompt(trace.requests[4]);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 512, swapped.begin() + 512));
  std::vector<int32_t> tokens(first);
  tokens.insert(tokens.end(), swapped.begin(), swapped.begin() + 512);
  const size_t answers = tokens.size();
  for (const TraceRequest& r : trace.requests) {
    for (int64_t i = 0; i < r.output_length; ++i) tokens.push_back(trace.output_token(r, i));
  }
  EXPECT_EQ(tokens.size() - answers, 12u);
  std::sort(tokens.begin(), tokens.end());
  // The 512 tokens of block 8 are there twice: in the first prompt and in the swapped one.
  EXPECT_EQ(tokens.end() - std::unique(tokens.begin(), tokens.end()), 512);
}

// With room for one prompt and a page, each of two that take turns pushes the other out.
TEST_F(PrefixTraceTest, APoolForOnePromptLosesTheOtherUnlessTheHostKeepsIt) {
  std::string text;
  for (int i = 0; i < 6; ++i) {
    text += fmt::format("{{\"timestamp\": {}, \"input_length\": 1024, \"output_length\": 1, \"hash_ids\": [{}, {}]}}\n", i * 60000,
                        i % 2 * 2, i % 2 * 2 + 1);
  }
  const PrefixTrace trace = read(text);
  const ReplayFigures small = replay_prefix_trace(trace, options(17));
  EXPECT_EQ(small.bound_tokens, 4 * 15 * 64);
  // 17 pages less the 16 of the running prompt: one page of the other is left, and it is the first, as leaves go before their parents.
  EXPECT_EQ(small.hit_tokens, 4 * 64);
  EXPECT_EQ(small.lost_tokens, 4 * 14 * 64);
  EXPECT_EQ(small.not_ready_tokens, 0);
  EXPECT_GT(small.stats.evicted_pages, 0);
  // The host tier keeps what the device must give up.
  ReplayOptions with_host = options(17);
  with_host.scheduler.host_pages = 64;
  const ReplayFigures tiers = replay_prefix_trace(trace, with_host);
  EXPECT_EQ(tiers.hit_tokens, small.bound_tokens);
  EXPECT_GT(tiers.stats.host_hit_tokens, 0);
}

// Three twins at once in one chunk: nothing is there yet when the others are planned, so they compute it too.
TEST_F(PrefixTraceTest, TwinsInOneStepAreNotReadyForEachOther) {
  std::string text;
  for (int i = 0; i < 3; ++i) text += "{\"timestamp\": 5, \"input_length\": 512, \"output_length\": 2, \"hash_ids\": [1]}\n";
  const PrefixTrace trace = read(text);
  const ReplayFigures f = replay_prefix_trace(trace, options(1000));
  EXPECT_EQ(f.bound_tokens, 2 * 7 * 64);
  EXPECT_EQ(f.hit_tokens, 0);
  EXPECT_EQ(f.not_ready_tokens, f.bound_tokens);
  EXPECT_EQ(f.lost_tokens, 0);
}

TEST_F(PrefixTraceTest, ARequestLongerThanThePoolIsRefusedAndCountsNowhere) {
  const PrefixTrace trace = read(kSequential);
  const ReplayFigures f = replay_prefix_trace(trace, options(18));  // 1152 tokens: all but the one of 1300
  EXPECT_EQ(f.refused_requests, 1);
  EXPECT_EQ(f.prompt_tokens, 1100 + 1100 + 512 + 1024);
  EXPECT_EQ(f.bound_tokens, 17 * 64 + 7 * 64);
  EXPECT_EQ(f.stats.finished_requests, 4);
}

// Random families of prompts, one after the other: with room for everything the cache gives exactly the bound, whatever the page size.
TEST_F(PrefixTraceTest, ALargeEnoughPoolGivesExactlyTheBound) {
  constexpr uint64_t kSeed = 20261130;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  Rng rng(kSeed);
  std::string text;
  std::vector<std::vector<int>> prompts{{}};
  int next_id = 0;
  for (int i = 0; i < 60; ++i) {
    std::vector<int> ids = prompts[rng.below(prompts.size())];
    ids.resize(rng.below(ids.size() + 1));
    for (uint64_t fresh = 1 + rng.below(4); fresh > 0; --fresh) ids.push_back(next_id++);
    prompts.push_back(ids);
    const auto length = ids.size() * 512 - rng.below(512);
    text += fmt::format("{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}, \"hash_ids\": [{}]}}\n", i * 60000, length,
                        1 + rng.below(200), fmt::join(ids, ", "));
  }
  const PrefixTrace trace = read(text);
  for (const int64_t page_size : {1, 48, 64, 512, 700}) {
    for (const auto policy : {sched::Policy::fcfs, sched::Policy::lpm}) {
      ReplayOptions o = options(trace.pages_of_all(page_size));
      o.scheduler.page_size = page_size;
      o.scheduler.policy = policy;
      const ReplayFigures f = replay_prefix_trace(trace, o);
      EXPECT_EQ(f.hit_tokens, f.bound_tokens) << "page size " << page_size;
      EXPECT_GT(f.bound_tokens, 0) << "page size " << page_size;
    }
  }
}

TEST_F(PrefixTraceTest, ErrorsNameFileLineAndField) {
  const std::string good = R"({"timestamp": 9, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]})"
                           "\n";
  const auto line2 = [&](const std::string& text) { return error_of(good + text); };
  EXPECT_THAT(read_prefix_trace("/nowhere/t.jsonl").error().text(), HasSubstr("/nowhere/t.jsonl"));
  EXPECT_THAT(error_of("\n"), HasSubstr("trace.jsonl: no request"));
  EXPECT_THAT(line2("{\"timestamp\": "), HasSubstr("trace.jsonl:2"));
  EXPECT_THAT(line2("[1]"), HasSubstr("trace.jsonl:2: not a JSON object"));
  EXPECT_THAT(line2(R"({"input_length": 1, "output_length": 1, "hash_ids": [1]})"), HasSubstr("trace.jsonl:2: field timestamp is missing"));
  EXPECT_THAT(line2(R"({"timestamp": 9, "output_length": 1, "hash_ids": [1]})"), HasSubstr(":2: field input_length is missing"));
  EXPECT_THAT(line2(R"({"timestamp": 9, "input_length": 1, "hash_ids": [1]})"), HasSubstr(":2: field output_length is missing"));
  EXPECT_THAT(line2(R"({"timestamp": 9, "input_length": 1, "output_length": 1})"), HasSubstr(":2: field hash_ids is missing"));
  EXPECT_THAT(line2(R"({"timestamp": "9", "input_length": 1, "output_length": 1, "hash_ids": [1]})"),
              HasSubstr(":2: field timestamp is \"9\""));
  EXPECT_THAT(line2(R"({"timestamp": 8, "input_length": 1, "output_length": 1, "hash_ids": [1]})"),
              HasSubstr(":2: field timestamp is 8, before"));
  EXPECT_THAT(line2(R"({"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]})"), HasSubstr("field timestamp is -1"));
  for (const char* bad : {"0", "-5", "1.5", "\"7\"", "99999999999999999999", "18446744073709551615", "17000000", "null"}) {
    EXPECT_THAT(line2(fmt::format(R"({{"timestamp": 9, "input_length": {}, "output_length": 1, "hash_ids": [1]}})", bad)),
                HasSubstr(":2: field input_length is "))
        << bad;
  }
  EXPECT_THAT(line2(R"({"timestamp": 9, "input_length": 1, "output_length": -1, "hash_ids": [1]})"),
              HasSubstr(":2: field output_length is -1"));
  EXPECT_THAT(line2(R"({"timestamp": 9, "input_length": 513, "output_length": 1, "hash_ids": [1]})"),
              HasSubstr(":2: field hash_ids is not an array of 2 numbers"));
  EXPECT_THAT(line2(R"({"timestamp": 9, "input_length": 1, "output_length": 1, "hash_ids": ["a"]})"),
              HasSubstr(":2: field hash_ids has \"a\""));
}

TEST(TokenCount, UnitsAndErrors) {
  EXPECT_EQ(parse_token_count("65536", "--x").value(), 65536);
  EXPECT_EQ(parse_token_count("100k", "--x").value(), 100'000);
  EXPECT_EQ(parse_token_count("3M", "--x").value(), 3'000'000);
  EXPECT_EQ(parse_token_count("2G", "--x").value(), 2'000'000'000);
  for (const char* bad : {"", "k", "1.5M", "-1", "1kk", "1 k", "99999999999999999999", "1000000G"}) {
    const auto count = parse_token_count(bad, "--host-tokens");
    ASSERT_FALSE(count.has_value()) << bad;
    EXPECT_THAT(count.error().text(), HasSubstr(fmt::format("--host-tokens {}", bad)));
  }
}

}  // namespace
}  // namespace ingot::apps
