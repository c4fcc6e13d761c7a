// Runs a kernel on every machine there is in a test: as CPU code on two threads, and in the emulator with 32 and 64 lanes under each
// schedule. All must give the same bits, leave the canaries alive, and are compared with each other here; the caller compares the
// last result, which stays in the buffers, with its reference.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "gpu/cpu.h"
#include "gpu/emu.h"
#include "support/canary.h"

namespace ingot::testing {

inline constexpr gpu::emu::Schedule kSchedules[] = {
    {gpu::emu::Order::ascending, 0}, {gpu::emu::Order::descending, 0}, {gpu::emu::Order::shuffled, 17}, {gpu::emu::Order::run_ahead, 23}};

inline std::string schedule_name(int lanes, gpu::emu::Schedule schedule) {
  static constexpr const char* kNames[] = {"ascending", "descending", "shuffled", "run-ahead"};
  return std::to_string(lanes) + " lanes, " + kNames[static_cast<int>(schedule.order)] + ", seed " + std::to_string(schedule.seed);
}

template <class... T>
std::vector<uint8_t> all_bytes(const Buffer<T>&... buffers) {
  std::vector<uint8_t> out;
  (out.insert(out.end(), reinterpret_cast<const uint8_t*>(buffers.data()),
              reinterpret_cast<const uint8_t*>(buffers.data()) + buffers.bytes()),
   ...);
  return out;
}

template <class K>
void cpu_run(const typename K::Params& p) {
  static ThreadPool pool(2);
  gpu::Stream stream{&pool};
  gpu::cpu_launch<K>(stream, p);
}

template <class T>
void expect_alive(const Buffer<T>& buffer, const std::string& where) {
  EXPECT_TRUE(buffer.canaries_alive()) << where;
}

template <class K, int Lanes, class... T>
void emulate_all(const typename K::Params& p, const std::vector<uint8_t>& expected, Buffer<T>&... outputs) {
  for (const auto& schedule : kSchedules) {
    (outputs.restore(), ...);
    const auto result = gpu::emu::launch<K, Lanes>(p, schedule);
    ASSERT_TRUE(result.has_value()) << schedule_name(Lanes, schedule) << ": " << result.error().text();
    ASSERT_EQ(all_bytes(outputs...), expected) << schedule_name(Lanes, schedule) << ": other bits than the CPU";
    (expect_alive(outputs, schedule_name(Lanes, schedule)), ...);
  }
}

template <class K, class... T>
void run_everywhere(const typename K::Params& p, Buffer<T>&... outputs) {
  (outputs.restore(), ...);
  cpu_run<K>(p);
  (expect_alive(outputs, "CPU"), ...);
  const std::vector<uint8_t> bytes = all_bytes(outputs...);
  emulate_all<K, 32>(p, bytes, outputs...);
  emulate_all<K, 64>(p, bytes, outputs...);
}

}  // namespace ingot::testing
