// Steps of tiny random weights, timed on the CPU and on a driver that has no GPU; and what the figures mean, by hand. No test asks how fast
// anything was.
#include "apps/bench_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/bench_compare.h"
#include "support/emulated_device.h"

namespace ingot::apps {
namespace {

using test_support::emulated_device;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

BenchStepOptions tiny_options() {
  BenchStepOptions options;
  options.model.spec = "tiny";
  options.model.weights = "bf16";
  options.model.layers = 3;
  options.model.roofs = {.read_mb = 4, .copy_mb = 1, .product = 64};
  options.batch = {1, 3};
  options.context = {20, 100};
  options.prefill = {50};
  options.chunk = 20;
  options.runs = 3;
  return options;
}

class BenchStepOn : public ::testing::TestWithParam<bool> {};

TEST_P(BenchStepOn, TimesEveryBatchAtEveryContextAndPromptsInChunks) {
  const auto report = bench_step(tiny_options(), GetParam() ? emulated_device() : nullptr);
  ASSERT_TRUE(report.has_value()) << report.error().text();
  std::vector<std::string> names;
  for (const StepLine& line : report->lines) {
    names.push_back(line.name());
    EXPECT_GT(line.ms.least, 0) << line.name();
    EXPECT_LE(line.ms.least, line.ms.median);
    EXPECT_LE(line.ms.median, line.ms.most);
    EXPECT_EQ(line.runs, 3);
    EXPECT_GT(line.bytes, 0);
  }
  EXPECT_THAT(names, testing::ElementsAre("prefill 50 in 20", "decode 1 at 20", "decode 3 at 20", "decode 1 at 100", "decode 3 at 100"));
  EXPECT_EQ(report->model.layers, 3);
  EXPECT_GT(report->roofs.bytes_per_second, 0);
  EXPECT_GT(report->roofs.flop_per_second, 0);
  // A row is sent to four experts of sixteen, three rows to more.
  EXPECT_EQ(report->lines[1].hit_experts, 4);
  EXPECT_GT(report->lines[2].hit_experts, 4);
  // Beyond index_topk positions are chosen, which is work of its own.
  EXPECT_GT(report->lines[3].flop, report->lines[1].flop);
}

INSTANTIATE_TEST_SUITE_P(Machines, BenchStepOn, testing::Bool(),
                         [](const auto& machine) { return machine.param ? std::string("DriverWithoutGpu") : std::string("Cpu"); });

// What a step costs is counted from its operations: the same on every machine.
TEST(BenchStep, AStepCostsTheSameOnEveryMachine) {
  BenchStepOptions options = tiny_options();
  options.batch = {3};
  options.context = {20};
  const auto host = bench_step(options, nullptr), device = bench_step(options, emulated_device());
  ASSERT_TRUE(host && device);
  for (size_t i = 0; i < host->lines.size(); ++i) {
    EXPECT_NEAR(host->lines[i].flop / device->lines[i].flop, 1, 0.01) << host->lines[i].name();
    EXPECT_NEAR(host->lines[i].bytes / device->lines[i].bytes, 1, 0.15) << host->lines[i].name();  // it draws other experts' rows
  }
}

TEST(BenchStep, WhatItCannotRunIsRefusedByName) {
  const auto refusal = [](auto change) {
    BenchStepOptions options = tiny_options();
    change(options);
    const auto report = bench_step(options, nullptr);
    return report ? "" : report.error().text();
  };
  EXPECT_THAT(refusal([](auto& o) { o.batch = {1, 0}; }), HasSubstr("--batch 0"));
  EXPECT_THAT(refusal([](auto& o) { o.context = {-1}; }), HasSubstr("--context -1"));
  EXPECT_THAT(refusal([](auto& o) { o.context = {70000}; }), HasSubstr("--context 70000: the model has 65536 positions"));
  EXPECT_THAT(refusal([](auto& o) { o.prefill = {70000}; }), HasSubstr("--prefill 70000"));
  EXPECT_THAT(refusal([](auto& o) { o.chunk = 0; }), HasSubstr("--chunk 0"));
  EXPECT_THAT(refusal([](auto& o) { o.runs = 0; }), HasSubstr("--runs 0"));
  EXPECT_THAT(refusal([](auto& o) { o.batch = {}, o.prefill = {}; }), HasSubstr("nothing to time"));
  EXPECT_THAT(refusal([](auto& o) { o.model.layers = 7; }), HasSubstr("--layers 7"));
  EXPECT_THAT(refusal([](auto& o) { o.model.weights = "int4"; }), HasSubstr("int4"));
  EXPECT_THAT(refusal([](auto& o) { o.model.spec = "glm-4"; }), HasSubstr("glm-4"));
  EXPECT_THAT(refusal([](auto& o) { o.model.kv_cache_dtype = "int8"; }), HasSubstr("--kv-cache-dtype int8"));
  EXPECT_THAT(refusal([](auto& o) { o.model.device_matmul = "int8"; }), HasSubstr("--device-matmul int8"));
  EXPECT_THAT(refusal([](auto& o) { o.model.threads = -1; }), HasSubstr("--threads -1"));
  EXPECT_THAT(refusal([](auto& o) { o.model.model = "a folder"; }), HasSubstr("one model"));
  EXPECT_THAT(refusal([](auto& o) { o.model.spec = "", o.model.model = "/nonexistent"; }), HasSubstr("/nonexistent"));
}

// 100 GB/s of memory, 400 from caches of 1 MB, 1 TFLOP/s.
constexpr double kGb = 1e9;
const Roofs kRoofs{"reads", "sums", 100 * kGb, 1000 * kGb, 0, 400 * kGb, 1 << 20};

TEST(BenchFigures, WhatTakesLongerBinds) {
  const auto expect = [](Bound bound, Binds by, double seconds) {
    EXPECT_EQ(bound.by, by);
    EXPECT_DOUBLE_EQ(bound.seconds, seconds);
  };
  expect(bound_of(1 * kGb, 1 * kGb, 0.02, 1 * kGb, kRoofs), Binds::bytes, 0.01);  // 10 ms of bytes, 1 ms of flop
  expect(bound_of(1 * kGb, 50 * kGb, 0.06, 1 * kGb, kRoofs), Binds::flop, 0.05);
  // Twice as fast as the memory: from a cache where the data fits, and where it does not, a count that is wrong shows as it is.
  expect(bound_of(1 * kGb, 1 * kGb, 0.005, 1e6, kRoofs), Binds::cache, 0.0025);
  expect(bound_of(1 * kGb, 1 * kGb, 0.005, 1 * kGb, kRoofs), Binds::bytes, 0.01);
  // From a cache the products take longer than the bytes.
  expect(bound_of(1 * kGb, 4 * kGb, 0.005, 1e6, kRoofs), Binds::flop, 0.004);
  expect(bound_of(1 * kGb, 1 * kGb, 0.005, 1e6, {}), Binds::nothing, 0);
  Roofs unmeasured = kRoofs;
  unmeasured.cache_bytes_per_second = 0;
  expect(bound_of(1 * kGb, 1 * kGb, 0.005, 1e6, unmeasured), Binds::cache, 0);
  EXPECT_EQ(bound_text(bound_of(1 * kGb, 1 * kGb, 0.005, 1e6, unmeasured), 0.005), "in cache");
  EXPECT_EQ(bound_text(bound_of(1 * kGb, 1 * kGb, 0.02, 1 * kGb, kRoofs), 0.02), "0.50 bytes");
  EXPECT_EQ(bound_text(bound_of(1 * kGb, 1 * kGb, 0.005, 1e6, kRoofs), 0.005), "0.50 in cache");
  EXPECT_EQ(bound_text({}, 1), "-");
}

TEST(BenchFigures, TheGreaterOfTwoRoofsOfAGpuCounts) {
  Roofs roofs = kRoofs;
  roofs.reference_flop_per_second = 2000 * kGb;
  EXPECT_DOUBLE_EQ(bound_of(1 * kGb, 50 * kGb, 0.06, 1 * kGb, roofs).seconds, 0.025);
}

StepReport example() {
  StepReport r;
  r.model = {"a model", "checkpoint", "bf16", "f32", 10, 48'000'000};
  r.machine = {"cpu", "a processor", 4, 2, 1.5};
  r.load_seconds = 0.002;
  r.cache_bytes = 1'000'000;
  r.resident_bytes = 2'000'000;
  r.notes = {"a note"};
  r.roofs = kRoofs;
  StepLine decode;
  decode.batch = 4;
  decode.context = 256;
  decode.runs = 15;
  decode.ms = {2, 1.5, 3};
  decode.bytes = 0.1 * kGb;  // 1 ms of 2
  decode.flop = 0.1 * kGb;
  decode.hit_experts = 11.5;
  StepLine prefill;
  prefill.kind = StepLine::Kind::prefill;
  prefill.context = 2000;
  prefill.chunk = 512;
  prefill.runs = 3;
  prefill.ms = {500, 490, 510};
  prefill.bytes = 0.1 * kGb;
  prefill.flop = 400 * kGb;  // 400 ms of 500
  r.lines = {prefill, decode};
  return r;
}

TEST(BenchStepReport, TheTableIsArithmetic) {
  const std::string text = report_text(example());
  EXPECT_THAT(text, AllOf(HasSubstr("4000"), HasSubstr("0.80 flop"), HasSubstr("0.50 bytes"), HasSubstr("decode 4 at 256")));
  EXPECT_THAT(text, AllOf(HasSubstr("2000"), HasSubstr("load average 1.50"), HasSubstr("was not idle"), HasSubstr("a note")));
  StepReport alone = example();
  alone.machine.load_average = 0.1;
  EXPECT_THAT(report_text(alone), Not(HasSubstr("idle")));
}

TEST(BenchStepReport, JsonHoldsWhatTheReportHolds) {
  const StepReport r = example();
  const Json json = to_json(r);
  EXPECT_EQ(json.at("version"), StepReport::kVersion);
  EXPECT_DOUBLE_EQ(json.at("steps").at(1).at("tokens_per_second"), 2000);
  EXPECT_DOUBLE_EQ(json.at("steps").at(0).at("of_roof"), 0.8);
  EXPECT_EQ(json.at("machine").at("processor"), "a processor");
  const auto back = step_report_of(json);
  ASSERT_TRUE(back.has_value()) << back.error().text();
  EXPECT_EQ(to_json(*back), json);
  EXPECT_EQ(report_text(*back), report_text(r));
  Json other = json;
  other["version"] = 99;
  EXPECT_THAT(step_report_of(other).error().text(), HasSubstr("version 99"));
  other = json;
  other["steps"][0].erase("ms");
  EXPECT_THAT(step_report_of(other).error().text(), HasSubstr("cut or was changed"));
  other = json;
  other["schema"] = "ingot.bench.kernels";
  EXPECT_THAT(step_report_of(other).error().text(), HasSubstr("no report of `ingot bench step`"));
  EXPECT_FALSE(step_report_of(Json::array()).has_value());
}

TEST(BenchStepReport, ComparisonPairsStepsByWhatTheyAre) {
  const StepReport a = example();
  StepReport b = example();
  b.machine.threads = 4;
  b.lines[1].ms = {1, 1, 1};
  b.lines[0].chunk = 256;
  EXPECT_THAT(compare_text(a, b),
              AllOf(HasSubstr("differs: threads is 2 in a and 4 in b"), HasSubstr("decode 4 at 256: 2.000 ms -> 1.000 ms, x0.500"),
                    HasSubstr("prefill 2000 in 512: in a alone"), HasSubstr("prefill 2000 in 256: in b alone")));
}

}  // namespace
}  // namespace ingot::apps
