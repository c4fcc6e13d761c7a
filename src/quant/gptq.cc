#include "quant/gptq.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "kernels/ops.h"

namespace ingot::quant {
namespace {

using tensor::WeightFormat;
using tensor::WeightView;

constexpr int64_t kGroup = 32;       // columns of an MXFP4 block
constexpr int64_t kRowsAtOnce = 16;  // rows that share one pass over a strip of the factor, which is larger than a core's cache
constexpr std::array<int, 4> kScaleSteps = {0, -1, 1, -2};  // exponents tried, from `even`; the first of equals wins
constexpr std::array<float, 16> kValues = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
constexpr double kMaxDamping = 10;

WeightView f32_view(const float* data, int64_t rows, int64_t cols) {
  return {reinterpret_cast<const uint8_t*>(data), nullptr, rows, cols, 0, WeightFormat::f32};
}

// y[0, 32) += a * x[0, 32); the fixed length is what lets the compiler use vector registers.
inline void add_group(float* y, float a, const float* x) {
  for (int64_t i = 0; i < kGroup; ++i) y[i] += a * x[i];
}

double dot(const double* a, const double* b, int64_t count) {
  std::array<double, 8> lanes{};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (size_t l = 0; l < 8; ++l) lanes[l] += a[i + static_cast<int64_t>(l)] * b[i + static_cast<int64_t>(l)];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// The block's columns rounded one after the other with the error fed forward inside the block.
struct RoundedGroup {
  std::array<uint8_t, kGroup> codes{};
  std::array<float, kGroup> errors{};  // (w - q) / U_jj
  uint8_t scale = 0;
  float loss = std::numeric_limits<float>::infinity();
};

RoundedGroup round_group(const float* target, const float* factor, int64_t cols, uint8_t scale) {
  RoundedGroup out;
  std::array<float, kGroup> w;
  std::copy_n(target, kGroup, w.begin());
  const float unit = std::ldexp(1.0f, scale - 127);
  out.scale = scale;
  out.loss = 0;
  for (int64_t j = 0; j < kGroup; ++j) {
    const auto at = static_cast<size_t>(j);
    const float* row = factor + j * cols;  // U[first + j, first ...]
    out.codes[at] = tensor::mxfp4_encode(w[at], scale);
    out.errors[at] = (w[at] - kValues[out.codes[at]] * unit) / row[j];
    out.loss += out.errors[at] * out.errors[at];
    for (int64_t k = j + 1; k < kGroup; ++k) w[static_cast<size_t>(k)] -= out.errors[at] * row[k];
  }
  return out;
}

RoundedGroup best_group(const float* target, const float* factor, int64_t cols) {
  float amax = 0;
  for (int64_t j = 0; j < kGroup; ++j) amax = std::max(amax, std::abs(target[j]));
  const int even = tensor::mxfp4_scale_even(amax);
  RoundedGroup best;
  for (const int step : kScaleSteps) {
    if (even + step < 0 || even + step > 254) continue;
    const RoundedGroup tried = round_group(target, factor, cols, static_cast<uint8_t>(even + step));
    if (tried.loss < best.loss) best = tried;
  }
  return best;
}

// to (cols, to_stride) = from (rows, cols) transposed; what is left of to's rows becomes zero.
void transpose(ThreadPool& pool, const float* from, int64_t rows, int64_t cols, float* to, int64_t to_stride) {
  pool.parallel_for(cols, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = begin; c < end; ++c) to[c * to_stride + r] = from[r * cols + c];
    for (int64_t c = begin; c < end; ++c) std::fill(to + c * to_stride + rows, to + (c + 1) * to_stride, 0.0f);
  });
}

}  // namespace

InputMoments::InputMoments(int64_t cols, int64_t output_rows)
    : cols_(cols),
      output_rows_(output_rows),
      second_(static_cast<size_t>(cols * cols)),
      cross_(static_cast<size_t>(cols * cols)),
      residual_(static_cast<size_t>(output_rows * cols)),
      x_(static_cast<size_t>(cols * kBlock)),
      difference_(static_cast<size_t>(cols * kBlock)),
      wanted_(static_cast<size_t>(output_rows * kBlock)) {}

