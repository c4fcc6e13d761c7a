// The divergence of two models on tiny checkpoints: against plain arithmetic, whatever the chunk, with the choices of experts and positions
// looked up by another road.
#include "quant/divergence.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <set>

#include "base/rng.h"
#include "support/glm_run.h"
#include "support/tiny_glm.h"

namespace ingot::quant {
namespace {

using tensor::WeightFormat;
using ::testing::HasSubstr;

TEST(RowDivergence, AgreesWithTheDefinition) {
  Rng rng(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<float> p(37), q(37);
    for (auto& x : p) x = rng.uniform_float(-8, 8);
    for (auto& x : q) x = rng.uniform_float(-8, 8);
    const auto softmax = [](const std::vector<float>& x) {
      long double total = 0;
      for (const float v : x) total += std::exp(static_cast<long double>(v));
      std::vector<long double> out;
      for (const float v : x) out.push_back(std::exp(static_cast<long double>(v)) / total);
      return out;
    };
    const auto P = softmax(p), Q = softmax(q);
    long double kl = 0;
    for (size_t i = 0; i < P.size(); ++i) kl += P[i] * std::log(P[i] / Q[i]);
    const RowDivergence row = row_divergence(p.data(), q.data(), 37, 5);
    EXPECT_NEAR(row.kl, static_cast<double>(kl), 1e-12);
    EXPECT_NEAR(row.reference_nll, -static_cast<double>(std::log(P[5])), 1e-12);
    EXPECT_NEAR(row.candidate_nll, -static_cast<double>(std::log(Q[5])), 1e-12);
    EXPECT_EQ(row.same_top, std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin());
  }
}

TEST(RowDivergence, LargeLogitsAndEqualOnes) {
  const std::vector<float> p{1e30f, -1e30f, 0}, q{3e4f, 3e4f, -3e4f};
  EXPECT_EQ(row_divergence(p.data(), p.data(), 3, 0).kl, 0) << "exactly: the same numbers are subtracted";
  EXPECT_NEAR(row_divergence(p.data(), q.data(), 3, 0).kl, std::log(2.0), 1e-12) << "no overflow";
  const std::vector<float> broken{0, std::numeric_limits<float>::quiet_NaN(), 0}, infinite{0, std::numeric_limits<float>::infinity(), 0};
  EXPECT_FALSE(row_divergence(p.data(), broken.data(), 3, 0).finite);
  EXPECT_FALSE(row_divergence(broken.data(), p.data(), 3, 0).finite);
  EXPECT_FALSE(row_divergence(p.data(), infinite.data(), 3, 0).finite);
}

std::unique_ptr<model::Glm> tiny(const std::filesystem::path& dir, WeightFormat experts,
                                 const std::function<void(test_support::TinyGlm&)>& change = {}) {
  test_support::TinyGlmBuilder builder(
      11, [&](const std::string& module) { return module.find(".experts.") != std::string::npos ? experts : WeightFormat::bf16; });
  auto built = builder.build();
  if (change) change(built);
  built.write(dir);
  return model::Glm::load(dir).value();
}

std::vector<Document> random_documents(std::initializer_list<size_t> lengths) {
  Rng rng(5);
  std::vector<Document> documents;
  for (const size_t length : lengths) {
    Document d{"document " + std::to_string(documents.size()), {}};
    for (size_t i = 0; i < length; ++i) d.tokens.push_back(static_cast<int32_t>(rng.below(160)));
    documents.push_back(std::move(d));
  }
  return documents;
}

class TinyDivergence : public testing::Test {
 protected:
  test_support::TempDir a_, b_;
  std::unique_ptr<model::Glm> bf16_ = tiny(a_.path(), WeightFormat::bf16), mxfp4_ = tiny(b_.path(), WeightFormat::mxfp4);
  std::vector<Document> documents_ = random_documents({2, 40, 70});
};

TEST_F(TinyDivergence, AModelAgainstItselfIsExactlyEqual) {
  const auto report = summarize(measure_divergence(*bf16_, *bf16_, documents_, {.threads = 2}).value(), {});
  EXPECT_EQ(report.documents, 3);
  EXPECT_EQ(report.positions, 1 + 39 + 69);
  for (const Interval& zero : {report.mean_kl, report.p99_kl, report.nll_change}) {
    EXPECT_EQ(zero.value, 0);
    EXPECT_EQ(zero.high, 0);
  }
  for (const Interval& one : {report.top1_agreement, report.expert_agreement, report.indexer_overlap}) EXPECT_EQ(one.value, 1);
  EXPECT_EQ(report.documents_without_divergence, 3);
  EXPECT_EQ(report.median_first_divergence.value, 39);
  std::vector<int64_t> layers;
  for (const auto& layer : report.expert_layers) layers.push_back(layer.layer);
  EXPECT_EQ(layers, (std::vector<int64_t>{1, 2, 3, 4, 5}));
  layers.clear();
  for (const auto& layer : report.indexer_layers) layers.push_back(layer.layer);
  EXPECT_EQ(layers, (std::vector<int64_t>{0, 1, 4}));
}

TEST_F(TinyDivergence, ChunksAndThreadsChangeNothing) {
  const auto whole = measure_divergence(*bf16_, *mxfp4_, documents_, {.threads = 1, .chunk = 1000}).value();
  const auto pieces = measure_divergence(*bf16_, *mxfp4_, documents_, {.threads = 2, .chunk = 7}).value();
  ASSERT_EQ(whole.size(), pieces.size());
  for (size_t d = 0; d < whole.size(); ++d) {
    EXPECT_EQ(whole[d].kl, pieces[d].kl);
    EXPECT_EQ(whole[d].reference_nll, pieces[d].reference_nll);
    EXPECT_EQ(whole[d].same_top, pieces[d].same_top);
    EXPECT_EQ(whole[d].first_divergence, pieces[d].first_divergence);
    for (size_t layer = 0; layer < 6; ++layer) {
      EXPECT_EQ(whole[d].experts[layer].sum, pieces[d].experts[layer].sum) << layer;
      EXPECT_EQ(whole[d].indexer[layer].sum, pieces[d].indexer[layer].sum) << layer;
      EXPECT_EQ(whole[d].indexer[layer].count, pieces[d].indexer[layer].count) << layer;
    }
  }
}

// Logits and lists of the third document, one model after the other with the tests' own driver.
TEST_F(TinyDivergence, SumsAreThoseOfTheModelsRunAlone) {
  const auto& tokens = documents_[2].tokens;
  const auto measured = measure_divergence(*bf16_, *mxfp4_, documents_, {.threads = 2}).value()[2];
  test_support::Capture a, b;
  for (int32_t i = 0; i < 69; ++i) a.rows.insert(i), b.rows.insert(i);
  const std::span<const int32_t> read(tokens.data(), 69);
  test_support::GlmRun reference(*bf16_, {.max_len = 128}), candidate(*mxfp4_, {.max_len = 128});
  const auto p = reference.prefill(read, 69, 69, &a), q = candidate.prefill(read, 69, 69, &b);
  int64_t same = 0, first = -1;
  for (size_t i = 0; i < 69; ++i) {
    const RowDivergence row = row_divergence(p[i].data(), q[i].data(), 160, tokens[i + 1]);
    EXPECT_EQ(row.kl, measured.kl[i]) << i;
    same += row.same_top;
    if (!row.same_top && first < 0) first = static_cast<int64_t>(i);
  }
  EXPECT_EQ(measured.same_top, same);
  EXPECT_EQ(measured.first_divergence, first);
  EXPECT_GT(*std::max_element(measured.kl.begin(), measured.kl.end()), 0);
  // Layer 0 comes before any expert: its lists are equal. Layer 4 sees what the experts made.
  double overlap = 0;
  for (int32_t row = 8; row < 69; ++row) {
    const auto &x = a.lists[4][row], &y = b.lists[4][row];
    const std::set<int32_t> ours(x.begin(), x.end()), theirs(y.begin(), y.end());
    for (const int32_t position : ours) overlap += theirs.contains(position) / 8.0;
  }
  EXPECT_EQ(measured.indexer[0].sum, 61);
  EXPECT_EQ(measured.indexer[4].count, 61);
  EXPECT_NEAR(measured.indexer[4].sum, overlap, 1e-9);
  EXPECT_LT(overlap, 61) << "the case must show a difference";
  EXPECT_EQ(measured.experts[1].sum, 69) << "the router of the first MoE layer sees what no expert has touched";
  EXPECT_LT(measured.experts[5].sum, 69);
}

TEST_F(TinyDivergence, WhatCannotBeComparedIsNamed) {
  const auto refusal = [&](const char* field, Json value) {
    Json json = test_support::tiny_config();
    json[field] = std::move(value);
    const auto checked = check_comparable(bf16_->config(), spec::parse_model_config(json).value());
    return checked ? std::string("no refusal") : checked.error().text();
  };
  EXPECT_THAT(refusal("vocab_size", 176), AllOf(HasSubstr("vocab_size"), HasSubstr("160"), HasSubstr("176")));
  EXPECT_THAT(refusal("index_topk", 16), HasSubstr("index_topk"));
  EXPECT_THAT(refusal("n_routed_experts", 16), HasSubstr("n_routed_experts"));
  EXPECT_THAT(refusal("indexer_types", {"full", "full", "full", "shared", "full", "shared"}), HasSubstr("indexer_types"));
  const auto error = [&](std::vector<int32_t> tokens) {
    const std::vector<Document> one{{"the poem", std::move(tokens)}};
    return measure_divergence(*bf16_, *bf16_, one, {.threads = 1}).error().text();
  };
  EXPECT_THAT(error({1}), HasSubstr("the poem"));
  EXPECT_THAT(error({1, 160}), HasSubstr("160"));
  EXPECT_THAT(error(std::vector<int32_t>(4097, 1)), HasSubstr("4096"));
}

TEST_F(TinyDivergence, LogitsThatAreNoNumbersAreNamed) {
  test_support::TempDir dir;
  const auto broken = tiny(dir.path(), WeightFormat::bf16, [](test_support::TinyGlm& glm) {
    auto& norm = glm.tensor("model.norm.weight");
    norm.data[0] = 0xff, norm.data[1] = 0x7f;  // a bf16 NaN
  });
  EXPECT_THAT(measure_divergence(*bf16_, *broken, documents_, {.threads = 1}).error().text(),
              AllOf(HasSubstr("the candidate"), HasSubstr("position 0"), HasSubstr("document 0")));
  EXPECT_THAT(measure_divergence(*broken, *bf16_, documents_, {.threads = 1}).error().text(), HasSubstr("the reference"));
}

}  // namespace
}  // namespace ingot::quant
