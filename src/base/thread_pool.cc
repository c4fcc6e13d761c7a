#include "base/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>

#include "base/check.h"

namespace ingot {
namespace {

// About 50 us of spinning on a 3 GHz core: longer than the gap between two kernels of one step, shorter than a client's gap.
constexpr int kSpins = 2000;

constexpr uint64_t kClosed = 1;
constexpr int kTakenBits = 28;  // of Place::taken; the other 36 hold the loop's number
constexpr int64_t kMaxRanges = int64_t{1} << kTakenBits;

int usable_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

int ThreadPool::threads_of(int num_threads) { return num_threads > 0 ? num_threads : usable_processors(); }

ThreadPool::ThreadPool(int num_threads) {
  const auto count = static_cast<size_t>(threads_of(num_threads));
  places_ = std::make_unique<Place[]>(count);
  for (size_t i = 1; i < count; ++i) workers_.emplace_back([this, i] { worker_main(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

// Takes ranges of its own share, then of the others'.
void ThreadPool::work(size_t self, uint64_t number) {
  const int64_t count = loop_.count, grain = loop_.grain;
  const auto threads = static_cast<int64_t>(workers_.size()) + 1;
  const int64_t ranges = (count + grain - 1) / grain;
  const int64_t each = ranges / threads, more = ranges % threads;  // the first `more` shares have one more
  for (int64_t i = 0; i < threads; ++i) {
    const int64_t whose = (static_cast<int64_t>(self) + i) % threads;
    const int64_t first = whose * each + std::min(whose, more), size = each + (whose < more ? 1 : 0);
    std::atomic<uint64_t>& taken = places_[static_cast<size_t>(whose)].taken;
    uint64_t seen = taken.load(std::memory_order_relaxed);
    for (;;) {
      // What an earlier loop left counts as nothing.
      const uint64_t next = seen >> kTakenBits == (number << kTakenBits) >> kTakenBits ? seen : number << kTakenBits;
      const auto index = static_cast<int64_t>(next % kMaxRanges);
      if (index >= size) break;
      if (!taken.compare_exchange_weak(seen, next + 1, std::memory_order_relaxed)) continue;
      seen = next + 1;
      const int64_t begin = (first + index) * grain;
      loop_.call(loop_.ctx, begin, std::min(begin + grain, count));
    }
  }
}

void ThreadPool::run(int64_t count, int64_t grain, Call call, void* ctx) {
  grain = std::max<int64_t>(1, grain);
  INGOT_CHECK((count - 1) / grain < kMaxRanges - 1, "a loop of {} in steps of {}", count, grain);
  loop_.call = call;
  loop_.ctx = ctx;
  loop_.count = count;
  loop_.grain = grain;
  const uint64_t number = (loop_.ticket.load(std::memory_order_relaxed) >> 1) + 1;
  // seq_cst on both: either a worker going to sleep sees the new loop, or we see it among the sleepers.
  loop_.ticket.store(number << 1);
  if (sleepers_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  work(0, number);
  // seq_cst on both: either a worker that comes in now sees that the loop is closed, or we see it inside.
  loop_.ticket.store(number << 1 | kClosed);
  for (size_t i = 1; i <= workers_.size(); ++i) {
    for (int spins = 0; places_[i].inside.load(); ++spins) {
      if (spins < kSpins)
        _mm_pause();
      else
        std::this_thread::yield();
    }
  }
}

void ThreadPool::worker_main(size_t self) {
  std::atomic<bool>& inside = places_[self].inside;
  uint64_t seen = 0;  // number of the last loop looked at
  for (;;) {
    uint64_t ticket = loop_.ticket.load(std::memory_order_acquire);
    for (int spins = 0; ticket >> 1 == seen && spins < kSpins; ++spins) {
      _mm_pause();
      ticket = loop_.ticket.load(std::memory_order_acquire);
    }
    if (ticket >> 1 == seen) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return stop_.load() || loop_.ticket.load() >> 1 != seen; });
      sleepers_.fetch_sub(1);
      if (stop_.load()) return;
    }
    inside.store(true);
    ticket = loop_.ticket.load();
    seen = ticket >> 1;
    if ((ticket & kClosed) == 0) work(self, seen);
    inside.store(false, std::memory_order_release);
  }
}

}  // namespace ingot
