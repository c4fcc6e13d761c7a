// The native CPU kernels against the plain kernels: same numbers within rounding, no byte written outside, and for every row the
// same bits whatever stands beside it.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "base/rng.h"
#include "gpu/cpu.h"
#include "kernels/combine.kernel.h"
#include "kernels/expanded_mla.kernel.h"
#include "kernels/grouped_matmul.kernel.h"
#include "kernels/index_scores.kernel.h"
#include "kernels/matmul.kernel.h"
#include "kernels/matmul_transposed.kernel.h"
#include "kernels/native/cpu/native.h"
#include "kernels/native/cpu/unpack.h"
#include "kernels/ops.h"
#include "kernels/rms_norm.kernel.h"
#include "kernels/rope.kernel.h"
#include "kernels/sparse_mla.kernel.h"
#include "kernels/swiglu.kernel.h"
#include "kernels/top_k.kernel.h"
#include "support/latents.h"
#include "tensor/dtype.h"

namespace ingot::kernels {
namespace {

using tensor::WeightFormat;

constexpr uint64_t kSeed = 20260731;
constexpr WeightFormat kFormats[] = {WeightFormat::bf16, WeightFormat::f32, WeightFormat::fp8_block, WeightFormat::mxfp4};

// An output of rows * stride floats between two guards; the gaps between rows are guarded too.
class GuardedRows {
 public:
  GuardedRows(int64_t rows, int64_t dim, int64_t stride) : rows_(rows), dim_(dim), stride_(stride) {
    data_.assign(static_cast<size_t>(rows * stride + 2 * kGuard), kCanary);
  }
  float* data() { return data_.data() + kGuard; }
  float* row(int64_t r) { return data() + r * stride_; }
  int64_t stride() const { return stride_; }
  void expect_guards() {
    for (int64_t i = 0; i < static_cast<int64_t>(data_.size()); ++i) {
      const int64_t at = i - kGuard;
      const bool inside = at >= 0 && at < rows_ * stride_ && at % stride_ < dim_;
      if (!inside && data_[static_cast<size_t>(i)] != kCanary) FAIL() << "written outside the output, at float " << at;
    }
  }

 private:
  static constexpr int64_t kGuard = 32;
  static constexpr float kCanary = -7.25e33f;
  int64_t rows_, dim_, stride_;
  std::vector<float> data_;
};

std::vector<float> random_floats(Rng& rng, int64_t count, float range = 1.0f) {
  std::vector<float> v(static_cast<size_t>(count));
  for (auto& x : v) x = rng.uniform_float(-range, range);
  return v;
}

// A weight of any format with random finite contents; a view starting at `first_row` of a larger tensor.
struct TestWeight {
  std::vector<uint8_t> data, scale;
  WeightView view;

  TestWeight(Rng& rng, WeightFormat format, int64_t rows, int64_t cols, int64_t first_row = 0) {
    WeightView whole;
    whole.rows = rows + first_row;
    whole.cols = cols;
    whole.format = format;
    data.resize(static_cast<size_t>(whole.rows * whole.row_bytes()));
    if (format == WeightFormat::bf16 || format == WeightFormat::f32) {
      for (int64_t i = 0; i < whole.rows * cols; ++i) {
        const float v = rng.uniform_float(-1, 1);
        const uint16_t b = tensor::f32_to_bf16(v);
        if (format == WeightFormat::f32)
          std::memcpy(&data[static_cast<size_t>(4 * i)], &v, 4);
        else
          std::memcpy(&data[static_cast<size_t>(2 * i)], &b, 2);
      }
    } else if (format == WeightFormat::fp8_block) {
      for (auto& byte : data) {
        byte = static_cast<uint8_t>(rng.below(256));
        if ((byte & 0x7f) == 0x7f) byte = 0;  // NaN codes do not occur in a checkpoint that loads
      }
      scale.resize(static_cast<size_t>((whole.rows + 127) / 128 * whole.scale_cols() * 4));
      for (size_t i = 0; i < scale.size(); i += 4) {
        const float s = rng.uniform_float(0.001f, 0.003f);
        std::memcpy(&scale[i], &s, 4);
      }
    } else {
      for (auto& byte : data) byte = static_cast<uint8_t>(rng.below(256));
      scale.resize(static_cast<size_t>(whole.rows * whole.scale_cols()));
      for (auto& byte : scale) byte = static_cast<uint8_t>(122 + rng.below(4));
      if (!scale.empty()) scale[0] = 0;  // 2^-127, not zero and not an exponent to subtract from
    }
    whole.data = data.data();
    whole.scale = scale.data();
    view = whole.row_slice(first_row, rows);
  }

