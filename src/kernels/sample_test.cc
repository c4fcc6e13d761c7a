// The die on the device: penalties, bias and masks; the draw; log probabilities. Symptoms: a token that top_k or top_p had cut off, the
// greater id of two equal logits, a penalty that a draft gets round, a NaN that becomes a token.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/ref/sample.h"
#include "kernels/sample.kernel.h"
#include "kernels/sample_adjust.kernel.h"
#include "kernels/sample_draft.kernel.h"
#include "kernels/sample_logprob.kernel.h"
#include "support/compare.h"
#include "support/inputs.h"
#include "support/machines.h"

namespace ingot::kernels {
namespace {

using namespace ingot::testing;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Logits of about a normal distribution: a few tokens matter, many are far below.
std::vector<float> random_logits(Rng& rng, int64_t count, float spread) {
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int k = 0; k < 6; ++k) sum += rng.uniform_float(-spread, spread);
    out.push_back(sum);
  }
  return out;
}

std::vector<float> row_of(const Buffer<float>& logits, int64_t row, int64_t vocab) {
  return {logits.data() + row * vocab, logits.data() + (row + 1) * vocab};
}

// Draws from each row of `logits`; none is changed.
std::vector<SampledRow> sample(const std::vector<float>& logits, const std::vector<DrawRow>& rows) {
  const auto count = static_cast<int64_t>(rows.size()), vocab = static_cast<int64_t>(logits.size()) / std::max<int64_t>(count, 1);
  Buffer<float> given(logits);
  Buffer<DrawRow> draws(rows);
  Buffer<SampledRow> results(count);
  run_everywhere<SampleRows>({results.data(), given.data(), draws.data(), nullptr, nullptr, nullptr, count, vocab}, results);
  EXPECT_TRUE(given.unchanged());
  return results.contents();
}

// The token at `uniform` when the probabilities are laid end to end by id, give or take the rounding of the sums.
void expect_drawn(const std::vector<double>& probabilities, double uniform, int32_t token, double rounding, const std::string& where) {
  ASSERT_TRUE(token >= 0 && token < static_cast<int32_t>(probabilities.size())) << where << ": token " << token;
  EXPECT_GT(probabilities[static_cast<size_t>(token)], 0.0) << where << ": token " << token << " was cut off";
  double before = 0;
  for (int32_t i = 0; i < token; ++i) before += probabilities[static_cast<size_t>(i)];
  EXPECT_GE(uniform, before - rounding) << where << ": token " << token;
  EXPECT_LE(uniform, before + probabilities[static_cast<size_t>(token)] + rounding) << where << ": token " << token;
}

std::vector<DrawRow> all_kinds(Rng& rng, int64_t vocab) {
  std::vector<DrawRow> rows;
  for (const int32_t top_k : {0, 1, 7, static_cast<int32_t>(vocab) - 1, static_cast<int32_t>(vocab)}) {
    for (const float top_p : {1.0f, 0.95f, 0.4f, 1e-6f}) {
      for (const float min_p : {0.0f, 0.1f}) {
        DrawRow& row = rows.emplace_back();
        row.uniform = rng.uniform();
        row.temperature = rng.uniform_float(0.3f, 1.5f);
        row.top_k = top_k, row.top_p = top_p, row.min_p = min_p;
        row.kind = DrawKind::draw;
      }
    }
  }
  rows[3].kind = DrawKind::greedy;
  return rows;
}

