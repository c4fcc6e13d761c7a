// The H200's native kernels of the indexer, of routing and of attention, through ops.h: against the references, the same bits in every
// company, and that they are what runs. Those that multiply by weights are in native_sm90_test.cc. On the GPU alone (--device).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "kernels/native/sm90/mla.h"
#include "kernels/native/sm90/route.h"
#include "kernels/ops.h"
#include "kernels/ref/index_scores.h"
#include "kernels/ref/permute.h"
#include "kernels/ref/router.h"
#include "kernels/ref/sparse_mla.h"
#include "kernels/ref/top_k.h"
#include "support/compare.h"
#include "support/inputs.h"
#include "support/latents.h"
#include "support/machines.h"
#include "support/native_kernels.h"

namespace ingot::kernels {
namespace {

using namespace ingot::testing;
using gpu::DeviceMatmul;

using Names = std::vector<std::string>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using OnSm90Attention = OnSm90;

template <class Op, class... T>
void run_native(Op op, Buffer<T>&... outputs) {
  run_by({"sm90"}, DeviceMatmul::fast, op, outputs...);
}

// `count` numbers of bf16 in [-size, size].
std::vector<float> bf16_floats(Rng& rng, int64_t count, float size = 1.0f) {
  std::vector<float> out = random_floats(rng, count, -size, size);
  for (float& v : out) v = gpu::bf16_value(gpu::to_bf16(v));
  return out;
}

// Sequences over pages in no order. Page 0 is nobody's, and neither is the end of a last page: what is there is NaN.
struct Sequences {
  int64_t page_size, max_pages, num_slots;
  std::vector<int64_t> lengths;
  Buffer<int32_t> table;  // (sequences, max_pages), -1 behind a sequence's last page

  Sequences(Rng& rng, std::vector<int64_t> all_lengths, int64_t size_of_page)
      : page_size(size_of_page),
        max_pages((*std::max_element(all_lengths.begin(), all_lengths.end()) + page_size - 1) / page_size + 1),
        num_slots(page_size),
        lengths(std::move(all_lengths)),
        table(pages(rng)) {}

  PagedPositions where(const Buffer<int32_t>& seqs, const Buffer<int32_t>& positions) const {
    return {table.data(), seqs.data(), positions.data(), max_pages, page_size};
  }
  // Rows of `row_bytes` each, of which those that no position has become NaN in every format.
  std::vector<uint8_t> only_used(std::vector<uint8_t> rows, int64_t row_bytes) const {
    std::vector<bool> used(static_cast<size_t>(num_slots), false);
    const PagedPositions places{table.data(), nullptr, nullptr, max_pages, page_size};
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int64_t i = 0; i < lengths[s]; ++i) used[static_cast<size_t>(places.slot(static_cast<int64_t>(s), i))] = true;
    }
    for (int64_t slot = 0; slot < num_slots; ++slot) {
      if (!used[static_cast<size_t>(slot)]) std::fill_n(rows.begin() + slot * row_bytes, row_bytes, uint8_t{0xff});
    }
    return rows;
  }

 private:
  std::vector<int32_t> pages(Rng& rng) {
    std::vector<int32_t> free;
    for (const int64_t length : lengths) free.resize(free.size() + static_cast<size_t>((length + page_size - 1) / page_size));
    std::iota(free.begin(), free.end(), 1);
    num_slots = (static_cast<int64_t>(free.size()) + 1) * page_size;
    for (size_t i = free.size(); i > 1; --i) std::swap(free[i - 1], free[rng.below(i)]);
    std::vector<int32_t> out;
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int64_t first = 0; first < lengths[s]; first += page_size) {
        out.push_back(free.back());
        free.pop_back();
      }
      out.resize((s + 1) * static_cast<size_t>(max_pages), -1);
    }
    return out;
  }
};

// ---- the indexer

// A token's scores are exact products of bf16 added in f32, 128 and then 32 at a time, by units that cut instead of rounding. Relative to
// the greatest score of a batch, since short rows may have none that is large.
constexpr Tolerance kScores{2e-5, 1e-9};

