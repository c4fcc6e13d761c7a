// Time as an argument: the scheduler and the engine take a Clock, so that tests and the planner can own it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ingot {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since an arbitrary start; never goes back.
  virtual int64_t now_ns() const = 0;
};

class SteadyClock final : public Clock {
 public:
  int64_t now_ns() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
};

class ManualClock final : public Clock {
 public:
  int64_t now_ns() const override { return now_.load(std::memory_order_relaxed); }
  void advance_ns(int64_t ns) { now_.fetch_add(ns, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_{0};
};

}  // namespace ingot
