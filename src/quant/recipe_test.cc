#include "quant/recipe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "support/checkpoint_writer.h"
#include "support/glm_configs.h"

namespace ingot::quant {
namespace {

using spec::TensorKind;
using tensor::WeightFormat;
using test_support::TempDir;

spec::ModelConfig config_of(const Json& json) { return spec::parse_model_config(json).value(); }

// The linears that the published bf16 checkpoint holds: no copy of the embedding or the head in the MTP layer.
std::vector<Module> published_modules(const spec::ModelConfig& config) {
  std::vector<Module> out;
  for (const auto& t : spec::expected_tensors(config)) {
    if (t.is_linear && !t.optional) out.push_back({std::string(t.module()), t.kind, t.layer, t.shape[0], t.shape[1], WeightFormat::bf16});
  }
  return out;
}

std::vector<std::string> published_tensors(const spec::ModelConfig& config) {
  std::vector<std::string> out;
  for (const auto& t : spec::expected_tensors(config)) {
    if (!t.optional) out.push_back(t.name);
  }
  return out;
}

Json config_for(const RecipeOptions& options) {
  const auto config = config_of(test_support::glm_52_config());
  const auto modules = published_modules(config);
  const auto recipe = make_recipe(options, config, modules);
  EXPECT_TRUE(recipe) << recipe.error().text();
  return quantization_config(*recipe, modules, published_tensors(config));
}

RecipeOptions scheme(const std::string& name) {
  RecipeOptions options;
  options.scheme = name;
  return options;
}

std::set<std::string> names(const Json& list) { return list.get<std::set<std::string>>(); }

TEST(Recipe, AmdExcludesThePublished1319ModulesOfGlm52) {
  const Json exclude = config_for(scheme("mxfp4"))["exclude"];
  EXPECT_EQ(exclude.size(), 1319u);
  const auto set = names(exclude);
  EXPECT_EQ(set.size(), 1319u) << "a module stands in the list twice";
  int64_t shared = 0, mtp = 0;
  for (const std::string& name : set) {
    shared += name.find("shared_experts") != std::string::npos ? 1 : 0;
    mtp += name.starts_with("model.layers.78.") ? 1 : 0;
  }
  EXPECT_EQ(shared, 3);                     // all of layer 78
  EXPECT_EQ(mtp, 5 + 3 + 1 + 768 + 3 + 1);  // attention, indexer, router, experts, shared, eh_proj
  EXPECT_TRUE(set.contains("lm_head"));
  EXPECT_TRUE(set.contains("model.layers.77.mlp.gate"));
  EXPECT_TRUE(set.contains("model.layers.0.mlp.gate_proj"));
  EXPECT_FALSE(set.contains("model.embed_tokens"));
  EXPECT_FALSE(set.contains("model.layers.3.mlp.shared_experts.up_proj"));
}

TEST(Recipe, Fp8KeepsThePublished541NamesOfGlm52) {
  RecipeOptions options = scheme("fp8-block");
  options.excludes = {"*.eh_proj"};  // bf16 in the published FP8 checkpoint
  const Json config = config_for(options);
  EXPECT_EQ(config["quant_method"], "fp8");
  EXPECT_EQ(config["modules_to_not_convert"].size(), 541u);
  const auto set = names(config["modules_to_not_convert"]);
  for (const char* name : {"lm_head", "model.embed_tokens", "model.norm", "model.layers.78.eh_proj", "model.layers.78.shared_head.norm",
                           "model.layers.6.self_attn.indexer.k_norm.bias", "model.layers.6.self_attn.indexer.weights_proj",
                           "model.layers.3.mlp.gate.e_score_correction_bias", "model.layers.3.mlp.gate"})
    EXPECT_TRUE(set.contains(name)) << name;
}

TEST(Recipe, AllLinearLeavesHeadEmbeddingRouterAndWeightsProj) {
  const auto config = config_of(test_support::glm_52_config());
  const auto modules = published_modules(config);
  RecipeOptions options = scheme("mxfp4");
  options.preset = "all-linear";
  const auto recipe = make_recipe(options, config, modules);
  ASSERT_TRUE(recipe);
  for (const Module& m : modules) {
    const bool plain =
        m.kind == TensorKind::head || m.kind == TensorKind::embedding || m.kind == TensorKind::router || m.name.ends_with("weights_proj");
    EXPECT_EQ(recipe->format_of(m.name), plain ? WeightFormat::bf16 : WeightFormat::mxfp4) << m.name;
  }
  EXPECT_TRUE(recipe->notes.empty());
}

TEST(Recipe, ExactNamesCoverWhatIsBelowThemAndNoLongerNames) {
  const auto config = config_of(test_support::glm_52_config());
  const auto modules = published_modules(config);
  RecipeOptions options = scheme("mxfp4");
  options.excludes = {"model.layers.7", "model.layers.9.mlp.experts.1"};
  const auto recipe = make_recipe(options, config, modules);
  ASSERT_TRUE(recipe);
  EXPECT_EQ(recipe->format_of("model.layers.7.mlp.experts.0.up_proj"), WeightFormat::bf16);
  EXPECT_EQ(recipe->format_of("model.layers.70.mlp.experts.0.up_proj"), WeightFormat::mxfp4);
  EXPECT_EQ(recipe->format_of("model.layers.9.mlp.experts.1.up_proj"), WeightFormat::bf16);
  EXPECT_EQ(recipe->format_of("model.layers.9.mlp.experts.12.up_proj"), WeightFormat::mxfp4);
}

TEST(Recipe, AnExcludeThatMatchesNothingIsRefusedUnlessAllowed) {
  const auto config = config_of(test_support::glm_52_config());
  const auto modules = published_modules(config);
  RecipeOptions options = scheme("mxfp4");
  options.excludes = {"*self_attn*", "*.share_experts.*"};
  const auto refused = make_recipe(options, config, modules);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("*.share_experts.*"), std::string::npos) << refused.error().text();
  options.allow_unmatched_excludes = true;
  const auto allowed = make_recipe(options, config, modules);
  ASSERT_TRUE(allowed);
  ASSERT_EQ(allowed->notes.size(), 1u);
  EXPECT_NE(allowed->notes[0].find("*.share_experts.*"), std::string::npos);
}

TEST(Recipe, FusedModulesOfMixedFormatAreNoted) {
  const auto config = config_of(test_support::glm_52_config());
  const auto modules = published_modules(config);
  const auto notes_with = [&](const char* exclude) {
    RecipeOptions options = scheme("mxfp4");
    options.excludes = {exclude};
    const auto recipe = make_recipe(options, config, modules);
    EXPECT_TRUE(recipe);
    std::string all;
    for (const auto& note : recipe->notes) all += note + "\n";
    return all;
  };
  const std::string gate = notes_with("model.layers.5.mlp.experts.3.gate_proj");
  EXPECT_NE(gate.find("gate_proj and up_proj of one MLP differ"), std::string::npos) << gate;
  EXPECT_NE(gate.find("layers 5\n"), std::string::npos) << gate;
  EXPECT_NE(gate.find("routed experts of one layer differ"), std::string::npos) << gate;
  const std::string shared = notes_with("*.shared_experts.*");
  EXPECT_EQ(shared,
            "shared and routed experts differ in format: runtimes that run the shared one as another routed expert must not do so: "
            "layers 3, 4, 5, 6 and 71 more\n");
  EXPECT_EQ(notes_with("model.layers.5"), "");
}

TEST(Recipe, ColumnsThatMxfp4CannotCutAreNamed) {
  const auto config = config_of(test_support::glm_52_config());
  std::vector<Module> modules = published_modules(config);
  const auto it = std::find_if(modules.begin(), modules.end(), [](const Module& m) { return m.kind == TensorKind::routed_expert; });
  it->cols = 6160;
  const auto refused = make_recipe(scheme("mxfp4"), config, modules);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find(it->name), std::string::npos);
  EXPECT_NE(refused.error().message.find("6160"), std::string::npos);
  EXPECT_TRUE(make_recipe(scheme("fp8-block"), config, modules)) << "FP8 blocks may be ragged";
}

