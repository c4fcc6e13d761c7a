// The benchmark of a rank, at tiny widths: on the CPU, and on a driver that has no GPU, where it goes the way that it goes on one: weights
// and keys made there, graphs, an event behind every operation.
#include "apps/bench_shard.h"

#include <gtest/gtest.h>

#include <cmath>

#include "apps/bench_compare.h"
#include "apps/bench_shard_check.h"
#include "support/emulated_device.h"

namespace ingot::apps {
namespace {

using test_support::emulated_device;

BenchShardOptions tiny_options() {
  BenchShardOptions options;
  options.spec = "tiny";
  options.tp = 2;
  options.tokens = {1, 6, 12};
  options.context = 100;
  options.prefill = 20;
  options.cached = 80;
  options.runs = 3;
  options.kv_dtype = "bf16";
  options.device_matmul = "f32";
  options.roofs = {.read_mb = 4, .copy_mb = 1, .product = 64};
  return options;
}

const ShardMode& mode_of(const ShardReport& report, const std::string& name) {
  for (const ShardMode& mode : report.modes)
    if (mode.name == name) return mode;
  ADD_FAILURE() << "no " << name;
  return report.modes.front();
}
OpLine op_of(const ShardMode& mode, const std::string& name) {
  for (const OpLine& op : mode.ops)
    if (op.op == name) return op;
  ADD_FAILURE() << mode.name << " has no " << name;
  return {};
}

TEST(BenchShard, RunsOnTheCpu) {
  BenchShardOptions options = tiny_options();
  options.layers = 3;
  const auto report = bench_shard(options, nullptr);
  ASSERT_TRUE(report.has_value()) << report.error().text();
  ASSERT_EQ(report->modes.size(), 8u);  // decode 1, 6, 12, draft 1, mtp 6, mtp 12, draft 2, prefill
  EXPECT_EQ(report->layers, 3);
  EXPECT_EQ(report->model_layers, 6);
  EXPECT_EQ(report->moe_layers, 2);
  for (const ShardMode& mode : report->modes) {
    EXPECT_GT(mode.step_ms.median, 0) << mode.name;
    EXPECT_LE(mode.step_ms.least, mode.step_ms.median);
    EXPECT_LE(mode.step_ms.median, mode.step_ms.most);
    EXPECT_EQ(mode.runs, 3);
    EXPECT_FALSE(mode.graph);
    EXPECT_GT(mode.hit_experts, 0);
  }
  // By the clock, the same table that a GPU's events make.
  const ShardMode& decode = mode_of(*report, "decode 12");
  EXPECT_EQ(op_of(decode, "sparse_mla").calls, 3);
  EXPECT_EQ(op_of(decode, "sparse_mla").kernel, "native");
  EXPECT_DOUBLE_EQ(op_of(decode, "lm_head").flop, 2.0 * 12 * 256 * 128);
  for (const OpLine& op : decode.ops) EXPECT_GT(op.ms, 0) << op.op;
  EXPECT_GT(report->roofs.cache_bytes_per_second, 0);
  EXPECT_EQ(mode_of(*report, "decode 12").sequences, 2);
  EXPECT_EQ(mode_of(*report, "decode 1").sequences, 1);
  EXPECT_EQ(mode_of(*report, "draft 2").rows, 2);
  EXPECT_EQ(mode_of(*report, "prefill 20").context, 100);
  EXPECT_NE(report_text(*report).find("collectives: not included"), std::string::npos);
}

TEST(BenchShard, TimesEveryOperationOfAGraph) {
  const auto report = bench_shard(tiny_options(), emulated_device());
  ASSERT_TRUE(report.has_value()) << report.error().text();
  const ShardMode& decode = mode_of(*report, "decode 6");
  EXPECT_TRUE(decode.graph);
  EXPECT_GT(decode.launches, 60);
  // Six layers: one dense, five sparse; three own an indexer.
  EXPECT_EQ(op_of(decode, "sparse_mla").calls, 6);
  EXPECT_EQ(op_of(decode, "experts.down").calls, 5);
  EXPECT_EQ(op_of(decode, "dense.down").calls, 1);
  EXPECT_EQ(op_of(decode, "index_scores").calls, 3);
  EXPECT_EQ(op_of(decode, "top_k").calls, 3);  // and none for rows that there are not
  EXPECT_EQ(op_of(decode, "lm_head").calls, 1);
  // Two ranks: half of 512 rows of the vocabulary, 128 numbers each.
  EXPECT_DOUBLE_EQ(op_of(decode, "lm_head").flop, 2.0 * 6 * 256 * 128);
  EXPECT_DOUBLE_EQ(op_of(decode, "lm_head").bytes, 256 * 128 * 2.0 + 6 * 128 * 4.0 + 6 * 256 * 4.0);
  // Of each of five layers, the experts that were expected; MXFP4 rows of 128 columns for half of 256.
  const OpLine down = op_of(decode, "experts.down");
  EXPECT_NEAR(down.bytes, 5 * (decode.expected_experts * 128 * 128 * 0.53125 + 24 * (128 + 128) * 4.0), 1);
  EXPECT_DOUBLE_EQ(down.flop, 5 * 2.0 * 24 * 128 * 128);
  // The fake's events are half a millisecond apart.
  EXPECT_DOUBLE_EQ(down.ms, 2.5);
  EXPECT_NEAR(decode.expected_experts, 16 * (1 - std::pow(1 - 4.0 / 16, 6)), 1e-9);
  const ShardMode& mtp = mode_of(*report, "mtp 6");
  EXPECT_EQ(op_of(mtp, "sparse_mla").calls, 1);
  EXPECT_EQ(op_of(mode_of(*report, "prefill 20"), "sparse_mla").calls, 6);
  EXPECT_GT(report->roofs.bytes_per_second, 0);
  EXPECT_GT(report->roofs.flop_per_second, 0);
  const std::string text = report_text(*report);
  EXPECT_NE(text.find("graph replay of"), std::string::npos) << text;

  // All layers are there, so a node can be projected.
  const auto projection = plan::project_node(rank_measurements(*report));
  ASSERT_EQ(projection.single.size(), 1u);
  EXPECT_DOUBLE_EQ(projection.single[0].iteration_ms,
                   decode.step_ms.median + mtp.step_ms.median + 4 * mode_of(*report, "draft 1").step_ms.median);
  ASSERT_EQ(projection.requests.size(), 1u);
  EXPECT_EQ(projection.replicas, 4);
  EXPECT_NE(projection_text(projection).find("assumptions"), std::string::npos);
}

TEST(BenchShard, TheCheckSeesRoundedActivationsAndNoMore) {
  BenchShardOptions options = tiny_options();
  options.tokens = {};
  options.prefill = 0;
  options.check = true;
  options.device_matmul = "bf16";
  const auto report = bench_shard(options, emulated_device());
  ASSERT_TRUE(report.has_value()) << report.error().text();
  ASSERT_EQ(report->checks.size(), 3u);
  for (const CheckLine& check : report->checks) {
    EXPECT_TRUE(check.passed()) << check.name << " " << check.median;
    EXPECT_GT(check.median, 1e-5) << check.name << ": the kernels were the same";
  }
  EXPECT_TRUE(report->modes.empty());
}

TEST(BenchShard, ARowIsAsFarOffAsItsDifference) {
  const auto errors = row_errors({3, 4, 1, 1, NAN, 0}, {3, 0, 1, 1, 1, 1}, 2);
  ASSERT_EQ(errors.size(), 3u);
  EXPECT_DOUBLE_EQ(errors[0], 4.0 / 3);
  EXPECT_DOUBLE_EQ(errors[1], 0);
  EXPECT_TRUE(std::isnan(errors[2]));
  EXPECT_FALSE((CheckLine{"x", errors[2], 0, 1}).passed());
}

TEST(BenchShard, WhatItCannotRunIsRefusedByName) {
  const auto refusal = [](auto change) {
    BenchShardOptions options = tiny_options();
    change(options);
    const auto report = bench_shard(options, nullptr);
    return report ? "" : report.error().text();
  };
  EXPECT_NE(refusal([](auto& o) { o.spec = "glm-4"; }).find("no model is known as glm-4"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.tp = 3; }).find("num_attention_heads is 8"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.weights = "int4"; }).find("int4"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.attention_weights = "mxfp4"; }).find("--attention-weights"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.kv_dtype = "int8"; }).find("--kv-dtype int8"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.routing = "all"; }).find("--routing all"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.layers = 7; }).find("--layers 7"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.check = true; }).find("this is the CPU"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.context = 70000; }).find("70000 positions"), std::string::npos);
}