  // f32 of the same numbers, for bit comparisons between formats.
  std::vector<float> widened() const {
    std::vector<float> v(static_cast<size_t>(view.rows * view.cols));
    native::unpack_weight(view, 0, view.rows, 0, view.cols, v.data(), view.cols);
    return v;
  }
};

WeightView f32_view(const std::vector<float>& data, int64_t rows, int64_t cols) {
  return {reinterpret_cast<const uint8_t*>(data.data()), nullptr, rows, cols, 0, WeightFormat::f32};
}

// |a - b| <= tolerance * max(largest |b| of the row, floor): the error of a sum is relative to its terms, not to what is left of
// them; `floor` is their size where a row may cancel to nearly nothing.
void expect_close_rows(GuardedRows& a, GuardedRows& b, int64_t rows, int64_t dim, float tolerance, const std::string& what,
                       float floor = 1e-6f) {
  for (int64_t r = 0; r < rows; ++r) {
    float scale = floor;
    for (int64_t i = 0; i < dim; ++i) scale = std::max(scale, std::fabs(b.row(r)[i]));
    for (int64_t i = 0; i < dim; ++i)
      ASSERT_LE(std::fabs(a.row(r)[i] - b.row(r)[i]), tolerance * scale)
          << what << ": row " << r << " column " << i << ": " << a.row(r)[i] << " against " << b.row(r)[i];
  }
}

struct NativeCpu : ::testing::Test {
  NativeCpu() { RecordProperty("seed", static_cast<int>(kSeed)); }
  ThreadPool pool1{1}, pool2{2}, pool3{3};
  gpu::Stream stream{&pool2};
  Rng rng{kSeed};
};

TEST_F(NativeCpu, WidensEveryE4m3AndEveryMxfp4ScaleExactly) {
  std::vector<uint8_t> codes(256);
  std::iota(codes.begin(), codes.end(), uint8_t{0});
  std::vector<float> wide(256);
  native::unpack_row(codes.data(), DType::f8_e4m3, 256, wide.data());
  for (int i = 0; i < 256; ++i) {
    const float expected = tensor::e4m3_to_f32(static_cast<uint8_t>(i));
    if (std::isnan(expected))
      EXPECT_TRUE(std::isnan(wide[static_cast<size_t>(i)])) << i;
    else
      EXPECT_EQ(std::memcmp(&expected, &wide[static_cast<size_t>(i)], 4), 0) << "e4m3 code " << i;
  }
  // Bug report O1: all 256 scale bytes times 16 codes; byte 0 is 2^-127.
  for (int s = 0; s < 255; ++s) {
    uint8_t packed[16], scale = static_cast<uint8_t>(s);
    for (int j = 0; j < 16; ++j) packed[j] = static_cast<uint8_t>(j | (15 - j) << 4);
    float out[32];
    native::unpack_weight({packed, &scale, 1, 32, 0, WeightFormat::mxfp4}, 0, 1, 0, 32, out, 32);
    for (int j = 0; j < 32; ++j) {
      const auto code = static_cast<uint8_t>(j % 2 == 0 ? j / 2 : 15 - j / 2);
      const float expected = tensor::e2m1_to_f32(code) * tensor::e8m0_to_f32(scale);
      EXPECT_EQ(std::memcmp(&expected, &out[j], 4), 0) << "scale byte " << s << " code " << int{code};
    }
  }
}

TEST_F(NativeCpu, MatmulAgreesWithThePlainKernelForAllFormatsAndOddShapes) {
  for (const WeightFormat format : kFormats) {
    for (const int64_t k : {32, 64, 96, 224, 704, 1120}) {
      const int64_t odd = format == WeightFormat::mxfp4 ? 0 : 5;  // MXFP4 rows are whole groups of 32
      for (const int64_t n : {1, 3, 8, 13, 61, 150, 403}) {
        for (const int64_t m : {1, 2, 5, 7, 65}) {
          for (const bool accumulate : {false, true}) {
            if (accumulate && m != 5) continue;
            const int64_t cols = k + odd;
            const TestWeight w(rng, format, n, cols, 9);
            const auto x = random_floats(rng, m * (cols + 3));
            GuardedRows native(m, n, n + 2), plain(m, n, n + 2);
            if (accumulate) {
              for (int64_t r = 0; r < m; ++r)
                for (int64_t i = 0; i < n; ++i) native.row(r)[i] = plain.row(r)[i] = rng.uniform_float(-1, 1);
            }
            MatmulParams p{native.data(), n + 2, x.data(), cols + 3, w.view, m, accumulate};
            native::matmul(pool2, p);
            p.y = plain.data();
            gpu::cpu_launch<Matmul>(stream, p);
            native.expect_guards();
            expect_close_rows(native, plain, m, n, 1e-5f, fmt::format("format {} {}x{}x{}", static_cast<int>(format), m, n, cols), 1.0f);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// Bug report O3 (rows 1..9), and the rule that everything above stands on.
TEST_F(NativeCpu, MatmulRowHasTheSameBitsAloneAndInAnyBatchOnAnyThreads) {
  for (const WeightFormat format : kFormats) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{37, 64}, {150, 704}, {700, 1056}}) {
      const TestWeight w(rng, format, n, k);
      const auto widened = w.widened();
      const auto x = random_floats(rng, 200 * k);
      std::vector<float> alone(static_cast<size_t>(200 * n));
      for (int64_t r = 0; r < 200; ++r) native::matmul(pool1, {alone.data() + r * n, n, x.data() + r * k, k, w.view, 1, false});
      for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 64, 65, 200}) {
        for (ThreadPool* pool : {&pool1, &pool2, &pool3}) {
          std::vector<float> together(static_cast<size_t>(m * n), NAN);
          native::matmul(*pool, {together.data(), n, x.data(), k, w.view, m, false});
          ASSERT_EQ(std::memcmp(together.data(), alone.data(), together.size() * 4), 0)
              << "format " << static_cast<int>(format) << ", " << m << " rows, " << pool->num_threads() << " threads";
          for (const float v : together) ASSERT_TRUE(std::isfinite(v));
          // The same numbers stored as f32 give the same bits: a format is a way of storing, not a way of computing.
          native::matmul(*pool, {together.data(), n, x.data(), k, f32_view(widened, n, k), m, false});
          ASSERT_EQ(std::memcmp(together.data(), alone.data(), together.size() * 4), 0)
              << "f32 twin of format " << static_cast<int>(format);
        }
      }
    }
  }
}

TEST_F(NativeCpu, TransposedMatmulAgreesAndIsBatchInvariant) {
  for (const WeightFormat format : kFormats) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 32}, {32, 128}, {13, 96}, {192, 512}, {48, 32}}) {
      const int64_t cols = format == WeightFormat::mxfp4 ? k : k + 3;
      const TestWeight w(rng, format, n, cols, 120);  // the view crosses a block of FP8 scales
      const auto x = random_floats(rng, 140 * n);
      std::vector<float> alone(static_cast<size_t>(140 * cols));
      for (int64_t r = 0; r < 140; ++r) native::matmul_transposed(pool1, {alone.data() + r * cols, cols, x.data() + r * n, n, w.view, 1});
      for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 65, 140}) {
        GuardedRows native(m, cols, cols + 5), plain(m, cols, cols + 5);
        MatmulTransposedParams p{native.data(), cols + 5, x.data(), n, w.view, m};
        native::matmul_transposed(pool2, p);
        p.y = plain.data();
        gpu::cpu_launch<MatmulTransposed>(stream, p);
        native.expect_guards();
        expect_close_rows(native, plain, m, cols, 1e-5f, fmt::format("format {} {}x{}x{}", static_cast<int>(format), m, n, cols), 1.0f);
        for (int64_t r = 0; r < m; ++r)
          ASSERT_EQ(std::memcmp(native.row(r), alone.data() + r * cols, static_cast<size_t>(cols) * 4), 0) << "row " << r << " of " << m;
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(NativeCpu, GroupedMatmulAgreesWithEmptyExpertsAndUnevenCounts) {
  for (const WeightFormat format : kFormats) {
    for (const int64_t tokens : {0, 1, 2, 5, 9, 65, 300}) {
      const int64_t experts = 6, k = 2, n = 53, cols = 96;
      std::vector<TestWeight> weights;
      std::vector<WeightView> views;
      for (int64_t e = 0; e < experts; ++e) weights.emplace_back(rng, format, n, cols);
      for (auto& w : weights) views.push_back(w.view);
      std::vector<int32_t> chosen(static_cast<size_t>(tokens * k)), order(chosen.size()), inverse(chosen.size()), offsets(experts + 1);
      for (int64_t t = 0; t < tokens; ++t) {
        chosen[static_cast<size_t>(2 * t)] = static_cast<int32_t>(rng.below(2));
        chosen[static_cast<size_t>(2 * t + 1)] = static_cast<int32_t>(2 + rng.below(3));  // expert 5 stays empty
      }
      permute(stream, {order.data(), inverse.data(), offsets.data(), chosen.data(), tokens, experts, k});
      const auto x = random_floats(rng, tokens * cols + 1);
      GuardedRows native(tokens * k, n, n + 1), plain(tokens * k, n, n + 1);
      GroupedMatmulParams p{native.data(), n + 1, x.data(), cols, order.data(), k, offsets.data(), views.data(), tokens * k, experts, n};
      native::grouped_matmul(pool2, p);
      p.y = plain.data();
      gpu::cpu_launch<GroupedMatmul>(stream, p);
      native.expect_guards();
      expect_close_rows(native, plain, tokens * k, n, 1e-5f, fmt::format("format {} tokens {}", static_cast<int>(format), tokens));
      if (HasFatalFailure()) return;
      for (int64_t i = 0; i < tokens * k; ++i) {
        const int32_t pair = order[static_cast<size_t>(i)];
        std::vector<float> alone(static_cast<size_t>(n));
        native::matmul(pool1, {alone.data(), n, x.data() + pair / k * cols, cols,
                               views[static_cast<size_t>(chosen[static_cast<size_t>(pair)])], 1, false});
        ASSERT_EQ(std::memcmp(alone.data(), native.row(i), static_cast<size_t>(n) * 4), 0)
            << "pair " << pair << " of " << tokens << " tokens";
      }
    }
  }
}

TEST_F(NativeCpu, RowOperationsAgreeWithThePlainKernels) {
  for (const int64_t dim : {1, 7, 8, 20, 64, 131, 256}) {
    for (const int64_t rows : {0, 1, 3, 300}) {
      const auto x = random_floats(rng, rows * (dim + 1) + 1, 4.0f);
      const auto up = random_floats(rng, rows * (dim + 1) + 1, 4.0f);
      const TestWeight weight(rng, WeightFormat::bf16, 1, dim);
      GuardedRows native(rows, dim, dim + 2), plain(rows, dim, dim + 2);
      RmsNormParams norm{native.data(), dim + 2, x.data(), dim + 1, weight.view.data, DType::bf16, rows, dim, 1e-5f};
      native::rms_norm(pool2, norm);
      norm.y = plain.data();
      gpu::cpu_launch<RmsNorm>(stream, norm);
      native.expect_guards();
      expect_close_rows(native, plain, rows, dim, 2e-6f, fmt::format("rms_norm {}x{}", rows, dim));
      SwiGluParams glu{native.data(), dim + 2, x.data(), up.data(), dim + 1, rows, dim};
      native::swiglu(pool2, glu);
      glu.y = plain.data();
      gpu::cpu_launch<SwiGlu>(stream, glu);
      native.expect_guards();
      expect_close_rows(native, plain, rows, dim, 2e-6f, fmt::format("swiglu {}x{}", rows, dim));
      if (HasFatalFailure()) return;
    }
  }
  // Extremes of the activation: no NaN from exp's ends.
  const float gate[8] = {-1e30f, -200, -88, -1e-30f, 0, 88, 200, 1e30f};
  const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  float y[8];
  native::swiglu(pool1, {y, 8, gate, ones, 8, 1, 8});
  const float expected[8] = {0, 0, 0, 0, 0, 88, 200, 1e30f};
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(y[i], expected[i], std::fabs(expected[i]) * 1e-6f + 1e-7f) << "silu(" << gate[i] << ")";
}

TEST_F(NativeCpu, RopeAgreesInBothPairings) {
  for (const bool interleave : {true, false}) {
    for (const int64_t rope_dim : {2, 6, 32, 64}) {
      const int64_t tokens = 9, heads = 3, head = rope_dim + 10;
      auto a = random_floats(rng, tokens * heads * head);
      auto b = a;
      const auto table = random_floats(rng, tokens * rope_dim);
      RopeParams p{a.data(), heads * head, head, 5, table.data(), tokens, heads, rope_dim, interleave};
      native::rope(pool2, p);
      p.x = b.data();
      gpu::cpu_launch<Rope>(stream, p);
      for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-6) << "rope_dim " << rope_dim << " at " << i;
    }
  }
}

