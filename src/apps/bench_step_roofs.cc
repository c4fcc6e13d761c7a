#include "apps/bench_step_roofs.h"

#include <fmt/core.h>
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>
#include <vector>

#include "apps/bench_step_times.h"
#include "kernels/device/device_kernels.h"
#include "kernels/fill_random.kernel.h"
#include "kernels/ops.h"

namespace ingot::apps {
namespace {

// ---- the CPU ----

uint64_t sum_of(const uint8_t* data, int64_t bytes) {
  __m256i sum[4] = {};
  for (int64_t i = 0; i + 128 <= bytes; i += 128)
    for (int j = 0; j < 4; ++j) sum[j] = _mm256_add_epi64(sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i + 32 * j)));
  const __m256i all = _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]), _mm256_add_epi64(sum[2], sum[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(all, 0));
}

// The best of many short passes: on a busy machine some are over before another process gets a processor, and all of them together last
// longer than the turns that processes take, so that every thread has its own. Where they take longer than they should, fewer must do.
constexpr int kPasses = 200;  // of a quarter of a millisecond
constexpr double kMostSeconds = 0.15;
template <class Pass>
double best_rate(int passes, double amount, Pass pass) {
  double best = 0;
  const double begin = seconds_now();
  for (int i = 0; i < passes && seconds_now() < begin + kMostSeconds; ++i) {
    const double start = seconds_now();
    pass(i);
    best = std::max(best, amount / (seconds_now() - start));
  }
  return best;
}

// Bytes a second of all threads together, from memory: pieces of far more than any cache in reach, one behind the other.
double memory_rate(ThreadPool& pool, int64_t bytes) {
  constexpr int64_t kRange = int64_t{1} << 18;
  const std::vector<uint8_t> memory(static_cast<size_t>(bytes), 1);
  const int64_t piece = bytes / 16;
  std::atomic<uint64_t> sink{0};
  return best_rate(64, static_cast<double>(piece), [&](int pass) {
    const uint8_t* from = memory.data() + pass % 16 * piece;
    pool.parallel_for(piece, kRange, [&](int64_t begin, int64_t end) { sink += sum_of(from + begin, end - begin); });
  });
}

// The same from their own caches, of `own` bytes each.
double cache_rate(ThreadPool& pool, int64_t own) {
  constexpr int64_t kTimes = 32;
  const int64_t threads = pool.num_threads();
  const std::vector<uint8_t> memory(static_cast<size_t>(own * threads), 1);
  std::atomic<uint64_t> sink{0};
  return best_rate(kPasses, static_cast<double>(own * threads * kTimes), [&](int) {
    pool.parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t thread = begin; thread < end; ++thread)
        for (int64_t i = 0; i < kTimes; ++i) sink += sum_of(memory.data() + thread * own, own);
    });
  });
}

// f32 multiply-add operations a second (two flop each) with 12 independent sums in registers on every thread.
double multiply_rate(ThreadPool& pool) {
  constexpr int64_t kSteps = 100'000;
  return best_rate(kPasses, static_cast<double>(pool.num_threads()) * kSteps * 12 * 16, [&](int) {
    pool.parallel_for(pool.num_threads(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        __m256 sum[12];
        for (int j = 0; j < 12; ++j) sum[j] = _mm256_set1_ps(static_cast<float>(j));
        __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
        for (int64_t i = 0; i < kSteps; ++i) {
          asm volatile("" : "+x"(a), "+x"(b));  // the compiler may not see that all steps are alike
#pragma GCC unroll 12
          for (int j = 0; j < 12; ++j) sum[j] = _mm256_fmadd_ps(sum[j], a, b);
        }
        for (int j = 0; j < 12; ++j) asm volatile("" : : "x"(sum[j]));
      }
    });
  });
}

// Bytes of the first processor's cache of this level; 0: the system does not say. (The C library's figure for the last level is that of a
// whole socket, which on some processors several groups of cores divide.)
int64_t cache_bytes(int level) {
  for (int index = 0; index < 8; ++index) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    int its_level = 0;
    int64_t kib = 0;
    std::string type;
    std::ifstream(folder + "level") >> its_level;
    std::ifstream(folder + "type") >> type;
    std::ifstream(folder + "size") >> kib;  // "32768K"
    if (its_level == level && type != "Instruction") return kib * 1024;
  }
  return 0;
}

// Half of a core's own cache, so that the other data of its thread leave it there.
int64_t own_cache_bytes() {
  const int64_t level2 = cache_bytes(2);
  return level2 > 0 ? level2 / 2 : int64_t{128} << 10;
}

int64_t last_cache_bytes() {
  const int64_t level3 = cache_bytes(3);
  return level3 > 0 ? level3 : cache_bytes(2);
}

// ---- a GPU ----

