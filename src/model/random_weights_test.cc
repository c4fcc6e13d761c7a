// A benchmark of a model whose numbers overflow, whose routers send every row to the same experts, or whose tensors overlap.
#include "model/random_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "model/glm.h"
#include "model/shard.h"
#include "spec/known_models.h"
#include "support/glm_run.h"
#include "support/model_device.h"
#include "tensor/quantize.h"

namespace ingot::model {
namespace {

using tensor::WeightFormat;
using test_support::GlmRun;
using test_support::model_device;

RandomWeights random_tiny(const RandomWeightOptions& options, int tp = 1) {
  const auto config = spec::known_model("tiny").value();
  ThreadPool pool(2);
  auto made = RandomWeights::make(config, tp, options, model_device, pool);
  INGOT_CHECK(made.has_value(), "{}", made.error().text());
  return std::move(*made);
}

std::vector<int32_t> prompt(size_t length) {
  Rng rng(3);
  std::vector<int32_t> tokens(length);
  for (auto& t : tokens) t = static_cast<int32_t>(rng.below(512));
  return tokens;
}

// Runs here, on the emulated device and on a GPU (--device), where the arrays of views must be in its memory.
TEST(OnTheGpuOrHere, RandomModelsOfEveryFormatGiveFiniteLogits) {
  for (const WeightFormat experts : {WeightFormat::mxfp4, WeightFormat::fp8_block, WeightFormat::bf16}) {
    for (const int tp : {1, 8}) {
      RandomWeightOptions options;
      options.experts = experts;
      options.mtp = experts;
      options.attention = experts == WeightFormat::bf16 ? WeightFormat::bf16 : WeightFormat::fp8_block;
      const RandomWeights weights = random_tiny(options, tp);
      const auto config = shard_config(spec::known_model("tiny").value(), tp).value();
      const auto glm = Glm::over(weights.weights(), config, {}, model_device).value();
      GlmRun run(*glm, {.max_len = 128});
      const auto tokens = prompt(80);  // more than index_topk
      const auto rows = run.prefill(tokens, 80, 3);
      const std::vector<float> last(run.hidden().end() - static_cast<std::ptrdiff_t>(config.hidden_size), run.hidden().end());
      const auto drafted = run.mtp({0, 79, std::span(tokens).first(1), last, {}}).logits;
      double square = 0;
      for (const float v : rows[2]) square += static_cast<double>(v) * v / static_cast<double>(rows[2].size());
      EXPECT_GT(square, 0.1) << "TP" << tp;
      EXPECT_LT(square, 10) << "TP" << tp;
      EXPECT_TRUE(std::all_of(drafted.begin(), drafted.end(), [](float v) { return std::isfinite(v); }));
      const auto offsets = glm->last_expert_offsets().value();
      EXPECT_EQ(offsets.front(), 0);
      EXPECT_EQ(offsets.back(), config.num_experts_per_tok);  // of the one row of MTP
    }
  }
}

TEST(RandomWeights, DeviationKeepsRowsAtSizeOneInEveryFormat) {
  if (model_device) GTEST_SKIP() << "reads weights on the host";
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::fp8_block, WeightFormat::bf16}) {
    RandomWeightOptions options;
    options.experts = options.attention = format;
    const RandomWeights weights = random_tiny(options);
    const WeightView& w = weights.weights().layers[2].moe->down[5];
    double square = 0;
    const auto values = tensor::dequantize(w);
    for (const float v : values) square += static_cast<double>(v) * v / static_cast<double>(values.size());
    // An e8m0 scale is a power of two: within a factor of sqrt(2) of what was asked for.
    EXPECT_NEAR(std::log2(std::sqrt(square * static_cast<double>(w.cols))), 0.0, format == WeightFormat::mxfp4 ? 0.55 : 0.1);
  }
}

