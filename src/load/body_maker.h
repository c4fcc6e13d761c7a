// Makes the bodies of a plan's first turns on a thread of its own, ahead of the io thread that sends them, within a bound of memory.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace ingot::load {

class BodyMaker {
 public:
  // `make(i)` for every i of `wanted`, in order; called on the other thread. Starts at once.
  BodyMaker(size_t size, std::vector<size_t> wanted, std::function<std::string(size_t)> make)
      : bodies_(size), wanted_(std::move(wanted)), make_(std::move(make)), thread_([this] { work(); }) {}
  ~BodyMaker() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  BodyMaker(const BodyMaker&) = delete;
  BodyMaker& operator=(const BodyMaker&) = delete;

  // Until all is made, or as much as may lie ready.
  void wait_until_ahead() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_ || bytes_ >= kMaxBytes; });
  }
  // Body i, which is wanted and was not taken yet. Waits when it is not made: `stalls` then counts one more.
  std::string take(size_t i, int64_t& stalls) {
    std::unique_lock lock(mutex_);
    if (!bodies_[i]) {
      ++stalls;
      taker_waits_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return bodies_[i].has_value(); });
      taker_waits_ = false;
    }
    std::string body = std::move(*bodies_[i]);
    bodies_[i].reset();
    bytes_ -= body.size();
    lock.unlock();
    changed_.notify_all();
    return body;
  }

 private:
  static constexpr size_t kMaxBytes = size_t{512} << 20;

  void work() {
    for (const size_t i : wanted_) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stopped_ || taker_waits_ || bytes_ < kMaxBytes; });
        if (stopped_) return;
      }
      std::string body = make_(i);
      const std::lock_guard lock(mutex_);
      bytes_ += body.size();
      bodies_[i] = std::move(body);
      changed_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<std::string>> bodies_;
  size_t bytes_ = 0;
  bool done_ = false, stopped_ = false, taker_waits_ = false;
  const std::vector<size_t> wanted_;
  const std::function<std::string(size_t)> make_;
  std::thread thread_;
};

}  // namespace ingot::load
