#include "plan/workload.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

namespace ingot::plan {
namespace {

Workload named(const std::string& name) {
  auto w = workload_named(name);
  EXPECT_TRUE(w) << w.error().text();
  return std::move(*w);
}

std::vector<PlannedRequest> planned(const Workload& w, const PlanOptions& options) {
  auto plan = plan_requests(w, options);
  EXPECT_TRUE(plan) << plan.error().text();
  return std::move(*plan);
}

double hit_ratio(const std::vector<PlannedRequest>& plan) {
  PrefixOracle oracle;
  int64_t hits = 0, tokens = 0;
  for (const auto& request : plan) hits += oracle.add(request), tokens += request.input_tokens();
  return static_cast<double>(hits) / static_cast<double>(tokens);
}

class File {
 public:
  explicit File(const std::string& text) : path_(std::filesystem::path(::testing::TempDir()) / "workload_test.file") {
    std::ofstream(path_) << text;
  }
  ~File() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

bool same(const std::vector<PlannedRequest>& a, const std::vector<PlannedRequest>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].arrival_s != b[i].arrival_s || a[i].output_tokens != b[i].output_tokens || a[i].prompt.size() != b[i].prompt.size())
      return false;
    for (size_t p = 0; p < a[i].prompt.size(); ++p)
      if (a[i].prompt[p].content != b[i].prompt[p].content || a[i].prompt[p].num_tokens != b[i].prompt[p].num_tokens) return false;
  }
  return true;
}

TEST(Workload, EqualSeedsGiveEqualPlansAndOthersDoNot) {
  for (const char* name : {"article", "shared-prefix", "random-8k1k", "agent"}) {
    PlanOptions options{.seed = 7, .rate = 3.0};
    const auto plan = planned(named(name), options);
    EXPECT_TRUE(same(plan, planned(named(name), options))) << name;
    options.seed = 8;
    EXPECT_FALSE(same(plan, planned(named(name), options))) << name;
  }
}

TEST(Workload, MoreRequestsChangeNothingOfThoseBefore) {
  PlanOptions options{.rate = 5.0, .num_requests = 10};
  auto few = planned(named("random-1k1k"), options);
  options.num_requests = 50;
  auto many = planned(named("random-1k1k"), options);
  many.resize(10);
  EXPECT_TRUE(same(few, many));
}

