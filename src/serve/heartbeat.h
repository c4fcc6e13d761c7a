// Heartbeat: what the engine thread is doing and since when, readable by anybody at any moment; and a watchdog thread that says so in the
// log when one phase takes too long, and again when it is over.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace ingot::serve {

class Heartbeat {
 public:
  enum class Phase : uint8_t { idle, intake, plan, run, commit };

  Heartbeat(int replica, std::chrono::milliseconds limit);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // The engine thread: a phase begins (or goes on: an idle engine beats, too).
  void beat(Phase phase, int64_t step = 0, int64_t requests = 0, int64_t rows = 0);

  // Any thread: empty while all is well, else what hangs, in words.
  std::string stall() const;

 private:
  void watch();

  const int replica_;
  const std::chrono::milliseconds limit_;
  std::atomic<Phase> phase_{Phase::idle};
  std::atomic<int64_t> since_ns_;
  std::atomic<int64_t> step_{0};
  std::atomic<int64_t> requests_{0};
  std::atomic<int64_t> rows_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool quit_ = false;
  std::thread thread_;
};

}  // namespace ingot::serve
