// The program of all model tests. `model_test` runs the models on the CPU; `model_test --device=cuda|hip|auto` runs them on a GPU, and
// `model_test --device=emulated` on a driver that has none (kernels/device/kernels_fake.cc): the same tests, and those below, of what a
// GPU alone has. Exit status 77, which ctest calls skipped, when auto finds no GPU.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "kernels/device/device_kernels.h"
#include "model/glm.h"
#include "model/memory_plan.h"
#include "support/glm_run.h"
#include "support/model_device.h"
#include "support/tiny_glm.h"

namespace ingot::model {
namespace {

using tensor::LatentFormat;
using tensor::WeightFormat;
using test_support::GlmRun;
using test_support::load_glm;
using test_support::model_device;
using test_support::TempDir;
using test_support::TinyGlm;
using test_support::TinyGlmBuilder;

std::vector<int32_t> prompt(size_t length, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> tokens(length);
  for (auto& t : tokens) t = static_cast<int32_t>(rng.below(160));
  return tokens;
}

// Attention in bf16 and FP8, experts in MXFP4 and FP8: each format's kernels.
WeightFormat mixed(const std::string& module) {
  if (module.find(".experts.") != std::string::npos)
    return module.find("layers.2.") != std::string::npos ? WeightFormat::fp8_block : WeightFormat::mxfp4;
  return module.find("self_attn") != std::string::npos ? WeightFormat::fp8_block : WeightFormat::bf16;
}

class OnTheGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!model_device) GTEST_SKIP() << "needs --device";
    TinyGlmBuilder(31, mixed).build().write(dir_.path());
  }
  TempDir dir_;
};

// The logits of every position of a prompt run in chunks, then a chain of MTP rows on top.
std::vector<std::vector<float>> everything(Glm& glm, size_t chunk, LatentFormat format = LatentFormat::bf16) {
  const auto tokens = prompt(40, 3);
  GlmRun run(glm, {.format = format, .page_size = 5, .max_len = 64, .page_seed = chunk});
  auto rows = run.prefill(tokens, chunk, static_cast<int64_t>(tokens.size()));
  const std::vector<float> hidden = run.hidden();
  const auto width = static_cast<size_t>(glm.config().hidden_size);
  const std::vector<float> last(hidden.end() - static_cast<std::ptrdiff_t>(width), hidden.end());
  GlmRun::MtpRow row = run.mtp({0, 39, std::span(tokens).first(1), last, {}});
  rows.push_back(row.logits);
  std::vector<int32_t> list(row.list.begin(), std::find(row.list.begin(), row.list.end(), -1));
  for (int32_t step = 0; step < 3; ++step) {
    list.push_back(40 + step);
    row = run.mtp({0, 40 + step, std::span(tokens).subspan(static_cast<size_t>(step), 1), row.hidden, list});
    rows.push_back(row.logits);
  }
  return rows;
}

double worst_difference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, test_support::relative_error(a[i], b[i]));
  return worst;
}

// A step that is replayed from a graph gives the bits of one whose kernels are launched one by one.
TEST_F(OnTheGpu, ReplayedStepsGiveTheBitsOfLaunchedOnes) {
  for (const auto matmul : {gpu::DeviceMatmul::lanes, gpu::DeviceMatmul::tiles}) {
    const auto launched = load_glm(dir_.path(), {.device_matmul = matmul, .graphs = false});
    const auto graphs = load_glm(dir_.path(), {.device_matmul = matmul, .graphs = true});
    const auto expected = everything(*launched, 1);
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(everything(*graphs, 1), expected) << "round " << round;
      // A shape of the MTP layer comes once a round: the graph that was captured last is one of the main layers at first.
      if (round == 0) {
        EXPECT_GT(graphs->device_counts().launches, 30);
      }
    }
    EXPECT_EQ(launched->device_counts().replayed, 0);
    EXPECT_EQ(graphs->device_counts().steps, 2 * launched->device_counts().steps);
    EXPECT_GT(graphs->device_counts().replayed, graphs->device_counts().steps / 2);
  }
}

// What the graphs of steps may take belongs to the memory plan, and is measured on the device.
TEST_F(OnTheGpu, MemoryOfGraphsIsMeasured) {
  const auto launched = load_glm(dir_.path(), {.graphs = false}), graphs = load_glm(dir_.path(), {.graphs = true});
  EXPECT_EQ(measure_graph_memory(*launched).value().bytes, 0);
  const GraphMemory memory = measure_graph_memory(*graphs).value();
  std::printf("%d graphs of %d nodes, %d bytes a node\n", static_cast<int>(memory.graphs), static_cast<int>(memory.nodes),
              static_cast<int>(memory.node_bytes));
  EXPECT_EQ(graphs->device_counts().graphs, 4) << "steps of 1, 2, 3 and 4 rows";
  EXPECT_GT(memory.nodes, 30);
  EXPECT_GT(memory.node_bytes, 0);
  EXPECT_LT(memory.node_bytes, 1 << 20);
  EXPECT_EQ(memory.bytes, memory.graphs * memory.nodes * memory.node_bytes);
}

// Rows run alone, and rows run with others and with rows that fill up the shape.
TEST_F(OnTheGpu, ChunksChangeNoBitWhateverMultiplies) {
  for (const auto matmul : {gpu::DeviceMatmul::lanes, gpu::DeviceMatmul::tiles}) {
    const auto glm = load_glm(dir_.path(), {.device_matmul = matmul});
    const auto expected = everything(*glm, 40);
    for (const size_t chunk : {1, 3, 9, 13}) {
      const auto again = everything(*glm, chunk);
      // The chain begins with the hidden states of the last step, which holds the last position in every chunking.
      EXPECT_EQ(again, expected) << "chunks of " << chunk << (matmul == gpu::DeviceMatmul::tiles ? ", tiles" : ", lanes");
    }
  }
}