// Milliseconds that `work` takes on the device, the median of some runs after one.
template <class Work>
Result<double> time_ms(gpu::Accelerator& device, Work work) {
  gpu::Driver& driver = device.driver();
  INGOT_ASSIGN(const gpu::Event from, driver.create_event(true));
  INGOT_ASSIGN(const gpu::Event to, driver.create_event(true));
  std::vector<double> times;
  for (int i = 0; i < 6; ++i) {
    device.record(from);
    work();
    device.record(to);
    INGOT_TRY(device.finish());
    INGOT_ASSIGN(const float ms, driver.elapsed_ms(from, to));
    if (i > 0) times.push_back(static_cast<double>(ms));
  }
  driver.destroy(from);
  driver.destroy(to);
  return spread_of(times).median;
}

// Which kernel a product was made by.
struct Chosen final : gpu::OpObserver {
  std::string_view kernel;
  void before(std::string_view, std::string_view by, const gpu::OpCost&) override { kernel = by; }
  void after() override {}
};

}  // namespace

RoofMeter::RoofMeter(std::shared_ptr<gpu::Accelerator> device, ThreadPool& pool, gpu::DeviceMatmul matmul, const RoofSizes& sizes)
    : device_(std::move(device)), pool_(pool), matmul_(matmul), sizes_(sizes) {}

Result<> RoofMeter::measure() {
  if (device_) return roofs_.bytes_per_second > 0 ? Result<>() : measure_gpu();
  roofs_.memory_how = fmt::format("{} threads read {} MB", pool_.num_threads(), sizes_.read_mb);
  roofs_.flop_how = "f32 multiply-adds in registers";
  roofs_.cache_bytes = last_cache_bytes();
  roofs_.bytes_per_second = std::max(roofs_.bytes_per_second, memory_rate(pool_, sizes_.read_mb << 20));
  roofs_.cache_bytes_per_second = std::max(roofs_.cache_bytes_per_second, cache_rate(pool_, own_cache_bytes()));
  roofs_.flop_per_second = std::max(roofs_.flop_per_second, multiply_rate(pool_));
  return {};
}

Result<> RoofMeter::measure_gpu() {
  device_->enter();
  roofs_.cache_bytes = device_->info().l2_bytes;
  const auto bytes = static_cast<size_t>(sizes_.copy_mb) << 20;
  {
    INGOT_ASSIGN(const auto from, gpu::DeviceMemory::allocate(device_, bytes));
    INGOT_ASSIGN(const auto to, gpu::DeviceMemory::allocate(device_, bytes));
    device_->fill(from.data(), 1, bytes);
    INGOT_ASSIGN(const double ms, time_ms(*device_, [&] { device_->copy(to.data(), from.data(), bytes); }));
    roofs_.bytes_per_second = 2 * static_cast<double>(bytes) / ms * 1000;
    roofs_.memory_how = fmt::format("the driver's copy of {} MB, bytes read and written", sizes_.copy_mb);
  }
  const int64_t dim = sizes_.product;
  const auto count = static_cast<size_t>(dim * dim);
  INGOT_ASSIGN(const auto x, gpu::DeviceMemory::allocate(device_, count * sizeof(float)));
  INGOT_ASSIGN(const auto y, gpu::DeviceMemory::allocate(device_, count * sizeof(float)));
  INGOT_ASSIGN(const auto w, gpu::DeviceMemory::allocate(device_, count * 2));
  kernels::launch<kernels::FillRandom>(*device_, {x.data(), static_cast<int64_t>(x.bytes()), kernels::RandomKind::f32, 1, 0.0f, 1.0f});
  kernels::launch<kernels::FillRandom>(*device_, {w.data(), static_cast<int64_t>(w.bytes()), kernels::RandomKind::bf16, 2, 0.0f, 0.01f});
  const tensor::WeightView weight{reinterpret_cast<const uint8_t*>(w.data()), nullptr, dim, dim, 0, tensor::WeightFormat::bf16};
  Chosen chosen;
  gpu::Stream stream{nullptr, device_.get(), matmul_, &chosen};
  const auto product = [&] {
    kernels::matmul(stream, {reinterpret_cast<float*>(y.data()), dim, reinterpret_cast<const float*>(x.data()), dim, weight, dim, false});
  };
  INGOT_ASSIGN(const double ms, time_ms(*device_, product));
  roofs_.flop_per_second = 2 * static_cast<double>(dim) * static_cast<double>(dim) * static_cast<double>(dim) / ms * 1000;
  roofs_.flop_how = fmt::format("our {} product of {}^3, bf16 weights", chosen.kernel, dim);
  // With cuBLAS, 8192^3, random data, on one of our H200s (spec/hardware.h).
  if (device_->info().name.find("H200") != std::string::npos) roofs_.reference_flop_per_second = 782e12;
  return {};
}

}  // namespace ingot::apps
