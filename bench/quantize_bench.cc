// The row quantisers of `ingot quantize`: bytes/s of input (bf16 unless the name says f32) a second of one core's time, beside memcpy of
// the same buffer, which is larger than the caches. error:1 gathers the error too. With threads:2 both cores are at it, which shows
// whether memory is enough for two.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "tensor/dtype.h"
#include "tensor/quantize_rows.h"

namespace ingot::tensor {
namespace {

constexpr int64_t kCols = 6144;  // hidden size of GLM-5.2
constexpr int64_t kRows = 2048;  // rows of an expert's gate

// Roughly normal weights of the size that a trained linear has.
std::vector<float> make_weights() {
  Rng rng(4);
  std::vector<float> x(static_cast<size_t>(kRows * kCols));
  for (float& v : x) v = 0.02f * (rng.uniform_float(-1, 1) + rng.uniform_float(-1, 1) + rng.uniform_float(-1, 1));
  return x;
}

const std::vector<float>& weights_f32() {
  static const std::vector<float> x = make_weights();
  return x;
}

const std::vector<uint16_t>& weights_bf16() {
  static const std::vector<uint16_t> x = [] {
    std::vector<uint16_t> out;
    out.reserve(weights_f32().size());
    for (const float v : weights_f32()) out.push_back(f32_to_bf16(v));
    return out;
  }();
  return x;
}

void mxfp4_bf16(benchmark::State& state, ScaleMode mode) {
  const std::vector<uint16_t>& x = weights_bf16();
  std::vector<uint8_t> codes(x.size() / 2), scales(x.size() / 32);
  QuantError error;
  for (auto _ : state) {
    for (int64_t r = 0; r < kRows; ++r) {
      quantize_row_mxfp4_bf16(&x[static_cast<size_t>(r * kCols)], kCols, mode, &codes[static_cast<size_t>(r * kCols / 2)],
                              &scales[static_cast<size_t>(r * kCols / 32)], state.range(0) != 0 ? &error : nullptr);
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kRows * kCols * 2);
}

void mxfp4_f32(benchmark::State& state, ScaleMode mode, bool weighted) {
  const std::vector<float>& x = weights_f32();
  const std::vector<float> importance(static_cast<size_t>(kCols), 0.5f);
  std::vector<uint8_t> codes(x.size() / 2), scales(x.size() / 32);
  QuantError error;
  for (auto _ : state) {
    for (int64_t r = 0; r < kRows; ++r) {
      quantize_row_mxfp4(&x[static_cast<size_t>(r * kCols)], kCols, mode, weighted ? importance.data() : nullptr,
                         &codes[static_cast<size_t>(r * kCols / 2)], &scales[static_cast<size_t>(r * kCols / 32)],
                         state.range(0) != 0 ? &error : nullptr);
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kRows * kCols * 4);
}

template <typename T, typename Quantize>
void fp8(benchmark::State& state, const std::vector<T>& x, Quantize quantize) {
  std::vector<uint8_t> out(x.size());
  std::vector<float> scales(static_cast<size_t>(kRows / 128 * kCols / 128));
  QuantError error;
  for (auto _ : state) {
    for (int64_t r = 0; r < kRows; r += 128) {
      quantize(&x[static_cast<size_t>(r * kCols)], 128, kCols, &out[static_cast<size_t>(r * kCols)],
               &scales[static_cast<size_t>(r / 128 * kCols / 128)], state.range(0) != 0 ? &error : nullptr);
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kRows * kCols * static_cast<int64_t>(sizeof(T)));
}

void fp8_bf16(benchmark::State& state) { fp8(state, weights_bf16(), quantize_band_fp8_bf16); }
void fp8_f32(benchmark::State& state) { fp8(state, weights_f32(), quantize_band_fp8); }

void finite_bf16(benchmark::State& state) {
  const std::vector<uint16_t>& x = weights_bf16();
  for (auto _ : state) benchmark::DoNotOptimize(first_non_finite_bf16(x.data(), kRows * kCols));
  state.SetBytesProcessed(state.iterations() * kRows * kCols * 2);
}

void copy_bf16(benchmark::State& state) {
  const std::vector<uint16_t>& x = weights_bf16();
  std::vector<uint16_t> out(x.size());
  for (auto _ : state) {
    std::memcpy(out.data(), x.data(), x.size() * 2);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kRows * kCols * 2);
}

BENCHMARK(copy_bf16)->ThreadRange(1, 2);
BENCHMARK_CAPTURE(mxfp4_bf16, even, ScaleMode::even)->ArgName("error")->Arg(0)->Arg(1)->ThreadRange(1, 2);
BENCHMARK_CAPTURE(mxfp4_bf16, floor, ScaleMode::floor)->ArgName("error")->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(mxfp4_bf16, ceil, ScaleMode::ceil)->ArgName("error")->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(mxfp4_bf16, mse, ScaleMode::mse)->ArgName("error")->Arg(0)->Arg(1)->ThreadRange(1, 2);
BENCHMARK_CAPTURE(mxfp4_f32, even, ScaleMode::even, false)->ArgName("error")->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(mxfp4_f32, mse, ScaleMode::mse, false)->ArgName("error")->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(mxfp4_f32, weighted_mse, ScaleMode::mse, true)->ArgName("error")->Arg(0);
BENCHMARK(fp8_bf16)->ArgName("error")->Arg(0)->Arg(1)->ThreadRange(1, 2);
BENCHMARK(fp8_f32)->ArgName("error")->Arg(0)->Arg(1);
BENCHMARK(finite_bf16);

}  // namespace
}  // namespace ingot::tensor

BENCHMARK_MAIN();