TEST(SampleRows, EveryFilterOverRowsOfOddLengths) {
  SeededRng rng(1);
  for (const int64_t vocab : {1, 2, 17, 160, 1023}) {
    const std::vector<DrawRow> rows = all_kinds(rng, vocab);
    const auto count = static_cast<int64_t>(rows.size());
    std::vector<float> logits = random_logits(rng, count * vocab, 3.0f);
    for (int64_t i = 0; i < count; ++i) {
      // Some rows of few different values, and some tokens that cannot be drawn.
      for (int64_t j = 0; i % 3 == 1 && j < vocab; ++j) logits[static_cast<size_t>(i * vocab + j)] = static_cast<float>(rng.below(4));
      for (int64_t j = 1; i % 4 == 2 && j < vocab; j += 3) logits[static_cast<size_t>(i * vocab + j)] = -kInfinity;
    }
    const std::vector<SampledRow> results = sample(logits, rows);
    for (int64_t i = 0; i < count; ++i) {
      const DrawRow& row = rows[static_cast<size_t>(i)];
      const SampledRow& result = results[static_cast<size_t>(i)];
      const std::vector<float> own(logits.begin() + i * vocab, logits.begin() + (i + 1) * vocab);
      const std::string where = "vocabulary of " + std::to_string(vocab) + ", row " + std::to_string(i);
      expect_drawn(ref::distribution(own, row), row.uniform, result.token_id, 1e-9, where);
      EXPECT_EQ(result.logit, own[static_cast<size_t>(result.token_id)]) << where;
      EXPECT_EQ(result.raw.likeliest, static_cast<int32_t>(ref::ranking(own).front())) << where;
    }
  }
}

// Between any two marks lies one token, so every id comes up in its place.
TEST(SampleRows, UniformNumbersWalkThroughTheTokensById) {
  SeededRng rng(2);
  const int64_t vocab = 60;
  const std::vector<float> own = random_logits(rng, vocab, 1.0f);
  std::vector<DrawRow> rows;
  std::vector<float> logits;
  std::vector<int32_t> expected;
  DrawRow row;
  row.kind = DrawKind::draw;
  row.top_p = 0.9f;
  const std::vector<double> p = ref::distribution(own, row);
  double before = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    for (const double part : {0.01, 0.99}) {
      if (p[i] <= 0) continue;
      row.uniform = before + part * p[i];
      rows.push_back(row);
      expected.push_back(static_cast<int32_t>(i));
      logits.insert(logits.end(), own.begin(), own.end());
    }
    before += p[i];
  }
  row.uniform = 1 - 0x1p-53;  // the greatest there is: the last token that was kept
  rows.push_back(row);
  expected.push_back(expected.back());
  logits.insert(logits.end(), own.begin(), own.end());
  const std::vector<SampledRow> results = sample(logits, rows);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(results[i].token_id, expected[i]) << "uniform " << rows[i].uniform;
}

TEST(SampleRows, EqualLogitsGoByIdAndTopKCutsAmongThem) {
  std::vector<DrawRow> rows;
  std::vector<float> logits;
  for (const int32_t top_k : {1, 3, 64, 500}) {
    for (const double uniform : {0.0, 0.5, 0.999}) {
      DrawRow row;
      row.kind = DrawKind::draw;
      row.top_k = top_k;
      row.uniform = uniform;
      rows.push_back(row);
      logits.resize(logits.size() + 777, 0.25f);
    }
  }
  const std::vector<SampledRow> results = sample(logits, rows);
  for (size_t i = 0; i < rows.size(); ++i)
    EXPECT_EQ(results[i].token_id, static_cast<int32_t>(rows[i].uniform * rows[i].top_k)) << "top_k " << rows[i].top_k;
}

TEST(SampleRows, WhatIsNoNumberIsNamedAndNothingIsDrawn) {
  const float nan = std::nanf("");
  const std::vector<std::vector<float>> given{{1, nan, nan}, {kInfinity, 2, nan}, {-kInfinity, -kInfinity, -kInfinity}, {-kInfinity, 1, 0}};
  std::vector<float> logits;
  for (const auto& row : given) logits.insert(logits.end(), row.begin(), row.end());
  DrawRow greedy;
  greedy.kind = DrawKind::greedy;
  const auto results = sample(logits, {greedy, greedy, greedy, greedy});
  EXPECT_EQ(results[0].raw.likeliest, -1);
  EXPECT_EQ(results[0].raw.bad_id, 1);
  EXPECT_TRUE(std::isnan(results[0].raw.bad_logit));
  EXPECT_EQ(results[1].raw.bad_id, 0);
  EXPECT_EQ(results[1].raw.bad_logit, kInfinity);
  EXPECT_EQ(results[2].raw.likeliest, -1);
  EXPECT_EQ(results[2].raw.bad_id, -1);
  EXPECT_EQ(results[2].token_id, -1);
  EXPECT_EQ(results[3].token_id, 1);
}