TEST(RandomWeights, NoTensorOverlapsAnother) {
  if (model_device) GTEST_SKIP() << "looks at the host's";
  const RandomWeights made = random_tiny({});
  std::map<const uint8_t*, size_t> pieces;
  const auto add = [&](const WeightView& w) {
    EXPECT_TRUE(pieces.emplace(w.data, static_cast<size_t>(w.rows * w.row_bytes())).second);
    if (w.format != WeightFormat::mxfp4) return;
    EXPECT_TRUE(pieces.emplace(w.scale, static_cast<size_t>(w.rows * w.scale_cols())).second);
  };
  for (const LayerWeights& layer : made.weights().layers) {
    for (const WeightView& w : {layer.q_a, layer.q_b, layer.kv_a, layer.kv_b, layer.o}) add(w);
    if (!layer.moe) continue;
    for (const auto* list : {&layer.moe->gate, &layer.moe->up, &layer.moe->down})
      for (const WeightView& w : *list) add(w);
  }
  const uint8_t* end = nullptr;
  for (const auto& [data, bytes] : pieces) {
    EXPECT_GE(data, end);
    end = data + bytes;
  }
  EXPECT_GT(pieces.size(), 400u);
}

// Of 438 GB (spec 9.2) a rank has an eighth or a quarter, and the embedding, indexers and latent projections whole.
TEST(RandomWeights, ARankOfGlm52HasItsPartOfTheBytes) {
  const auto config = spec::known_model("glm-5.2").value();
  const auto gigabytes = [&](int tp) { return static_cast<double>(RandomWeights::bytes_of(config, tp, {}).value()) / 1e9; };
  EXPECT_NEAR(gigabytes(1), 438.0, 0.5);
  EXPECT_NEAR(gigabytes(8), 438.0 / 8 + 7.0 / 8 * (1.9 + 79 * 16.1e6 * 2e-9 + 22 * 9.4e6 * 2e-9 + 0.24 + 0.15), 0.3);
  EXPECT_LT(gigabytes(4), 115);
}

TEST(RandomWeights, AGainOfZeroMakesZeros) {
  if (model_device) GTEST_SKIP() << "reads weights on the host";
  RandomWeightOptions options;
  options.gain = [](WeightPart part, int64_t layer) { return part == WeightPart::mlp_out && layer == 2 ? 0.0f : 1.0f; };
  const RandomWeights weights = random_tiny(options);
  for (const float v : tensor::dequantize(weights.weights().layers[2].moe->down[5])) ASSERT_EQ(v, 0.0f);
  EXPECT_NE(tensor::dequantize(weights.weights().layers[3].moe->down[5])[0], 0.0f);
}

TEST(RandomWeights, TheExpectedNumberOfExpertsIsWhatRoutersChoose) {
  // Anchors 6.2: 44.4 at 6 rows, 163 at 32.
  EXPECT_NEAR(expected_distinct_experts(256, 8, 6, 0), 44.4, 0.05);
  EXPECT_NEAR(expected_distinct_experts(256, 8, 32, 0), 163, 0.5);
  EXPECT_NEAR(expected_distinct_experts(256, 8, 1, 0), 8, 1e-9);
  EXPECT_NEAR(expected_distinct_experts(256, 8, 1, 0.2), 8, 1e-9);
  EXPECT_LT(expected_distinct_experts(256, 8, 32, 0.2), 130);
  for (const double skew : {0.0, 0.1}) {
    RandomWeightOptions options;
    options.routing_skew = skew;
    const RandomWeights weights = random_tiny(options);
    const auto config = spec::known_model("tiny").value();
    const auto glm = Glm::over(weights.weights(), config, {}, model_device).value();
    double distinct = 0;
    constexpr int kRuns = 24, kRows = 3;
    GlmRun run(*glm, {.max_len = 128});
    const auto tokens = prompt(kRuns * kRows);
    for (int r = 0; r < kRuns; ++r) {
      run.step({{0, std::span(tokens).subspan(static_cast<size_t>(r * kRows), kRows)}}, 1);
      const auto offsets = glm->last_expert_offsets().value();
      for (size_t e = 0; e + 1 < offsets.size(); ++e) distinct += offsets[e + 1] > offsets[e] ? 1.0 / kRuns : 0.0;
    }
    EXPECT_NEAR(distinct, expected_distinct_experts(16, 4, kRows, skew), 0.8) << "skew " << skew;
  }
}

}  // namespace
}  // namespace ingot::model
