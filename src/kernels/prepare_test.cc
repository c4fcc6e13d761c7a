// What a layer makes of its tokens' projections before attention, as one kernel.
#include <gtest/gtest.h>

#include <cmath>

#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "kernels/qkv_prepare.kernel.h"
#include "kernels/ref/latent_rows.h"
#include "kernels/ref/qkv_prepare.h"
#include "support/compare.h"
#include "support/inputs.h"
#include "support/latents.h"
#include "support/machines.h"

namespace ingot::kernels {
namespace {

using namespace ingot::testing;

// A handful of f32 roundings; where what they are made of is rounded once more, a number may then fall on the other side: rarely (so that
// the whole stays similar), and by one step of its type, 2^-7 (bf16) or 2^-3 (e4m3) of itself.
constexpr Tolerance kF32{1e-6, 1e-11}, kBf16{0x1p-7, 1e-6}, kE4m3{0x1p-3, 1e-5};

struct Shape {
  int64_t q_dim, latent_dim, rope_dim, index_dim, index_offset;  // index_dim 0: no indexer
};

// Rows with a NaN in each gap between them.
std::vector<float> rows_with_gaps(Rng& rng, int64_t rows, int64_t dim, int64_t gap) {
  std::vector<float> out;
  for (int64_t i = 0; i < rows * (dim + gap); ++i) out.push_back(i % (dim + gap) < dim ? rng.uniform_float(-3.0f, 3.0f) : std::nanf(""));
  return out;
}

struct Case {
  Case(Rng& rng, const Shape& shape, LatentFormat latent_format, DType weight_type, DType key_type, bool pairs, std::vector<int32_t> list)
      : s(shape),
        format(latent_format),
        weights(weight_type),
        index_type(key_type),
        interleave(pairs),
        tokens(static_cast<int64_t>(list.size())),
        slots(std::move(list)),
        q(rows_with_gaps(rng, tokens, s.q_dim, 3)),
        kv(rows_with_gaps(rng, tokens, s.latent_dim + s.rope_dim, 2)),
        keys(rows_with_gaps(rng, tokens, s.index_dim, 1)),
        table(random_floats(rng, tokens * s.rope_dim)),
        q_weight(encoded(random_floats(rng, s.q_dim), weights)),
        kv_weight(encoded(random_floats(rng, s.latent_dim), weights)),
        index_weight(encoded(random_floats(rng, s.index_dim), weights)),
        index_bias(encoded(random_floats(rng, s.index_dim), weights)),
        cache(kSlots * row_bytes()),
        index_cache(kSlots * s.index_dim * (index_type == DType::f32 ? 4 : 2)) {}

  int64_t row_bytes() const { return tensor::latent_row_bytes(format, s.latent_dim, s.rope_dim); }

  QkvPrepareParams params() {
    const int64_t kv_stride = s.latent_dim + s.rope_dim + 2, key_stride = s.index_dim + 1, q_stride = s.q_dim + 3;
    QkvPrepareParams p = {};
    p.q_norm = {q.data(), q_stride, q.data(), q_stride, q_weight.data(), weights, tokens, s.q_dim, 1e-5f};
    p.kv_norm = {kv.data(), kv_stride, kv.data(), kv_stride, kv_weight.data(), weights, tokens, s.latent_dim, 1e-6f};
    p.k_rope = {kv.data(), kv_stride, kv_stride, s.latent_dim, table.data(), tokens, 1, s.rope_dim, interleave};
    p.latent_store = {cache.data(), format,       kv.data(), kv_stride,    kv.data() + s.latent_dim,
                      kv_stride,    slots.data(), tokens,    s.latent_dim, s.rope_dim};
    if (s.index_dim == 0) return p;
    p.index_norm = {keys.data(),       key_stride, keys.data(), key_stride,  index_weight.data(),
                    index_bias.data(), weights,    tokens,      s.index_dim, 1e-6f};
    p.index_rope = {keys.data(), key_stride, key_stride, s.index_offset, table.data(), tokens, 1, s.rope_dim, !interleave};
    p.index_store = {index_cache.data(), index_type, keys.data(), key_stride, slots.data(), tokens, s.index_dim};
    return p;
  }