TEST(Recipe, FileRulesApplyInOrderAndLeaveWhatIsNeverPacked) {
  TempDir dir;
  const auto path = dir.path() / "recipe.json";
  std::ofstream(path) << R"({"default": "keep", "rules": [
    {"match": "*.indexer.*", "format": "fp8-block"}, {"match": "*self_attn*", "format": "mxfp4"}, {"match": "lm_head", "format": "fp8-block"}]})";
  const auto config = config_of(test_support::glm_52_config());
  RecipeOptions options;
  options.preset = path;
  const auto recipe = make_recipe(options, config, published_modules(config));
  ASSERT_TRUE(recipe) << recipe.error().text();
  EXPECT_EQ(recipe->format_of("model.layers.0.self_attn.indexer.wk"), WeightFormat::fp8_block);
  EXPECT_EQ(recipe->format_of("model.layers.0.self_attn.indexer.weights_proj"), WeightFormat::bf16);
  EXPECT_EQ(recipe->format_of("model.layers.0.self_attn.o_proj"), WeightFormat::mxfp4);
  EXPECT_EQ(recipe->format_of("lm_head"), WeightFormat::fp8_block);
  EXPECT_EQ(recipe->format_of("model.layers.3.mlp.experts.0.up_proj"), WeightFormat::bf16);
  EXPECT_TRUE(
      std::any_of(recipe->notes.begin(), recipe->notes.end(), [](const auto& n) { return n.find("22 modules") != std::string::npos; }));
  EXPECT_TRUE(std::any_of(recipe->notes.begin(), recipe->notes.end(), [](const auto& n) { return n.find("Quark") != std::string::npos; }));
  options.scheme = "mxfp4";
  const auto contradicted = make_recipe(options, config, published_modules(config));
  ASSERT_FALSE(contradicted);
  EXPECT_NE(contradicted.error().message.find("contradicts"), std::string::npos);
}

