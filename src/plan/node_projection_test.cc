// A projection that nobody could follow with a pencil.
#include "plan/node_projection.h"

#include <gtest/gtest.h>

namespace ingot::plan {
namespace {

TEST(NodeProjection, AllReducesTakeThePublishedTimes) {
  EXPECT_DOUBLE_EQ(all_reduce_us(8, 12 * 1024), 3.5);
  EXPECT_DOUBLE_EQ(all_reduce_us(8, 1), 3.5);
  EXPECT_DOUBLE_EQ(all_reduce_us(4, 1024 * 1024), 14.6);
  EXPECT_DOUBLE_EQ(all_reduce_us(2, (12 + 26) * 1024), 2.85);  // half way to 64 KB
  EXPECT_DOUBLE_EQ(all_reduce_us(8, 128 * 1024 * 1024.0), 1124);
  EXPECT_DOUBLE_EQ(all_reduce_us(1, 1e6), 0);
}

RankMeasurements example(int tp) {
  RankMeasurements rank;
  rank.tp = tp;
  rank.single = {1, 6, 10.0, 0.3, 0.2};
  rank.batches = {{32, 32, 12.0, 0, 0}, {32, 192, 30.0, 1.0, 0.5}};
  rank.prefill_ms = 700;
  rank.prefill_rows = 8192;
  return rank;
}

TEST(NodeProjection, SingleStreamByHand) {
  const NodeProjection p = project_node(example(8));
  EXPECT_EQ(p.replicas, 1);
  ASSERT_EQ(p.single.size(), 1u);
  EXPECT_DOUBLE_EQ(p.single[0].iteration_ms, 10.0 + 0.3 + 4 * 0.2);
  // 6 rows: 73,728 bytes, between 64 KB (6.4 us) and 256 KB (11.1 us); 79 layers of two. One row is 12 KB: 4 passes of two.
  const double six = 6.4 + (73728.0 - 65536) / (262144 - 65536) * (11.1 - 6.4);
  EXPECT_NEAR(p.single[0].collective_ms, (2 * 79 * six + 4 * 2 * 3.5) / 1000, 1e-9);
  EXPECT_NEAR(p.single[0].tokens_per_second[2], 3610 / (11.1 + p.single[0].collective_ms), 1e-9);
  EXPECT_NEAR(p.single[0].tokens_per_second_if_hidden[0], 3000 / 11.1, 1e-9);
}

TEST(NodeProjection, BatchesAndRequestsByHand) {
  const NodeProjection p = project_node(example(4));
  EXPECT_EQ(p.replicas, 2);
  ASSERT_EQ(p.decode.size(), 2u);
  EXPECT_FALSE(p.decode[0].speculation);
  EXPECT_DOUBLE_EQ(p.decode[0].node_tokens_per_second_if_hidden, 2 * 32 / 0.012);
  EXPECT_TRUE(p.decode[1].speculation);
  EXPECT_DOUBLE_EQ(p.decode[1].iteration_ms, 30 + 1 + 4 * 0.5);
  EXPECT_NEAR(p.decode[1].node_tokens_per_second_if_hidden, 2 * 32 * 3.61 / 0.033, 1e-6);
  ASSERT_EQ(p.requests.size(), 1u);
  // The batch with speculation gives more. 8192 rows are 96 MB: 1.5 times the last row of the table.
  EXPECT_NEAR(p.requests[0].prefill_collective_ms, 2 * 78 * 609 * 1.5 / 1000, 1e-6);
  EXPECT_NEAR(p.requests[0].per_second_if_hidden, 2 / (0.700 + 1000 * 0.033 / (32 * 3.61)), 1e-9);
  EXPECT_LT(p.requests[0].per_second, p.requests[0].per_second_if_hidden);
}

TEST(NodeProjection, WhatWasNotMeasuredIsNotProjected) {
  const NodeProjection p = project_node({});
  EXPECT_TRUE(p.single.empty());
  EXPECT_TRUE(p.decode.empty());
  EXPECT_TRUE(p.requests.empty());
  EXPECT_GE(p.assumptions.size(), 5u);
  EXPECT_GE(published_figures().size(), 8u);
}

}  // namespace
}  // namespace ingot::plan
