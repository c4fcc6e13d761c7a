// The memory plan: arithmetic and refusals.
#include "model/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot::model {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

// GLM-5.2 in MXFP4 on eight H200s would leave each about this: 140 GiB of which 50 are weights.
MemoryRequest request() {
  MemoryRequest r;
  r.where = "NVIDIA H200";
  r.total = 140 * kGiB;
  r.free = 139 * kGiB;
  r.weights = 50 * kGiB;
  r.workspace = 6 * kGiB;
  r.graphs = 3 * kGiB;
  r.fraction = 0.75;
  r.page_bytes = 64 * 57456;
  r.page_tokens = 64;
  r.pages = 1 << 30;
  return r;
}

// Every byte that was free belongs to one item.
void expect_sums_up(const MemoryPlan& plan) {
  const MemoryRequest& r = plan.request;
  EXPECT_EQ(r.replicas * ((r.mapped ? 0 : r.weights) + r.workspace + r.graphs + plan.cache) + plan.reserve, r.free);
  EXPECT_EQ(plan.cache, plan.num_pages * r.page_bytes);
  EXPECT_GE(plan.reserve, 0);
}

TEST(MemoryPlan, TheCacheGetsItsFractionOfWhatTheModelLeaves) {
  const auto plan = plan_memory(request());
  ASSERT_TRUE(plan.has_value()) << plan.error().text();
  expect_sums_up(*plan);
  EXPECT_EQ(plan->num_pages, 60 * kGiB / (64 * 57456)) << "80 GiB are left, three quarters of them are 60";
  EXPECT_GE(plan->reserve, 20 * kGiB);
  EXPECT_LT(plan->reserve, 20 * kGiB + 64 * 57456) << "less than a page more than the reserve stays unused";
}

TEST(MemoryPlan, NoMorePagesThanAreWanted) {
  MemoryRequest r = request();
  r.pages = 100;
  const auto plan = plan_memory(r).value();
  EXPECT_EQ(plan.num_pages, 100);
  expect_sums_up(plan);
}

TEST(MemoryPlan, ReplicasShareTheMemory) {
  MemoryRequest r = request();
  r.replicas = 2;
  const auto plan = plan_memory(r).value();
  expect_sums_up(plan);
  EXPECT_EQ(plan.num_pages, (139 - 2 * 59) * kGiB * 3 / 4 / 2 / r.page_bytes);
  EXPECT_THAT(plan.lines()[1], HasSubstr("2 x 50.00 GiB"));
}

// On the CPU weights are pages of the file.
TEST(MemoryPlan, MappedWeightsTakeNothingFromTheCache) {
  MemoryRequest r = request();
  r.mapped = true;
  r.weights = 400 * kGiB;
  const auto plan = plan_memory(r).value();
  expect_sums_up(plan);
  EXPECT_EQ(plan.num_pages, 130 * kGiB * 3 / 4 / r.page_bytes);
  EXPECT_THAT(plan.lines()[1], HasSubstr("400.00 GiB: mapped"));
  r.workspace = r.graphs = 0;  // as on the host, where steps take theirs as they grow
  EXPECT_EQ(plan_memory(r).value().lines().size(), 4u);
  r.pages = 1 << 20;
  r.all_pages = true;
  r.page_bytes = kGiB;
  const auto refused = plan_memory(r);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text(), HasSubstr("where 139.00 GiB are free, and 104.25 GiB may go to the cache"));
}

TEST(MemoryPlan, ALineAnItem) {
  MemoryRequest r = request();
  r.pages = 4;
  const auto lines = plan_memory(r).value().lines();
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[0], "memory of NVIDIA H200: 140.00 GiB, 139.00 GiB free");
  EXPECT_EQ(lines[1], "  weights           50.00 GiB");
  EXPECT_EQ(lines[2], "  workspace         6.00 GiB");
  EXPECT_EQ(lines[3], "  graphs and driver 3.00 GiB");
  EXPECT_EQ(lines[4], "  KV cache          0.0137 GiB: 4 pages of 64 tokens, 57456 bytes a token");
  EXPECT_EQ(lines[5], "  reserve           79.99 GiB");
}

struct Refusal {
  const char* name;
  void (*change)(MemoryRequest& r);
  std::vector<const char*> words;
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class MemoryPlanRefuses : public ::testing::TestWithParam<Refusal> {};

TEST_P(MemoryPlanRefuses, WithTheNumbersAndTheFlag) {
  MemoryRequest r = request();
  GetParam().change(r);
  const auto plan = plan_memory(r);
  ASSERT_FALSE(plan.has_value());
  for (const char* word : GetParam().words) EXPECT_THAT(plan.error().text(), HasSubstr(word));
}

INSTANTIATE_TEST_SUITE_P(
    All, MemoryPlanRefuses,
    ::testing::Values(Refusal{"Weights",
                              [](MemoryRequest& r) { r.weights = 200 * kGiB; },
                              {"NVIDIA H200", "weights 200.00 GiB", "209.00 GiB in all", "139.00 GiB are free", "smaller weights"}},
                      Refusal{"Workspace",
                              [](MemoryRequest& r) { r.workspace = 100 * kGiB; },
                              {"workspace 100.00 GiB", "--chunked-prefill-size", "--max-running-requests", "--context-length"}},
                      Refusal{"Replicas", [](MemoryRequest& r) { r.replicas = 3; }, {"3 x weights 50.00 GiB", "177.00 GiB", "--dp"}},
                      Refusal{"NoPage",
                              [](MemoryRequest& r) { r.page_bytes = 61 * kGiB; },
                              {"61.00 GiB", "80.00 GiB", "60.00 GiB may go to the cache", "--mem-fraction-static", "--page-size"}},
                      Refusal{
                          "AllPages",
                          [](MemoryRequest& r) {
                            r.page_bytes = kGiB;
                            r.pages = 61;
                            r.all_pages = true;
                          },
                          {"3904 tokens", "61.00 GiB", "60.00 GiB", "--max-total-tokens", "--mem-fraction-static", "--kv-cache-dtype"}}),
    [](const auto& of) { return std::string(of.param.name); });

TEST(MemoryPlan, TheLastPageThatFits) {
  MemoryRequest r = request();
  r.page_bytes = kGiB;
  r.pages = 60;
  r.all_pages = true;
  const auto plan = plan_memory(r);
  ASSERT_TRUE(plan.has_value()) << plan.error().text();
  EXPECT_EQ(plan->num_pages, 60);
}

}  // namespace
}  // namespace ingot::model
