// Writing to and reading from the paged caches.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "base/file_map.h"
#include "base/json.h"
#include "kernels/index_key_store.kernel.h"
#include "kernels/latent_gather.kernel.h"
#include "kernels/latent_store.kernel.h"
#include "kernels/ref/index_key_store.h"
#include "kernels/ref/latent_gather.h"
#include "kernels/ref/latent_store.h"
#include "support/compare.h"
#include "support/latents.h"
#include "support/machines.h"
#include "support/source_dir.h"

namespace ingot::kernels {
namespace {

using namespace ingot::testing;

constexpr float kInf = std::numeric_limits<float>::infinity();

int64_t bytes_of(DType type) { return type == DType::f32 ? 4 : 2; }

// Compares the slots written with the reference, exactly, and all others with what they held. number(slot, i) reads the cache.
template <class Number>
void expect_cache(const Buffer<uint8_t>& cache, int64_t row_bytes, int64_t dim, const Buffer<int32_t>& slots,
                  const std::vector<double>& expected, Number number) {
  std::vector<bool> written(static_cast<size_t>(cache.size() / row_bytes), false);
  for (int64_t t = 0; t < slots.size(); ++t) {
    if (slots[t] < 0) continue;
    written[static_cast<size_t>(slots[t])] = true;
    std::vector<double> row(expected.begin() + t * dim, expected.begin() + (t + 1) * dim), actual;
    for (int64_t i = 0; i < dim; ++i) actual.push_back(number(slots[t], i));
    EXPECT_TRUE(all_close(row, actual, {0.0})) << "token " << t << " in slot " << slots[t];
  }
  for (int64_t i = 0; i < cache.size(); ++i) {
    if (written[static_cast<size_t>(i / row_bytes)]) continue;
    ASSERT_TRUE(cache.untouched(i)) << "slot " << i / row_bytes << " belongs to nobody here";
  }
}

void expect_latents(const Buffer<uint8_t>& cache, const Buffer<int32_t>& slots, const LatentStoreParams& p) {
  expect_cache(
      cache, tensor::latent_row_bytes(p.cache_format, p.latent_dim, p.rope_dim), p.latent_dim + p.rope_dim, slots, ref::latent_store(p),
      [&](int64_t slot, int64_t i) { return ref::latent_number(cache.data(), p.cache_format, p.latent_dim, p.rope_dim, slot, i); });
}

// Odd widths where the format has no scales to be aligned.
int64_t odd_width(LatentFormat format) { return format == LatentFormat::fp8_scaled ? 68 : 67; }

TEST(LatentStore, EachTokenInItsSlotAndPaddingNowhere) {
  SeededRng rng(1);
  for (const LatentFormat format : kLatentFormats) {
    for (const std::vector<int32_t>& list : {std::vector<int32_t>{}, {0}, {-1}, {15, 0, -1, 16, 17, -1}}) {
      const int64_t latent_dim = odd_width(format), rope_dim = 6;
      Buffer<int32_t> slots(list);
      Buffer<uint8_t> cache(18 * tensor::latent_row_bytes(format, latent_dim, rope_dim));
      Buffer<float> latent(random_floats(rng, slots.size() * (latent_dim + 2), -3.0f, 3.0f));
      Buffer<float> k_pe(random_floats(rng, slots.size() * (rope_dim + 1), -3.0f, 3.0f));
      const LatentStoreParams p{cache.data(), format,       latent.data(), latent_dim + 2, k_pe.data(),
                                rope_dim + 1, slots.data(), slots.size(),  latent_dim,     rope_dim};
      run_everywhere<LatentStore>(p, cache);
      expect_latents(cache, slots, p);
    }
  }
}

// Report O5: 449 became NaN on one machine and 448 on another.
TEST(LatentStore, Fp8SaturatesAndKeepsNaN) {
  const std::vector<float> hard = {447.0f, 448.0f, 449.0f, 480.0f, 1e4f,     kInf,    std::nanf(""), -449.0f,
                                   -kInf,  0.0f,   -0.0f,  1e-4f,  0x1p-10f, 0x1p-9f, 0x3p-10f,      0.0155f};
  Buffer<float> latent(hard), k_pe(std::vector<float>{500.0f, -1e9f});
  Buffer<int32_t> slots(std::vector<int32_t>{1});
  const auto dim = static_cast<int64_t>(hard.size()) + 2;
  Buffer<uint8_t> cache(3 * dim);
  const LatentStoreParams p{cache.data(), LatentFormat::fp8, latent.data(), dim - 2, k_pe.data(), 2, slots.data(), 1, dim - 2, 2};
  run_everywhere<LatentStore>(p, cache);
  expect_latents(cache, slots, p);
  EXPECT_EQ(cache[dim + 2], 0x7e);
  EXPECT_EQ(cache[dim + 6] & 0x7f, 0x7f);
  EXPECT_EQ(cache[dim + dim - 1], 0xfe);
}

// The bytes of tools/make_latent_goldens.py: rows of a normal distribution, with outliers, of a thousandth, and at the scales' edges.
TEST(LatentStore, Fp8ScaledGivesTheBytesOfNumpyAndMlDtypes) {
  const auto text = read_file(test_support::source_dir() / "tests/golden/numbers/latents.json", 1 << 20);
  ASSERT_TRUE(text.has_value()) << text.error().text();
  const Json golden = Json::parse(*text);
  const int64_t latent_dim = golden["latent_dim"], rope_dim = golden["rope_dim"], row_bytes = 656;
  ASSERT_EQ(golden["rows"].size(), 5u);
  for (size_t r = 0; r < golden["rows"].size(); ++r) {
    std::vector<float> numbers;
    for (const uint32_t bits : golden["rows"][r]) numbers.push_back(gpu::bits_float(bits));
    Buffer<float> latent(std::vector<float>(numbers.begin(), numbers.begin() + latent_dim));
    Buffer<float> k_pe(std::vector<float>(numbers.begin() + latent_dim, numbers.end()));
    Buffer<int32_t> slots(std::vector<int32_t>{1});
    Buffer<uint8_t> cache(2 * row_bytes);
    run_everywhere<LatentStore>(
        {cache.data(), LatentFormat::fp8_scaled, latent.data(), latent_dim, k_pe.data(), rope_dim, slots.data(), 1, latent_dim, rope_dim},
        cache);
    const std::string stored = golden["stored"][r];
    ASSERT_EQ(stored.size(), static_cast<size_t>(2 * row_bytes));
    for (int64_t i = 0; i < row_bytes; ++i)
      ASSERT_EQ(cache[row_bytes + i], std::stoi(stored.substr(static_cast<size_t>(2 * i), 2), nullptr, 16)) << "row " << r << " byte " << i;
  }
}

TEST(LatentStore, Fp8ScaledOfZerosNaNAndInfinity) {
  constexpr int64_t kLatent = 388, kRope = 2;  // three groups of 128 and one of 4
  std::vector<float> numbers(kLatent, 0.0f);
  numbers[1] = -0.0f;
  for (int64_t i = 128; i < 256; ++i) numbers[static_cast<size_t>(i)] = 1000.0f;
  numbers[130] = std::nanf("");
  numbers[257] = kInf, numbers[258] = -1.0f;
  numbers[384] = 3e38f, numbers[387] = -1e-20f;
  Buffer<float> latent(numbers), k_pe(std::vector<float>{kInf, std::nanf("")});
  Buffer<int32_t> slots(std::vector<int32_t>{0});
  Buffer<uint8_t> cache(tensor::latent_row_bytes(LatentFormat::fp8_scaled, kLatent, kRope));
  const LatentStoreParams p{cache.data(), LatentFormat::fp8_scaled, latent.data(), kLatent, k_pe.data(), kRope, slots.data(), 1, kLatent,
                            kRope};
  run_everywhere<LatentStore>(p, cache);
  expect_latents(cache, slots, p);
  Buffer<int32_t> pages(std::vector<int32_t>{0});
  Buffer<float> back(kLatent), back_pe(kRope);
  run_everywhere<LatentGather>({back.data(), back_pe.data(), cache.data(), p.cache_format, pages.data(), 1, 1, kLatent, kRope}, back,
                               back_pe);
  EXPECT_EQ(back[0], 0.0f);
  EXPECT_TRUE(std::signbit(back[1]));
  EXPECT_NEAR(back[129], 1000.0f, 1000.0f / 16);
  EXPECT_TRUE(std::isnan(back[130])) << "a NaN stays one, and its group does not follow it";
  EXPECT_EQ(back[257], kInf) << "an infinity stays one; beside it nothing is left of small numbers";
  EXPECT_EQ(back[258], 0.0f);
  EXPECT_EQ(back[256], 0.0f) << "and no zero becomes a NaN";
  EXPECT_NEAR(back[384], 3e38f, 3e38f / 16);
  EXPECT_EQ(back_pe[0], kInf);
  EXPECT_TRUE(std::isnan(back_pe[1]));
}

// What a number loses on its way through the cache: half a step of its type, relative for normal numbers of 3 fraction bits (e4m3) or 7
// (bf16), absolute below e4m3's smallest normal, 2^-6 of the scale. The numbers of a group span five orders of magnitude.
TEST(LatentStore, ThereAndBackLosesHalfAStep) {
  SeededRng rng(7);
  constexpr int64_t kLatent = 260, kRope = 64, kTokens = 9, kPage = 4;
  for (const LatentFormat format : kLatentFormats) {
    std::vector<float> numbers, keys;
    for (int64_t i = 0; i < kTokens * kLatent; ++i) numbers.push_back(rng.uniform_float(-1, 1) * std::exp(rng.uniform_float(-8, 4)));
    for (int64_t i = 0; i < kTokens * kRope; ++i) keys.push_back(rng.uniform_float(-8, 8));
    Buffer<float> latent(numbers), k_pe(keys), back(kTokens * kLatent), back_pe(kTokens * kRope);
    Buffer<int32_t> pages(std::vector<int32_t>{2, 0, 1}), slots(std::vector<int32_t>{8, 9, 10, 11, 0, 1, 2, 3, 4});
    Buffer<uint8_t> cache(3 * kPage * tensor::latent_row_bytes(format, kLatent, kRope));
    run_everywhere<LatentStore>({cache.data(), format, latent.data(), kLatent, k_pe.data(), kRope, slots.data(), kTokens, kLatent, kRope},
                                cache);
    run_everywhere<LatentGather>({back.data(), back_pe.data(), cache.data(), format, pages.data(), kPage, kTokens, kLatent, kRope}, back,
                                 back_pe);
    const double relative = format == LatentFormat::f32 ? 0 : format == LatentFormat::bf16 ? 0x1p-8 : 0x1p-4;
    for (int64_t i = 0; i < kTokens * kLatent; ++i) {
      const int64_t row = i / kLatent * kLatent, first = row + i % kLatent / 128 * 128;
      const double scale =
          format != LatentFormat::fp8_scaled ? 1 : ref::latent_scale(numbers.data() + first, std::min<int64_t>(128, row + kLatent - first));
      const double tiny = format == LatentFormat::fp8 || format == LatentFormat::fp8_scaled ? 0x1p-10 * scale : 0;
      ASSERT_LE(std::fabs(back[i] - latent[i]), std::max(relative * std::fabs(latent[i]), tiny))
          << "format " << static_cast<int>(format) << " number " << i;
    }
    const double of_key = format == LatentFormat::f32 ? 0 : format == LatentFormat::fp8 ? 0x1p-4 : 0x1p-8;
    for (int64_t i = 0; i < kTokens * kRope; ++i)
      ASSERT_LE(std::fabs(back_pe[i] - k_pe[i]), std::max(of_key * std::fabs(k_pe[i]), format == LatentFormat::fp8 ? 0x1p-10 : 0)) << i;
  }
}

TEST(IndexKeyStore, EachTokenInItsSlotAndPaddingNowhere) {
  SeededRng rng(2);
  for (const auto type : {DType::f32, DType::bf16}) {
    for (const std::vector<int32_t>& list : {std::vector<int32_t>{}, {4}, {-1, -1}, {3, -1, 0, 4}}) {
      const int64_t dim = 131;
      Buffer<int32_t> slots(list);
      Buffer<uint8_t> cache(5 * dim * bytes_of(type));
      Buffer<float> keys(random_floats(rng, slots.size() * (dim + 5)));
      const IndexKeyStoreParams p{cache.data(), type, keys.data(), dim + 5, slots.data(), slots.size(), dim};
      run_everywhere<IndexKeyStore>(p, cache);
      expect_cache(cache, dim * bytes_of(type), dim, slots, ref::index_key_store(p),
                   [&](int64_t slot, int64_t i) { return ref::number(cache.data(), type, slot * dim + i); });
    }
  }
}

TEST(LatentGather, PagesInAnyOrderAndLengthsAroundAPage) {
  SeededRng rng(3);
  const int64_t rope_dim = 6, page_size = 4;
  for (const LatentFormat format : kLatentFormats) {
    const int64_t latent_dim = odd_width(format), dim = latent_dim + rope_dim;
    for (const int64_t num_keys : {0, 1, 3, 4, 5, 9}) {
      std::vector<int32_t> list = {2, 0, 3};
      list.resize(static_cast<size_t>((num_keys + page_size - 1) / page_size));  // no page more than is needed
      Buffer<int32_t> pages(list);
      Buffer<uint8_t> cache(encoded_latents(random_floats(rng, 4 * page_size * dim), format, latent_dim, rope_dim));
      Buffer<float> latent(num_keys * latent_dim), k_pe(num_keys * rope_dim);
      const LatentGatherParams p{latent.data(), k_pe.data(), cache.data(), format, pages.data(), page_size, num_keys, latent_dim, rope_dim};
      run_everywhere<LatentGather>(p, latent, k_pe);
      std::vector<double> actual;
      for (int64_t i = 0; i < num_keys; ++i) {
        for (int64_t d = 0; d < dim; ++d)
          actual.push_back(d < latent_dim ? latent[i * latent_dim + d] : k_pe[i * rope_dim + d - latent_dim]);
      }
      EXPECT_TRUE(all_close(ref::latent_gather(p), actual, {0.0})) << num_keys;
      EXPECT_TRUE(cache.unchanged());
    }
  }
}

}  // namespace
}  // namespace ingot::kernels