TEST(SampleRows, NoRowsAndRowsThatAreNotWanted) {
  sample({}, {});
  Buffer<float> logits(12);  // NaN: not looked at
  Buffer<DrawRow> rows(std::vector<DrawRow>(3));
  Buffer<SampledRow> results(3);
  run_everywhere<SampleRows>({results.data(), logits.data(), rows.data(), nullptr, nullptr, nullptr, 3, 4}, results);
  EXPECT_TRUE(results.unchanged());
}

// The vocabulary of the real model.
TEST(SampleRows, AVocabularyOf154880) {
  SeededRng rng(3);
  const int64_t vocab = 154880;
  std::vector<DrawRow> rows(4);
  for (DrawRow& row : rows) row.kind = DrawKind::draw, row.uniform = rng.uniform();
  rows[1].top_k = 50, rows[1].top_p = 0.9f;
  rows[2].top_p = 0.95f;
  rows[3].temperature = 2.0f, rows[3].min_p = 1e-4f;
  std::vector<float> logits = random_logits(rng, vocab * 4, 4.0f);
  const auto results = sample(logits, rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<float> own(logits.begin() + static_cast<int64_t>(i) * vocab, logits.begin() + static_cast<int64_t>(i + 1) * vocab);
    expect_drawn(ref::distribution(own, rows[i]), rows[i].uniform, results[i].token_id, 1e-8, "row " + std::to_string(i));
  }
}

struct Changed {
  std::vector<DrawRow> rows;
  std::vector<LogitChange> changes;
  std::vector<int32_t> token_ids;
  std::vector<uint32_t> masks;
  int64_t before = 0;
};

// Rows with and without penalties, bias, drafted tokens and masks.
Changed random_changes(Rng& rng, int64_t count, int64_t vocab) {
  Changed made;
  for (int64_t r = 0; r < count; ++r) {
    DrawRow& row = made.rows.emplace_back();
    row.kind = r % 2 == 0 ? DrawKind::greedy : DrawKind::draw;
    row.uniform = rng.uniform();
    row.num_top = 0;
    if (r % 5 == 4) continue;
    row.repetition_penalty = r % 3 == 0 ? 1.3f : 1.0f;
    row.frequency_penalty = 0.37f;
    row.presence_penalty = r % 3 == 1 ? -0.6f : 0.0f;
    row.first_change = static_cast<int32_t>(made.changes.size());
    for (int64_t id = r % 2; id < vocab; id += 1 + static_cast<int64_t>(rng.below(4)))
      made.changes.push_back(
          {static_cast<int32_t>(id), static_cast<int32_t>(rng.below(4)) - 1, rng.below(2) == 0 ? 0.0f : rng.uniform_float(-9, 9)});
    if (r % 7 == 3) made.changes.back().bias = r % 2 == 0 ? 3e38f : -3e38f;
    row.num_changes = static_cast<int32_t>(made.changes.size()) - row.first_change;
    row.first_drafted = static_cast<int32_t>(made.token_ids.size());
    row.num_drafted = static_cast<int32_t>(r % (kMaxDrafted + 1));
    for (int32_t j = 0; j < row.num_drafted; ++j)
      made.token_ids.push_back(
          static_cast<int32_t>(rng.below(j % 2 == 0 ? static_cast<uint64_t>(vocab) : 2) % static_cast<uint64_t>(vocab)));
    if (r % 6 != 5) {
      row.first_before = static_cast<int32_t>(made.before);
      made.before += row.num_changes + row.num_drafted;
    }
    if (r % 4 != 1) continue;
    row.mask = static_cast<int32_t>(static_cast<int64_t>(made.masks.size()) / ((vocab + 31) / 32));
    for (int64_t word = 0; word < (vocab + 31) / 32; ++word) made.masks.push_back(static_cast<uint32_t>(rng.bits()) | 1u);
  }
  return made;
}

