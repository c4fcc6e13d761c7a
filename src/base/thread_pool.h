// ThreadPool: parallel loops for the CPU kernels. The calling thread works too; workers spin briefly between loops, because a
// decode step is some hundred loops of a few microseconds, and then sleep. One caller at a time; loops do not nest.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
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
  // all are done. Which thread takes which range is not fixed: body's result must not depend on it. A body must not throw.
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
  void work();
  void worker_main();

  // A loop is open for workers to join until the caller has run out of ranges; the caller then waits for those inside alone. A
  // worker that another process keeps off its core, or that still sleeps, joins late or not at all and holds nobody up.
  static constexpr uint64_t kInside = (1u << 15) - 1;  // low bits: workers inside
  static constexpr uint64_t kClosed = 1u << 15;
  static constexpr int kNumberShift = 16;  // high bits: the loop's number

  // The loop in progress: written by the caller while no worker is inside, read by workers after they have joined.
  Call call_ = nullptr;
  void* ctx_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint64_t> ticket_{kClosed};  // loop number, closed bit, workers inside
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace ingot