TEST_F(OnSm90Attention, ScoresOfSeveralSequencesAndTheirTopK) {
  constexpr int64_t kHeads = 32, kDim = 128;
  for (const int64_t page_size : {64, 16}) {
    SeededRng rng(1);
    const Sequences sequences(rng, {1, 64, 65, 700, 2600}, page_size);
    // Neighbours of one sequence, more than share one reading; a sequence that comes again; padding.
    std::vector<int32_t> seq, last;
    const auto add = [&](int32_t of, int32_t position) {
      seq.push_back(of);
      last.push_back(position);
    };
    for (int32_t i = 0; i < 20; ++i) add(3, 680 + i);
    add(0, 0);
    add(0, -1);
    for (const int32_t position : {62, 63}) add(1, position);
    for (const int32_t position : {63, 64, 2}) add(2, position);
    add(4, 2599);
    add(3, 127);
    for (const int32_t position : {2498, 2499}) add(4, position);
    const Buffer<int32_t> seqs(seq), positions(last);
    const int64_t tokens = positions.size(), stride = 2603;
    const Buffer<uint8_t> cache(sequences.only_used(encoded(random_floats(rng, sequences.num_slots * kDim), DType::bf16), kDim * 2));
    const Buffer<float> q(bf16_floats(rng, tokens * kHeads * kDim)), weights(random_floats(rng, tokens * (kHeads + 3)));
    Buffer<float> scores(tokens * stride);
    const IndexScoresParams p{scores.data(), stride,       q.data(),    weights.data(),
                              kHeads + 3,    cache.data(), DType::bf16, sequences.where(seqs, positions),
                              tokens,        kHeads,       kDim,        0.015625f};
    run_native([&](gpu::Stream& stream) { index_scores(stream, p); }, scores);
    const auto rows = ref::index_scores(p);
    std::vector<double> expected, actual;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto& row = rows[static_cast<size_t>(t)];
      expected.insert(expected.end(), row.begin(), row.end());
      for (int64_t i = 0; i < stride; ++i) {
        if (i <= positions[t])
          actual.push_back(static_cast<double>(scores[t * stride + i]));
        else
          ASSERT_TRUE(scores.untouched(t * stride + i)) << "token " << t << ", position " << i;
      }
    }
    EXPECT_TRUE(all_close(expected, actual, kScores)) << "pages of " << page_size;

    for (const int64_t k : {8, 64, 2048}) {
      Buffer<int32_t> indices(tokens * k);
      const TopKParams chosen{indices.data(), scores.data(), stride, positions.data(), tokens, k};
      run_native([&](gpu::Stream& stream) { top_k(stream, chosen); }, indices);
      EXPECT_EQ(indices.contents(), ref::top_k(chosen)) << k;
    }

    // A token alone has the bits that it has in the batch.
    for (const int64_t t : {0, 7, 19, 21, 25, 27, 30}) {
      Buffer<float> alone(stride);
      IndexScoresParams one = p;
      one.scores = alone.data();
      one.q += t * kHeads * kDim;
      one.weights += t * (kHeads + 3);
      one.where.seq_of_token += t;
      one.where.positions += t;
      one.num_tokens = 1;
      run_native([&](gpu::Stream& stream) { index_scores(stream, one); }, alone);
      for (int64_t i = 0; i <= positions[t]; ++i)
        ASSERT_EQ(gpu::float_bits(alone[i]), gpu::float_bits(scores[t * stride + i])) << "token " << t << ", position " << i;
    }
  }
}

TEST_F(OnSm90Attention, ScoresOfAnEmptyBatch) {
  Buffer<float> scores(0), q(0), weights(0);
  Buffer<uint8_t> cache(64 * 256);
  Buffer<int32_t> none(0), table(std::vector<int32_t>{0});
  const IndexScoresParams p{
      scores.data(), 4,   q.data(), weights.data(), 32, cache.data(), DType::bf16, {table.data(), none.data(), none.data(), 1, 64}, 0, 32,
      128,           1.0f};
  run_native([&](gpu::Stream& stream) { index_scores(stream, p); }, scores);
}