int64_t InputMoments::bytes(int64_t cols, int64_t output_rows) {
  return 4 * (2 * cols * cols + output_rows * cols + (2 * cols + output_rows) * kBlock);
}

void InputMoments::add(gpu::Stream& stream, const float* x, const float* x0, const float* residual, float weight) {
  if (weight <= 0) return;
  INGOT_CHECK((residual != nullptr) == (output_rows_ > 0), "a residual is given exactly when its sum is kept");
  const float root = std::sqrt(weight);
  float* to = x_.data() + gathered_ * cols_;
  float* difference = difference_.data() + gathered_ * cols_;
  for (int64_t k = 0; k < cols_; ++k) {
    to[k] = root * x[k];
    difference[k] = root * (x0[k] - x[k]);
  }
  for (int64_t m = 0; m < output_rows_; ++m) wanted_[static_cast<size_t>(gathered_ * output_rows_ + m)] = root * residual[m];
  weight_ += weight;
  ++tokens_;
  if (++gathered_ == kBlock) finish(stream);
}

void InputMoments::finish(gpu::Stream& stream) {
  if (gathered_ == 0) return;
  std::vector<float> x(x_.size()), other(std::max(x_.size(), wanted_.size()));
  transpose(*stream.pool, x_.data(), gathered_, cols_, x.data(), kBlock);
  const WeightView view = f32_view(x.data(), cols_, kBlock);
  kernels::matmul(stream, {second_.data(), cols_, x.data(), kBlock, view, cols_, true});
  transpose(*stream.pool, difference_.data(), gathered_, cols_, other.data(), kBlock);
  kernels::matmul(stream, {cross_.data(), cols_, other.data(), kBlock, view, cols_, true});
  if (output_rows_ > 0) {
    transpose(*stream.pool, wanted_.data(), gathered_, output_rows_, other.data(), kBlock);
    kernels::matmul(stream, {residual_.data(), cols_, other.data(), kBlock, view, output_rows_, true});
  }
  gathered_ = 0;
}

void InputMoments::mix(const InputMoments& other, float factor) {
  INGOT_CHECK(other.cols_ == cols_ && gathered_ == 0 && other.gathered_ == 0, "mixing moments of {} and {} columns", cols_, other.cols_);
  for (size_t i = 0; i < second_.size(); ++i) second_[i] += factor * other.second_[i];
  for (size_t i = 0; i < cross_.size(); ++i) cross_[i] += factor * other.cross_[i];
}

Result<GptqSolver> GptqSolver::create(std::span<const float> second, int64_t cols, const GptqOptions& options, gpu::Stream& stream) {
  INGOT_CHECK(cols > 0 && cols % kGroup == 0 && second.size() == static_cast<size_t>(cols * cols), "moments of {} columns", cols);
  for (const float v : second)
    if (!std::isfinite(v)) return fail("the sums over its inputs are not finite");
  GptqSolver solver;
  solver.cols_ = cols;
  solver.passes_ = options.passes;
  const int64_t groups = cols / kGroup;
  std::vector<double> energy(static_cast<size_t>(groups));
  double sum = 0;
  for (int64_t k = 0; k < cols; ++k) {
    energy[static_cast<size_t>(k / kGroup)] += second[static_cast<size_t>(k * cols + k)];
    sum += second[static_cast<size_t>(k * cols + k)];
  }
  solver.order_.resize(static_cast<size_t>(groups));
  std::iota(solver.order_.begin(), solver.order_.end(), 0);
  std::stable_sort(solver.order_.begin(), solver.order_.end(),
                   [&](int32_t a, int32_t b) { return energy[static_cast<size_t>(a)] > energy[static_cast<size_t>(b)]; });
  solver.moments_.resize(second.size());
  // Scaled to a mean diagonal of 1, which keeps the factors in range whatever the inputs' size; the rounding does not see the factor.
  const double scale = sum > 0 ? static_cast<double>(cols) / sum : 0.0;
  solver.scale_ = static_cast<float>(scale);
  for (int64_t i = 0; i < cols; ++i) {
    const int64_t from = solver.order_[static_cast<size_t>(i / kGroup)] * kGroup + i % kGroup;
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t j = 0; j < kGroup; ++j)
        solver.moments_[static_cast<size_t>(i * cols + g * kGroup + j)] =
            static_cast<float>(second[static_cast<size_t>(from * cols + solver.order_[static_cast<size_t>(g)] * kGroup + j)] * scale);
  }
  double added = 0;
  for (double damping = sum > 0 ? options.damping : 1.0; damping <= kMaxDamping; damping *= 10) {
    for (int64_t k = 0; k < cols; ++k) solver.moments_[static_cast<size_t>(k * cols + k)] += static_cast<float>(damping - added);
    added = damping;
    if (solver.factor(stream)) return solver;
  }
  return fail("the sums over its inputs have no Cholesky factor");
}

