// Attention over the paged latent cache (absorbed) and over expanded keys.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/expanded_mla.kernel.h"
#include "kernels/ref/expanded_mla.h"
#include "kernels/ref/sparse_mla.h"
#include "kernels/sparse_mla.kernel.h"
#include "support/compare.h"
#include "support/latents.h"
#include "support/machines.h"

namespace ingot::kernels {
namespace {

using namespace ingot::testing;

// Cached numbers are exact once decoded. A score of size s is off by some 2^-22 s, which is the relative error of its weight.
constexpr Tolerance kAttention{4e-6, 1e-10};

// One sequence over pages of 4 in falling order, enough for `positions` positions.
std::vector<int32_t> falling_pages(int64_t positions) {
  std::vector<int32_t> pages;
  for (int64_t i = (positions + 3) / 4; i > 0; --i) pages.push_back(static_cast<int32_t>(i - 1));
  return pages;
}

TEST(SparseMla, AllPositionsUpToTheTokenAroundTilesAndPages) {
  SeededRng rng(1);
  Buffer<int32_t> pages(falling_pages(132));
  Buffer<int32_t> positions(std::vector<int32_t>{0, 2, 3, 4, 62, 63, 64, 130, -1});  // tiles have 64 keys; the last row is padding
  const int64_t tokens = positions.size(), heads = 2, rope_dim = 6;
  Buffer<int32_t> seqs(std::vector<int32_t>(static_cast<size_t>(tokens), 0));
  for (const LatentFormat format : kLatentFormats) {
    const int64_t latent_dim = format == LatentFormat::fp8_scaled ? 132 : 37, dim = latent_dim + rope_dim;  // one group and 4 numbers
    Buffer<uint8_t> cache(encoded_latents(random_floats(rng, 132 * dim), format, latent_dim, rope_dim));
    Buffer<float> q(random_floats(rng, tokens * heads * dim)), out(tokens * heads * latent_dim);
    const SparseMlaParams p{out.data(), q.data(), cache.data(), format,   nullptr, 0, {pages.data(), seqs.data(), positions.data(), 33, 4},
                            tokens,     heads,    latent_dim,   rope_dim, 0.3f};
    run_everywhere<SparseMla>(p, out);
    std::vector<double> expected = ref::sparse_mla(p);
    EXPECT_TRUE(all_close(expected, strided(out, tokens * heads, latent_dim, latent_dim), kAttention)) << static_cast<int>(format);
    EXPECT_EQ(out[(tokens * heads - 1) * latent_dim], 0.0f) << "a padding row gives zeros";
  }
}

TEST(SparseMla, ChosenPositionsOfTwoSequencesWithUnusedPlaces) {
  SeededRng rng(2);
  const int64_t heads = 3, rope_dim = 4, topk = 70;
  // Sequence 0: pages 3, 0; sequence 1: page 2.
  Buffer<int32_t> pages(std::vector<int32_t>{3, 0, 2, -1}), seqs(std::vector<int32_t>{0, 1, 0, 1}),
      positions(std::vector<int32_t>{79, 9, 4, -1});
  std::vector<int32_t> list(4 * 70, -1);
  for (int i = 0; i < 70; ++i) list[static_cast<size_t>(i)] = i + i / 8;  // a full list
  for (int i = 0; i < 10; ++i) list[static_cast<size_t>(70 + i)] = i;     // a list longer than the sequence
  for (int i = 0; i < 2; ++i)
    list[static_cast<size_t>(140 + 66 + i)] = 4 * i;  // unused places first, in a tile of their own; row 3 is padding
  Buffer<int32_t> indices(list);
  for (const LatentFormat format : kLatentFormats) {
    const int64_t latent_dim = format == LatentFormat::fp8_scaled ? 36 : 33, dim = latent_dim + rope_dim;
    Buffer<uint8_t> cache(encoded_latents(random_floats(rng, 4 * 40 * dim), format, latent_dim, rope_dim));
    Buffer<float> q(random_floats(rng, 4 * heads * dim)), out(4 * heads * latent_dim);
    const SparseMlaParams p{
        out.data(), q.data(),   cache.data(), format, indices.data(), topk, {pages.data(), seqs.data(), positions.data(), 2, 40}, 4,
        heads,      latent_dim, rope_dim,     0.5f};
    run_everywhere<SparseMla>(p, out);
    const std::vector<double> actual = strided(out, 4 * heads, latent_dim, latent_dim);
    std::vector<double> expected = ref::sparse_mla(p);
    EXPECT_TRUE(all_close(expected, actual, kAttention)) << static_cast<int>(format);
  }
}

TEST(SparseMla, WidthsPastOneSetOfAccumulators) {
  SeededRng rng(3);
  for (const int64_t latent_dim : {1, 512, 700}) {
    const int64_t dim = latent_dim + 64;
    Buffer<int32_t> pages(falling_pages(8)), seqs(std::vector<int32_t>{0}), positions(std::vector<int32_t>{6});
    Buffer<uint8_t> cache(encoded(random_floats(rng, 8 * dim), DType::bf16));
    Buffer<float> q(random_floats(rng, dim)), out(latent_dim);
    const SparseMlaParams p{
        out.data(), q.data(), cache.data(), LatentFormat::bf16, nullptr, 0, {pages.data(), seqs.data(), positions.data(), 2, 4}, 1, 1,
        latent_dim, 64,       0.0625f};
    run_everywhere<SparseMla>(p, out);
    EXPECT_TRUE(all_close(ref::sparse_mla(p), strided(out, 1, latent_dim, latent_dim), kAttention)) << latent_dim;
  }
}

// The widths of GLM-5.2 with a full list, two heads of its 64, in both forms of 8 bits.
TEST(SparseMla, TwoThousandChosenPositionsOfWidth576) {
  SeededRng rng(6);
  const int64_t heads = 2, dim = 576, topk = 2048, positions_held = 2500;
  Buffer<int32_t> pages(falling_pages(positions_held)), seqs(std::vector<int32_t>{0}), positions(std::vector<int32_t>{2499});
  std::vector<int32_t> list;
  for (int32_t i = 0; i < topk; ++i) list.push_back(i * 1220 / 1000);
  Buffer<int32_t> indices(list);
  for (const LatentFormat format : {LatentFormat::fp8, LatentFormat::fp8_scaled}) {
    Buffer<uint8_t> cache(encoded_latents(random_floats(rng, positions_held * dim), format, 512, 64));
    Buffer<float> q(random_floats(rng, heads * dim)), out(heads * 512);
    const SparseMlaParams p{
        out.data(), q.data(), cache.data(), format, indices.data(), topk, {pages.data(), seqs.data(), positions.data(), 625, 4},
        1,          heads,    512,          64,     0.0625f};
    run_everywhere<SparseMla>(p, out);
    // The mean of two thousand random values is small beside them; their rounding errors are not averaged away as fast.
    EXPECT_TRUE(all_close(ref::sparse_mla(p), strided(out, heads, 512, 512), {4e-6, 1e-10})) << static_cast<int>(format);
  }
}

// exp(score) alone would overflow, and the largest score comes last, in another tile than the first.
TEST(SparseMla, ScoresOfThousandsStayFinite) {
  std::vector<float> keys;
  for (int i = 0; i < 100; ++i) keys.insert(keys.end(), {static_cast<float>(i), -50.0f * static_cast<float>(100 - i)});
  Buffer<int32_t> pages(std::vector<int32_t>{0}), seqs(std::vector<int32_t>{0}), positions(std::vector<int32_t>{99});
  Buffer<float> cache(keys), q(std::vector<float>{0.0f, 1.0f}), out(1);
  const SparseMlaParams p{
      out.data(), q.data(), cache.data(), LatentFormat::f32, nullptr, 0, {pages.data(), seqs.data(), positions.data(), 1, 100}, 1, 1,
      1,          1,        1.0f};
  run_everywhere<SparseMla>(p, out);
  EXPECT_EQ(out[0], 99.0f);
}

TEST(SparseMla, AnEmptyBatch) {
  Buffer<float> out(0);
  run_everywhere<SparseMla>(
      {out.data(), nullptr, nullptr, LatentFormat::f32, nullptr, 4, {nullptr, nullptr, nullptr, 1, 4}, 0, 2, 8, 2, 1.0f}, out);
}

TEST(ExpandedMla, EveryPositionAndListsWithGaps) {
  SeededRng rng(4);
  const int64_t heads = 2, nope = 11, rope = 6, v = 19, keys = 70, topk = 66;
  Buffer<int32_t> positions(std::vector<int32_t>{0, 5, 63, 64, 69});
  const int64_t tokens = positions.size();
  std::vector<int32_t> list(static_cast<size_t>(tokens * topk), -1);
  for (int64_t t = 0; t < tokens; ++t) {
    // Every position but a few; token 1's list also names position 6, which it cannot see.
    int64_t place = 0;
    for (int32_t s = 0; s <= positions[t] + (t == 1 ? 1 : 0); ++s) {
      if (s % 13 != 12 && place < topk) list[static_cast<size_t>(t * topk + place++)] = s;
    }
  }
  Buffer<int32_t> indices(list);
  Buffer<float> q(random_floats(rng, tokens * heads * (nope + rope))), kv(random_floats(rng, keys * heads * (nope + v)));
  Buffer<float> k_pe(random_floats(rng, keys * (rope + 3)));
  for (const int32_t* chosen : {static_cast<const int32_t*>(nullptr), static_cast<const int32_t*>(indices.data())}) {
    Buffer<float> out(tokens * heads * v);
    const ExpandedMlaParams p{out.data(), q.data(), kv.data(), k_pe.data(), rope + 3, positions.data(), chosen, topk, tokens,
                              heads,      nope,     rope,      v,           0.4f};
    run_everywhere<ExpandedMla>(p, out);
    EXPECT_TRUE(all_close(ref::expanded_mla(p), strided(out, tokens * heads, v, v), kAttention)) << (chosen != nullptr);
  }
}

// Dense equivalence: a list that holds all positions changes nothing, whatever its length.
TEST(ExpandedMla, AListOfAllPositionsIsNoList) {
  SeededRng rng(5);
  Buffer<int32_t> positions(std::vector<int32_t>{6});
  Buffer<int32_t> indices(std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, -1, -1});
  Buffer<float> q(random_floats(rng, 12)), kv(random_floats(rng, 7 * 16)), k_pe(random_floats(rng, 7 * 4)), dense(8), listed(8);
  ExpandedMlaParams p{dense.data(), q.data(), kv.data(), k_pe.data(), 4, positions.data(), nullptr, 0, 1, 1, 8, 4, 8, 0.3f};
  run_everywhere<ExpandedMla>(p, dense);
  p.out = listed.data();
  p.indices = indices.data();
  p.topk = indices.size();
  run_everywhere<ExpandedMla>(p, listed);
  EXPECT_EQ(dense.contents(), listed.contents());
}

TEST(ExpandedMla, AnEmptyBatch) {
  Buffer<float> out(0);
  run_everywhere<ExpandedMla>({out.data(), nullptr, nullptr, nullptr, 4, nullptr, nullptr, 0, 0, 2, 8, 4, 8, 1.0f}, out);
}

}  // namespace
}  // namespace ingot::kernels