TEST_F(NativeCpu, CombineAgrees) {
  for (const int64_t dim : {5, 64, 100}) {
    for (const bool accumulate : {false, true}) {
      const int64_t tokens = 11, k = 3;
      std::vector<int32_t> inverse(tokens * k);
      std::iota(inverse.rbegin(), inverse.rend(), 0);
      const auto y = random_floats(rng, tokens * k * dim), weights = random_floats(rng, tokens * k);
      GuardedRows native(tokens, dim, dim + 1), plain(tokens, dim, dim + 1);
      for (int64_t r = 0; r < tokens; ++r)
        for (int64_t i = 0; i < dim; ++i) native.row(r)[i] = plain.row(r)[i] = static_cast<float>(r - i);
      CombineParams p{native.data(), dim + 1, y.data(), dim, inverse.data(), weights.data(), tokens, k, dim, accumulate};
      native::combine(pool2, p);
      p.out = plain.data();
      gpu::cpu_launch<Combine>(stream, p);
      native.expect_guards();
      expect_close_rows(native, plain, tokens, dim, 1e-6f, "combine");
    }
  }
}

// A paged cache of random rows for two sequences whose pages are out of order; slots outside hold NaN in every type.
struct TestCache {
  int64_t page_size, max_pages;
  std::vector<uint8_t> bytes;
  std::vector<int32_t> page_table;

