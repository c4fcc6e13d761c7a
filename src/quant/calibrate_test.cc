// Calibration of tiny models: the layer in pieces is the model's own layer, the result is closer to the source than rounding is, and it
// depends on nothing but source, data and seed.
#include "quant/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "quant/calibration_layer.h"
#include "support/glm_run.h"
#include "support/tiny_glm.h"

namespace ingot::quant {
namespace {

using tensor::PackedWeight;
using tensor::WeightFormat;
using test_support::TinyGlm;
using test_support::TinyGlmBuilder;

constexpr uint64_t kSeed = 4;

std::vector<int32_t> tokens_of(uint64_t seed, size_t length) {
  Rng rng(seed);
  std::vector<int32_t> tokens(length);
  // Half of them from a few frequent ones, as in a text.
  for (auto& t : tokens) t = static_cast<int32_t>(rng.below(2) == 0 ? rng.below(160) : rng.below(12));
  return tokens;
}

struct Fixture {
  test_support::TempDir dir;
  TinyGlm tiny = TinyGlmBuilder(kSeed, [](const std::string&) { return WeightFormat::bf16; }).build();
  std::filesystem::path source = dir.path() / "source", data = dir.path() / "data.jsonl", work = dir.path() / "work";
  spec::ModelConfig config;
  tensor::Checkpoint checkpoint;