TEST(Workload, TheArticleHasTwentyThousandInAThousandOutAndSixtyPercentHits) {
  const auto plan = planned(named("article"), {.rate = 2.0, .num_requests = 1000});
  for (const auto& r : plan) {
    ASSERT_EQ(r.input_tokens(), 20'000);
    ASSERT_EQ(r.output_tokens, 1'000);
  }
  EXPECT_NEAR(hit_ratio(plan), 0.6, 0.001);  // the first request finds nothing
  // Poisson: mean and standard deviation of the gaps are both 1 / rate.
  double sum = 0, squares = 0;
  for (size_t i = 1; i < plan.size(); ++i) {
    const double gap = plan[i].arrival_s - plan[i - 1].arrival_s;
    sum += gap, squares += gap * gap;
  }
  const double mean = sum / 999, deviation = std::sqrt(squares / 999 - mean * mean);
  EXPECT_NEAR(mean, 0.5, 0.05);
  EXPECT_NEAR(deviation, 0.5, 0.06);
}

TEST(Workload, ScaleMultipliesEveryLength) {
  Workload w = named("article");
  w.length_scale = 0.05;
  const auto plan = planned(w, {.rate = 1.0, .num_requests = 20});
  for (const auto& r : plan) {
    EXPECT_EQ(r.input_tokens(), 1'000);
    EXPECT_EQ(r.output_tokens, 50);
    EXPECT_EQ(r.prompt[0].num_tokens, 600);
  }
}

TEST(Workload, RandomLengthsAreUniformFromTheRatioUp) {
  const auto plan = planned(named("random-8k1k"), {.num_requests = 20'000});
  int64_t least = 1 << 20, most = 0, sum = 0;
  for (const auto& r : plan) least = std::min(least, r.input_tokens()), most = std::max(most, r.input_tokens()), sum += r.input_tokens();
  EXPECT_EQ(least, 6554);  // ceil(0.8 * 8192)
  EXPECT_EQ(most, 8192);
  EXPECT_NEAR(static_cast<double>(sum) / 20'000, (6554 + 8192) / 2.0, 10);
  EXPECT_EQ(hit_ratio(plan), 0);
}

TEST(Workload, SharedPrefixHasItsGroupsShuffledAndAllOfThem) {
  const auto plan = planned(named("shared-prefix"), {.rate = 1.0});
  ASSERT_EQ(plan.size(), 1024u);
  std::unordered_map<uint64_t, int> groups;
  bool in_turns = true;
  for (size_t i = 0; i < plan.size(); ++i) {
    ++groups[plan[i].prompt[0].content];
    if (i >= 64 && plan[i].prompt[0].content != plan[i - 64].prompt[0].content) in_turns = false;
  }
  EXPECT_EQ(groups.size(), 64u);
  for (const auto& [content, count] : groups) EXPECT_EQ(count, 16);
  EXPECT_FALSE(in_turns);
  EXPECT_NEAR(hit_ratio(plan), 2048.0 / 2176 * 960 / 1024, 1e-6);
}

TEST(Workload, AnAgentsPromptIsTheOneBeforeWithTheAnswerAndAMessage) {
  const auto plan = planned(named("agent"), {.rate = 1.0, .num_requests = 3});
  ASSERT_EQ(plan.size(), 24u);
  for (size_t i = 1; i < plan.size(); ++i) {
    const auto &before = plan[i - 1], &r = plan[i];
    if (r.turn == 0) continue;
    ASSERT_EQ(r.session, before.session);
    ASSERT_EQ(r.prompt.size(), before.prompt.size() + 2);
    for (size_t p = 0; p < before.prompt.size(); ++p) EXPECT_EQ(r.prompt[p].content, before.prompt[p].content);
    EXPECT_EQ(r.prompt[before.prompt.size()].content, before.answer_content());
    EXPECT_GT(r.think_s, 0);
  }
  // All but the new message of each turn was there, and the tools from the first session on.
  PrefixOracle oracle;
  for (const auto& r : plan) {
    const int64_t hit = oracle.add(r), fresh = r.prompt.back().num_tokens;
    EXPECT_EQ(hit, r.session == 0 && r.turn == 0 ? 0 : r.input_tokens() - fresh);
  }
}

TEST(Workload, TimesOfATraceAreScaledAndItsBlocksShared) {
  const File file(R"({"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [4, 5, 6]})"
                  "\n"
                  R"({"timestamp": 1500, "input_length": 1030, "output_length": 0, "hash_ids": [4, 5, 7]})"
                  "\n");
  Workload w = named("mooncake:" + file.path());
  w.time_scale = 4;
  const auto plan = planned(w, {});
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].arrival_s, 0);
  EXPECT_EQ(plan[1].arrival_s, 2);
  EXPECT_EQ(plan[0].input_tokens(), 1100);
  EXPECT_EQ(plan[1].input_tokens(), 1030);
  EXPECT_EQ(plan[1].output_tokens, 1);
  PrefixOracle oracle;
  EXPECT_EQ(oracle.add(plan[0]), 0);
  EXPECT_EQ(oracle.add(plan[1]), 1024);
}

TEST(Workload, BadLinesAreToldWithPlaceAndField) {
  const auto error = [](const std::string& kind, const std::string& text) {
    const File file(text);
    const auto plan = plan_requests(named(kind + ":" + file.path()), {.rate = 1.0});
    return plan ? std::string("no error") : plan.error().text();
  };
  EXPECT_NE(error("mooncake", R"({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1]})").find("hash_ids"),
            std::string::npos);
  EXPECT_NE(error("mooncake", R"({"timestamp": 0, "input_length": 0, "output_length": 5, "hash_ids": []})").find(":1: field input_length"),
            std::string::npos);
  EXPECT_NE(error("azure", "a,b\n").find("TIMESTAMP"), std::string::npos);
  EXPECT_NE(error("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n").find(":2: TIMESTAMP"), std::string::npos);
  EXPECT_NE(error("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,x,1\n").find(":2: ContextTokens"),
            std::string::npos);
  EXPECT_NE(error("jsonl", R"({"text": "a"})").find("prompt and messages"), std::string::npos);
  EXPECT_NE(error("jsonl", "\n").find("no request"), std::string::npos);
  EXPECT_FALSE(workload_named("articel"));
  EXPECT_FALSE(workload_named("mooncake"));
}

TEST(Workload, PromptsOfAFileHaveTheirWordsAndLengths) {
  const File file(R"({"prompt": "hello", "max_tokens": 3})"
                  "\n"
                  R"({"messages": [{"role": "user", "content": "hi"}]})"
                  "\n");
  const auto plan = planned(named("jsonl:" + file.path()), {.rate = 1.0});
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].recorded, "hello");
  EXPECT_EQ(plan[0].output_tokens, 3);
  EXPECT_TRUE(plan[1].recorded.is_array());
  EXPECT_GT(plan[1].arrival_s, 0);  // no times in the file: Poisson
}

TEST(Workload, TheSharedTracesAreWhatTheirDescriptionSays) {
  const std::string traces = INGOT_SHARED_DIR "/data/traces/";
  if (!std::filesystem::exists(traces)) GTEST_SKIP() << traces << " is not here";
  const auto conversation = planned(named("mooncake:" + traces + "mooncake_conversation_trace.jsonl"), {});
  EXPECT_EQ(conversation.size(), 12'031u);
  EXPECT_NEAR(hit_ratio(conversation), 0.374, 0.001);
  const auto synthetic = planned(named("mooncake:" + traces + "mooncake_synthetic_trace.jsonl"), {});
  EXPECT_EQ(synthetic.size(), 3'993u);
  EXPECT_NEAR(hit_ratio(synthetic), 0.651, 0.001);
  const auto code = planned(named("azure:" + traces + "AzureLLMInferenceTrace_2023_code.csv"), {});
  EXPECT_EQ(code.size(), 8'819u);
  int64_t tokens = 0;
  for (const auto& r : code) tokens += r.input_tokens();
  EXPECT_NEAR(static_cast<double>(tokens) / 8'819, 2'048, 1);
  EXPECT_NEAR(code.back().arrival_s, 57 * 60, 60);  // an hour of which the last minutes had no request
  EXPECT_EQ(hit_ratio(code), 0);
}

}  // namespace
}  // namespace ingot::plan