  // encode(numbers) gives the bytes of a row of `dim` of them.
  template <class Encode>
  TestCache(Rng& rng, int64_t dim, int64_t page_size_, int64_t positions, Encode encode)
      : page_size(page_size_), max_pages((positions + page_size_ - 1) / page_size_) {
    const int64_t pages = 2 * max_pages + 1;
    std::vector<int32_t> numbers(static_cast<size_t>(pages));
    std::iota(numbers.begin(), numbers.end(), 0);
    for (size_t i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[rng.below(i)]);
    page_table.assign(numbers.begin(), numbers.begin() + 2 * max_pages);
    for (int64_t seq = 0; seq < 2; ++seq) {
      for (int64_t p = 0; p < positions; ++p) {
        const std::vector<uint8_t> row = encode(random_floats(rng, dim, 2));
        if (bytes.empty()) bytes.assign(static_cast<size_t>(pages * page_size) * row.size(), 0xff);
        std::copy(row.begin(), row.end(), bytes.begin() + where({}, {}).slot(seq, p) * std::ssize(row));
      }
    }
  }
  TestCache(Rng& rng, int64_t dim, int64_t page_size_, int64_t positions, DType dtype)
      : TestCache(rng, dim, page_size_, positions, [&](const std::vector<float>& row) { return testing::encoded(row, dtype); }) {}
  TestCache(Rng& rng, int64_t latent_dim, int64_t rope_dim, int64_t page_size_, int64_t positions, LatentFormat format)
      : TestCache(rng, latent_dim + rope_dim, page_size_, positions,
                  [&](const std::vector<float>& row) { return testing::encoded_latents(row, format, latent_dim, rope_dim); }) {}

  PagedPositions where(const std::vector<int32_t>& seqs, const std::vector<int32_t>& positions) const {
    return {page_table.data(), seqs.data(), positions.data(), max_pages, page_size};
  }
};