ShardReport example() {
  ShardReport r;
  r.spec = "glm-5.2";
  r.weights = "mxfp4";
  r.tp = 8;
  r.layers = r.model_layers = 78;
  r.moe_layers = 75;
  r.hidden_size = 6144;
  r.device = "a GPU";
  r.notes = {"a note"};
  r.roofs = {"copy", "ours", 4e12, 400e12, 800e12};
  ShardMode mode;
  mode.name = "decode 6";
  mode.rows = 6;
  mode.sequences = 1;
  mode.context = 20480;
  mode.graph = true;
  mode.launches = 1000;
  mode.runs = 5;
  mode.step_ms = {12, 11, 13};
  mode.wall_ms = {12.5, 12, 14};
  mode.ops_ms = 12.6;
  mode.expected_experts = 44.4;
  mode.hit_experts = 44;
  mode.ops = {{"experts.gate_up", "tiles", 75, 6.0, 8e9, 1e12},
              {"experts.down", "tiles", 75, 3.0, 4e9, 1e11},
              {"o", "tiles", 78, 3.6, 1e9, 2.4e12}};
  r.modes = {mode};
  r.checks = {{"experts", 0.001, 0.01, 0.02}};
  return r;
}

// Bytes over the copy's speed or flop over the greater of the two roofs, whichever takes longer.
TEST(BenchShard, TheTableIsArithmetic) {
  const ShardReport r = example();
  EXPECT_DOUBLE_EQ(bound_ms(r.modes[0].ops[0], r.roofs), 2.0);  // 8 GB at 4 TB/s
  EXPECT_DOUBLE_EQ(bound_ms(r.modes[0].ops[2], r.roofs), 3.0);  // 2.4 TFLOP at 800 TFLOP/s
  EXPECT_DOUBLE_EQ(bound_ms(r.modes[0].ops[2], {}), 0.0);
  EXPECT_DOUBLE_EQ(r.modes[0].bytes(), 13e9);
  const std::string text = report_text(r);
  // Worst first: 4 ms, 2 ms and 0.6 ms are lost.
  const size_t first = text.find("experts.gate_up"), second = text.find("experts.down"), third = text.find("  o  ");
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
  EXPECT_NE(text.find("0.333"), std::string::npos) << text;  // 2 of 6 ms
  EXPECT_NE(text.find("120.0 us; the better public kernels on an H200: 64.5 us; ratio 1.86"), std::string::npos) << text;
}