// Matrix units get activations of 8 bits: about 2^-9 an input, over six layers.
TEST_F(OnTheGpu, TilesAgreeWithLanesUpToRoundedActivations) {
  const auto lanes = load_glm(dir_.path()), tiles = load_glm(dir_.path(), {.device_matmul = gpu::DeviceMatmul::tiles});
  const auto tokens = prompt(8, 5);  // all positions are seen: no list can flip
  GlmRun a(*lanes, {.max_len = 64}), b(*tiles, {.max_len = 64});
  const double difference = worst_difference(b.prefill(tokens, 8, 8), a.prefill(tokens, 8, 8));
  std::printf("tiles and lanes differ by %.1e\n", difference);
  EXPECT_LE(difference, 0.05);
  EXPECT_GT(difference, 0.0);
}

// With a cache of f32, which keeps what the kernels give: a smaller one may round a number the other way, and the choice of positions flip.
TEST_F(OnTheGpu, AgreesWithTheCpu) {
  const auto here = Glm::load(dir_.path()).value();
  const auto there = load_glm(dir_.path());
  EXPECT_LE(worst_difference(everything(*there, 7, LatentFormat::f32), everything(*here, 7, LatentFormat::f32)), 2e-5);
}

TEST_F(OnTheGpu, APageGoesToTheHostAndComesBackToAnotherPlace) {
  const auto glm = load_glm(dir_.path());
  auto cache = KvCache::create(glm->config(), {LatentFormat::bf16, 4, 8}, model_device).value();
  std::vector<std::byte> page(static_cast<size_t>(cache.page_bytes())), back(page.size());
  for (size_t i = 0; i < page.size(); ++i) page[i] = static_cast<std::byte>(i * 31 + i / 253);
  cache.load_page(page, 2);
  cache.save_page(2, back);
  EXPECT_EQ(back, page);
  cache.save_page(1, back);
  EXPECT_TRUE(std::all_of(back.begin(), back.end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST_F(OnTheGpu, WhatItCannotDoIsRefused) {
  const auto glm = Glm::load(dir_.path(), {.activations = tensor::ActivationFormat::fp8}, model_device);
  ASSERT_FALSE(glm.has_value());
  EXPECT_NE(glm.error().message.find("CPU alone"), std::string::npos) << glm.error().message;
  const auto loaded = load_glm(dir_.path());
  const auto cache = KvCache::create(loaded->config(), {LatentFormat::bf16, int64_t{1} << 40, 64}, model_device);
  ASSERT_FALSE(cache.has_value());
  EXPECT_NE(cache.error().message.find("no memory for the KV cache"), std::string::npos) << cache.error().message;
}

// What was reserved is enough for every smaller step: afterwards nothing grows.
TEST_F(OnTheGpu, ReservedMemoryIsEnough) {
  for (const MlaForm form : {MlaForm::absorbed, MlaForm::expanded}) {
    const auto glm = load_glm(dir_.path(), {form});
    gpu::Stream stream;
    const auto reserved = glm->reserve(stream, {.rows = 40, .logit_rows = 40, .context_length = 64});
    ASSERT_TRUE(reserved.has_value()) << reserved.error().text();
    const size_t before = model_device->allocated_bytes();
    for (const size_t chunk : {40, 1, 13}) everything(*glm, chunk);
    EXPECT_EQ(model_device->allocated_bytes(), before);
  }
}

// Everything that a model took is given back.
TEST_F(OnTheGpu, MemoryIsGivenBack) {
  const size_t before = model_device->allocated_bytes();
  {
    const auto glm = load_glm(dir_.path());
    EXPECT_EQ(everything(*glm, 9).size(), 44u);
    EXPECT_GT(model_device->allocated_bytes(), before);
  }
  EXPECT_EQ(model_device->allocated_bytes(), before);
}

Result<std::shared_ptr<gpu::Accelerator>> open_device(const std::string& kind) {
  if (kind != "emulated") return kernels::open_accelerator(kind);
  static constexpr uint8_t kCode[] = "FAKE CODE";
  static constexpr gpu::CodeBlob kBlobs[] = {{"sm_90a", kCode, "kernels/device/entries.cu"}, {"sm_90a", kCode, "kernels/device/tiles.cu"}};
  INGOT_ASSIGN(auto driver, gpu::Driver::open_library("cuda", INGOT_FAKE_DEVICE));
  return gpu::Accelerator::open(std::move(driver), 0, kBlobs, kernels::device_entries());
}

// A report of what was tested where: nobody should take an emulated pass for silicon.
int run_on_device(const std::string& kind) {
  auto device = open_device(kind);
  if (!device) {
    fmt::print("{}: {}\n", kind == "auto" ? "skipped" : "failed", device.error().text());
    return kind == "auto" ? 77 : 1;
  }
  fmt::print("{}: {}\n", (*device)->driver().library(), (*device)->info().text());
  model_device = std::move(*device);
  const int failed = RUN_ALL_TESTS();
  model_device.reset();  // before the driver's library begins to shut down at exit
  return failed;
}

}  // namespace
}  // namespace ingot::model

int main(int argc, char** argv) {
  std::string device;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--device=", 9) == 0) device = argv[i] + 9;
  }
  // Weights are bound and refused the same way everywhere. An explicit --gtest_filter wins.
  if (!device.empty()) GTEST_FLAG_SET(filter, "-BindWeights*:KvCacheBytes*");
  ::testing::InitGoogleTest(&argc, argv);
  return device.empty() ? RUN_ALL_TESTS() : ingot::model::run_on_device(device);
}
