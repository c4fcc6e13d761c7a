// What the emulator must catch: kernels with planted faults. And what it must do right: shuffles, atomics, every schedule.
#include "gpu/emu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "gpu/kernel.h"
#include "support/canary.h"
#include "support/schedules.h"

#if defined(__SANITIZE_THREAD__)
namespace {
bool race_expected = false;
}
// ThreadSanitizer calls this for each report; the planted race ends its (forked) process here with a code of its own.
extern "C" void __tsan_on_report(void*) {
  if (race_expected) _exit(99);
}
#endif

namespace ingot::gpu {
namespace {

using emu::Order;
using ::ingot::testing::Buffer;

// y[b] = sum of x + sum of x * x over the block's 256 numbers, by two reductions that share a scratch of one float a warp.
struct SumsParams {
  float* y;
  const float* x;
  int64_t rows;
  Grid grid() const { return {rows, 256}; }
};

template <bool kBarrier, int kWarps>
struct Sums {
  using Params = SumsParams;
  struct Shared {
    float partial[kWarps];
  };
  template <class G>
  GPU_FN static float block_sum(G& g, float* scratch, float v) {
    v = warp_sum(g, v);
    if (kBarrier) g.sync();  // without it a quick warp overwrites what a slow one has yet to read of the last sum
    if (g.lane() == 0) scratch[g.warp()] = v;
    g.sync();
    float sum = 0.0f;
    for (int w = 0; w < g.warps(); ++w) sum += scratch[w];
    return sum;
  }
  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    const float x = p.x[g.block() * 256 + g.thread()];
    const float sum = block_sum(g, s.partial, x);
    const float squares = block_sum(g, s.partial, x * x);
    p.y[g.block() * 256 + g.thread()] = sum + squares;
  }
};
using GoodSums = Sums<true, 8>;
using RacySums = Sums<false, 8>;
using ShortSums = Sums<true, 7>;  // 256 threads of 32 lanes are 8 warps

struct Diverged {
  using Params = SumsParams;
  struct Shared {};
  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    if (g.thread() < 100) g.sync();
    p.y[g.thread()] = p.x[g.thread()];
  }
};

struct DivergedShuffle {
  using Params = SumsParams;
  struct Shared {};
  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    float v = p.x[g.thread()];
    if (g.lane() != 5) v = g.shfl_xor(v, 1);
    g.sync();
    p.y[g.thread()] = v;
  }
};

struct ReadsUnwritten {
  using Params = SumsParams;
  struct Shared {
    float values[256];
  };
  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    if (g.thread() != 77) s.values[g.thread()] = 1.0f;
    g.sync();
    p.y[g.block() * 256 + g.thread()] = s.values[255 - g.thread()];
  }
};

struct Histogram {
  using Params = SumsParams;
  struct Shared {
    uint32_t bins[4];
  };
  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    if (g.thread() < 4) s.bins[g.thread()] = 0;
    g.sync();
    for (int i = 0; i <= g.thread() % 3; ++i) g.block_add(&s.bins[g.thread() % 4], 1u);
    g.sync();
    p.y[g.block() * 256 + g.thread()] = static_cast<float>(s.bins[g.thread() % 4]);
  }
};

struct LaneIds {
  using Params = SumsParams;
  struct Shared {};
  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    // Many shuffles in a row, one of them of 8 bytes: the slots of one must survive until the slowest lane has read them.
    float v = static_cast<float>(g.thread());
    for (int mask = 1; mask < G::lanes; mask *= 2) v = g.shfl_xor(v, mask) * 2.0f - v;
    const uint64_t wide = g.shfl_xor(uint64_t{1} << 40 | static_cast<uint64_t>(g.thread()), 3);
    p.y[g.block() * 256 + g.thread()] = v + static_cast<float>(wide - (uint64_t{1} << 40)) * 1000.0f;
  }
};

std::vector<float> some_numbers(int64_t count) {
  std::vector<float> x;
  for (int64_t i = 0; i < count; ++i) x.push_back(static_cast<float>((i * 37) % 101) / 64.0f - 0.5f);
  return x;
}

template <class K, int Lanes>
std::vector<float> run(emu::Schedule schedule, int64_t rows = 3) {
  const std::vector<float> x = some_numbers(rows * 256);
  std::vector<float> y(x.size());
  const auto result = emu::launch<K, Lanes>({y.data(), x.data(), rows}, schedule);
  EXPECT_TRUE(result.has_value()) << result.error().text();
  return y;
}

TEST(Emulator, TheSameBitsUnderEverySchedule) {
  const std::vector<float> expected = run<GoodSums, 32>({});
  double sum = 0.0;
  for (int i = 0; i < 256; ++i) sum += some_numbers(256)[static_cast<size_t>(i)] * (1.0 + some_numbers(256)[static_cast<size_t>(i)]);
  EXPECT_NEAR(expected[0], sum, 1e-3);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    for (const Order order : {Order::ascending, Order::descending, Order::shuffled, Order::run_ahead})
      EXPECT_EQ((run<GoodSums, 32>({order, seed})), expected) << static_cast<int>(order) << " seed " << seed;
  }
}