TEST(AdjustRows, PenaltiesBiasAndMasksAndTheModelsOwnLogitOfWhatIsDrawn) {
  SeededRng rng(4);
  for (const int64_t vocab : {1, 5, 32, 161, 700}) {
    const int64_t count = 23;
    const Changed made = random_changes(rng, count, vocab);
    const std::vector<float> own = random_logits(rng, count * vocab, 2.0f);
    Buffer<float> logits(own), before(made.before);
    Buffer<DrawRow> rows(made.rows);
    Buffer<LogitChange> changes(made.changes);
    Buffer<int32_t> token_ids(made.token_ids);
    Buffer<uint32_t> masks(made.masks);
    Buffer<SampledRow> results(count);
    const AdjustRowsParams p{logits.data(),    before.data(), results.data(), rows.data(), changes.data(),
                             token_ids.data(), masks.data(),  count,          vocab};
    std::vector<std::vector<float>> expected;
    for (int64_t r = 0; r < count; ++r) expected.push_back(ref::adjust_row(p, r));
    run_everywhere<AdjustRows>(p, logits, before, results);
    for (int64_t r = 0; r < count; ++r) {
      const std::vector<float> actual = row_of(logits, r, vocab);
      for (size_t i = 0; i < actual.size(); ++i)
        ASSERT_EQ(actual[i], expected[static_cast<size_t>(r)][i]) << "row " << r << ", token " << i;
    }
    Buffer<SampledRow> drawn(results.contents());
    run_everywhere<SampleRows>({drawn.data(), logits.data(), rows.data(), changes.data(), token_ids.data(), before.data(), count, vocab},
                               drawn);
    for (int64_t r = 0; r < count; ++r) {
      const DrawRow& row = made.rows[static_cast<size_t>(r)];
      expect_drawn(ref::distribution(expected[static_cast<size_t>(r)], row), row.uniform, drawn[r].token_id, 1e-9,
                   "row " + std::to_string(r));
      const bool kept = row.first_before >= 0 || !row.changes_logits();
      const auto place = static_cast<size_t>(r * vocab + drawn[r].token_id);
      EXPECT_EQ(drawn[r].logit, kept ? own[place] : logits[static_cast<int64_t>(place)]) << "row " << r;
    }
  }
}

TEST(AdjustRows, ABadRowIsLeftAloneAndATokenlessOneIsTold) {
  const float nan = std::nanf("");
  std::vector<DrawRow> rows(3);
  for (DrawRow& row : rows) row.kind = DrawKind::greedy, row.num_changes = 1;
  rows[1].num_changes = 0, rows[1].mask = 0;
  rows[2].num_changes = 0, rows[2].mask = 1;
  for (int32_t r = 0; r < 3; ++r) rows[static_cast<size_t>(r)].first_before = r;
  Buffer<float> logits(std::vector<float>{1, nan, 2, 3, 4, 5, 6, 7, 8}), before(3);
  Buffer<DrawRow> draws(rows);
  Buffer<LogitChange> changes(std::vector<LogitChange>{{0, 1, 1.0f}});
  Buffer<uint32_t> masks(std::vector<uint32_t>{0u, 2u});
  Buffer<SampledRow> results(3);
  run_everywhere<AdjustRows>({logits.data(), before.data(), results.data(), draws.data(), changes.data(), nullptr, masks.data(), 3, 3},
                             logits, results);
  EXPECT_EQ(logits[0], 1.0f);
  Buffer<SampledRow> drawn(results.contents());
  run_everywhere<SampleRows>({drawn.data(), logits.data(), draws.data(), changes.data(), nullptr, before.data(), 3, 3}, drawn);
  EXPECT_EQ(drawn[0].raw.likeliest, -1);
  EXPECT_EQ(drawn[0].raw.bad_id, 1);
  EXPECT_EQ(drawn[0].token_id, -1);
  EXPECT_EQ(drawn[1].token_id, -1);
  EXPECT_EQ(drawn[1].raw.likeliest, 2);
  EXPECT_EQ(drawn[1].adjusted.likeliest, -1);
  EXPECT_EQ(drawn[1].adjusted.bad_id, -1);
  EXPECT_EQ(drawn[2].token_id, 1);
}

