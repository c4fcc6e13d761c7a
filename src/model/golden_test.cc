// The forward pass of the demo model against transformers in float32: logits, residual streams, and the indexer's choices; and the
// rule that chunks, pages, neighbours and threads change no bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <string>

#include "base/file_map.h"
#include "model/glm.h"
#include "support/checkpoint_writer.h"
#include "support/glm_run.h"
#include "support/golden.h"
#include "support/model_device.h"
#include "tensor/linear.h"
#include "tensor/quantize.h"
#include "tensor/safetensors.h"

namespace ingot::model {
namespace {

using tensor::LatentFormat;
using test_support::Capture;
using test_support::GlmRun;
using test_support::Golden;
using test_support::load_glm;
using test_support::model_device;
using test_support::source_dir;

Glm& demo(MlaForm form, float qkv_norm_eps = 1e-6f) {
  static std::map<std::pair<MlaForm, float>, std::unique_ptr<Glm>> loaded;
  auto& glm = loaded[{form, qkv_norm_eps}];
  if (!glm) glm = load_glm(source_dir() / "models/demo", {form, qkv_norm_eps});
  return *glm;
}

std::vector<float> flat(const std::vector<std::vector<float>>& rows) {
  std::vector<float> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

struct Case {
  const char* name;
  MlaForm form;
};
struct AgainstTransformers : testing::TestWithParam<Case> {};

TEST_P(AgainstTransformers, LogitsHiddenStatesAndChosenPositionsAgree) {
  const Golden golden(GetParam().name);
  const auto tokens = golden.integers("token_ids");
  const auto hidden_rows = golden.integers("hidden_rows");
  Capture capture;
  capture.rows.insert(hidden_rows.begin(), hidden_rows.end());
  const bool has_lists = std::string(GetParam().name) == "long";
  std::vector<int32_t> list_rows;
  if (has_lists) list_rows = golden.integers("topk_rows");
  capture.rows.insert(list_rows.begin(), list_rows.end());

  Glm& glm = demo(GetParam().form);
  GlmRun run(glm, {});
  const auto rows = run.prefill(tokens, tokens.size(), 8, &capture);
  // Measured with f32 cache: at most 4e-6 (logits) and 9e-6 (residual), the rounding of f32 sums over 10 layers. The issue allows 2e-3.
  constexpr double kTolerance = 5e-5;
  const auto expected = golden.as<float>("logits_last8");
  const double logit_error = test_support::relative_error(flat(rows), expected);
  std::printf("%s %s: logits %.2e", GetParam().name, GetParam().form == MlaForm::absorbed ? "absorbed" : "expanded", logit_error);
  EXPECT_LE(logit_error, kTolerance);
  for (size_t r = 0; r < 8; ++r)
    EXPECT_EQ(test_support::argmax(rows[r]), test_support::argmax(std::span(expected).subspan(r * rows[r].size(), rows[r].size())))
        << "row " << r << " of the last 8";
  EXPECT_EQ(test_support::argmax(rows[7]), golden.integers("main_next_token")[0]);
  std::printf("\n");
  if (model_device) return;  // it cannot be looked into
  for (const int64_t layer : {0, 1, 3, 9}) {
    const auto stream = golden.as<float>("hidden_after_layer_" + std::to_string(layer));
    const size_t width = static_cast<size_t>(glm.config().hidden_size);
    double worst = 0;
    for (size_t r = 0; r < hidden_rows.size(); ++r) {
      const auto& row = capture.hidden[layer][hidden_rows[r]];
      ASSERT_EQ(row.size(), width);
      worst = std::max(worst, test_support::relative_error(row, std::span(stream).subspan(r * width, width)));
    }
    std::printf("  layer %d %.2e", static_cast<int>(layer), worst);
    EXPECT_LE(worst, kTolerance) << "residual stream after layer " << layer;
  }
  std::printf("\n");
  for (const int64_t layer : {0, 6}) {
    if (!has_lists) break;
    const auto lists = golden.integers("topk_layer_" + std::to_string(layer));
    const auto k = static_cast<size_t>(glm.config().index_topk);
    size_t differing = 0;
    for (size_t r = 0; r < list_rows.size(); ++r) {
      const auto& ours = capture.lists[layer][list_rows[r]];
      const std::vector<int32_t> theirs(lists.begin() + static_cast<int64_t>(r * k), lists.begin() + static_cast<int64_t>((r + 1) * k));
      std::vector<int32_t> missing;
      std::set_difference(theirs.begin(), theirs.end(), ours.begin(), ours.end(), std::back_inserter(missing));
      differing += missing.size();
      EXPECT_LE(missing.size(), 1u) << "layer " << layer << " query " << list_rows[r] << ": more than one near-tie at the threshold";
    }
    std::printf("  layer %d lists: %zu of %zu entries differ\n", static_cast<int>(layer), differing, list_rows.size() * k);
    EXPECT_LE(differing, 2u) << "layer " << layer;
  }
}

INSTANTIATE_TEST_SUITE_P(Demo, AgainstTransformers,
                         testing::Values(Case{"short", MlaForm::absorbed}, Case{"mid", MlaForm::absorbed}, Case{"long", MlaForm::absorbed},
                                         Case{"short", MlaForm::expanded}, Case{"mid", MlaForm::expanded}, Case{"long", MlaForm::expanded}),
                         [](const auto& test_info) {
                           return std::string(test_info.param.name) + (test_info.param.form == MlaForm::absorbed ? "Absorbed" : "Expanded");
                         });

// One token more or less in a batch, a different chunk, page size, page order or number of threads: the same bits.
TEST(BatchInvariance, ChunksPagesAndThreadsChangeNoBitOfAPrompt) {
  auto tokens = Golden("mid").integers("token_ids");
  Glm& glm = demo(MlaForm::absorbed);
  for (const LatentFormat format : {LatentFormat::f32, LatentFormat::bf16, LatentFormat::fp8, LatentFormat::fp8_scaled}) {
    GlmRun whole(glm, {.format = format});
    const auto expected = flat(whole.prefill(tokens, tokens.size(), 8));
    struct Way {
      size_t chunk;
      int64_t page_size;
      int threads;
    };
    for (const Way way : {Way{1, 64, 2}, Way{7, 1, 2}, Way{64, 64, 1}, Way{256, 16, 3}, Way{513, 48, 2}}) {
      if (format != LatentFormat::bf16 && way.chunk < 64) continue;  // the slow ways once are enough
      GlmRun run(glm, {.format = format, .page_size = way.page_size, .page_seed = way.chunk + 17, .threads = way.threads});
      const auto got = flat(run.prefill(tokens, way.chunk, 8));
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), expected.size() * sizeof(float)), 0)
          << "cache " << tensor::latent_format_name(format) << ", chunks of " << way.chunk << ", pages of " << way.page_size << ", "
          << way.threads << " threads: relative difference " << test_support::relative_error(got, expected);
    }
  }
}

