// Binding a checkpoint: each test is named after what went wrong at load in some server.
#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/glm.h"
#include "support/tiny_glm.h"

namespace ingot::model {
namespace {

using tensor::WeightFormat;
using test_support::quark_config;
using test_support::TempDir;
using test_support::TinyGlm;
using test_support::TinyGlmBuilder;
using testing::HasSubstr;

constexpr uint64_t kSeed = 7;

// A checkpoint on disk and what binding it says; the mapped files live as long as this.
struct Bound {
  TempDir dir;
  spec::ModelConfig config;
  tensor::Checkpoint checkpoint;
  Result<Weights> weights;

  explicit Bound(const TinyGlm& tiny) : weights(fail("not bound")) {
    tiny.write(dir.path());
    auto c = spec::load_model_config(dir.path());
    INGOT_CHECK(c.has_value(), "{}", c.error().text());
    config = std::move(*c);
    auto opened = tensor::Checkpoint::open(dir.path());
    INGOT_CHECK(opened.has_value(), "{}", opened.error().text());
    checkpoint = std::move(*opened);
    weights = bind_weights(checkpoint, config);
  }
  const Weights& ok() const {
    INGOT_CHECK(weights.has_value(), "{}", weights.error().text());
    return *weights;
  }
  std::string error() const { return weights.has_value() ? "no error" : weights.error().text(); }
  std::string unused_reason(const std::string& name) const {
    for (const auto& u : ok().unused)
      if (u.name == name) return u.reason;
    return "used";
  }
};

WeightFormat bf16(const std::string&) { return WeightFormat::bf16; }
bool in_mtp(const std::string& module) { return module.find("layers.6.") != std::string::npos; }
bool routed(const std::string& module) { return module.find(".experts.") != std::string::npos; }

TEST(BindWeights, CompleteCheckpointLeavesNothingUnused) {
  const Bound bound(TinyGlmBuilder(kSeed, bf16).build());
  EXPECT_TRUE(bound.ok().unused.empty());
  ASSERT_TRUE(bound.ok().mtp.has_value());
  EXPECT_EQ(bound.ok().layers.size(), 6u);
  EXPECT_FALSE(bound.ok().layers[0].moe.has_value());
  EXPECT_EQ(bound.ok().layers[1].moe->gate.size(), 8u);
}

// Bug report A1: MXFP4 main layers, a bf16 MTP layer that the exclude list names by its checkpoint name.
TEST(BindWeights, MtpLayerInBf16BesideMxfp4MainLayersKeepsItsShape) {
  TinyGlmBuilder builder(kSeed, [](const std::string& m) { return in_mtp(m) || !routed(m) ? WeightFormat::bf16 : WeightFormat::mxfp4; });
  builder.config()["quantization_config"] = quark_config({"model.layers.6.*", "*self_attn*", "*mlp.gate", "*lm_head"});
  const Bound bound(builder.build());
  EXPECT_EQ(bound.ok().layers[3].moe->gate[5].format, WeightFormat::mxfp4);
  EXPECT_EQ(bound.ok().mtp->eh_proj.format, WeightFormat::bf16);
  EXPECT_EQ(bound.ok().mtp->eh_proj.cols, 128);
  EXPECT_EQ(bound.ok().mtp->layer.moe->gate[5].format, WeightFormat::bf16);
}

// Bug report A2: the exclude list has each expert projection, and the formats within a layer differ expert by expert.
TEST(BindWeights, EachExpertProjectionHasItsOwnFormat) {
  TinyGlmBuilder builder(kSeed, [](const std::string& m) {
    return routed(m) && m.find("experts.0.gate_proj") == std::string::npos ? WeightFormat::mxfp4 : WeightFormat::bf16;
  });
  builder.config()["quantization_config"] = quark_config({"model.layers.1.mlp.experts.0.gate_proj"});
  const Bound bound(builder.build());
  EXPECT_EQ(bound.ok().layers[1].moe->gate[0].format, WeightFormat::bf16);
  EXPECT_EQ(bound.ok().layers[1].moe->up[0].format, WeightFormat::mxfp4);
  EXPECT_EQ(bound.ok().layers[1].moe->gate[1].format, WeightFormat::mxfp4);
}

// Bug report A3: names in the exclude list that match nothing must not change how a tensor is read.
TEST(BindWeights, SharedExpertStaysBf16BesideMxfp4RoutedExpertsWhateverTheExcludeListSays) {
  TinyGlmBuilder builder(kSeed, [](const std::string& m) { return routed(m) ? WeightFormat::mxfp4 : WeightFormat::bf16; });
  builder.config()["quantization_config"] = quark_config({"renamed.decoder.mlp.shared_experts"});
  const Bound bound(builder.build());
  EXPECT_EQ(bound.ok().layers[2].moe->shared->gate.format, WeightFormat::bf16);
  EXPECT_EQ(bound.ok().layers[2].moe->gate[0].format, WeightFormat::mxfp4);
}

// Bug report A4: a multimodal re-export puts the language model under another prefix.
TEST(BindWeights, LanguageModelPrefixIsFound) {
  TinyGlm tiny = TinyGlmBuilder(kSeed, bf16).build();
  for (auto& t : tiny.tensors)
    if (t.name.rfind("model.", 0) == 0) t.name = "model.language_model." + t.name.substr(6);
  EXPECT_TRUE(Bound(tiny).ok().unused.empty());
}

// Bug report A6.
TEST(BindWeights, MtpUsesItsOwnEmbeddingAndHeadWhenPresentAndTheMainOnesWhenNot) {
  const Bound shared(TinyGlmBuilder(kSeed, bf16).build());
  EXPECT_EQ(shared.ok().mtp->embed.data, shared.ok().embed.data);
  EXPECT_EQ(shared.ok().mtp->head.data, shared.ok().lm_head.data);
  TinyGlmBuilder builder(kSeed, bf16);
  builder.table("model.layers.6.embed_tokens.weight", 160, 64, 1.0f);
  builder.table("model.layers.6.shared_head.head.weight", 160, 64, 1.0f);
  const Bound own(builder.build());
  EXPECT_NE(own.ok().mtp->embed.data, own.ok().embed.data);
  EXPECT_NE(own.ok().mtp->head.data, own.ok().lm_head.data);
  EXPECT_TRUE(own.ok().unused.empty());
}

// Bug reports A7 and A8: shared layers need no indexer, and one that is there is listed, not an error.
TEST(BindWeights, IndexerTensorsOfSharedLayersAreNeitherNeededNorAnError) {
  const Bound without(TinyGlmBuilder(kSeed, bf16).build());
  EXPECT_FALSE(without.ok().layers[2].indexer.has_value());
  EXPECT_TRUE(without.ok().layers[4].indexer.has_value());
  EXPECT_TRUE(without.ok().mtp->layer.indexer.has_value());
  TinyGlmBuilder builder(kSeed, bf16);
  builder.indexer(2);
  const Bound with(builder.build());
  EXPECT_EQ(with.ok().unused.size(), 5u);
  EXPECT_THAT(with.unused_reason("model.layers.2.self_attn.indexer.wk.weight"), HasSubstr("shared layer"));
}

// Bug report A9, where the index file agrees with what is left: all that is missing is named at once.
TEST(BindWeights, AllMissingTensorsAreNamedInOneError) {
  TinyGlm tiny = TinyGlmBuilder(kSeed, bf16).build();
  tiny.erase("model.layers.3.self_attn.o_proj.weight");
  tiny.erase("model.layers.5.mlp.experts.7.down_proj.weight");
  tiny.erase("model.norm.weight");
  const std::string error = Bound(tiny).error();
  EXPECT_THAT(error, HasSubstr("3 tensors are missing"));
  EXPECT_THAT(error, HasSubstr("model.layers.3.self_attn.o_proj.weight"));
  EXPECT_THAT(error, HasSubstr("model.layers.5.mlp.experts.7.down_proj.weight"));
  EXPECT_THAT(error, HasSubstr("model.norm.weight"));
}

// Bug report A9 as it happened: a shard is gone and the index is not.
TEST(BindWeights, AMissingShardStopsTheLoadAndIsNamed) {
  TempDir dir;
  TinyGlmBuilder(kSeed, bf16).build().write(dir.path());
  std::filesystem::path shard;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    if (entry.path().string().find("model-00002") != std::string::npos) shard = entry.path();
  ASSERT_TRUE(std::filesystem::remove(shard));
  const auto glm = Glm::load(dir.path());
  ASSERT_FALSE(glm.has_value());
  EXPECT_THAT(glm.error().text(), HasSubstr(shard.filename().string()));
}

TEST(BindWeights, RouterBiasInBf16IsRefused) {
  TinyGlm tiny = TinyGlmBuilder(kSeed, bf16).build();
  auto& bias = tiny.tensor("model.layers.2.mlp.gate.e_score_correction_bias");
  bias.dtype = tensor::DType::bf16;
  bias.data.resize(16);
  const std::string error = Bound(tiny).error();
  EXPECT_THAT(error, HasSubstr("model.layers.2.mlp.gate.e_score_correction_bias"));
  EXPECT_THAT(error, HasSubstr("expected F32, found BF16"));
}

// Bug report O1: a NaN scale would poison a row at run time; it is refused by name at load.
TEST(BindWeights, NanScaleByteIsRefusedByName) {
  TinyGlm tiny = TinyGlmBuilder(kSeed, [](const std::string& m) { return routed(m) ? WeightFormat::mxfp4 : WeightFormat::bf16; }).build();
  tiny.tensor("model.layers.4.mlp.experts.3.up_proj.weight_scale").data[5] = 255;
  EXPECT_THAT(Bound(tiny).error(), HasSubstr("model.layers.4.mlp.experts.3.up_proj.weight_scale"));
}

TEST(BindWeights, WrongShapeNamesExpectedAndFound) {
  TinyGlm tiny = TinyGlmBuilder(kSeed, bf16).build();
  auto& weight = tiny.tensor("model.layers.0.mlp.down_proj.weight");
  std::swap(weight.shape[0], weight.shape[1]);
  const std::string error = Bound(tiny).error();
  EXPECT_THAT(error, HasSubstr("model.layers.0.mlp.down_proj.weight"));
  EXPECT_THAT(error, HasSubstr("64"));
  EXPECT_THAT(error, HasSubstr("96"));
}

TEST(BindWeights, ATensorOfNoKnownNameIsListedWithAReason) {
  TinyGlmBuilder builder(kSeed, bf16);
  builder.table("model.layers.9.mlp.up_proj.weight", 4, 4, 1.0f);
  builder.table("visual.patch_embed.weight", 4, 4, 1.0f);
  const Bound bound(builder.build());
  EXPECT_THAT(bound.unused_reason("model.layers.9.mlp.up_proj.weight"), HasSubstr("beyond the model's 6 layers"));
  EXPECT_THAT(bound.unused_reason("visual.patch_embed.weight"), HasSubstr("no parameter"));
}

}  // namespace
}  // namespace ingot::model
