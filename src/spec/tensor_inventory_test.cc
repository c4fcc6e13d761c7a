#include "spec/tensor_inventory.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "support/glm_configs.h"

namespace ingot::spec {
namespace {

struct Totals {
  int64_t tensors = 0, elements = 0;
  bool operator==(const Totals&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Totals& t) { return out << t.tensors << " tensors, " << t.elements << " elements"; }

ModelConfig config_of(const Json& json) { return parse_model_config(json).value(); }

Totals totals(const std::vector<ExpectedTensor>& list, int64_t first_layer = -1, int64_t last_layer = 1 << 20) {
  Totals out;
  for (const auto& t : list) {
    if (t.optional || t.layer < first_layer || t.layer > last_layer) continue;
    ++out.tensors;
    out.elements += t.elements();
  }
  return out;
}

TEST(TensorInventory, Glm52HasThePublishedCountToTheLastElement) {
  const auto list = expected_tensors(config_of(test_support::glm_52_config()));
  EXPECT_EQ(totals(list), (Totals{59'585, 753'329'940'480}));
  EXPECT_EQ(totals(list, 78, 78), (Totals{791, 9'952'920'576})) << "MTP layer";
  EXPECT_EQ(totals(list, -1, 77), (Totals{58'794, 743'377'019'904})) << "main model";
}

TEST(TensorInventory, Glm5And51HaveAnIndexerInEveryLayer) {
  const auto list = expected_tensors(config_of(test_support::glm_51_config()));
  EXPECT_EQ(totals(list), (Totals{59'870, 753'864'139'008}));
}

TEST(TensorInventory, KindsHaveTheCountsOfTheSpec) {
  std::map<TensorKind, Totals> by_kind;
  for (const auto& t : expected_tensors(config_of(test_support::glm_52_config()))) {
    if (t.optional || t.layer >= 78) continue;
    ++by_kind[t.kind].tensors;
    by_kind[t.kind].elements += t.elements();
  }
  EXPECT_EQ(by_kind[TensorKind::attention], (Totals{78 * 5, 78 * int64_t{165'019'648}}));
  EXPECT_EQ(by_kind[TensorKind::indexer], (Totals{21 * 5, 21 * int64_t{9'371'904}}));
  EXPECT_EQ(by_kind[TensorKind::dense_mlp], (Totals{9, 3 * int64_t{226'492'416}}));
  EXPECT_EQ(by_kind[TensorKind::routed_expert], (Totals{75 * 768, 75 * int64_t{9'663'676'416}}));
  EXPECT_EQ(by_kind[TensorKind::shared_expert], (Totals{75 * 3, 75 * int64_t{37'748'736}}));
  EXPECT_EQ(by_kind[TensorKind::router], (Totals{75, 75 * int64_t{1'572'864}}));
  EXPECT_EQ(by_kind[TensorKind::router_bias], (Totals{75, 75 * 256}));
  EXPECT_EQ(by_kind[TensorKind::embedding], (Totals{1, 951'582'720}));
  EXPECT_EQ(by_kind[TensorKind::head], (Totals{1, 951'582'720}));
  EXPECT_EQ(by_kind[TensorKind::norm], (Totals{78 * 4 + 1, 78 * int64_t{6144 + 6144 + 2048 + 512} + 6144}));
}

// Spec 9.1: attention, indexer, dense, 75 * (9 experts + router), head; and the norms of both.
TEST(TensorInventory, ActiveParametersAreFortyBillion) {
  const int64_t matrices = 78 * int64_t{165'019'648} + 21 * int64_t{9'371'904} + 3 * int64_t{226'492'416} +
                           75 * (9 * int64_t{37'748'736} + 1'573'120) + 951'582'720;
  const int64_t norms = 78 * int64_t{6144 + 6144 + 2048 + 512} + 6144;
  EXPECT_EQ(active_parameters(config_of(test_support::glm_52_config())), matrices + norms);
}

TEST(TensorInventory, NamesAreUniqueAndOptionalOnesAreTheTwoAliases) {
  std::set<std::string> names, optional;
  for (const auto& t : expected_tensors(config_of(test_support::glm_52_config()))) {
    EXPECT_TRUE(names.insert(t.name).second) << t.name;
    if (t.optional) optional.insert(t.name);
    if (t.is_linear) {
      EXPECT_EQ(std::string(t.module()) + ".weight", t.name);
    }
    EXPECT_EQ(t.shape.size(), t.is_linear ? 2u : 1u) << t.name;
  }
  EXPECT_EQ(optional, (std::set<std::string>{"model.layers.78.embed_tokens.weight", "model.layers.78.shared_head.head.weight"}));
}

// A7: "Missing 285 parameters ...indexer.*" for layers that share an index list.
TEST(TensorInventory, SharedLayersExpectNoIndexer) {
  const auto config = config_of(test_support::glm_52_config());
  for (const auto& t : expected_tensors(config)) {
    if (t.kind == TensorKind::indexer) {
      EXPECT_TRUE(config.has_indexer(t.layer)) << t.name;
    }
  }
}

TEST(TensorInventory, TiedEmbeddingsMakeTheHeadOptional) {
  Json json = test_support::glm_52_config();
  json["tie_word_embeddings"] = true;
  int found = 0;
  for (const auto& t : expected_tensors(config_of(json))) {
    if (t.name != "lm_head.weight") continue;
    EXPECT_TRUE(t.optional);
    ++found;
  }
  EXPECT_EQ(found, 1);
}

TEST(TensorInventory, WithoutMtpNothingBeyondTheMainLayersIsExpected) {
  Json json = test_support::glm_52_config();
  json["num_nextn_predict_layers"] = 0;
  EXPECT_EQ(totals(expected_tensors(config_of(json))), (Totals{58'794, 743'377'019'904}));
}

}  // namespace
}  // namespace ingot::spec