TEST(LogprobRows, TotalsAndTheLikeliestInOrder) {
  SeededRng rng(5);
  for (const int64_t vocab : {1, 20, 33, 517, 9001}) {
    std::vector<DrawRow> rows(6);
    const int64_t count = static_cast<int64_t>(rows.size()), max_top = std::min<int64_t>(20, vocab);
    std::vector<float> given = random_logits(rng, count * vocab, 3.0f);
    for (int64_t j = 0; j < vocab; ++j) given[static_cast<size_t>(2 * vocab + j)] = static_cast<float>(rng.below(3));
    for (int64_t j = 1; j < vocab; ++j) given[static_cast<size_t>(3 * vocab + j)] = -kInfinity;
    given[static_cast<size_t>(4 * vocab)] = std::nanf("");
    for (size_t r = 0; r < rows.size(); ++r) rows[r].num_top = static_cast<int32_t>(r == 1 ? 0 : r == 5 ? -1 : max_top);
    Buffer<float> logits(given);
    Buffer<DrawRow> draws(rows);
    Buffer<SampledRow> results(count);
    Buffer<LikelyToken> top(count * max_top);
    run_everywhere<LogprobRows>({results.data(), top.data(), logits.data(), draws.data(), count, vocab, max_top}, results, top);
    for (int64_t r = 0; r < 4; ++r) {
      const std::vector<float> own = row_of(logits, r, vocab);
      // A float has 24 bits; the sums of the kernel have 44 and more.
      EXPECT_NEAR(results[r].max + std::log(results[r].total), ref::log_total(own), 1e-9) << "row " << r;
      const std::vector<size_t> order = ref::ranking(own);
      for (int64_t i = 0; i < rows[static_cast<size_t>(r)].num_top; ++i) {
        EXPECT_EQ(top[r * max_top + i].token_id, static_cast<int32_t>(order[static_cast<size_t>(i)])) << "row " << r << ", place " << i;
        EXPECT_EQ(top[r * max_top + i].logit, own[order[static_cast<size_t>(i)]]);
      }
    }
    for (const int64_t r : {4, 5}) EXPECT_TRUE(results.untouched(r));
    for (int64_t i = 0; i < top.size(); ++i) {
      const int64_t r = i / max_top;
      if (r == 1 || r >= 4) {
        EXPECT_TRUE(top.untouched(i));
      }
    }
  }
}

// A draft that is not there (its row had no numbers) changes no logit, least of all one before the row.
TEST(AdjustRows, AChainThatBrokeOffHasNoTokenToPenalise) {
  DrawRow row;
  row.kind = DrawKind::greedy;
  row.presence_penalty = 2.0f;
  row.num_drafted = 3;
  row.first_before = 0;
  Buffer<float> logits(std::vector<float>{5, 4.5f, 1}), before(3);
  Buffer<DrawRow> rows(std::vector<DrawRow>{row});
  Buffer<int32_t> drafted(std::vector<int32_t>{0, -1, -1});
  Buffer<SampledRow> results(1);
  run_everywhere<AdjustRows>({logits.data(), before.data(), results.data(), rows.data(), nullptr, drafted.data(), nullptr, 1, 3}, logits,
                             before, results);
  EXPECT_EQ(logits.contents(), (std::vector<float>{3, 4.5f, 1}));
  EXPECT_EQ(before[0], 5.0f);
  EXPECT_TRUE(before.untouched(1) && before.untouched(2));
}