TEST_F(NativeCpu, IndexScoresAgreeAndAreBatchInvariant) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [heads, dim, page] : {std::tuple<int64_t, int64_t, int64_t>{8, 64, 16}, {5, 20, 7}, {1, 8, 64}, {32, 128, 64}}) {
      const int64_t longest = 300;
      const TestCache cache(rng, dim, page, longest, dtype);
      std::vector<int32_t> seqs, positions;
      for (const int32_t p : {0, 1, 14, 15, 16, 17, 255, 256, 299}) {
        for (const int32_t s : {0, 1}) seqs.push_back(s), positions.push_back(p);
      }
      for (int32_t p = 200; p < 240; ++p) seqs.push_back(1), positions.push_back(p);  // a chunk of one sequence
      const auto tokens = static_cast<int64_t>(seqs.size());
      const auto q = random_floats(rng, tokens * heads * dim), weights = random_floats(rng, tokens * heads);
      GuardedRows native(tokens, longest, longest + 3), plain(tokens, longest, longest + 3);
      IndexScoresParams p{
          native.data(), longest + 3, q.data(), weights.data(), heads, cache.bytes.data(), dtype, cache.where(seqs, positions),
          tokens,        heads,       dim,      0.25f};
      native::index_scores(pool2, p);
      p.scores = plain.data();
      gpu::cpu_launch<IndexScores>(stream, p);
      native.expect_guards();
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t visible = positions[static_cast<size_t>(t)] + 1;
        for (int64_t i = 0; i < visible; ++i) ASSERT_NEAR(native.row(t)[i], plain.row(t)[i], 2e-4) << "token " << t << " position " << i;
        ASSERT_EQ(native.row(t)[std::min(visible, longest)], plain.row(t)[std::min(visible, longest)]) << "written beyond the token";
        GuardedRows alone(1, longest, longest);
        p.scores = alone.data();
        p.q = q.data() + t * heads * dim;
        p.weights = weights.data() + t * heads;
        p.num_tokens = 1;
        p.where = {cache.page_table.data(), seqs.data() + t, positions.data() + t, cache.max_pages, page};
        native::index_scores(pool1, p);
        ASSERT_EQ(std::memcmp(alone.row(0), native.row(t), static_cast<size_t>(visible) * 4), 0) << "token " << t;
      }
    }
  }
}

// Bug report I5: equal scores go to the smaller position, on every run.
TEST_F(NativeCpu, TopKPicksTheSameSetAsThePlainKernelWithTiesZerosAndNaN) {
  for (const int64_t k : {1, 8, 33}) {
    const int64_t tokens = 60, stride = 140;
    std::vector<int32_t> positions(tokens);
    auto scores = random_floats(rng, tokens * stride);
    for (int64_t t = 0; t < tokens; ++t) {
      positions[static_cast<size_t>(t)] = static_cast<int32_t>(t < 40 ? t : 139);
      for (int64_t i = 0; i < stride; ++i) {
        float& s = scores[static_cast<size_t>(t * stride + i)];
        if (t % 4 == 1) s = std::round(s * 2) / 2;  // many ties, and both zeros
        if (t % 4 == 2 && rng.below(3) == 0) s = rng.below(2) == 0 ? 0.0f : -0.0f;
        if (t % 4 == 3 && rng.below(2) == 0) s = rng.below(2) == 0 ? NAN : -std::numeric_limits<float>::infinity();
        if (t == 59) s = NAN;
      }
    }
    std::vector<int32_t> native(static_cast<size_t>(tokens * k), 0x7f7f7f7f), plain = native;  // poison: bug report I7
    native::top_k(pool2, {native.data(), scores.data(), stride, positions.data(), tokens, k});
    gpu::cpu_launch<TopK>(stream, {plain.data(), scores.data(), stride, positions.data(), tokens, k});
    for (int64_t t = 0; t < tokens; ++t) {
      // The definition: sort by (NaN last, score descending, position ascending).
      std::vector<int32_t> sorted(static_cast<size_t>(positions[static_cast<size_t>(t)] + 1));
      std::iota(sorted.begin(), sorted.end(), 0);
      const float* s = scores.data() + t * stride;
      std::stable_sort(sorted.begin(), sorted.end(),
                       [&](int32_t a, int32_t b) { return std::isnan(s[a]) ? false : std::isnan(s[b]) || s[a] > s[b]; });
      sorted.resize(std::min(sorted.size(), static_cast<size_t>(k)));
      std::sort(sorted.begin(), sorted.end());
      sorted.resize(static_cast<size_t>(k), -1);
      for (int64_t i = 0; i < k; ++i) {
        ASSERT_EQ(native[static_cast<size_t>(t * k + i)], sorted[static_cast<size_t>(i)]) << "k " << k << " token " << t << " entry " << i;
        ASSERT_EQ(plain[static_cast<size_t>(t * k + i)], sorted[static_cast<size_t>(i)]) << "plain kernel, k " << k << " token " << t;
      }
    }
  }
}