// Rows of one length each; what lies behind a row's last position is +infinity and must never be chosen. Alone and among so many others
// that the kernel for many rows runs.
void expect_top_k(const std::vector<std::vector<float>>& rows, int64_t k) {
  size_t stride = 1;
  for (const auto& row : rows) stride = std::max(stride, row.size() + 3);
  std::vector<int32_t> expected;
  for (const size_t copies : {size_t{1}, 132 / std::max<size_t>(rows.size(), 1) + 1}) {
    std::vector<float> all;
    std::vector<int32_t> last;
    for (size_t i = 0; i < rows.size() * copies; ++i) {
      const auto& row = rows[i % rows.size()];
      all.insert(all.end(), row.begin(), row.end());
      all.resize(stride * (i + 1), kInfinity);
      last.push_back(static_cast<int32_t>(row.size()) - 1);
    }
    const Buffer<float> scores(all);
    const Buffer<int32_t> positions(last);
    Buffer<int32_t> indices(positions.size() * k);
    TopKParams p{indices.data(), scores.data(), static_cast<int64_t>(stride), positions.data(), positions.size(), k};
    run_native([&](gpu::Stream& stream) { top_k(stream, p); }, indices);
    if (copies == 1) {
      expected = ref::top_k(p);
      ASSERT_EQ(indices.contents(), expected) << k;
      continue;
    }
    for (int64_t i = 0; i < indices.size(); ++i)
      ASSERT_EQ(indices[i], expected[static_cast<size_t>(i) % expected.size()]) << "row " << i / k << ", place " << i % k << ", k " << k;
  }
}

TEST_F(OnSm90Attention, TopKOfRowsShorterAndLongerThanK) {
  SeededRng rng(2);
  for (const int64_t k : {1, 8, 300, 2048}) {
    std::vector<std::vector<float>> rows(1);
    for (const int64_t length : {int64_t{1}, int64_t{2}, k - 1, k, k + 1, 2 * k + 3, 4 * k + 4000})
      rows.push_back(random_floats(rng, length));
    expect_top_k(rows, k);
  }
  expect_top_k({}, 16);
}

TEST_F(OnSm90Attention, TopKOfTiesAndScoresThatDifferInTheirLastBits) {
  SeededRng rng(3);
  std::vector<std::vector<float>> rows{std::vector<float>(9000, 0.5f), std::vector<float>(5000, -0.0f)};
  for (const uint64_t values : {2, 3, 10, 1000}) {
    auto& row = rows.emplace_back();
    for (int i = 0; i < 7777; ++i) row.push_back(static_cast<float>(rng.below(values)) - 1.0f);
  }
  auto& close = rows.emplace_back();
  for (int i = 0; i < 6000; ++i) close.push_back(gpu::bits_float(0x3f812300u + static_cast<uint32_t>(rng.below(3000))));
  auto& negative = rows.emplace_back(close);
  for (float& v : negative) v = -v;
  auto& special = rows.emplace_back(random_floats(rng, 5000));
  for (size_t i = 0; i < special.size(); i += 2)
    special[i] = i % 3 == 0 ? std::nanf("") : i % 5 == 0 ? -kInfinity : i % 7 == 0 ? kInfinity : i % 11 == 0 ? -0.0f : 0.0f;
  rows.emplace_back(3000, std::nanf(""));
  for (const int64_t k : {1, 64, 2048}) expect_top_k(rows, k);
}

// Longer than what is looked through at a time.
TEST_F(OnSm90Attention, TopKOfALongContext) {
  SeededRng rng(4);
  const int64_t k = 2048;
  std::vector<float> row = random_floats(rng, 140001), ties = row;
  for (float& v : ties) v = std::round(v * 20.0f);
  std::vector<float> all = row;
  all.insert(all.end(), ties.begin(), ties.end());
  const Buffer<float> scores(all);
  const Buffer<int32_t> positions(std::vector<int32_t>{140000, 140000});
  Buffer<int32_t> indices(2 * k);
  const TopKParams p{indices.data(), scores.data(), 140001, positions.data(), 2, k};
  run_native([&](gpu::Stream& stream) { top_k(stream, p); }, indices);
  EXPECT_EQ(indices.contents(), ref::top_k(p));
}

// ---- routing

struct Routed {
  Buffer<int32_t> experts, order, inverse, offsets;
  Buffer<float> weights;
  RouterParams choice;
  PermuteParams permutation;

  Routed(const Buffer<float>& logits, const Buffer<float>& bias, int64_t tokens, int64_t k, bool normalize)
      : experts(tokens * k),
        order(tokens * k),
        inverse(tokens * k),
        offsets(bias.size() + 1),
        weights(tokens * k),
        choice{experts.data(), weights.data(), logits.data(), bias.data(), tokens, bias.size(), k, normalize, 2.5f},
        permutation{order.data(), inverse.data(), offsets.data(), experts.data(), tokens, bias.size(), k} {}

  template <class Op>
  void run(const Names& kernels, DeviceMatmul matmul, Op op) {
    run_by(
        kernels, matmul, [&](gpu::Stream& stream) { op(stream, *this); }, experts, order, inverse, offsets, weights);
  }
  std::vector<uint8_t> bytes() const { return all_bytes(experts, order, inverse, offsets, weights); }
};

