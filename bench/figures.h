// What stream_load measures with: durations, the server's step log, the server's process. Used by one thread.
#pragma once

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace ingot::bench {

using Json = nlohmann::ordered_json;
inline constexpr int64_t kSecond = 1'000'000'000;

// CLOCK_MONOTONIC, the clock of the server's step log.
inline int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

[[noreturn]] inline void die(const std::string& message) {
  fmt::print(stderr, "stream_load: {}\n", message);
  std::exit(2);
}

// Durations in buckets whose width is at most 1/64 of their value: quantiles are exact to 1.6 %, rounded up. The size never changes.
class Histogram {
 public:
  void add(int64_t ns) {
    const auto us = static_cast<uint64_t>(std::max<int64_t>(ns, 0)) / 1000;
    const int shift = std::max(static_cast<int>(std::bit_width(us)) - 7, 0);
    ++buckets_[static_cast<size_t>(shift) * 64 + (us >> shift)];
    ++count_;
    max_ns_ = std::max(max_ns_, ns);
  }
  int64_t count() const { return count_; }
  double max_ms() const { return static_cast<double>(max_ns_) / 1e6; }
  double quantile_ms(double q) const {
    const auto rank = static_cast<int64_t>(q * static_cast<double>(count_));
    int64_t seen = 0;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      seen += buckets_[i];
      if (seen <= rank) continue;
      const size_t shift = i < 128 ? 0 : i / 64 - 1;
      return std::min(static_cast<double>(((i - shift * 64 + 1) << shift)) / 1e3, max_ms());
    }
    return max_ms();
  }
  Json report() const {
    if (count_ == 0) return nullptr;
    return {{"count", count_},
            {"p50_ms", quantile_ms(0.5)},
            {"p90_ms", quantile_ms(0.9)},
            {"p99_ms", quantile_ms(0.99)},
            {"p99.9_ms", quantile_ms(0.999)},
            {"max_ms", max_ms()}};
  }

 private:
  std::array<int64_t, 64 * 60> buckets_{};
  int64_t count_ = 0;
  int64_t max_ns_ = 0;
};

// The ends of the server's steps, read as they are written. A step's end is in the file before its tokens leave the server.
class StepLog {
 public:
  explicit StepLog(const std::string& path) {
    if (path.empty()) return;
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) die(fmt::format("cannot read --step-log {}: {}", path, std::strerror(errno)));
  }
  bool is_open() const { return fd_ >= 0; }
  const std::vector<int64_t>& ends() const { return ends_; }
  void read_new() {
    std::array<int64_t, 512> more{};
    while (fd_ >= 0) {
      const ssize_t bytes = pread(fd_, more.data(), sizeof(more), static_cast<off_t>(ends_.size() * sizeof(int64_t)));
      if (bytes < static_cast<ssize_t>(sizeof(int64_t))) return;
      ends_.insert(ends_.end(), more.begin(), more.begin() + bytes / static_cast<ssize_t>(sizeof(int64_t)));
    }
  }
  // Index of the last step that had ended at `time`; -1: none.
  int64_t latest(int64_t time) const { return std::upper_bound(ends_.begin(), ends_.end(), time) - ends_.begin() - 1; }

 private:
  int fd_ = -1;
  std::vector<int64_t> ends_;
};

struct ProcessSample {
  double seconds = 0;  // since the start
  int64_t rss_kib = 0;
  int64_t descriptors = 0;
  double cpu_seconds = 0;
};

inline ProcessSample sample_process(int64_t pid, double seconds) {
  ProcessSample sample{.seconds = seconds};
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) sample.rss_kib = std::strtoll(line.c_str() + 6, nullptr, 10);
  }
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  // Behind the name, which may hold blanks: field 3 is the state, 14 and 15 are the ticks in user and kernel mode.
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string skipped;
  for (int i = 3; i < 14; ++i) fields >> skipped;
  int64_t user = 0;
  int64_t kernel = 0;
  fields >> user >> kernel;
  sample.cpu_seconds = static_cast<double>(user + kernel) / static_cast<double>(sysconf(_SC_CLK_TCK));
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid), error); !error && it != std::filesystem::end(it);
       it.increment(error)) {
    ++sample.descriptors;
  }
  return sample;
}

// KiB a minute, least squares over the second half of the run: the first fills caches, pools and the allocator's arenas.
inline std::optional<double> rss_slope(const std::vector<ProcessSample>& samples) {
  const size_t first = samples.size() / 2;
  const auto n = static_cast<double>(samples.size() - first);
  if (n < 3) return std::nullopt;
  double t = 0, y = 0, ty = 0, tt = 0;
  for (size_t i = first; i < samples.size(); ++i) {
    const double minutes = samples[i].seconds / 60;
    const auto kib = static_cast<double>(samples[i].rss_kib);
    t += minutes, y += kib, ty += minutes * kib, tt += minutes * minutes;
  }
  return (n * ty - t * y) / (n * tt - t * t);
}

}  // namespace ingot::bench
