// Ranks that add up to another model than the one that was cut: a head, an expert's columns or a scale block in the wrong place.
#include "model/shard.h"

#include <gtest/gtest.h>

#include <thread>

#include "model/collective.h"
#include "spec/known_models.h"
#include "support/glm_run.h"
#include "support/golden.h"
#include "support/tiny_glm.h"
#include "tensor/quantize.h"

namespace ingot::model {
namespace {

using tensor::LatentFormat;
using tensor::WeightFormat;
using test_support::GlmRun;
using test_support::TempDir;
using test_support::TinyGlmBuilder;

// Logits of all positions of a prompt run in two chunks, and of an MTP row behind it; whole rows on every rank.
std::vector<std::vector<float>> logits_of(Glm& glm, std::span<const int32_t> tokens, const Collective* collective) {
  GlmRun run(glm, {.format = LatentFormat::f32, .max_len = 512, .threads = 1});
  auto rows = run.prefill(tokens, tokens.size() / 2 + 1, static_cast<int64_t>(tokens.size()));
  const auto width = static_cast<size_t>(glm.config().hidden_size);
  const std::vector<float> last(run.hidden().end() - static_cast<std::ptrdiff_t>(width), run.hidden().end());
  rows.push_back(run.mtp({0, static_cast<int64_t>(tokens.size()) - 1, tokens.first(1), last, {}}).logits);
  if (collective == nullptr) return rows;
  gpu::Stream stream;
  for (std::vector<float>& row : rows) {
    std::vector<float> all(row.size() * static_cast<size_t>(collective->ranks()));
    collective->all_gather(stream, row.data(), all.data(), 1, static_cast<int64_t>(row.size()));
    row = std::move(all);
  }
  return rows;
}

// Every rank's, which must have the same bits.
std::vector<std::vector<float>> sharded_logits(const Weights& weights, const spec::ModelConfig& config, int tp,
                                               std::span<const int32_t> tokens) {
  const EmulatedRanks group(tp);
  std::vector<std::vector<std::vector<float>>> logits(static_cast<size_t>(tp));
  std::vector<std::thread> ranks;
  for (int r = 0; r < tp; ++r) {
    ranks.emplace_back([&, r] {
      const auto part = shard_weights(weights, config, tp, r).value();
      const auto glm = Glm::over(part.weights, shard_config(config, tp).value(), {.collective = &group.rank(r)}, nullptr).value();
      logits[static_cast<size_t>(r)] = logits_of(*glm, tokens, &group.rank(r));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (int r = 1; r < tp; ++r) EXPECT_EQ(logits[static_cast<size_t>(r)], logits[0]) << "rank " << r;
  return logits[0];
}

std::vector<int32_t> prompt(size_t length, uint64_t vocab) {
  Rng rng(7);
  std::vector<int32_t> tokens(length);
  for (auto& t : tokens) t = static_cast<int32_t>(rng.below(vocab));
  return tokens;
}

double worst(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  INGOT_CHECK(a.size() == b.size(), "{} and {} rows", a.size(), b.size());
  double error = 0;
  for (size_t i = 0; i < a.size(); ++i) error = std::max(error, test_support::relative_error(a[i], b[i]));
  return error;
}

// f32 sums of the same terms in another order, through six to ten layers; measured: at most 3e-6 of the largest logit.
constexpr double kTolerance = 2e-5;

// A checkpoint whose widths eight ranks can share in blocks of 32, with full and shared layers, dense and sparse ones, and MTP.
test_support::TinyGlm shareable(const test_support::FormatOf& format, int64_t intermediate = 512) {
  TinyGlmBuilder builder(5, format);
  builder.config()["num_attention_heads"] = builder.config()["num_key_value_heads"] = 8;
  builder.config()["v_head_dim"] = 32;
  builder.config()["moe_intermediate_size"] = 256;
  builder.config()["intermediate_size"] = intermediate;
  return builder.build();
}

struct Loaded {
  spec::ModelConfig config;
  tensor::Checkpoint checkpoint;
  Weights weights;
};
Loaded load(const std::filesystem::path& dir) {
  Loaded loaded{spec::load_model_config(dir).value(), tensor::Checkpoint::open(dir).value(), {}};
  loaded.weights = bind_weights(loaded.checkpoint, loaded.config).value();
  return loaded;
}

struct InFormat : testing::TestWithParam<WeightFormat> {};

TEST_P(InFormat, TheSumOverRanksIsTheWhole) {
  TempDir dir;
  shareable([](const std::string& module) {
    return module.ends_with("lm_head") || module.ends_with("eh_proj") ? WeightFormat::bf16 : GetParam();
  }).write(dir.path());
  const Loaded model = load(dir.path());
  const auto tokens = prompt(24, 160);
  const auto glm = Glm::over(model.weights, model.config, {}, nullptr).value();
  const auto whole = logits_of(*glm, tokens, nullptr);
  for (const int tp : {2, 4, 8}) {
    const double error = worst(sharded_logits(model.weights, model.config, tp, tokens), whole);
    std::printf("TP%d: %.1e\n", tp, error);
    EXPECT_LE(error, kTolerance) << "TP" << tp;
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, InFormat, testing::Values(WeightFormat::bf16, WeightFormat::fp8_block, WeightFormat::mxfp4),
                         [](const auto& test_info) {
                           return test_info.param == WeightFormat::bf16        ? "Bf16"
                                  : test_info.param == WeightFormat::fp8_block ? "Fp8"
                                                                               : "Mxfp4";
                         });

// With more positions than index_topk, so that the ranks choose alike.
TEST(Shard, TheSumOverRanksOfTheDemoModelIsTheWhole) {
  const Loaded model = load(test_support::source_dir() / "models/demo");
  const auto tokens = prompt(300, 6000);
  const auto glm = Glm::over(model.weights, model.config, {}, nullptr).value();
  const auto whole = logits_of(*glm, tokens, nullptr);
  for (const int tp : {2, 8}) {
    const double error = worst(sharded_logits(model.weights, model.config, tp, tokens), whole);
    std::printf("TP%d: %.1e\n", tp, error);
    EXPECT_LE(error, kTolerance) << "TP" << tp;
  }
}

// Every number of the parts is a number of the whole, in its place.
TEST(Shard, PartsAreTheColumnsAndRowsOfTheWhole) {
  TempDir dir;
  shareable([](const std::string& module) {
    if (module.find("experts") != std::string::npos) return WeightFormat::mxfp4;
    return module.find("self_attn") != std::string::npos ? WeightFormat::fp8_block : WeightFormat::bf16;
  }).write(dir.path());
  const Loaded model = load(dir.path());
  constexpr int kTp = 4;
  const LayerWeights& whole = model.weights.layers[1];
  for (int rank = 0; rank < kTp; ++rank) {
    const auto part = shard_weights(model.weights, model.config, kTp, rank).value();
    const LayerWeights& layer = part.weights.layers[1];
    const auto expect_part = [&](const WeightView& of, const WeightView& all, bool columns) {
      const auto have = tensor::dequantize(of), want = tensor::dequantize(all);
      const int64_t first_row = columns ? 0 : rank * of.rows, first_col = columns ? rank * of.cols : 0;
      for (int64_t r = 0; r < of.rows; ++r)
        for (int64_t c = 0; c < of.cols; ++c)
          ASSERT_EQ(have[static_cast<size_t>(r * of.cols + c)], want[static_cast<size_t>((first_row + r) * all.cols + first_col + c)])
              << "row " << r << " column " << c;
    };
    ASSERT_EQ(layer.o.cols * kTp, whole.o.cols);
    ASSERT_EQ(layer.q_b.rows * kTp, whole.q_b.rows);
    ASSERT_EQ(layer.moe->down[3].cols * kTp, whole.moe->down[3].cols);
    expect_part(layer.o, whole.o, true);
    expect_part(layer.q_b, whole.q_b, false);
    expect_part(layer.kv_b, whole.kv_b, false);
    expect_part(layer.moe->down[3], whole.moe->down[3], true);
    expect_part(layer.moe->up[3], whole.moe->up[3], false);
    expect_part(layer.moe->shared->down, whole.moe->shared->down, true);
    expect_part(part.weights.lm_head, model.weights.lm_head, false);
    EXPECT_EQ(layer.q_a.data, whole.q_a.data);
    EXPECT_EQ(part.weights.embed.rows, model.weights.embed.rows);
  }
}

TEST(Shard, ARankOfGlm52HasTheShapesOfTheArticle) {
  const auto config = spec::known_model("glm-5.2").value();
  for (const int tp : {1, 2, 4, 8}) {
    const auto rank = shard_config(config, tp).value();
    EXPECT_EQ(rank.num_attention_heads, 64 / tp);
    EXPECT_EQ(rank.moe_intermediate_size, 2048 / tp);
    EXPECT_EQ(rank.moe_intermediate_size % 128, 0);  // FP8 blocks stay whole, MXFP4's too
    EXPECT_EQ(rank.intermediate_size % 128, 0);
    EXPECT_EQ(rank.num_attention_heads * rank.v_head_dim % 128, 0);
    EXPECT_EQ(rank.vocab_size, 154880 / tp);
    EXPECT_EQ(rank.index_n_heads, 32);
    EXPECT_EQ(rank.latent_dim(), 576);
  }
}

TEST(Shard, WhatCannotBeCutIsRefusedByName) {
  const auto config = spec::known_model("glm-5.2").value();
  const auto three = shard_config(config, 3);
  ASSERT_FALSE(three.has_value());
  EXPECT_NE(three.error().message.find("num_attention_heads is 64, which 3 ranks"), std::string::npos) << three.error().text();

  TempDir mxfp4, fp8;
  TinyGlmBuilder narrow(5, [](const std::string& module) {
    return module.find(".experts.") != std::string::npos ? WeightFormat::mxfp4 : WeightFormat::bf16;
  });
  narrow.build().write(mxfp4.path());  // 32 columns an expert: one block
  const Loaded small = load(mxfp4.path());
  const auto halved = shard_weights(small.weights, small.config, 2, 0);
  ASSERT_FALSE(halved.has_value());
  EXPECT_NE(halved.error().message.find("layer 1 mlp.experts.0.down_proj: 16 of 32 columns"), std::string::npos) << halved.error().text();

  // 768 columns on four ranks: rank 1 begins in the middle of a block of 128 and ends beyond it; rank 0 does not.
  shareable([](const std::string&) { return WeightFormat::fp8_block; }, 768).write(fp8.path());
  const Loaded blocks = load(fp8.path());
  const auto across = shard_weights(blocks.weights, blocks.config, 4, 1);
  ASSERT_FALSE(across.has_value());
  EXPECT_NE(across.error().message.find("layer 0 mlp.down_proj: columns 192 to 384"), std::string::npos) << across.error().text();
}

TEST(Collective, RanksGetTheSameSumAndEveryPart) {
  constexpr int kRanks = 5;
  const EmulatedRanks group(kRanks);
  std::vector<std::vector<float>> sums(kRanks), alls(kRanks);
  std::vector<std::thread> ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.emplace_back([&, r] {
      gpu::Stream stream;
      std::vector<float>& sum = sums[static_cast<size_t>(r)];
      for (int round = 0; round < 50; ++round) {
        sum = {1.0f + static_cast<float>(r), static_cast<float>(r * round), 1e-8f};
        group.rank(r).all_reduce(stream, sum.data(), 3);
        const float part[4] = {static_cast<float>(r), 0, static_cast<float>(round), 1};  // (2, 2)
        alls[static_cast<size_t>(r)].assign(4 * kRanks, -1);
        group.rank(r).all_gather(stream, part, alls[static_cast<size_t>(r)].data(), 2, 2);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  const std::vector<float> expected{15, 490, 5e-8f}, all{0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 49, 1, 49, 1, 49, 1, 49, 1, 49, 1};
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(sums[static_cast<size_t>(r)], sums[0]);
    EXPECT_FLOAT_EQ(sums[static_cast<size_t>(r)][2], expected[2]);
    EXPECT_EQ(sums[static_cast<size_t>(r)][0], expected[0]);
    EXPECT_EQ(sums[static_cast<size_t>(r)][1], expected[1]);
    EXPECT_EQ(alls[static_cast<size_t>(r)], all);
  }
}

}  // namespace
}  // namespace ingot::model