  void expect(const ref::QkvPrepareOutput& expected) {
    const bool fp8 = format == LatentFormat::fp8 || format == LatentFormat::fp8_scaled;
    const Tolerance of_cache = format == LatentFormat::f32 ? kF32 : fp8 ? kE4m3 : kBf16;
    EXPECT_TRUE(all_close(expected.q, strided(q, tokens, s.q_dim + 3, s.q_dim), kF32));
    EXPECT_TRUE(gaps_untouched(q, s.q_dim + 3, s.q_dim));
    EXPECT_TRUE(gaps_untouched(kv, s.latent_dim + s.rope_dim + 2, s.latent_dim + s.rope_dim));
    expect_rows(cache, row_bytes(), expected.latents, s.latent_dim + s.rope_dim, of_cache,
                [&](int64_t slot, int64_t i) { return ref::latent_number(cache.data(), format, s.latent_dim, s.rope_dim, slot, i); });
    if (s.index_dim == 0) return;
    EXPECT_TRUE(gaps_untouched(keys, s.index_dim + 1, s.index_dim));
    expect_rows(index_cache, s.index_dim * (index_type == DType::f32 ? 4 : 2), expected.keys, s.index_dim,
                index_type == DType::f32 ? kF32 : kBf16,
                [&](int64_t slot, int64_t i) { return ref::number(index_cache.data(), index_type, slot * s.index_dim + i); });
  }

  // The rows of the tokens' slots, and that no other was touched.
  template <class Number>
  void expect_rows(const Buffer<uint8_t>& buffer, int64_t bytes, const std::vector<double>& expected, int64_t dim, Tolerance tolerance,
                   Number number) {
    std::vector<bool> written(kSlots, false);
    for (int64_t t = 0; t < tokens; ++t) {
      if (slots[t] < 0) continue;
      written[static_cast<size_t>(slots[t])] = true;
      std::vector<double> row(expected.begin() + t * dim, expected.begin() + (t + 1) * dim), actual;
      for (int64_t i = 0; i < dim; ++i) actual.push_back(number(slots[t], i));
      EXPECT_TRUE(all_close(row, actual, tolerance)) << "token " << t << " in slot " << slots[t];
    }
    for (int64_t i = 0; i < buffer.size(); ++i) {
      if (written[static_cast<size_t>(i / bytes)]) continue;
      ASSERT_TRUE(buffer.untouched(i)) << "slot " << i / bytes << " belongs to nobody here";
    }
  }