TEST_F(NativeCpu, SparseMlaAgreesAndIsBatchInvariant) {
  for (const LatentFormat format : testing::kLatentFormats) {
    for (const auto& [heads, latent, rope_dim, page] :
         {std::tuple<int64_t, int64_t, int64_t, int64_t>{8, 128, 32, 16}, {3, 20, 6, 5}, {7, 512, 64, 64}}) {
      const int64_t longest = 200, topk = 100, dim = latent + rope_dim;
      const TestCache cache(rng, latent, rope_dim, page, longest, format);
      std::vector<int32_t> seqs, positions;
      for (const int32_t p : {0, 1, 62, 63, 64, 65, 99, 100, 127, 128, 199}) {
        for (const int32_t s : {0, 1}) seqs.push_back(s), positions.push_back(p);
      }
      const auto tokens = static_cast<int64_t>(seqs.size());
      const auto q = random_floats(rng, tokens * heads * dim);
      std::vector<int32_t> indices(static_cast<size_t>(tokens * topk), -1);
      for (int64_t t = 0; t < tokens; ++t) {
        const auto score = random_floats(rng, longest);
        native::top_k(pool1, {indices.data() + t * topk, score.data(), longest, positions.data() + t, 1, topk});
      }
      for (const int32_t* list : {static_cast<const int32_t*>(nullptr), static_cast<const int32_t*>(indices.data())}) {
        GuardedRows native(tokens * heads, latent, latent), plain(tokens * heads, latent, latent);
        SparseMlaParams p{native.data(), q.data(), cache.bytes.data(), format, list, topk, cache.where(seqs, positions), tokens,
                          heads,         latent,   rope_dim,           0.125f};
        native::sparse_mla(pool2, p);
        p.out = plain.data();
        gpu::cpu_launch<SparseMla>(stream, p);
        native.expect_guards();
        expect_close_rows(native, plain, tokens * heads, latent, 1e-4f,
                          fmt::format("{} list {}", tensor::latent_format_name(format), list != nullptr));
        if (HasFatalFailure()) return;
        for (int64_t t = 0; t < tokens; ++t) {
          for (ThreadPool* pool : {&pool1, &pool2, &pool3}) {
            GuardedRows alone(heads, latent, latent);
            SparseMlaParams one = p;
            one.out = alone.data();
            one.q += t * heads * dim;
            if (list) one.indices += t * topk;
            one.where.seq_of_token += t;
            one.where.positions += t;
            one.num_tokens = 1;
            native::sparse_mla(*pool, one);
            alone.expect_guards();
            ASSERT_EQ(std::memcmp(alone.data(), native.row(t * heads), static_cast<size_t>(heads * latent) * 4), 0)
                << "token " << t << " on " << pool->num_threads() << " threads";
            // A list of all positions is the same as no list, to the bit: a batch may mix short and long rows.
            if (list && positions[static_cast<size_t>(t)] < topk) {
              one.indices = nullptr;
              GuardedRows dense(heads, latent, latent);
              one.out = dense.data();
              native::sparse_mla(*pool, one);
              ASSERT_EQ(std::memcmp(alone.data(), dense.data(), static_cast<size_t>(heads * latent) * 4), 0) << "token " << t;
            }
          }
        }
      }
    }
  }
}

TEST_F(NativeCpu, ExpandedMlaAgreesAndIsBatchInvariant) {
  for (const auto& [heads, nope, rope_dim, v_dim] :
       {std::tuple<int64_t, int64_t, int64_t, int64_t>{8, 32, 32, 64}, {3, 5, 6, 11}, {2, 192, 64, 256}}) {
    const int64_t keys = 170, topk = 50, head = nope + rope_dim;
    const auto kv = random_floats(rng, keys * heads * (nope + v_dim)), k_pe = random_floats(rng, keys * (rope_dim + 1));
    std::vector<int32_t> positions;
    for (int32_t p = 0; p < 70; ++p) positions.push_back(p + 100);
    for (const int32_t p : {0, 63, 64, 169, 3}) positions.push_back(p);
    const auto tokens = static_cast<int64_t>(positions.size());
    const auto q = random_floats(rng, tokens * heads * head);
    std::vector<int32_t> indices(static_cast<size_t>(tokens * topk));
    const auto score = random_floats(rng, tokens * keys);
    native::top_k(pool1, {indices.data(), score.data(), keys, positions.data(), tokens, topk});
    for (const int32_t* list : {static_cast<const int32_t*>(nullptr), static_cast<const int32_t*>(indices.data())}) {
      GuardedRows native(tokens * heads, v_dim, v_dim), plain(tokens * heads, v_dim, v_dim);
      ExpandedMlaParams p{native.data(), q.data(), kv.data(), k_pe.data(), rope_dim + 1, positions.data(), list, topk, tokens,
                          heads,         nope,     rope_dim,  v_dim,       0.2f};
      native::expanded_mla(pool2, p);
      p.out = plain.data();
      gpu::cpu_launch<ExpandedMla>(stream, p);
      native.expect_guards();
      expect_close_rows(native, plain, tokens * heads, v_dim, 1e-5f, fmt::format("heads {} list {}", heads, list != nullptr));
      if (HasFatalFailure()) return;
      for (int64_t t = 0; t < tokens; ++t) {
        GuardedRows alone(heads, v_dim, v_dim);
        ExpandedMlaParams one = p;
        one.out = alone.data();
        one.q += t * heads * head;
        one.positions += t;
        if (list) one.indices += t * topk;
        one.num_tokens = 1;
        native::expanded_mla(pool3, one);
        ASSERT_EQ(std::memcmp(alone.data(), native.row(t * heads), static_cast<size_t>(heads * v_dim) * 4), 0) << "token " << t;
      }
    }
  }
}

// One operation over rows [first, first + count) of a fixed problem of kBatchRows rows, `width` floats of output a row.
constexpr int64_t kBatchRows = 65;
using RowOperation = std::function<void(ThreadPool& pool, int64_t first, int64_t count, float* out)>;

