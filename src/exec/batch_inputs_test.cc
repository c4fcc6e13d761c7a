// Symptom: a row that writes its key into a neighbour's page, or logits taken from the wrong row.
#include "exec/batch_inputs.h"

#include <gtest/gtest.h>

namespace ingot::exec {
namespace {

// An item that owns what it shows.
struct Owned {
  std::vector<int32_t> token_ids;
  std::vector<int32_t> pages;
  sched::BatchItem item(int32_t start, bool sample) const {
    sched::BatchItem item;
    item.token_ids = token_ids;
    item.pages = pages;
    item.start = start;
    item.sample = sample;
    return item;
  }
};

std::vector<int32_t> list(std::span<const int32_t> span) { return {span.begin(), span.end()}; }

TEST(BatchInputs, ADecodeAndAChunkBecomeFlatRows) {
  const Owned a{{70}, {9, 2}};
  const Owned b{{11, 12, 13}, {1, 0}};
  const Owned c{{21, 22}, {7}};
  sched::BatchPlan plan;
  plan.items = {a.item(5, true), b.item(3, false), c.item(0, true)};
  plan.num_tokens = 6;
  BatchInputs inputs;
  for (int round = 0; round < 2; ++round) {  // the second must not see the first
    inputs.start(plan, 4);
    const model::ForwardBatch batch = inputs.plan_rows(plan, {});
    EXPECT_EQ(list(batch.token_ids), (std::vector<int32_t>{70, 11, 12, 13, 21, 22}));
    EXPECT_EQ(list(batch.positions), (std::vector<int32_t>{5, 3, 4, 5, 0, 1}));
    EXPECT_EQ(list(batch.slots), (std::vector<int32_t>{9, 7, 0, 1, 28, 29}));
    EXPECT_EQ(list(batch.seq_of_token), (std::vector<int32_t>{0, 1, 1, 1, 2, 2}));
    EXPECT_EQ(list(batch.page_table), (std::vector<int32_t>{9, 2, 1, 0, 7, 0}));
    EXPECT_EQ(batch.max_pages, 2);
    EXPECT_EQ(list(batch.logit_rows), (std::vector<int32_t>{0, 5}));
  }
}

TEST(BatchInputs, DraftsStandBehindTheirItemAndAllOfThemWantLogits) {
  const Owned a{{70}, {9, 2}};
  const Owned b{{11, 12, 13}, {1, 0}};
  sched::BatchPlan plan;
  plan.items = {a.item(2, true), b.item(3, true)};
  plan.items[0].num_draft = 3;
  plan.num_tokens = 7;
  std::vector<Draft> drafts(2);
  drafts[0].append_to_chain(81);
  drafts[0].append_to_chain(82);  // one fewer than it might have
  BatchInputs inputs;
  inputs.start(plan, 4);
  const model::ForwardBatch batch = inputs.plan_rows(plan, drafts);
  EXPECT_EQ(list(batch.token_ids), (std::vector<int32_t>{70, 81, 82, 11, 12, 13}));
  EXPECT_EQ(list(batch.positions), (std::vector<int32_t>{2, 3, 4, 3, 4, 5}));
  EXPECT_EQ(list(batch.slots), (std::vector<int32_t>{38, 39, 8, 7, 0, 1}));
  EXPECT_EQ(list(batch.seq_of_token), (std::vector<int32_t>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(list(batch.logit_rows), (std::vector<int32_t>{0, 1, 2, 5}));
}

TEST(BatchInputs, RowsWithoutAPageAreCaught) {
  const Owned a{{70}, {9}};
  sched::BatchPlan plan;
  plan.items = {a.item(4, true)};
  plan.num_tokens = 1;
  BatchInputs inputs;
  EXPECT_DEATH(inputs.start(plan, 4), "rows \\[4, 5\\) in 1 pages of 4");
}

}  // namespace
}  // namespace ingot::exec
