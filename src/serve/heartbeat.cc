#include "serve/heartbeat.h"

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"

namespace ingot::serve {

namespace {
int64_t now_ns() { return SteadyClock().now_ns(); }

const char* name(Heartbeat::Phase phase) {
  switch (phase) {
    case Heartbeat::Phase::idle: return "waiting for work";
    case Heartbeat::Phase::intake: return "taking in requests";
    case Heartbeat::Phase::plan: return "planning a step";
    case Heartbeat::Phase::run: return "running a step on the model";
    case Heartbeat::Phase::commit: return "committing a step";
  }
  return "?";
}
}  // namespace

Heartbeat::Heartbeat(int replica, std::chrono::milliseconds limit)
    : replica_(replica), limit_(limit), since_ns_(now_ns()), thread_([this] { watch(); }) {}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
    wake_.notify_all();
  }
  thread_.join();
}

void Heartbeat::beat(Phase phase, int64_t step, int64_t requests, int64_t rows) {
  phase_.store(phase, std::memory_order_relaxed);
  step_.store(step, std::memory_order_relaxed);
  requests_.store(requests, std::memory_order_relaxed);
  rows_.store(rows, std::memory_order_relaxed);
  since_ns_.store(now_ns(), std::memory_order_release);
}

std::string Heartbeat::stall() const {
  const int64_t since = since_ns_.load(std::memory_order_acquire);
  const auto silent = std::chrono::nanoseconds(now_ns() - since);
  if (silent <= limit_) return {};
  return fmt::format("replica {}: the engine thread has been {} for {:.1f} s (step {}, {} requests, {} rows)", replica_,
                     name(phase_.load(std::memory_order_relaxed)), std::chrono::duration<double>(silent).count(),
                     step_.load(std::memory_order_relaxed), requests_.load(std::memory_order_relaxed),
                     rows_.load(std::memory_order_relaxed));
}

void Heartbeat::watch() {
  const auto interval = std::clamp<std::chrono::milliseconds>(limit_ / 4, std::chrono::milliseconds(5), std::chrono::milliseconds(1000));
  bool said = false;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, interval, [&] { return quit_; })) {
    const std::string text = stall();
    if (!text.empty() && !said) log_error("watchdog: {}", text);
    if (text.empty() && said) log_info("watchdog: replica {} goes on", replica_);
    said = !text.empty();
  }
}

}  // namespace ingot::serve