  static constexpr int64_t kSlots = 7;
  Shape s;
  LatentFormat format;
  DType weights, index_type;
  bool interleave;
  int64_t tokens;
  Buffer<int32_t> slots;
  Buffer<float> q, kv, keys, table;
  Buffer<uint8_t> q_weight, kv_weight, index_weight, index_bias, cache, index_cache;
};

// Odd widths where the format has no scales to be aligned.
constexpr Shape kOdd[] = {{1, 1, 2, 0, 0}, {257, 131, 6, 17, 5}, {613, 515, 64, 128, 0}};
constexpr Shape kScaled[] = {{255, 68, 6, 9, 3}, {600, 260, 2, 0, 0}, {613, 512, 64, 131, 67}};

TEST(QkvPrepare, EveryFormatShapeAndPairing) {
  SeededRng rng(1);
  for (const LatentFormat format : kLatentFormats) {
    for (const Shape& shape : format == LatentFormat::fp8_scaled ? kScaled : kOdd) {
      for (const std::vector<int32_t>& list : {std::vector<int32_t>{}, {0}, {-1}, {6, 0, -1, 3, 5}}) {
        const bool odd = list.size() % 2 == 1;
        Case c(rng, shape, format, odd ? DType::f32 : DType::bf16, odd ? DType::bf16 : DType::f32, odd, list);
        const QkvPrepareParams p = c.params();
        const ref::QkvPrepareOutput expected = ref::qkv_prepare(p);
        run_everywhere<QkvPrepare>(p, c.q, c.kv, c.keys, c.cache, c.index_cache);
        c.expect(expected);
      }
    }
  }
}

TEST(QkvPrepare, BothPairingsWithBothKindsOfWeight) {
  SeededRng rng(2);
  for (const bool interleave : {false, true}) {
    for (const DType weights : {DType::f32, DType::bf16}) {
      Case c(rng, {64, 40, 10, 30, 20}, LatentFormat::f32, weights, DType::f32, interleave, {1, 4});
      const QkvPrepareParams p = c.params();
      const ref::QkvPrepareOutput expected = ref::qkv_prepare(p);
      run_everywhere<QkvPrepare>(p, c.q, c.kv, c.keys, c.cache, c.index_cache);
      c.expect(expected);
    }
  }
}

// The rows of a step are padded to a size that a graph was captured for: what is in them is of a step before, or nothing.
TEST(QkvPrepare, NaNInARowOfPaddingStaysThere) {
  SeededRng rng(3);
  Case c(rng, {64, 132, 4, 16, 0}, LatentFormat::fp8_scaled, DType::f32, DType::bf16, true, {2, 5});
  Case poisoned(rng, {64, 132, 4, 16, 0}, LatentFormat::fp8_scaled, DType::f32, DType::bf16, true, {2, -1, 5});
  // The same rows, with one between them.
  const auto widen = [](const Buffer<float>& from, Buffer<float>& to) {
    const int64_t row = from.size() / 2;
    std::vector<float> rows = from.initial();
    rows.insert(rows.begin() + row, static_cast<size_t>(row), std::nanf(""));
    std::copy(rows.begin(), rows.end(), to.data());
  };
  widen(c.q, poisoned.q);
  widen(c.kv, poisoned.kv);
  widen(c.keys, poisoned.keys);
  widen(c.table, poisoned.table);
  QkvPrepareParams p = c.params(), q = poisoned.params();
  q.q_norm.weight = p.q_norm.weight;
  q.kv_norm.weight = p.kv_norm.weight;
  q.index_norm.weight = p.index_norm.weight;
  q.index_norm.bias = p.index_norm.bias;
  run_once<QkvPrepare>(p);
  run_once<QkvPrepare>(q);
  EXPECT_EQ(c.cache.contents(), poisoned.cache.contents());
  EXPECT_EQ(c.index_cache.contents(), poisoned.index_cache.contents());
  const int64_t row = c.q.size() / 2;
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(c.q[i], poisoned.q[i]);
    EXPECT_EQ(c.q[row + i], poisoned.q[2 * row + i]);
  }
}

// The host has no kernel of its own for it, but one after another those that it has for the parts.
TEST(QkvPrepare, TheHostsOperationGivesTheSame) {
  if (device_under_test != nullptr) GTEST_SKIP() << "of the host";
  SeededRng rng(4);
  ThreadPool pool(2);
  gpu::Stream stream{&pool};
  for (const LatentFormat format : kLatentFormats) {
    Case c(rng, kScaled[2], format, DType::bf16, DType::bf16, true, {6, 0, -1, 3});
    const QkvPrepareParams p = c.params();
    const ref::QkvPrepareOutput expected = ref::qkv_prepare(p);
    qkv_prepare(stream, p);
    c.expect(expected);
  }
}

TEST(QkvPrepare, TheHostsRotationCopiesToo) {
  if (device_under_test != nullptr) GTEST_SKIP() << "of the host";
  SeededRng rng(5);
  ThreadPool pool(2);
  gpu::Stream stream{&pool};
  Buffer<float> table(random_floats(rng, 3 * 6)), x(random_floats(rng, 3 * 40)), copy(3 * 50);
  const RopeParams p{x.data(), 40, 17, 11, table.data(), 3, 2, 6, true, copy.data(), 50, 20};
  const std::vector<double> expected = ref::rope(p);
  rope(stream, p);
  std::vector<double> copied;
  for (int64_t i = 0; i < copy.size(); ++i) {
    if (i % 50 % 20 < 6 && i % 50 / 20 < 2)
      copied.push_back(copy[i]);
    else
      EXPECT_TRUE(copy.untouched(i)) << i;
  }
  EXPECT_TRUE(all_close(expected, copied, kF32));
}

}  // namespace
}  // namespace ingot::kernels