// Chunks of three prompts and decodes, mixed in one batch, against each sequence alone.
TEST(BatchInvariance, SequencesInOneBatchDoNotSeeEachOther) {
  const auto tokens = Golden("long").integers("token_ids");
  Glm& glm = demo(MlaForm::absorbed);
  const std::span<const int32_t> a(tokens.data(), 300), b(tokens.data() + 500, 40), c(tokens.data() + 900, 280);
  const auto alone = [&](std::span<const int32_t> prompt) {
    GlmRun run(glm, {.format = LatentFormat::bf16, .max_len = 512});
    return flat(run.prefill(prompt, prompt.size(), 1));
  };
  GlmRun run(glm, {.format = LatentFormat::bf16, .page_size = 16, .max_len = 512, .num_seqs = 3});
  run.step({{0, a.subspan(0, 150)}, {1, b.subspan(0, 39)}, {2, c.subspan(0, 1)}}, 0);
  run.step({{2, c.subspan(1, 278)}, {0, a.subspan(150, 149)}}, 0);
  const auto last = run.step({{1, b.subspan(39)}, {0, a.subspan(299)}, {2, c.subspan(279)}}, 1);  // three decodes, two beyond index_topk
  ASSERT_EQ(last.size(), 3u);
  const std::vector<float> expected[3] = {alone(b), alone(a), alone(c)};
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(std::memcmp(last[i].data(), expected[i].data(), expected[i].size() * sizeof(float)), 0) << "piece " << i;
}

TEST(BatchInvariance, AnEmptyBatchIsANoOp) {
  Glm& glm = demo(MlaForm::absorbed);
  GlmRun run(glm, {.max_len = 64});
  EXPECT_TRUE(run.step({}, 0).empty());
}

// What the smaller caches cost, on the 700-token prompt.
TEST(CacheTypes, LossIsThatOfTheStoredType) {
  const Golden golden("mid");
  const auto tokens = golden.integers("token_ids");
  const auto expected = golden.as<float>("logits_last8");
  struct Bound {
    LatentFormat format;
    double tolerance;
  };
  for (const MlaForm form : {MlaForm::absorbed, MlaForm::expanded}) {
    // bf16 keeps 8 bits (2^-9 relative), e4m3 keeps 4 (2^-5); ten layers add up. An indexer near-tie may also flip.
    for (const Bound bound : {Bound{LatentFormat::bf16, 0.03}, Bound{LatentFormat::fp8, 0.35}, Bound{LatentFormat::fp8_scaled, 0.35}}) {
      GlmRun run(demo(form), {.format = bound.format});
      const auto rows = run.prefill(tokens, 512, 8);
      const double error = test_support::relative_error(flat(rows), expected);
      const std::string name(tensor::latent_format_name(bound.format));
      std::printf("cache %s %s: logits %.2e\n", name.c_str(), form == MlaForm::absorbed ? "absorbed" : "expanded", error);
      EXPECT_LE(error, bound.tolerance) << name;
      EXPECT_EQ(test_support::argmax(rows[7]), golden.integers("main_next_token")[0]) << name;
    }
  }
}