TEST(Drafts, TokensGoToTheirPlacesAndFromThere) {
  std::vector<SampledRow> drawn(300);
  std::vector<int32_t> places;
  for (int32_t r = 0; r < 300; ++r) {
    drawn[static_cast<size_t>(r)].token_id = r == 7 ? -1 : 1000 + r;
    places.push_back((r * 7 + 3) % 300 + 1);
  }
  Buffer<SampledRow> results(drawn);
  Buffer<int32_t> where(places), drafted(302);
  run_everywhere<KeepDrafts>({drafted.data(), results.data(), where.data(), 300}, drafted);
  for (int64_t r = 0; r < 300; ++r) EXPECT_EQ(drafted[where[r]], results[r].token_id);
  EXPECT_TRUE(drafted.untouched(0) && drafted.untouched(301));
  std::vector<int32_t> wanted(500, -1);
  for (size_t t = 3; t < 300; ++t) wanted[t] = static_cast<int32_t>(t * 7 % 300 + 1);
  Buffer<int32_t> from(wanted), token_ids(std::vector<int32_t>(500, 9));
  run_everywhere<TakeDrafts>({token_ids.data(), drafted.data(), from.data(), 500}, token_ids);
  for (int64_t t = 0; t < 500; ++t) EXPECT_EQ(token_ids[t], from[t] < 0 ? 9 : std::max(drafted[from[t]], 0)) << t;
  EXPECT_EQ(std::count(token_ids.data(), token_ids.data() + 500, 0), 1) << "of the chain that broke off";
}

TEST(Drafts, ListsGetOneMorePositionWhereTheyEnd) {
  Buffer<int32_t> from(std::vector<int32_t>{0, 1, 2, 3, 4, 9, -1, -1, -1, -1, -1, -1});
  Buffer<int32_t> sources(std::vector<int32_t>{2, 0, 1, 0}), positions(std::vector<int32_t>{70, 71, 72, 73}), to(4 * 5);
  run_everywhere<ExtendLists>({to.data(), from.data(), sources.data(), positions.data(), 4, 4}, to);
  EXPECT_EQ(to.contents(), (std::vector<int32_t>{70, -1, -1, -1, -1, 0, 1, 2, 3, 71, 4, 9, 72, -1, -1, 0, 1, 2, 3, 73}));
}

TEST(Drafts, RowsComeFromBothPlaces) {
  SeededRng rng(6);
  for (const int64_t dim : {1, 257, 600}) {
    Buffer<float> from(random_floats(rng, 3 * dim)), kept(random_floats(rng, 4 * dim)), to(6 * dim);
    Buffer<int32_t> sources(std::vector<int32_t>{2, -1, -4, 0}), targets(std::vector<int32_t>{5, 0, 3, 2});
    run_everywhere<MoveRows>({to.data(), targets.data(), from.data(), kept.data(), sources.data(), 4, dim}, to);
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t i = 0; i < dim; ++i) {
        const float expected = sources[r] >= 0 ? from[sources[r] * dim + i] : kept[(-1 - sources[r]) * dim + i];
        ASSERT_EQ(to[targets[r] * dim + i], expected) << "row " << r;
      }
    }
    for (int64_t i = 0; i < dim; ++i) EXPECT_TRUE(to.untouched(dim + i) && to.untouched(4 * dim + i));
    Buffer<float> dense(4 * dim);
    run_everywhere<MoveRows>({dense.data(), nullptr, from.data(), kept.data(), sources.data(), 4, dim}, dense);
    for (int64_t r = 0; r < 4; ++r) ASSERT_EQ(dense[r * dim], to[targets[r] * dim]);
  }
}

}  // namespace
}  // namespace ingot::kernels
