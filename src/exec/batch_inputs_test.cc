// Symptom: a row that writes its key into a neighbour's page, or logits taken from the wrong row.
#include "exec/batch_inputs.h"

#include <gtest/gtest.h>

namespace ingot::exec {
namespace {

std::vector<int32_t> list(std::span<const int32_t> span) { return {span.begin(), span.end()}; }

TEST(BatchInputs, ADecodeAndAChunkBecomeFlatRows) {
  sched::BatchPlan plan;
  plan.items.push_back(
      {.request = 4, .token_ids = {70}, .start = 5, .pages = {9, 2}, .sample = true, .sampling = nullptr, .num_generated = 3});
  plan.items.push_back(
      {.request = 5, .token_ids = {11, 12, 13}, .start = 3, .pages = {1, 0}, .sample = false, .sampling = nullptr, .num_generated = 0});
  plan.items.push_back(
      {.request = 6, .token_ids = {21, 22}, .start = 0, .pages = {7}, .sample = true, .sampling = nullptr, .num_generated = 0});
  plan.num_tokens = 6;
  BatchInputs inputs;
  for (int round = 0; round < 2; ++round) {  // the second must not see the first
    const model::ForwardBatch batch = inputs.fill(plan, 4);
    EXPECT_EQ(list(batch.token_ids), (std::vector<int32_t>{70, 11, 12, 13, 21, 22}));
    EXPECT_EQ(list(batch.positions), (std::vector<int32_t>{5, 3, 4, 5, 0, 1}));
    EXPECT_EQ(list(batch.slots), (std::vector<int32_t>{9, 7, 0, 1, 28, 29}));
    EXPECT_EQ(list(batch.seq_of_token), (std::vector<int32_t>{0, 1, 1, 1, 2, 2}));
    EXPECT_EQ(list(batch.page_table), (std::vector<int32_t>{9, 2, 1, 0, 7, 0}));
    EXPECT_EQ(batch.max_pages, 2);
    EXPECT_EQ(list(batch.logit_rows), (std::vector<int32_t>{0, 5}));
  }
}

TEST(BatchInputs, RowsWithoutAPageAreCaught) {
  sched::BatchPlan plan;
  plan.items.push_back(
      {.request = 4, .token_ids = {70}, .start = 4, .pages = {9}, .sample = true, .sampling = nullptr, .num_generated = 0});
  plan.num_tokens = 1;
  BatchInputs inputs;
  EXPECT_DEATH(inputs.fill(plan, 4), "rows \\[4, 5\\) in 1 pages of 4");
}

}  // namespace
}  // namespace ingot::exec