// Every row alone on one thread is the oracle for every batch size around the tile widths, for any number of threads.
void expect_rows_do_not_see_each_other(const std::string& what, int64_t width, const RowOperation& operation) {
  ThreadPool one(1), two(2), three(3);
  std::vector<float> alone(static_cast<size_t>(kBatchRows * width), NAN);
  for (int64_t r = 0; r < kBatchRows; ++r) operation(one, r, 1, alone.data() + r * width);
  for (const float v : alone) ASSERT_TRUE(std::isfinite(v)) << what;
  for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 64, 65}) {
    for (ThreadPool* pool : {&one, &two, &three}) {
      const int64_t first = (kBatchRows - m) / 2;
      std::vector<float> together(static_cast<size_t>(m * width), NAN);
      operation(*pool, first, m, together.data());
      for (int64_t r = 0; r < m; ++r)
        ASSERT_EQ(std::memcmp(together.data() + r * width, alone.data() + (first + r) * width, static_cast<size_t>(width) * 4), 0)
            << what << ": row " << r << " of " << m << " on " << pool->num_threads() << " threads";
    }
  }
}

// A verify step runs a handful of rows where decoding runs one: accepted tokens must be those that decoding would have made.
TEST_F(NativeCpu, NoOperationLetsARowSeeItsBatch) {
  for (const WeightFormat format : kFormats) {
    const std::string name = fmt::format(" of format {}", static_cast<int>(format));
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{61, 64}, {150, 576}}) {
      const TestWeight w(rng, format, n, k, 9);
      const auto x = random_floats(rng, kBatchRows * std::max(n, k));
      expect_rows_do_not_see_each_other("matmul" + name, n, [&](ThreadPool& pool, int64_t first, int64_t count, float* out) {
        native::matmul(pool, {out, n, x.data() + first * k, k, w.view, count, false});
      });
      expect_rows_do_not_see_each_other("matmul onto" + name, n, [&](ThreadPool& pool, int64_t first, int64_t count, float* out) {
        for (int64_t i = 0; i < count * n; ++i) out[i] = x[static_cast<size_t>(i % n)];
        native::matmul(pool, {out, n, x.data() + first * k, k, w.view, count, true});
      });
      expect_rows_do_not_see_each_other("matmul_transposed" + name, k, [&](ThreadPool& pool, int64_t first, int64_t count, float* out) {
        native::matmul_transposed(pool, {out, k, x.data() + first * n, n, w.view, count});
      });
    }
    // Two experts a row, in the row's own order: the permuted rows are put back before they are compared.
    const int64_t experts = 5, k = 2, n = 70, cols = 96;
    std::vector<TestWeight> weights;
    std::vector<WeightView> views;
    for (int64_t e = 0; e < experts; ++e) weights.emplace_back(rng, format, n, cols);
    for (auto& w : weights) views.push_back(w.view);
    std::vector<int32_t> chosen;
    for (int64_t t = 0; t < kBatchRows; ++t) {
      chosen.push_back(static_cast<int32_t>(rng.below(2)));
      chosen.push_back(static_cast<int32_t>(2 + rng.below(3)));
    }
    const auto x = random_floats(rng, kBatchRows * cols);
    expect_rows_do_not_see_each_other("grouped_matmul" + name, k * n, [&](ThreadPool& pool, int64_t first, int64_t count, float* out) {
      std::vector<int32_t> order(static_cast<size_t>(count * k)), inverse(order.size()), offsets(experts + 1);
      permute(stream, {order.data(), inverse.data(), offsets.data(), chosen.data() + first * k, count, experts, k});
      std::vector<float> permuted(static_cast<size_t>(count * k * n));
      native::grouped_matmul(
          pool, {permuted.data(), n, x.data() + first * cols, cols, order.data(), k, offsets.data(), views.data(), count * k, experts, n});
      for (size_t i = 0; i < order.size(); ++i) std::copy_n(permuted.data() + inverse[i] * n, n, out + static_cast<int64_t>(i) * n);
    });
  }
  const int64_t dim = 100;
  const auto x = random_floats(rng, kBatchRows * dim, 4.0f), up = random_floats(rng, kBatchRows * dim, 4.0f);
  const TestWeight weight(rng, WeightFormat::bf16, 1, dim);
  expect_rows_do_not_see_each_other("rms_norm", dim, [&](ThreadPool& pool, int64_t first, int64_t count, float* out) {
    native::rms_norm(pool, {out, dim, x.data() + first * dim, dim, weight.view.data, DType::bf16, count, dim, 1e-5f});
  });
  expect_rows_do_not_see_each_other("swiglu", dim, [&](ThreadPool& pool, int64_t first, int64_t count, float* out) {
    native::swiglu(pool, {out, dim, x.data() + first * dim, up.data() + first * dim, dim, count, dim});
  });
  expect_rows_do_not_see_each_other("rope", dim, [&](ThreadPool& pool, int64_t first, int64_t count, float* out) {
    std::copy_n(x.data() + first * dim, count * dim, out);
    native::rope(pool, {out, dim, dim / 2, 10, up.data() + first * 36, count, 2, 36, true});
  });
  std::vector<int32_t> places(kBatchRows * 3);
  for (auto& place : places) place = static_cast<int32_t>(rng.below(kBatchRows));
  expect_rows_do_not_see_each_other("combine", dim, [&](ThreadPool& pool, int64_t first, int64_t count, float* out) {
    native::combine(pool, {out, dim, x.data(), dim, places.data() + first * 3, up.data() + first * 3, count, 3, dim, false});
  });
}