void route_at_once(gpu::Stream& stream, const Routed& r) { route(stream, r.choice, r.permutation); }
void route_in_two(gpu::Stream& stream, const Routed& r) {
  router(stream, r.choice);
  permute(stream, r.permutation);
}

TEST_F(OnSm90Attention, RouterAndPermuteAtOnceAndInTwo) {
  struct Shape {
    int64_t experts, k;
  };
  for (const Shape s : {Shape{256, 8}, {5, 3}, {1, 1}, {67, 32}, {300, 8}, {70, 33}}) {
    SeededRng rng(5);
    // The last two are more than the native kernels take: those for lanes must do.
    const bool native = s.experts <= sm90::kRouteExperts && s.k <= sm90::kRouteChoices;
    const Names two(2, native ? "sm90" : "lanes");
    for (const int64_t tokens : {0, 1, 6, 16, 17, 100, 256, 257, 1000}) {
      // Logits and biases on a grid: sigmoids are equal, or farther apart than any way to compute them in f32.
      std::vector<float> logit, offset;
      for (int64_t i = 0; i < tokens * s.experts; ++i) logit.push_back(static_cast<float>(rng.below(257)) / 32.0f - 4.0f);
      for (int64_t e = 0; e < s.experts; ++e) offset.push_back(rng.below(4) == 0 ? 34.0f : 32.0f);
      const Buffer<float> logits(logit), bias(offset);
      for (const bool normalize : {true, false}) {
        Routed routed(logits, bias, tokens, s.k, normalize);
        routed.run(two, DeviceMatmul::fast, route_in_two);
        const ref::RouterOutput expected = ref::router(routed.choice);
        EXPECT_EQ(routed.experts.contents(), expected.experts) << tokens << " tokens, " << s.experts << " experts";
        // A few roundings of f32, and its exponential function.
        EXPECT_TRUE(all_close(expected.weights, strided(routed.weights, tokens, s.k, s.k), {1e-6, 1e-11}));
        const ref::PermuteOutput sorted = ref::permute(routed.permutation);
        EXPECT_EQ(routed.order.contents(), sorted.order) << tokens << " tokens, " << s.experts << " experts";
        EXPECT_EQ(routed.inverse.contents(), sorted.inverse) << tokens << " tokens, " << s.experts << " experts";
        EXPECT_EQ(routed.offsets.contents(), sorted.offsets) << tokens << " tokens, " << s.experts << " experts";
        const std::vector<uint8_t> bytes = routed.bytes();
        const bool joined = native && tokens <= sm90::Sm90RouteParams::kMaxTokens;
        routed.run(joined ? Names{"sm90"} : two, DeviceMatmul::fast, route_at_once);
        EXPECT_EQ(routed.bytes(), bytes) << tokens << " tokens, " << s.experts << " experts, as one operation";
      }
    }
  }
}

// Scores of any closeness: the kernels for lanes are what native ones must agree with bit for bit.
TEST_F(OnSm90Attention, RoutingHasTheBitsOfTheLaneKernels) {
  SeededRng rng(6);
  for (const int64_t tokens : {6, 300}) {
    const Buffer<float> logits(random_floats(rng, tokens * 256, -6.0f, 6.0f)), bias(random_floats(rng, 256, 33.9f, 34.1f));
    Routed routed(logits, bias, tokens, 8, true);
    routed.run({"lanes", "lanes"}, DeviceMatmul::lanes, route_in_two);
    const std::vector<uint8_t> bytes = routed.bytes();
    routed.run({"sm90", "sm90"}, DeviceMatmul::fast, route_in_two);
    EXPECT_EQ(routed.bytes(), bytes) << tokens;
  }
}

// ---- attention

constexpr int64_t kLatent = 512, kRope = 64, kRow = kLatent + kRope;

// Of one token. Weights are rounded, by half a step, before they are multiplied with the latents: by 2^-8 of themselves at most in bf16,
// and 2^-11 in f16, which fp8 caches take; the sum that they are divided by need not be of the rounded ones. All else is f32.
Tolerance attention_tolerance(LatentFormat format) {
  return format == LatentFormat::bf16 ? Tolerance{6e-3, 4e-6} : Tolerance{7.5e-4, 1e-7};
}

SparseMlaParams token_of(SparseMlaParams p, int64_t t) {
  p.out += t * p.heads * kLatent;
  p.q += t * p.heads * kRow;
  if (p.indices != nullptr) p.indices += t * p.topk;
  p.where.seq_of_token += t;
  p.where.positions += t;
  p.num_tokens = 1;
  return p;
}

