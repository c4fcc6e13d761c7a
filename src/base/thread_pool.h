// ThreadPool: parallel loops for the CPU kernels. The calling thread works too; workers spin briefly between loops, because a
// decode step is some hundred loops of a few microseconds, and then sleep. One caller at a time; loops do not nest.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace ingot {

class ThreadPool {
 public:
  // `num_threads` counts the caller; 0 means one per processor this process may use.
  explicit ThreadPool(int num_threads = 0);
  // How many that makes.
  static int threads_of(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) for disjoint ranges that cover [0, count), each at most `grain` long, on all threads. Returns when
  // all are done. Each thread begins with a run of neighbouring ranges and then helps the others: which one takes which range is
  // not fixed, and body's result must not depend on it. A body must not throw.
  template <class Body>
  void parallel_for(int64_t count, int64_t grain, Body&& body) {
    if (count <= 0) return;
    if (workers_.empty() || count <= grain) {
      for (int64_t i = 0; i < count; i += grain) body(i, i + grain < count ? i + grain : count);
      return;
    }
    using Fn = std::remove_reference_t<Body>;
    run(
        count, grain, [](void* ctx, int64_t begin, int64_t end) { (*static_cast<Fn*>(ctx))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void*, int64_t, int64_t);
  void run(int64_t count, int64_t grain, Call call, void* ctx);
  void work(size_t self, uint64_t number);
  void worker_main(size_t self);

  // A loop is open for workers to join until the caller has run out of ranges; the caller then waits for those inside alone. A
  // worker that another process keeps off its core, or that still sleeps, joins late or not at all and holds nobody up.
  //
  // What costs is the number of times that a cache line has to come from another core, one after the other: for a loop, the caller's
  // line to the worker and the worker's to the caller. So what a worker reads is on one line and what it writes on another.

  // Written by the caller while no worker is inside; read by workers that are.
  struct alignas(64) Loop {
    std::atomic<uint64_t> ticket{1};  // number * 2, + 1 once it is closed
    Call call = nullptr;
    void* ctx = nullptr;
    int64_t count = 0;
    int64_t grain = 1;
  };
  // Of one thread, the caller's first.
  struct alignas(64) Place {
    std::atomic<bool> inside{false};  // whether it is about to look at the loop, or at work on it
    std::atomic<uint64_t> taken{0};   // how many ranges of its share were taken, by it or by others; above them the loop's number
  };

  Loop loop_;
  std::unique_ptr<Place[]> places_;
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace ingot
