// The indexer: scores of all visible positions, and the exact top-k of them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/index_scores.kernel.h"
#include "kernels/ref/index_scores.h"
#include "kernels/ref/top_k.h"
#include "kernels/top_k.kernel.h"
#include "support/compare.h"
#include "support/inputs.h"
#include "support/machines.h"

namespace ingot::kernels {
namespace {

using namespace ingot::testing;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(IndexScores, TwoSequencesAroundPageBorders) {
  SeededRng rng(1);
  // Pages of 4; sequence 0 has pages 5, 1, 3 and sequence 1 has page 0 alone. Positions stand one before, on and one after a border.
  Buffer<int32_t> pages(std::vector<int32_t>{5, 1, 3, 0, -1, -1});
  Buffer<int32_t> seqs(std::vector<int32_t>{0, 0, 0, 0, 1, 1, 1});
  Buffer<int32_t> positions(std::vector<int32_t>{0, 3, 4, 11, 2, 3, -1});  // the last row is padding: it has no position at all
  const int64_t tokens = positions.size(), stride = 14;
  for (const auto type : {DType::f32, DType::bf16}) {
    for (const int64_t dim : {1, 12, 131}) {
      for (const int64_t heads : {1, 3}) {
        Buffer<float> q(random_floats(rng, tokens * heads * dim)), weights(random_floats(rng, tokens * (heads + 2)));
        Buffer<uint8_t> cache(encoded(random_floats(rng, 6 * 4 * dim), type));
        Buffer<float> scores(tokens * stride);
        const IndexScoresParams p{scores.data(), stride,       q.data(), weights.data(),
                                  heads + 2,     cache.data(), type,     {pages.data(), seqs.data(), positions.data(), 3, 4},
                                  tokens,        heads,        dim,      0.25f};
        run_everywhere<IndexScores>(p, scores);
        const auto expected = ref::index_scores(p);
        for (int64_t t = 0; t < tokens; ++t) {
          const auto& row = expected[static_cast<size_t>(t)];
          std::vector<double> actual;
          for (size_t i = 0; i < row.size(); ++i) actual.push_back(scores[t * stride + static_cast<int64_t>(i)]);
          // A few f32 roundings of a sum of at most `heads` terms of about a unit.
          EXPECT_TRUE(all_close(row, actual, {2e-6, 1e-9, 1.0})) << "token " << t;
          for (int64_t i = positions[t] + 1; i < stride; ++i) EXPECT_TRUE(scores.untouched(t * stride + i)) << t << " " << i;
        }
      }
    }
  }
}

TEST(IndexScores, ANaNIsNotTakenForANegativeDot) {
  Buffer<int32_t> pages(std::vector<int32_t>{0}), seqs(std::vector<int32_t>{0}), positions(std::vector<int32_t>{1});
  Buffer<float> q(std::vector<float>{1.0f, -1.0f}), weights(std::vector<float>{2.0f}),
      keys(std::vector<float>{1.0f, 3.0f, std::nanf(""), 0.0f});
  Buffer<float> scores(2);
  const IndexScoresParams p{
      scores.data(), 2, q.data(), weights.data(), 1, keys.data(), DType::f32, {pages.data(), seqs.data(), positions.data(), 1, 2}, 1, 1, 2,
      1.0f};
  run_everywhere<IndexScores>(p, scores);
  EXPECT_EQ(scores[0], 0.0f);
  EXPECT_TRUE(std::isnan(scores[1]));
}

TEST(IndexScores, AnEmptyBatch) {
  Buffer<float> scores(0);
  run_everywhere<IndexScores>(
      {scores.data(), 4, nullptr, nullptr, 1, nullptr, DType::bf16, {nullptr, nullptr, nullptr, 1, 4}, 0, 2, 8, 1.0f}, scores);
}

// Rows of one length each; what lies behind a row's last position is +infinity and must never be chosen.
void expect_top_k(const std::vector<std::vector<float>>& rows, int64_t k) {
  int64_t stride = 1;
  for (const auto& row : rows) stride = std::max(stride, static_cast<int64_t>(row.size()) + 1);
  std::vector<float> all;
  std::vector<int32_t> last;
  for (const auto& row : rows) {
    all.insert(all.end(), row.begin(), row.end());
    all.resize(static_cast<size_t>(stride) * (last.size() + 1), kInfinity);
    last.push_back(static_cast<int32_t>(row.size()) - 1);
  }
  Buffer<float> scores(all);
  Buffer<int32_t> positions(last), indices(static_cast<int64_t>(rows.size()) * k);
  const TopKParams p{indices.data(), scores.data(), stride, positions.data(), static_cast<int64_t>(rows.size()), k};
  run_everywhere<TopK>(p, indices);
  const std::vector<int32_t> expected = ref::top_k(p), actual = indices.contents();
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(actual[i], expected[i]) << "row " << i / static_cast<size_t>(k) << ", place " << i % static_cast<size_t>(k) << ", k " << k;
}

// Report I2: "selected index k out of range" for sequences shorter than index_topk.
TEST(TopK, SequencesOf1And2AndOneLessAndOneMoreThanK) {
  SeededRng rng(2);
  for (const int64_t k : {1, 2, 8, 300}) {
    std::vector<std::vector<float>> rows;
    for (const int64_t length : {int64_t{1}, int64_t{2}, k - 1, k, k + 1, 2 * k + 3}) rows.push_back(random_floats(rng, length));
    expect_top_k(rows, k);
  }
}

// Report I5: two ranks chose different keys among equal scores.
TEST(TopK, EqualScoresGoToTheSmallerPositions) {
  SeededRng rng(3);
  expect_top_k({std::vector<float>(1000, 0.5f), std::vector<float>(1000, 0.0f)}, 64);
  std::vector<std::vector<float>> rows;
  for (const uint64_t values : {2, 3, 10}) {
    auto& row = rows.emplace_back();
    for (int i = 0; i < 777; ++i) row.push_back(static_cast<float>(rng.below(values)) - 1.0f);
  }
  for (const int64_t k : {1, 7, 256, 776}) expect_top_k(rows, k);
}

// Report I7: padded rows read a buffer nobody had filled.
TEST(TopK, PaddedRowsAreAllMinusOne) {
  SeededRng rng(4);
  expect_top_k({{}, random_floats(rng, 40), {}}, 16);
  expect_top_k({}, 16);
}

// A step whose rows are all short has no scores, and not even a buffer for them.
TEST(TopK, ShortRowsDoNotReadScores) {
  Buffer<int32_t> positions(std::vector<int32_t>{-1, 0, 6, 7}), indices(4 * 8);
  const TopKParams p{indices.data(), nullptr, 0, positions.data(), 4, 8};
  run_everywhere<TopK>(p, indices);
  std::vector<int32_t> expected;
  for (int64_t t = 0; t < positions.size(); ++t)
    for (int32_t i = 0; i < 8; ++i) expected.push_back(i <= positions[t] ? i : -1);
  EXPECT_EQ(indices.contents(), expected);
}

TEST(TopK, NaNsRankBelowMinusInfinityAndZerosAreEqual) {
  const float nan = std::nanf("");
  expect_top_k({{nan, -kInfinity, nan, 1.0f, -kInfinity, nan}, {nan, nan, nan, nan, nan, nan}, {-nan, kInfinity, -1.0f, nan, -2.0f, 3e38f}},
               4);
  expect_top_k({{-0.0f, 0.0f, -0.0f, 0.0f, -1.0f}, {-1.0f, 0.0f, -0.0f, 0.0f, -0.0f}}, 2);
}

TEST(TopK, ValuesThatDifferInTheirLastBitsAlone) {
  SeededRng rng(5);
  std::vector<float> row;
  for (int i = 0; i < 2000; ++i) row.push_back(gpu::bits_float(0x3f812300u + static_cast<uint32_t>(rng.below(200))));
  std::vector<float> negative = row;
  for (float& v : negative) v = -v;
  for (const int64_t k : {5, 1000}) expect_top_k({row, negative}, k);
}

TEST(TopK, AContextOfAMillion) {
  SeededRng rng(6);
  expect_top_k({random_floats(rng, 1048573)}, 2048);
}

}  // namespace
}  // namespace ingot::kernels