std::vector<uint8_t> latent_cache(Rng& rng, const Sequences& sequences, LatentFormat format) {
  return sequences.only_used(encoded_latents(random_floats(rng, sequences.num_slots * kRow), format, kLatent, kRope),
                             static_cast<int64_t>(tensor::latent_row_bytes(format, kLatent, kRope)));
}

// What tokens look at. Lists are (tokens, topk), or empty for all positions up to a token's own.
struct Looks {
  std::vector<int32_t> seqs, positions, lists;
  int64_t topk = 0;
};

// The first `count` of groups of `size` numbers that come again and again.
template <class T>
std::vector<T> cycled(const std::vector<T>& groups, int64_t size, int64_t count) {
  std::vector<T> out;
  for (int64_t i = 0; i < count * size; ++i) out.push_back(groups[static_cast<size_t>(i) % groups.size()]);
  return out;
}

// The tokens against the reference; and, for every kernel that a number of rows chooses, their bits: they are the same in every company.
void expect_attention(Rng& rng, const Sequences& sequences, const Looks& looks, LatentFormat format, int64_t heads) {
  const auto tokens = static_cast<int64_t>(looks.seqs.size());
  const Buffer<uint8_t> cache(latent_cache(rng, sequences, format));
  // Scores of a unit or so, and of several for every other token: its weights differ much.
  std::vector<float> queries;
  for (int64_t t = 0; t < tokens; ++t) {
    const std::vector<float> one = bf16_floats(rng, heads * kRow, t % 2 == 0 ? 1.0f : 4.0f);
    queries.insert(queries.end(), one.begin(), one.end());
  }
  std::set<std::string> entries;
  std::vector<uint32_t> bits;  // of each token once
  for (const int64_t batch : {tokens, int64_t{1}, int64_t{4}, int64_t{20}, int64_t{70}, int64_t{150}}) {
    const Buffer<int32_t> seqs(cycled(looks.seqs, 1, batch)), positions(cycled(looks.positions, 1, batch)),
        lists(cycled(looks.lists, looks.topk, batch));
    const Buffer<float> q(cycled(queries, heads * kRow, batch));
    Buffer<float> out(batch * heads * kLatent);
    const SparseMlaParams p{out.data(),
                            q.data(),
                            cache.data(),
                            format,
                            looks.topk == 0 ? nullptr : lists.data(),
                            looks.topk,
                            sequences.where(seqs, positions),
                            batch,
                            heads,
                            kLatent,
                            kRope,
                            0.0625f};
    entries.insert(sm90::Sm90MlaParams{p}.entry());
    run_native([&](gpu::Stream& stream) { sparse_mla(stream, p); }, out);
    if (bits.empty()) {
      for (int64_t t = 0; t < tokens; ++t) {
        const float* row = out.data() + t * heads * kLatent;
        EXPECT_TRUE(all_close(ref::sparse_mla(token_of(p, t)), {row, row + heads * kLatent}, attention_tolerance(format)))
            << "token " << t << ", " << heads << " heads, format " << static_cast<int>(format);
      }
      for (int64_t i = 0; i < out.size(); ++i) bits.push_back(gpu::float_bits(out[i]));
    }
    for (int64_t i = 0; i < out.size(); ++i)
      ASSERT_EQ(gpu::float_bits(out[i]), bits[static_cast<size_t>(i) % bits.size()])
          << "token " << i / (heads * kLatent) << " of " << batch;
  }
  EXPECT_EQ(entries.size(), 3u) << "not all kernels for " << heads << " heads were run";
  EXPECT_TRUE(cache.unchanged());
}

constexpr LatentFormat kNativeLatents[] = {LatentFormat::bf16, LatentFormat::fp8, LatentFormat::fp8_scaled};

