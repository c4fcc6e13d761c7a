// Parallel loops: every range exactly once, whatever the number of threads, with late and sleeping workers.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace ingot {
namespace {

TEST(ThreadPool, CallsEveryRangeExactlyOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const int64_t count : {0, 1, 2, 3, 7, 8, 9, 100, 1001}) {
      for (const int64_t grain : {1, 2, 5, 64, 5000}) {
        std::vector<int> calls(static_cast<size_t>(count));  // each element is of one range, so of one thread
        std::atomic<int64_t> most = 0;
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
          if (end - begin > most) most = end - begin;
          for (int64_t i = begin; i < end; ++i) ++calls[static_cast<size_t>(i)];
        });
        EXPECT_LE(most, grain);
        for (int64_t i = 0; i < count; ++i)
          ASSERT_EQ(calls[static_cast<size_t>(i)], 1) << i << " of " << count << " by " << grain << ", " << threads << " threads";
      }
    }
  }
}

// Loops that follow each other at once: a worker that comes late to one must not take part in it with the next one's ranges.
TEST(ThreadPool, LoopsOfOtherSizesFollowEachOther) {
  for (const int threads : {2, 3, 5}) {
    ThreadPool pool(threads);
    int64_t expected = 0;
    std::atomic<int64_t> sum = 0;
    for (int64_t loop = 0; loop < 30'000; ++loop) {
      const int64_t count = 1 + loop % 13;
      pool.parallel_for(count, 1 + loop % 2, [&, loop](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) sum.fetch_add(loop * (i + 1), std::memory_order_relaxed);
      });
      expected += loop * count * (count + 1) / 2;
      ASSERT_EQ(sum.load(), expected) << "after loop " << loop;
    }
  }
}

TEST(ThreadPool, OthersTakeTheRangesOfWhoIsBusy) {
  ThreadPool pool(2);
  std::atomic<int> quick = 0;
  // The first range lasts until all others are done, so nobody can be waiting for its thread's share.
  pool.parallel_for(16, 1, [&](int64_t begin, int64_t) {
    if (begin > 0) {
      ++quick;
      return;
    }
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (quick < 15 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    EXPECT_EQ(quick, 15);
  });
  EXPECT_EQ(quick, 15);
}

TEST(ThreadPool, SleepingWorkersWakeUp) {
  ThreadPool pool(3);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than they spin
    std::atomic<int> arrived = 0;
    // Three ranges that wait for each other need three threads.
    pool.parallel_for(3, 1, [&](int64_t, int64_t) {
      ++arrived;
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (arrived < 3 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
      EXPECT_EQ(arrived, 3);
    });
  }
}

}  // namespace
}  // namespace ingot