// moments = V V^T with V upper triangular, from the last column on; then U = V^-1, which is upper triangular, too.
bool GptqSolver::factor(gpu::Stream& stream) {
  const int64_t n = cols_;
  std::vector<double> v(moments_.begin(), moments_.end());
  const auto row = [&](int64_t i) { return v.data() + i * n; };
  for (int64_t j = n - 1; j >= 0; --j) {
    const double* last = row(j) + j + 1;
    const double pivot = row(j)[j] - dot(last, last, n - j - 1);
    if (!(pivot > 0) || !std::isfinite(pivot)) return false;
    const double root = std::sqrt(pivot);
    row(j)[j] = root;
    stream.pool->parallel_for(j, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) row(i)[j] = (row(i)[j] - dot(row(i) + j + 1, last, n - j - 1)) / root;
    });
  }
  inverse_.assign(static_cast<size_t>(n * n), 0.0f);
  stream.pool->parallel_for(n, 8, [&](int64_t begin, int64_t end) {
    std::vector<double> sums(static_cast<size_t>(n));  // sums[k]: sum over i <= m < k of U_im V_mk
    for (int64_t i = begin; i < end; ++i) {
      std::fill(sums.begin() + i / 8 * 8, sums.end(), 0.0);
      for (int64_t k = i; k < n; ++k) {
        const double u = ((k == i ? 1.0 : 0.0) - sums[static_cast<size_t>(k)]) / row(k)[k];
        inverse_[static_cast<size_t>(i * n + k)] = static_cast<float>(u);
        for (int64_t m = (k + 1) / 8 * 8; m < n; m += 8)  // sums before k + 1 are done with
          for (int64_t l = m; l < m + 8; ++l) sums[static_cast<size_t>(l)] += u * row(k)[l];
      }
    }
  });
  return true;
}