TEST(BenchShard, JsonHoldsWhatTheReportHolds) {
  const ShardReport r = example();
  const auto back = shard_report_of(to_json(r));
  ASSERT_TRUE(back.has_value()) << back.error().text();
  EXPECT_EQ(to_json(*back), to_json(r));
  EXPECT_EQ(report_text(*back), report_text(r));
  Json other = to_json(r);
  other["version"] = 99;
  EXPECT_NE(shard_report_of(other).error().text().find("version 99"), std::string::npos);
  other = to_json(r);
  other["modes"][0].erase("ops");
  EXPECT_FALSE(shard_report_of(other).has_value());
  EXPECT_FALSE(shard_report_of(Json::array()).has_value());
  EXPECT_FALSE(shard_report_of(Json{{"tp", 8}}).has_value());
}

TEST(BenchCompare, PairsOperationsWhateverRanThem) {
  const ShardReport a = example();
  ShardReport b = example();
  b.kv_dtype = "bf16";
  b.modes[0].step_ms = {9, 9, 9};
  b.modes[0].ops = {{"experts.gate_up", "sm90", 75, 3.0, 8e9, 1e12}, {"o", "tiles", 78, 3.5, 1e9, 2.4e12}, {"all", "x", 1, 0.5, 0, 0}};
  ShardMode more = b.modes[0];
  more.name = "decode 32";
  b.modes.push_back(more);
  const std::string text = compare_text(a, b);
  EXPECT_NE(text.find("differs: cache type is  in a and bf16 in b"), std::string::npos) << text;
  EXPECT_NE(text.find("12.000 ms -> 9.000 ms, x0.750"), std::string::npos) << text;
  EXPECT_NE(text.find("x0.500  tiles -> sm90"), std::string::npos) << text;
  EXPECT_LT(text.find("experts.gate_up"), text.find("  o  "));
  EXPECT_NE(text.find("in a alone: experts.down 3.0000 ms"), std::string::npos) << text;
  EXPECT_NE(text.find("in b alone: all"), std::string::npos) << text;
  EXPECT_NE(text.find("decode 32: in b alone"), std::string::npos) << text;
}

}  // namespace
}  // namespace ingot::apps