  Fixture() {
    // Embeddings mixed from a few directions: what a trained model's are like, and without which no input would be correlated.
    Rng rng(kSeed);
    std::vector<float> directions, embedding;
    for (int i = 0; i < 6 * 64; ++i) directions.push_back(rng.uniform_float(-1, 1));
    for (int token = 0; token < 160; ++token) {
      std::vector<float> row(64);
      for (size_t d = 0; d < 6; ++d) {
        const float share = rng.uniform_float(-1, 1);
        for (size_t i = 0; i < 64; ++i) row[i] += share * directions[d * 64 + i];
      }
      embedding.insert(embedding.end(), row.begin(), row.end());
    }
    const PackedWeight packed = tensor::pack_weight(embedding, 160, 64, WeightFormat::bf16);
    tiny.tensor("model.embed_tokens.weight").data = packed.data;
    tiny.values.at("model.embed_tokens.weight") = tensor::dequantize(packed.view());
    tiny.write(source);
    std::filesystem::create_directories(work);
    std::ofstream out(data);
    for (uint64_t i = 0; i < 120; ++i) out << Json{{"tokens", tokens_of(100 + i, 8 + i % 60)}}.dump() << "\n";
    config = *spec::load_model_config(source);
    checkpoint = *tensor::Checkpoint::open(source);
  }
  Recipe recipe(const std::string& preset, std::vector<std::string> excludes = {}) const {
    RecipeOptions options;
    options.scheme = "mxfp4";
    options.preset = preset;
    options.excludes = std::move(excludes);
    auto made = make_recipe(options, config, checkpoint);
    INGOT_CHECK(made.has_value(), "{}", made.error().text());
    return *made;
  }
  CalibrationOptions options(int threads = 2) const {
    CalibrationOptions options;
    options.data = data;
    options.work_folder = work;
    options.threads = threads;
    return options;
  }
  std::map<std::string, PackedWeight> calibrated(const Recipe& recipe, const CalibrationOptions& options) const {
    auto corrections = calibrate(source, recipe, options);
    INGOT_CHECK(corrections.has_value(), "{}", corrections.error().text());
    std::map<std::string, PackedWeight> out;
    for (const tensor::TensorInfo& tensor : checkpoint.tensors()) {
      if (!tensor.name.ends_with(".weight")) continue;
      const std::string module = tensor.name.substr(0, tensor.name.size() - 7);
      auto found = (*corrections)->find(module);
      INGOT_CHECK(found.has_value(), "{}", found.error().text());
      if (*found) out[module] = std::move(**found);
    }
    return out;
  }
  std::map<std::string, PackedWeight> rounded(const Recipe& recipe) const {
    std::map<std::string, PackedWeight> out;
    for (const auto& [module, format] : recipe.formats) {
      const auto& shape = checkpoint.find(module + ".weight")->shape;
      out[module] = tensor::pack_weight(tiny.values.at(module + ".weight"), shape[0], shape[1], format);
    }
    return out;
  }
  // Logits of all positions of some tokens that calibration has not seen, with these weights in place of the source's.
  std::vector<float> logits(const std::map<std::string, PackedWeight>& weights) const {
    TinyGlm changed = tiny;
    for (const auto& [module, packed] : weights) {
      changed.erase(module + ".weight");
      for (auto& tensor : test_support::linear_tensors(module, packed)) changed.tensors.push_back(std::move(tensor));
    }
    const test_support::TempDir folder;
    changed.write(folder.path());
    auto glm = model::Glm::load(folder.path());
    INGOT_CHECK(glm.has_value(), "{}", glm.error().text());
    std::vector<float> all;
    for (uint64_t i = 0; i < 6; ++i) {
      test_support::GlmRun run(**glm, {.max_len = 64});
      for (const auto& row : run.prefill(tokens_of(900 + i, 50), 50, 50)) all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
};

double squared_distance(const std::vector<float>& a, const std::vector<float>& b) {
  INGOT_CHECK(a.size() == b.size() && !a.empty());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  return sum;
}

TEST(Calibrate, TheLayerInPiecesIsTheModelsOwnLayerToTheBit) {
  const Fixture f;
  auto glm = model::Glm::load(f.source, {.mla_form = model::MlaForm::expanded});
  ASSERT_TRUE(glm) << glm.error().text();
  auto weights = model::bind_weights(f.checkpoint, f.config);
  ASSERT_TRUE(weights) << weights.error().text();
  for (const size_t length : {5, 8, 9, 40}) {  // index_topk is 8
    const std::vector<int32_t> tokens = tokens_of(kSeed, length);
    const auto T = static_cast<int64_t>(length);
    test_support::Capture capture;
    for (size_t t = 0; t < length; ++t) capture.rows.insert(static_cast<int32_t>(t));
    test_support::GlmRun run(**glm, {.max_len = 64});
    run.prefill(tokens, length, 1, &capture);

    ThreadPool pool(2);
    gpu::Stream stream{&pool};
    LayerPass pass(f.config, stream);
    std::vector<float> x(length * 64), attended, gated;
    for (size_t t = 0; t < length; ++t)
      for (size_t i = 0; i < 64; ++i)
        x[t * 64 + i] = f.tiny.values.at("model.embed_tokens.weight")[static_cast<size_t>(tokens[t]) * 64 + i];
    std::vector<int32_t> indices;
    for (int64_t l = 0; l < f.config.num_hidden_layers; ++l) {
      const model::LayerWeights& layer = weights->layers[static_cast<size_t>(l)];
      AttentionInputs attention;
      pass.attention_inputs(layer, x.data(), T, attention);
      pass.attend(layer, attention, T, indices, attended);
      pass.add_product(layer.o, attended, T, x.data());
      MlpInputs mlp;
      pass.mlp_inputs(layer, x.data(), T, mlp);
      if (layer.moe) {
        pass.gated_experts(*layer.moe, mlp, T, gated);
        pass.add_experts(*layer.moe, mlp, gated, T, x.data());
      }
      const model::MlpWeights& last = layer.dense ? *layer.dense : *layer.moe->shared;
      pass.gated(last, mlp, T, gated);
      pass.add_product(last.down, gated, T, x.data());
      for (size_t t = 0; t < length; ++t) {
        const std::vector<float> row(x.begin() + static_cast<int64_t>(t) * 64, x.begin() + static_cast<int64_t>(t + 1) * 64);
        ASSERT_EQ(row, capture.hidden[l][static_cast<int32_t>(t)]) << length << " tokens, layer " << l << ", token " << t;
      }
    }
  }
}

TEST(Calibrate, BringsTheModelCloserThanRoundingDoes) {
  const Fixture f;
  const std::vector<float> exact = f.logits({});
  for (const char* preset : {"amd", "all-linear"}) {
    const Recipe recipe = f.recipe(preset);
    const auto calibrated = f.calibrated(recipe, f.options());
    EXPECT_EQ(calibrated.size(), recipe.formats.size()) << preset;
    EXPECT_LT(squared_distance(f.logits(calibrated), exact), 0.8 * squared_distance(f.logits(f.rounded(recipe)), exact)) << preset;
  }
}

TEST(Calibrate, TheSameBytesOnAnyNumberOfThreadsAndInAnyNumberOfPasses) {
  const Fixture f;
  const Recipe recipe = f.recipe("all-linear");
  const auto once = f.calibrated(recipe, f.options(1));
  CalibrationOptions one_expert_at_a_time = f.options(3);
  one_expert_at_a_time.max_statistics_bytes = 1;
  for (const CalibrationOptions& options : {f.options(3), one_expert_at_a_time}) {
    const auto again = f.calibrated(recipe, options);
    ASSERT_EQ(again.size(), once.size());
    for (const auto& [module, packed] : once) {
      EXPECT_EQ(again.at(module).data, packed.data) << module;
      EXPECT_EQ(again.at(module).scale, packed.scale) << module;
    }
  }
  for (const auto& [module, packed] : once) {
    EXPECT_EQ(packed.format, WeightFormat::mxfp4);
    EXPECT_EQ(packed.data.size(), static_cast<size_t>(packed.rows * packed.cols / 2)) << module;
    EXPECT_EQ(packed.scale.size(), static_cast<size_t>(packed.rows * packed.cols / 32)) << module;
    EXPECT_EQ(std::count(packed.scale.begin(), packed.scale.end(), 255), 0) << module;
  }
}

TEST(Calibrate, DecidesWhatTheRecipePacksAndStopsAfterTheLastLayerOfIt) {
  const Fixture f;
  const Recipe recipe = f.recipe("all-linear", {"re:model\\.layers\\.[3-6]\\..*", "*.mlp.experts.2.*", "*.layers.1.self_attn.o_proj"});
  std::set<int64_t> layers;
  CalibrationOptions options = f.options();
  options.progress = [&](const CalibrationProgress& progress) {
    EXPECT_EQ(progress.layers, 7);
    layers.insert(progress.layer);
  };
  const auto calibrated = f.calibrated(recipe, options);
  EXPECT_THAT(layers, testing::ElementsAre(0, 1, 2));
  EXPECT_EQ(calibrated.size(), recipe.formats.size());
  for (const auto& [module, packed] : calibrated) EXPECT_TRUE(recipe.formats.contains(module)) << module;
  EXPECT_TRUE(std::filesystem::is_empty(f.work));
}

TEST(Calibrate, ErrorsOfDataAndWorkFolderNameThem) {
  const Fixture f;
  const Recipe recipe = f.recipe("amd");
  CalibrationOptions options = f.options();
  std::ofstream(f.data) << "{\"tokens\": [1, 2]}\n{\"tokens\": [1, 160]}\n";
  EXPECT_THAT(calibrate(f.source, recipe, options).error().message, testing::HasSubstr("data.jsonl:2: token 1 is 160"));
  std::ofstream(f.data) << "{\"tokens\": [1, 2]}\n";
  options.work_folder = f.dir.path() / "absent";
  EXPECT_THAT(calibrate(f.source, recipe, options).error().message, testing::HasSubstr("absent"));
  EXPECT_THAT(calibrate(f.dir.path() / "nothing", recipe, f.options()).error().message, testing::HasSubstr("nothing"));
}

}  // namespace
}  // namespace ingot::quant