TEST(Emulator, ScratchReusedWithoutABarrierGivesOtherBits) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the race itself is reported here: see AMissingBarrierIsAReportedRace";
#endif
  const std::vector<float> right = run<GoodSums, 32>({});
  int different = 0;
  for (const auto& schedule : ::ingot::testing::kSchedules) different += run<RacySums, 32>(schedule) != right;
  EXPECT_GT(different, 0) << "no schedule showed the planted race";
}

TEST(Emulator, AMissingBarrierIsAReportedRace) {
#if defined(__SANITIZE_THREAD__)
  const auto race = [] {
    race_expected = true;
    run<RacySums, 32>({Order::ascending, 1});
    _exit(0);
  };
  EXPECT_EXIT(race(), ::testing::ExitedWithCode(99), "");
#else
  GTEST_SKIP() << "needs the tsan build";
#endif
}

TEST(Emulator, ADivergedBarrierStopsWithTheCounts) {
  std::vector<float> x(256), y(256);
  for (const auto& schedule : ::ingot::testing::kSchedules) {
    const auto result = emu::launch<Diverged, 64>({y.data(), x.data(), 1}, schedule);
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().message, "block 0: diverged: of 256 threads 100 wait at sync(), 0 at a shuffle, 156 have finished");
  }
}

TEST(Emulator, AShuffleThatOneLaneLeavesOutStops) {
  std::vector<float> x(256), y(256);
  const auto result = emu::launch<DivergedShuffle, 32>({y.data(), x.data(), 1}, {Order::shuffled, 5});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().message, "block 0: diverged: of 256 threads 8 wait at sync(), 248 at a shuffle, 0 have finished");
}

TEST(Emulator, AWriteBehindSharedMemoryIsFound) {
  std::vector<float> x(256), y(256);
#if defined(__SANITIZE_ADDRESS__)
  EXPECT_DEATH((void)(emu::launch<ShortSums, 32>({y.data(), x.data(), 1})), "AddressSanitizer|index 7 out of bounds");
#else
  const auto result = emu::launch<ShortSums, 32>({y.data(), x.data(), 1});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().message, "a thread wrote 0 bytes behind the end of the block's 28 bytes of shared memory");
#endif
  EXPECT_TRUE((emu::launch<ShortSums, 64>({y.data(), x.data(), 1})).has_value());  // 4 warps fit
}

TEST(Emulator, SharedMemoryNobodyWroteIsNaNInEveryBlock) {
  const std::vector<float> y = run<ReadsUnwritten, 32>({}, 2);
  for (int i = 0; i < 512; ++i) EXPECT_EQ(std::isnan(y[static_cast<size_t>(i)]), i % 256 == 255 - 77) << i;
}

TEST(Emulator, AtomicAddsOfAllThreadsArrive) {
  uint32_t expected[4] = {};
  for (int t = 0; t < 256; ++t) expected[t % 4] += static_cast<uint32_t>(t % 3 + 1);
  for (const auto& schedule : ::ingot::testing::kSchedules) {
    const std::vector<float> y = run<Histogram, 64>(schedule);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], static_cast<float>(expected[i % 4])) << i;
  }
}

TEST(Emulator, ManyShufflesInARowKeepTheirValues) {
  const auto expect = [](int lanes, const std::vector<float>& y) {
    std::vector<float> v(256), next(256);
    for (size_t t = 0; t < 256; ++t) v[t] = static_cast<float>(t);
    for (size_t mask = 1; mask < static_cast<size_t>(lanes); mask *= 2) {
      for (size_t t = 0; t < 256; ++t) next[t] = v[t ^ mask] * 2.0f - v[t];
      v = next;
    }
    for (size_t t = 0; t < 256; ++t) ASSERT_EQ(y[t], v[t] + static_cast<float>(t ^ 3) * 1000.0f) << t;
  };
  for (const auto& schedule : ::ingot::testing::kSchedules) {
    expect(32, run<LaneIds, 32>(schedule, 1));
    expect(64, run<LaneIds, 64>(schedule, 1));
  }
}

TEST(Emulator, AGridOfNoBlocksRunsNothing) {
  EXPECT_TRUE((emu::launch<GoodSums, 32>({nullptr, nullptr, 0})).has_value());
  ::ingot::testing::cpu_run<Sums<true, 8>>({nullptr, nullptr, 0});
}

TEST(Canary, AWriteBesideTheBufferIsFound) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer stops the write itself";
#endif
  Buffer<float> buffer(5);
  EXPECT_TRUE(std::isnan(buffer[4]));
  EXPECT_TRUE(buffer.canaries_alive());
  volatile int64_t end = 5;
  buffer.data()[end] = 1.0f;
  EXPECT_FALSE(buffer.canaries_alive());
}

}  // namespace
}  // namespace ingot::gpu