tensor::PackedWeight GptqSolver::quantize(std::span<const float> values, std::span<const float> shift, int64_t rows,
                                          gpu::Stream& stream) const {
  INGOT_CHECK(values.size() == static_cast<size_t>(rows * cols_) && (shift.empty() || shift.size() == values.size()),
              "{} values for {} x {}", values.size(), rows, cols_);
  const int64_t groups = cols_ / kGroup;
  const auto ordered = [&](std::span<const float> from, float factor) {
    std::vector<float> to(from.size());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t g = 0; g < groups; ++g)
        for (int64_t j = 0; j < kGroup; ++j)
          to[static_cast<size_t>(r * cols_ + g * kGroup + j)] =
              factor * from[static_cast<size_t>(r * cols_ + order_[static_cast<size_t>(g)] * kGroup + j)];
    return to;
  };
  std::vector<float> target = ordered(values, 1.0f);
  if (!shift.empty()) {
    // target += shift * moments^-1 = shift U^T U
    const std::vector<float> by_order = ordered(shift, scale_);
    const WeightView u = f32_view(inverse_.data(), cols_, cols_);
    std::vector<float> half(by_order.size()), step(by_order.size());
    kernels::matmul(stream, {half.data(), cols_, by_order.data(), cols_, u, rows, false});
    kernels::matmul_transposed(stream, {step.data(), cols_, half.data(), cols_, u, rows});
    for (size_t i = 0; i < target.size(); ++i) target[i] += step[i];
  }
  tensor::PackedWeight packed{WeightFormat::mxfp4, rows, cols_, std::vector<uint8_t>(static_cast<size_t>(rows * cols_ / 2)),
                              std::vector<uint8_t>(static_cast<size_t>(rows * groups))};
  stream.pool->parallel_for((rows + kRowsAtOnce - 1) / kRowsAtOnce, 1, [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> codes(static_cast<size_t>(kRowsAtOnce * cols_)), scales(static_cast<size_t>(kRowsAtOnce * groups));
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kRowsAtOnce, count = std::min(kRowsAtOnce, rows - first);
      round_rows(target.data() + first * cols_, count, codes.data(), scales.data());
      for (int64_t r = 0; r < count; ++r)
        for (int64_t g = 0; g < groups; ++g) {
          const int64_t to = (first + r) * groups + order_[static_cast<size_t>(g)];
          packed.scale[static_cast<size_t>(to)] = scales[static_cast<size_t>(r * groups + g)];
          const uint8_t* from = codes.data() + r * cols_ + g * kGroup;
          for (int64_t j = 0; j < kGroup / 2; ++j)
            packed.data[static_cast<size_t>(to * (kGroup / 2) + j)] = static_cast<uint8_t>(from[2 * j] | from[2 * j + 1] << 4);
        }
    }
  });
  return packed;
}

// target (rows, cols) is used up: afterwards it holds target - rounded, with the target as it came. codes: (rows, cols), one a byte.
void GptqSolver::round_rows(float* target, int64_t rows, uint8_t* codes, uint8_t* scales) const {
  const int64_t n = cols_, groups = n / kGroup;
  std::vector<float> work(target, target + rows * n), gradient(static_cast<size_t>(rows * n));
  std::array<std::array<float, kGroup>, kRowsAtOnce> errors;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t first = g * kGroup;
    for (int64_t r = 0; r < rows; ++r) {
      const RoundedGroup best = best_group(work.data() + r * n + first, inverse_.data() + first * n + first, n);
      scales[r * groups + g] = best.scale;
      std::copy(best.codes.begin(), best.codes.end(), codes + r * n + first);
      errors[static_cast<size_t>(r)] = best.errors;
    }
    for (int64_t j = 0; j < kGroup; ++j)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t k = first + kGroup; k < n; k += kGroup)
          add_group(work.data() + r * n + k, -errors[static_cast<size_t>(r)][static_cast<size_t>(j)],
                    inverse_.data() + (first + j) * n + k);
  }
  if (passes_ == 0) return;
  // Coordinate descent on sum_r (t - q) moments (t - q)^T: `gradient` is (t - q) moments, kept up to date.
  const auto value = [&](int64_t r, int64_t k) { return std::ldexp(kValues[codes[r * n + k]], scales[r * groups + k / kGroup] - 127); };
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < n; ++k) target[r * n + k] -= value(r, k);
  const auto add_row = [&](int64_t r, float factor, int64_t k) {
    for (int64_t m = 0; m < n; m += kGroup) add_group(gradient.data() + r * n + m, factor, moments_.data() + k * n + m);
  };
  for (int64_t k = 0; k < n; ++k)
    for (int64_t r = 0; r < rows; ++r) add_row(r, target[r * n + k], k);
  for (int pass = 0; pass < passes_; ++pass)
    for (int64_t k = 0; k < n; ++k)
      for (int64_t r = 0; r < rows; ++r) {
        const float now = value(r, k);
        const float wanted = now + gradient[static_cast<size_t>(r * n + k)] / moments_[static_cast<size_t>(k * n + k)];
        const uint8_t code = tensor::mxfp4_encode(wanted, scales[r * groups + k / kGroup]);
        const float step = std::ldexp(kValues[code], scales[r * groups + k / kGroup] - 127) - now;
        if (step == 0) continue;
        codes[r * n + k] = code;
        add_row(r, -step, k);
      }
}

}  // namespace ingot::quant