// What the 80 bytes more of fp8_scaled are for: a rotated key of twice the bits, and no subnormals among small latents. In the mean over
// all rows; the largest error of a few rows is a matter of chance, since most codes of the latents are the same.
TEST(CacheTypes, ScalesAndAWiderKeyLoseLessInTheMean) {
  const auto tokens = Golden("mid").integers("token_ids");
  const auto logits = [&](LatentFormat format) {
    GlmRun run(demo(MlaForm::absorbed), {.format = format});
    return flat(run.prefill(tokens, 512, static_cast<int64_t>(tokens.size())));
  };
  const auto expected = logits(LatentFormat::f32);
  const auto loss = [&](LatentFormat format) {
    const auto got = logits(format);
    double difference = 0, whole = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      difference += std::pow(got[i] - expected[i], 2);
      whole += std::pow(expected[i], 2);
    }
    const double rms = std::sqrt(difference / whole);
    std::printf("cache %s: logits of all rows, rms %.2e\n", std::string(tensor::latent_format_name(format)).c_str(), rms);
    return rms;
  };
  const double bf16 = loss(LatentFormat::bf16), scaled = loss(LatentFormat::fp8_scaled), plain = loss(LatentFormat::fp8);
  EXPECT_LT(bf16, scaled);
  EXPECT_LT(scaled, 0.85 * plain);
}

// The demo model stored as FP8 blocks and as MXFP4, against the same numbers widened to f32 and stored so: the same bits, since a
// format is a way of storing weights and not a way of computing.
TEST(WeightFormats, QuantisedDemoGivesTheBitsOfItsDequantisedTwin) {
  const auto checkpoint = tensor::Checkpoint::open(source_dir() / "models/demo").value();
  const auto tokens = Golden("mid").integers("token_ids");
  const std::span<const int32_t> prompt(tokens.data(), 320);
  for (const auto format : {tensor::WeightFormat::fp8_block, tensor::WeightFormat::mxfp4}) {
    std::vector<std::vector<float>> logits[2];
    for (const bool widened : {false, true}) {
      std::vector<test_support::TensorToWrite> out;
      for (const tensor::TensorInfo& t : checkpoint.tensors()) {
        const auto bytes = checkpoint.data(t);
        const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
        const bool quantise = t.name.find("_proj.weight") != std::string::npos && t.name.find("weights_proj") == std::string::npos;
        if (!quantise) {
          out.push_back({t.name, t.dtype, t.shape, {first, first + bytes.size()}});
          continue;
        }
        const std::string module = t.name.substr(0, t.name.size() - 7);
        const tensor::WeightView bf16 = tensor::linear_view(checkpoint, module).value();
        tensor::PackedWeight packed = tensor::pack_weight(tensor::dequantize(bf16), bf16.rows, bf16.cols, format);
        if (widened) packed = tensor::pack_weight(tensor::dequantize(packed.view()), bf16.rows, bf16.cols, tensor::WeightFormat::f32);
        for (auto& side : test_support::linear_tensors(module, packed)) out.push_back(std::move(side));
      }
      const test_support::TempDir dir;
      test_support::write_checkpoint(dir.path(), out, 64 << 20);
      std::filesystem::copy_file(source_dir() / "models/demo/config.json", dir.path() / "config.json");
      const auto glm = load_glm(dir.path());
      GlmRun run(*glm, {.max_len = 512});
      logits[widened ? 1 : 0] = run.prefill(prompt, 100, 8);
    }
    EXPECT_EQ(logits[0], logits[1]) << tensor::weight_format_name(format);
  }
}

// config.json decides the eps of the q_a and kv_a norms; transformers' 1e-6 is the golden tests' own.
TEST(NormEps, ConfigDecidesUnlessTheGoldenSwitchIsSet) {
  const Golden golden("short");
  const auto tokens = golden.integers("token_ids");
  const auto expected = golden.as<float>("logits_last8");
  GlmRun with_config(demo(MlaForm::absorbed, 0.0f), {}), with_switch(demo(MlaForm::absorbed, 1e-6f), {});
  const auto from_config = flat(with_config.prefill(tokens, tokens.size(), 8)),
             from_switch = flat(with_switch.prefill(tokens, tokens.size(), 8));
  EXPECT_NE(from_config, from_switch);
  EXPECT_LT(test_support::relative_error(from_switch, expected), test_support::relative_error(from_config, expected));
}

}  // namespace
}  // namespace ingot::model