TEST_F(OnSm90Attention, ListsWithTailsAndHolesAndWithoutAnyKey) {
  SeededRng rng(7);
  const Sequences sequences(rng, {1, 17, 64, 65, 300}, 64);
  Looks looks;
  looks.topk = 100;
  const auto add = [&](int32_t seq, auto position_at) {
    looks.seqs.push_back(seq);
    looks.positions.push_back(static_cast<int32_t>(sequences.lengths[static_cast<size_t>(seq)]) - 1);
    for (int32_t i = 0; i < 100; ++i) looks.lists.push_back(position_at(i));
  };
  add(4, [](int32_t i) { return 3 * i; });                        // a full list
  add(3, [](int32_t i) { return i < 65 ? i : -1; });              // a tail
  add(2, [](int32_t i) { return i % 3 == 1 ? -1 : i * 2 / 5; });  // holes
  add(0, [](int32_t i) { return i == 99 ? 0 : -1; });             // one key, in the last place
  add(4, [](int32_t) { return -1; });                             // none
  add(4, [](int32_t i) { return i == 16 || i == 63 ? 4 * i : -1; });
  add(1, [](int32_t i) { return i < 17 ? 16 - i : -1; });
  for (const LatentFormat format : kNativeLatents) {
    for (const int64_t heads : {8, 16, 64}) expect_attention(rng, sequences, looks, format, heads);
  }
}

TEST_F(OnSm90Attention, AllPositionsAroundBlocksAndPages) {
  SeededRng rng(8);
  const Sequences sequences(rng, {1, 17, 64, 65, 300}, 16);
  const Looks looks{{4, 3, 2, 0, 0, 1, 4, 1}, {299, 64, 63, 0, -1, 16, 15, 14}, {}, 0};
  for (const LatentFormat format : kNativeLatents) {
    for (const int64_t heads : {8, 16, 64}) expect_attention(rng, sequences, looks, format, heads);
  }
}

// The list of GLM-5.2, and heads that are passes of 8.
TEST_F(OnSm90Attention, TwoThousandChosenPositions) {
  SeededRng rng(9);
  const Sequences sequences(rng, {2500}, 64);
  Looks looks{{0}, {2499}, {}, 2048};
  for (int32_t i = 0; i < 2048; ++i) looks.lists.push_back(i * 1220 / 1000);
  for (const LatentFormat format : kNativeLatents) expect_attention(rng, sequences, looks, format, 24);
}

// Batch invariance: how many rows there are, and a row's place among them, change no bit.
TEST_F(OnSm90Attention, ARowOfAttentionHasItsBitsInEveryCompany) {
  constexpr int64_t kRows = 600, kTopK = 80;
  for (const LatentFormat format : kNativeLatents) {
    for (const int64_t heads : {8, 16}) {
      SeededRng rng(10);
      const Sequences sequences(rng, {90, 400}, 16);
      std::vector<int32_t> seq, position, list;
      for (int64_t t = 0; t < kRows; ++t) {
        const auto of = static_cast<size_t>(rng.below(2));
        const auto used = static_cast<int64_t>(rng.below(kTopK + 1));
        seq.push_back(static_cast<int32_t>(of));
        position.push_back(static_cast<int32_t>(sequences.lengths[of]) - 1);
        for (int64_t i = 0; i < kTopK; ++i)
          list.push_back(i < used ? static_cast<int32_t>(rng.below(static_cast<uint64_t>(sequences.lengths[of]))) : -1);
      }
      const Buffer<int32_t> seqs(seq), positions(position), lists(list);
      const Buffer<uint8_t> cache(latent_cache(rng, sequences, format));
      const Buffer<float> q(bf16_floats(rng, kRows * heads * kRow));
      const auto attention = [&](int64_t first, int64_t rows) {
        Buffer<float> out(rows * heads * kLatent);
        SparseMlaParams p{out.data(), q.data(), cache.data(), format, lists.data(), kTopK, sequences.where(seqs, positions),
                          kRows,      heads,    kLatent,      kRope,  0.0625f};
        p = token_of(p, first);
        p.out = out.data();
        p.num_tokens = rows;
        run_native([&](gpu::Stream& stream) { sparse_mla(stream, p); }, out);
        return all_bytes(out);
      };
      const int64_t row_bytes = heads * kLatent * 4;
      const std::vector<uint8_t> together = attention(0, kRows);
      const auto part = [&](int64_t first, int64_t rows) {
        return std::vector<uint8_t>(together.begin() + first * row_bytes, together.begin() + (first + rows) * row_bytes);
      };
      for (const int64_t rows : {1, 6, 16, 17, 40, 66, 67, 133, 192, 300})
        EXPECT_EQ(attention(0, rows), part(0, rows)) << rows << " of " << heads << " heads";
      for (const int64_t row : {5, 191, 599}) EXPECT_EQ(attention(row, 1), part(row, 1)) << "row " << row << " alone";
      EXPECT_EQ(attention(299, 301), part(299, 301)) << "from row 299 on";
    }
  }
}

}  // namespace
}  // namespace ingot::kernels