// Products that share a call share its loop, and nothing else.
TEST_F(NativeCpu, AListOfProductsGivesTheBitsOfEachAlone) {
  const int64_t rows = 6, n[] = {64, 5, 700}, k[] = {128, 96, 256};
  std::vector<TestWeight> weights;
  std::vector<std::vector<float>> x, list_y, alone_y;
  for (size_t i = 0; i < 3; ++i) {
    weights.emplace_back(rng, kFormats[i], n[i], k[i]);
    x.push_back(random_floats(rng, rows * std::max(n[i], k[i])));
  }
  for (const bool transposed : {false, true}) {
    list_y.clear();
    std::vector<MatmulParams> products;
    std::vector<MatmulTransposedParams> turned;
    for (size_t i = 0; i < 3; ++i) list_y.emplace_back(static_cast<size_t>(rows * std::max(n[i], k[i])), 0.5f);
    alone_y = list_y;
    for (size_t i = 0; i < 3; ++i) {
      products.push_back({list_y[i].data(), n[i], x[i].data(), k[i], weights[i].view, rows, i == 1});
      turned.push_back({list_y[i].data(), k[i], x[i].data(), n[i], weights[i].view, rows});
    }
    if (transposed)
      native::matmul_transposed(pool3, turned);
    else
      native::matmul(pool3, products);
    for (size_t i = 0; i < 3; ++i) {
      if (transposed)
        native::matmul_transposed(pool1, {alone_y[i].data(), k[i], x[i].data(), n[i], weights[i].view, rows});
      else
        native::matmul(pool1, {alone_y[i].data(), n[i], x[i].data(), k[i], weights[i].view, rows, i == 1});
      EXPECT_EQ(list_y[i], alone_y[i]) << "product " << i << (transposed ? ", transposed" : "");
    }
  }
  native::matmul(pool2, std::span<const MatmulParams>{});  // an empty list is a no-op
}

// The attention of one sequence's consecutive positions, as a verify step or a chunk has them, and of rows of two sequences in turn.
TEST_F(NativeCpu, NoAttentionOperationLetsARowSeeItsBatch) {
  const int64_t longest = 200, heads = 8, topk = 40, page = 16;
  for (const bool one_sequence : {true, false}) {
    const std::string which = one_sequence ? " over one sequence" : " over two sequences";
    std::vector<int32_t> seqs, positions;
    for (int32_t t = 0; t < kBatchRows; ++t) {
      seqs.push_back(one_sequence ? 0 : t % 2);
      positions.push_back(one_sequence ? 100 + t : t * 3);
    }
    std::vector<int32_t> indices(kBatchRows * topk);
    const auto scores = random_floats(rng, kBatchRows * longest);
    expect_rows_do_not_see_each_other("top_k" + which, topk, [&](ThreadPool& pool, int64_t first, int64_t count, float* out) {
      native::top_k(pool, {indices.data() + first * topk, scores.data() + first * longest, longest, positions.data() + first, count, topk});
      for (int64_t i = 0; i < count * topk; ++i) out[i] = static_cast<float>(indices[static_cast<size_t>(first * topk + i)]);
    });
    const auto where_of = [&](const TestCache& cache, int64_t first) {
      return PagedPositions{cache.page_table.data(), seqs.data() + first, positions.data() + first, cache.max_pages, page};
    };
    const auto queries = random_floats(rng, kBatchRows * heads * 160), weights = random_floats(rng, kBatchRows * heads);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const TestCache cache(rng, 160, page, longest, dtype);
      expect_rows_do_not_see_each_other("index_scores" + which, longest, [&](ThreadPool& pool, int64_t first, int64_t count, float* out) {
        std::fill_n(out, count * longest, 0.0f);  // entries beyond a row's position are not written
        native::index_scores(pool, {out, longest, queries.data() + first * heads * 160, weights.data() + first * heads, heads,
                                    cache.bytes.data(), dtype, where_of(cache, first), count, heads, 160, 0.25f});
      });
    }
    for (const LatentFormat format : testing::kLatentFormats) {
      const TestCache cache(rng, 128, 32, page, longest, format);
      for (const int32_t* list : {static_cast<const int32_t*>(nullptr), static_cast<const int32_t*>(indices.data())}) {
        expect_rows_do_not_see_each_other(
            "sparse_mla" + which, heads * 128, [&](ThreadPool& pool, int64_t first, int64_t count, float* out) {
              native::sparse_mla(pool, {out, queries.data() + first * heads * 160, cache.bytes.data(), format,
                                        list ? list + first * topk : nullptr, topk, where_of(cache, first), count, heads, 128, 32, 0.125f});
            });
      }
    }
    const auto kv = random_floats(rng, longest * heads * 72), k_pe = random_floats(rng, longest * 16);
    const auto q = random_floats(rng, kBatchRows * heads * 48);
    for (const int32_t* list : {static_cast<const int32_t*>(nullptr), static_cast<const int32_t*>(indices.data())}) {
      expect_rows_do_not_see_each_other(
          "expanded_mla" + which, heads * 40, [&](ThreadPool& pool, int64_t first, int64_t count, float* out) {
            native::expanded_mla(pool, {out, q.data() + first * heads * 48, kv.data(), k_pe.data(), 16, positions.data() + first,
                                        list ? list + first * topk : nullptr, topk, count, heads, 32, 16, 40, 0.2f});
          });
    }
  }
}

}  // namespace
}  // namespace ingot::kernels
