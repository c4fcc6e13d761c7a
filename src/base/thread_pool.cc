#include "base/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>

namespace ingot {
namespace {

// About 50 us of spinning on a 3 GHz core: longer than the gap between two kernels of one step, shorter than a client's gap.
constexpr int kSpins = 2000;

int usable_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

int ThreadPool::threads_of(int num_threads) { return num_threads > 0 ? num_threads : usable_processors(); }

ThreadPool::ThreadPool(int num_threads) {
  for (int i = 1, count = threads_of(num_threads); i < count; ++i) workers_.emplace_back([this] { worker_main(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::work() {
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    call_(ctx_, begin, std::min(begin + grain_, count_));
  }
}

void ThreadPool::run(int64_t count, int64_t grain, Call call, void* ctx) {
  call_ = call;
  ctx_ = ctx;
  count_ = count;
  grain_ = std::max<int64_t>(1, grain);
  next_.store(0, std::memory_order_relaxed);
  // seq_cst on both: either a worker going to sleep sees the new loop, or we see it among the sleepers.
  ticket_.store(((ticket_.load() >> kNumberShift) + 1) << kNumberShift);
  if (sleepers_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  work();
  ticket_.fetch_or(kClosed);
  for (int spins = 0; (ticket_.load(std::memory_order_acquire) & kInside) != 0; ++spins) {
    if (spins < kSpins)
      _mm_pause();
    else
      std::this_thread::yield();
  }
}

void ThreadPool::worker_main() {
  uint64_t seen = 0;  // number of the last loop looked at
  for (;;) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    for (int spins = 0; ticket >> kNumberShift == seen && spins < kSpins; ++spins) {
      _mm_pause();
      ticket = ticket_.load(std::memory_order_acquire);
    }
    if (ticket >> kNumberShift == seen) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return stop_.load() || ticket_.load() >> kNumberShift != seen; });
      sleepers_.fetch_sub(1);
      if (stop_.load()) return;
      ticket = ticket_.load();
    }
    seen = ticket >> kNumberShift;
    // Join, unless the loop closes first. A newer loop than `seen` fails the exchange and is met in the next round.
    bool joined = false;
    while (!joined && ticket >> kNumberShift == seen && (ticket & kClosed) == 0)
      joined = ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire);
    if (!joined) continue;
    work();
    ticket_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace ingot
