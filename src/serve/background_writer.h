// Carries records from engine threads to a thread of its own that writes them, so that a slow disk never slows a step.
// Bounded: when the writer does not keep up, new records are dropped, counted and, at most once in ten seconds, said.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/queue.h"

namespace ingot::serve {

template <class T>
class BackgroundWriter {
 public:
  // Called on the writer thread with what has come since the last call, oldest first. What it throws is logged once.
  using Handler = std::function<void(std::span<T>)>;

  // `name` begins the log lines. `capacity`: records that may wait.
  BackgroundWriter(std::string name, size_t capacity, Handler handler)
      : name_(std::move(name)), handler_(std::move(handler)), queue_(capacity), thread_([this] { write(); }) {}

  // Writes everything that was pushed before.
  ~BackgroundWriter() {
    queue_.close();
    thread_.join();
  }
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  // Any thread; never waits for the disk.
  void push(T record) noexcept {
    try {
      if (queue_.try_push(record)) {
        pushed_.fetch_add(1);
        return;
      }
    } catch (...) {
      // No memory for one more record: it is dropped as if the queue were full.
    }
    dropped_.fetch_add(1);
  }

  // Returns when every record pushed before the call has been handled.
  void flush() {
    std::unique_lock lock(mutex_);
    const uint64_t goal = pushed_.load();
    handled_more_.wait(lock, [&] { return handled_ >= goal; });
  }

  uint64_t dropped() const { return dropped_.load(); }

 private:
  using Time = std::chrono::steady_clock::time_point;

  void write() {
    bool failed = false;
    for (;;) {
      const bool last = queue_.closed();  // read before draining: what was pushed before close() is still taken
      std::vector<T> records = queue_.wait_drain(std::chrono::milliseconds(1000));
      try {
        if (!records.empty()) handler_(std::span<T>(records));
      } catch (const std::exception& e) {
        if (!std::exchange(failed, true)) log_error("{}: {}; further failures are not logged", name_, e.what());
      }
      {
        std::lock_guard lock(mutex_);
        handled_ += records.size();
      }
      handled_more_.notify_all();
      say_dropped(last);
      if (last && records.empty()) return;
    }
  }

  void say_dropped(bool at_end) {
    const uint64_t now_dropped = dropped_.load();
    const Time now = std::chrono::steady_clock::now();
    if (now_dropped == said_ || (!at_end && said_ > 0 && now - said_at_ < std::chrono::seconds(10))) return;
    log_warn("{}: {} records dropped since start, the writer does not keep up", name_, now_dropped);
    said_ = now_dropped;
    said_at_ = now;
  }

  const std::string name_;
  const Handler handler_;
  BoundedQueue<T> queue_;
  std::atomic<uint64_t> pushed_{0};  // accepted by the queue
  std::atomic<uint64_t> dropped_{0};
  std::mutex mutex_;  // handled_
  std::condition_variable handled_more_;
  uint64_t handled_ = 0;
  uint64_t said_ = 0;  // writer thread's: drops told so far, and when
  Time said_at_{};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace ingot::serve