TEST(Recipe, PackedSourcesAreKeptOrRefused) {
  const auto config = config_of(test_support::glm_52_config());
  std::vector<Module> modules = published_modules(config);
  for (Module& m : modules) {
    if (m.kind == TensorKind::routed_expert) m.source = WeightFormat::mxfp4;
    if (m.kind == TensorKind::attention) m.source = WeightFormat::fp8_block;
  }
  const auto recipe = make_recipe(scheme("mxfp4"), config, modules);
  ASSERT_TRUE(recipe);
  for (const Module& m : modules) {
    if (m.kind == TensorKind::routed_expert) {
      EXPECT_EQ(output_format(*recipe, m), WeightFormat::mxfp4);
    }
    if (m.kind == TensorKind::attention) {
      EXPECT_EQ(output_format(*recipe, m), WeightFormat::fp8_block);
    }
    if (m.kind == TensorKind::routed_expert) {
      EXPECT_EQ(recipe->format_of(m.name), WeightFormat::bf16) << "copied, not packed again";
    }
  }
  const auto refused = make_recipe(scheme("fp8-block"), config, modules);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("packed as mxfp4"), std::string::npos) << refused.error().text();
}

TEST(Recipe, MultimodalNamesAreTheSameModules) {
  EXPECT_EQ(spec::canonical_name("model.language_model.layers.3.mlp.gate"), "model.layers.3.mlp.gate");
  EXPECT_EQ(spec::canonical_name("language_model.model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(spec::canonical_name("language_model.lm_head"), "lm_head");
  EXPECT_EQ(spec::canonical_name("model.layers.3.mlp.gate"), "model.layers.3.mlp.gate");
}

}  // namespace
}  // namespace ingot::quant
