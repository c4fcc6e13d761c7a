// Writing to and reading from the paged caches.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/index_key_store.kernel.h"
#include "kernels/latent_gather.kernel.h"
#include "kernels/latent_store.kernel.h"
#include "kernels/ref/index_key_store.h"
#include "kernels/ref/latent_gather.h"
#include "kernels/ref/latent_store.h"
#include "support/compare.h"
#include "support/inputs.h"
#include "support/machines.h"

namespace ingot::kernels {
namespace {

using namespace ingot::testing;

int64_t bytes_of(DType type) { return type == DType::f32 ? 4 : type == DType::bf16 ? 2 : 1; }

// Compares the slots written with the reference, exactly, and all others with what they held.
void expect_cache(const Buffer<uint8_t>& cache, DType type, int64_t dim, const Buffer<int32_t>& slots,
                  const std::vector<double>& expected) {
  const int64_t row_bytes = dim * bytes_of(type);
  std::vector<bool> written(static_cast<size_t>(cache.size() / row_bytes), false);
  for (int64_t t = 0; t < slots.size(); ++t) {
    if (slots[t] < 0) continue;
    written[static_cast<size_t>(slots[t])] = true;
    std::vector<double> row(expected.begin() + t * dim, expected.begin() + (t + 1) * dim), actual;
    for (int64_t i = 0; i < dim; ++i) actual.push_back(ref::number(cache.data(), type, slots[t] * dim + i));
    EXPECT_TRUE(all_close(row, actual, {0.0})) << "token " << t << " in slot " << slots[t];
  }
  for (int64_t i = 0; i < cache.size(); ++i) {
    if (written[static_cast<size_t>(i / row_bytes)]) continue;
    ASSERT_TRUE(cache.untouched(i)) << "slot " << i / row_bytes << " belongs to nobody here";
  }
}

TEST(LatentStore, EachTokenInItsSlotAndPaddingNowhere) {
  SeededRng rng(1);
  for (const auto type : {DType::f32, DType::bf16, DType::f8_e4m3}) {
    for (const std::vector<int32_t>& list : {std::vector<int32_t>{}, {0}, {-1}, {15, 0, -1, 16, 17, -1}}) {
      const int64_t latent_dim = 67, rope_dim = 6, dim = latent_dim + rope_dim;
      Buffer<int32_t> slots(list);
      Buffer<uint8_t> cache(18 * dim * bytes_of(type));
      Buffer<float> latent(random_floats(rng, slots.size() * (latent_dim + 2), -3.0f, 3.0f));
      Buffer<float> k_pe(random_floats(rng, slots.size() * (rope_dim + 1), -3.0f, 3.0f));
      const LatentStoreParams p{cache.data(), type,         latent.data(), latent_dim + 2, k_pe.data(),
                                rope_dim + 1, slots.data(), slots.size(),  latent_dim,     rope_dim};
      run_everywhere<LatentStore>(p, cache);
      expect_cache(cache, type, dim, slots, ref::latent_store(p));
    }
  }
}

// Report O5: 449 became NaN on one machine and 448 on another.
TEST(LatentStore, Fp8SaturatesAndKeepsNaN) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> hard = {447.0f, 448.0f, 449.0f, 480.0f, 1e4f,     inf,     std::nanf(""), -449.0f,
                                   -inf,   0.0f,   -0.0f,  1e-4f,  0x1p-10f, 0x1p-9f, 0x3p-10f,      0.0155f};
  Buffer<float> latent(hard), k_pe(std::vector<float>{500.0f, -1e9f});
  Buffer<int32_t> slots(std::vector<int32_t>{1});
  const auto dim = static_cast<int64_t>(hard.size()) + 2;
  Buffer<uint8_t> cache(3 * dim);
  const LatentStoreParams p{cache.data(), DType::f8_e4m3, latent.data(), dim - 2, k_pe.data(), 2, slots.data(), 1, dim - 2, 2};
  run_everywhere<LatentStore>(p, cache);
  expect_cache(cache, DType::f8_e4m3, dim, slots, ref::latent_store(p));
  EXPECT_EQ(cache[dim + 2], 0x7e);
  EXPECT_EQ(cache[dim + 6] & 0x7f, 0x7f);
  EXPECT_EQ(cache[dim + dim - 1], 0xfe);
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
      expect_cache(cache, type, dim, slots, ref::index_key_store(p));
    }
  }
}

TEST(LatentGather, PagesInAnyOrderAndLengthsAroundAPage) {
  SeededRng rng(3);
  const int64_t latent_dim = 67, rope_dim = 6, dim = latent_dim + rope_dim, page_size = 4;
  for (const auto type : {DType::f32, DType::bf16, DType::f8_e4m3}) {
    for (const int64_t num_keys : {0, 1, 3, 4, 5, 9}) {
      std::vector<int32_t> list = {2, 0, 3};
      list.resize(static_cast<size_t>((num_keys + page_size - 1) / page_size));  // no page more than is needed
      Buffer<int32_t> pages(list);
      Buffer<uint8_t> cache(encoded(random_floats(rng, 4 * page_size * dim), type));
      Buffer<float> latent(num_keys * latent_dim), k_pe(num_keys * rope_dim);
      const LatentGatherParams p{latent.data(), k_pe.data(), cache.data(), type, pages.data(), page_size, num_keys, latent_dim, rope_dim};
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
