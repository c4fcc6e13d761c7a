// A benchmark of a model that was not the published one: its shapes were typed in a second time.
#include "spec/known_models.h"

#include <gtest/gtest.h>

#include "spec/tensor_inventory.h"
#include "support/glm_configs.h"

namespace ingot::spec {
namespace {

TEST(KnownModels, Glm52IsThePublishedConfig) {
  const ModelConfig ours = known_model("glm-5.2").value();
  const ModelConfig published = parse_model_config(test_support::glm_52_config()).value();
  EXPECT_EQ(ours.indexer_types, published.indexer_types);
  EXPECT_EQ(ours.mlp_layer_types, published.mlp_layer_types);
  EXPECT_EQ(ours.rope_theta, published.rope_theta);
  EXPECT_EQ(ours.routed_scaling_factor, published.routed_scaling_factor);
  EXPECT_EQ(ours.rope_interleave, published.rope_interleave);
  EXPECT_EQ(ours.index_topk, published.index_topk);
  EXPECT_EQ(ours.eos_token_ids, published.eos_token_ids);
  // All widths at once: spec section 2 counts 59,585 tensors with 753,329,940,480 elements.
  const auto tensors = expected_tensors(ours), expected = expected_tensors(published);
  ASSERT_EQ(tensors.size(), expected.size());
  int64_t elements = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(tensors[i].name, expected[i].name);
    EXPECT_EQ(tensors[i].shape, expected[i].shape) << tensors[i].name;
    if (!tensors[i].optional) elements += tensors[i].elements();
  }
  EXPECT_EQ(elements, 753'329'940'480);
}

TEST(KnownModels, TinyHasEveryKindOfLayer) {
  const ModelConfig tiny = known_model("tiny").value();
  const std::vector<IndexerType> types{IndexerType::full,   IndexerType::full, IndexerType::shared,
                                       IndexerType::shared, IndexerType::full, IndexerType::shared};
  EXPECT_EQ(tiny.indexer_types, types);
  EXPECT_FALSE(tiny.is_moe(0));
  EXPECT_TRUE(tiny.is_moe(1));
}

TEST(KnownModels, AnUnknownNameIsToldWithTheKnownOnes) {
  const auto unknown = known_model("glm-9");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().text().find("glm-5.2, tiny"), std::string::npos) << unknown.error().text();
}

}  // namespace
}  // namespace ingot::spec
