// Every operation of a step of tiny random weights, on the CPU and on a driver that has no GPU. No test asks how fast anything was.
#include "apps/bench_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/bench_compare.h"
#include "support/emulated_device.h"

namespace ingot::apps {
namespace {

using test_support::emulated_device;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Six layers: one dense, five sparse; three own an indexer, which chooses 64 positions.
BenchKernelsOptions tiny_options() {
  BenchKernelsOptions options;
  options.model.spec = "tiny";
  options.model.weights = "bf16";
  options.model.roofs = {.read_mb = 4, .copy_mb = 1, .product = 64};
  options.rows = {1, 6, 70};
  options.context = 100;
  options.runs = 3;
  return options;
}

// Of all shapes together.
KernelLine op_of(const KernelsStep& step, const std::string& name) {
  KernelLine sum;
  for (const KernelLine& op : step.ops) {
    if (op.op != name) continue;
    sum.kernel = op.kernel;
    sum.shape = op.shape;
    sum.calls += op.calls;
    sum.bytes += op.bytes;
    sum.flop += op.flop;
  }
  EXPECT_GT(sum.calls, 0) << step.rows << " rows have no " << name;
  return sum;
}

class BenchKernelsOn : public ::testing::TestWithParam<bool> {};

TEST_P(BenchKernelsOn, TellsEveryOperationOfTheStep) {
  const auto report = bench_kernels(tiny_options(), GetParam() ? emulated_device() : nullptr);
  ASSERT_TRUE(report.has_value()) << report.error().text();
  ASSERT_EQ(report->steps.size(), 3u);
  for (const KernelsStep& step : report->steps) {
    EXPECT_EQ(step.runs, 3);
    double share = 0;
    for (const KernelLine& op : step.ops) {
      EXPECT_GT(op.ms.least, 0) << op.op;
      EXPECT_LE(op.ms.least, op.ms.median);
      EXPECT_LE(op.ms.median, op.ms.most);
      EXPECT_GT(op.bytes, 0) << op.op;
      share += op.share;
    }
    // The driver that has no GPU tells the same time between any two events.
    if (!GetParam()) {
      EXPECT_NEAR(share, 1, 1e-6) << step.rows << " rows: some time is no operation's";
    }
  }
  const KernelsStep &one = report->steps[0], &six = report->steps[1], &prompt = report->steps[2];
  EXPECT_EQ(six.sequences, 6);
  EXPECT_EQ(prompt.sequences, 1);
  EXPECT_EQ(op_of(six, "sparse_mla").calls, 6);
  EXPECT_EQ(op_of(six, "experts.down").calls, 5);
  EXPECT_EQ(op_of(six, "dense.down").calls, 1);
  EXPECT_EQ(op_of(six, "index_scores").calls, 3);
  EXPECT_EQ(op_of(six, "q_b").calls, 6);
  for (const char* name : {"embed", "norm", "qkv_prepare", "rope", "route", "combine", "absorb", "v_up", "o", "top_k", "final_norm"})
    op_of(six, name);
  // Every row's logits where sequences decode, the last one's of a prompt.
  EXPECT_EQ(op_of(six, "lm_head").shape, "6 x 512 x 128");
  EXPECT_DOUBLE_EQ(op_of(six, "lm_head").flop, 2.0 * 6 * 512 * 128);
  EXPECT_DOUBLE_EQ(op_of(six, "lm_head").bytes, 512 * 128 * 2.0 + 6 * 128 * 4.0 + 6 * 512 * 4.0);
  EXPECT_EQ(op_of(prompt, "lm_head").shape, "1 x 512 x 128");
  EXPECT_EQ(op_of(prompt, "o").shape, GetParam() ? "80 x 128 x 256" : "70 x 128 x 256");  // a graph's rows are filled up
  const char* sample = GetParam() ? "sample_rows" : "sample";
  EXPECT_EQ(op_of(six, sample).shape, "6 x 512");
  EXPECT_EQ(op_of(prompt, sample).shape, "1 x 512");
  EXPECT_EQ(op_of(six, sample).kernel, GetParam() ? "lanes" : "host");
  EXPECT_EQ(op_of(six, "o").kernel, GetParam() ? "lanes" : "native");
  // One row is sent to its four experts, exactly.
  EXPECT_EQ(one.hit_experts, 4);
  EXPECT_DOUBLE_EQ(op_of(one, "experts.down").bytes, 5 * (4 * 128 * 256 * 2.0 + 4 * (128 + 256) * 4.0));
}

INSTANTIATE_TEST_SUITE_P(Machines, BenchKernelsOn, testing::Bool(),
                         [](const auto& machine) { return machine.param ? std::string("DriverWithoutGpu") : std::string("Cpu"); });

TEST(BenchKernels, WhatItCannotRunIsRefusedByName) {
  const auto refusal = [](auto change) {
    BenchKernelsOptions options = tiny_options();
    change(options);
    const auto report = bench_kernels(options, nullptr);
    return report ? "" : report.error().text();
  };
  EXPECT_THAT(refusal([](auto& o) { o.rows = {6, 0}; }), HasSubstr("--rows 0"));
  EXPECT_THAT(refusal([](auto& o) { o.rows = {}; }), HasSubstr("--rows"));
  EXPECT_THAT(refusal([](auto& o) { o.rows = {101}; }), AllOf(HasSubstr("--rows 101"), HasSubstr("--context 100")));
  EXPECT_THAT(refusal([](auto& o) { o.context = 0; }), HasSubstr("--context 0"));
  EXPECT_THAT(refusal([](auto& o) { o.context = 70000; }), HasSubstr("--context 70000: the model has 65536 positions"));
  EXPECT_THAT(refusal([](auto& o) { o.runs = 0; }), HasSubstr("--runs 0"));
  EXPECT_THAT(refusal([](auto& o) { o.model.spec = ""; }), HasSubstr("one model"));
  EXPECT_THAT(refusal([](auto& o) { o.model.kv_cache_dtype = "int8"; }), HasSubstr("--kv-cache-dtype int8"));
}

KernelsReport example() {
  KernelsReport r;
  r.model = {"a model", "checkpoint", "bf16", "f32", 10, 48'000'000};
  r.machine = {"cpu", "a processor", 4, 2, 0.1};
  r.notes = {"a note"};
  r.roofs = {"reads", "sums", 100e9, 1000e9, 0, 400e9, 1 << 20};
  KernelsStep step{6, 6, 4096, 15, {10, 9, 11}, 11.5, {}};
  // 400 MB in 4 calls need 4 ms of memory; 3 GFLOP need 3 ms; 10 MB in 20 calls that a cache holds need 25 us there.
  step.ops = {{"o", "native", "6 x 256 x 512", 4, {5, 4, 6}, 0.5, 400e6, 1e6},
              {"experts.gate_up", "native", "24 x 256 x 256", 8, {6, 5, 7}, 0.49, 1e6, 3e9},
              {"norm", "native", "6 x 256", 20, {0.05, 0.05, 0.06}, 0.01, 10e6, 1e3}};
  r.steps = {step};
  return r;
}

TEST(BenchKernelsReport, TheTableIsArithmetic) {
  const KernelsReport r = example();
  const std::string text = report_text(r);
  EXPECT_THAT(text, AllOf(HasSubstr("0.80 bytes"), HasSubstr("0.50 flop"), HasSubstr("0.50 in cache"), HasSubstr("11.5 experts")));
  // Longest first.
  EXPECT_LT(text.find("experts.gate_up"), text.find("  o  "));
  EXPECT_LT(text.find("  o  "), text.find("norm"));
}

TEST(BenchKernelsReport, JsonHoldsWhatTheReportHolds) {
  const KernelsReport r = example();
  const Json json = to_json(r);
  EXPECT_EQ(json.at("version"), KernelsReport::kVersion);
  const Json& norm = json.at("steps").at(0).at("ops").at(2);
  EXPECT_EQ(norm.at("bound"), "cache");
  EXPECT_DOUBLE_EQ(norm.at("of_roof"), 0.5);
  EXPECT_EQ(norm.at("shape"), "6 x 256");
  EXPECT_DOUBLE_EQ(norm.at("bytes_per_second"), 200e9);
  const auto back = kernels_report_of(json);
  ASSERT_TRUE(back.has_value()) << back.error().text();
  EXPECT_EQ(to_json(*back), json);
  EXPECT_EQ(report_text(*back), report_text(r));
  Json other = json;
  other["version"] = 99;
  EXPECT_THAT(kernels_report_of(other).error().text(), HasSubstr("version 99"));
  other = json;
  other["steps"][0]["ops"][1].erase("share");
  EXPECT_THAT(kernels_report_of(other).error().text(), HasSubstr("cut or was changed"));
  EXPECT_FALSE(kernels_report_of(Json{{"version", 1}}).has_value());
}

TEST(BenchKernelsReport, ComparisonPairsOperationsByShapeWhateverRanThem) {
  const KernelsReport a = example();
  KernelsReport b = example();
  b.model.kv_cache_dtype = "fp8_e4m3";
  b.steps[0].ops[0].kernel = "lanes";
  b.steps[0].ops[0].ms = {10, 10, 10};
  b.steps[0].ops[1].shape = "24 x 512 x 256";
  const std::string text = compare_text(a, b);
  EXPECT_THAT(text, AllOf(HasSubstr("differs: cache type is bf16 in a and fp8_e4m3 in b"),
                          HasSubstr("5000.0 ->    10000.0 us  x2.000  native -> lanes")));
  EXPECT_THAT(text, testing::ContainsRegex("experts.gate_up +24 x 256 x 256 *: in a alone"));
  EXPECT_THAT(text, testing::ContainsRegex("experts.gate_up +24 x 512 x 256 *: in b alone"));
}

}  // namespace
}  // namespace ingot::apps
