// Runs a kernel on every machine there is in a test: as CPU code on two threads, and in the emulator with 32 and 64 lanes under each
// schedule. All must give the same bits, leave the canaries alive, and are compared with each other here; the caller compares the
// last result, which stays in the buffers, with its reference.
//
// With --device (device_test.cc) the machine is a GPU instead, alone: the same tests, with the same shapes, canaries and poison,
// compare what it gives with the same references. All that a kernel reads and writes is in Buffers, which lie in memory that it reaches.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/device/device_kernels.h"
#include "support/canary.h"
#include "support/schedules.h"

namespace ingot::testing {

// The GPU that kernels are run on; null for the machines of the host.
inline gpu::Accelerator* device_under_test = nullptr;

template <class... T>
std::vector<uint8_t> all_bytes(const Buffer<T>&... buffers) {
  std::vector<uint8_t> out;
  (out.insert(out.end(), reinterpret_cast<const uint8_t*>(buffers.data()),
              reinterpret_cast<const uint8_t*>(buffers.data()) + buffers.bytes()),
   ...);
  return out;
}

template <class T>
void expect_alive(const Buffer<T>& buffer, const std::string& where) {
  EXPECT_TRUE(buffer.canaries_alive()) << where;
}

// Runs kernel K once, on the GPU under test or else as CPU code.
template <class K>
void run_once(const typename K::Params& p) {
  if (device_under_test == nullptr) return cpu_run<K>(p);
  kernels::launch<K>(*device_under_test, p);
  const auto result = device_under_test->finish();
  ASSERT_TRUE(result.has_value()) << result.error().text();
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
  run_once<K>(p);
  if (device_under_test != nullptr) {
    (expect_alive(outputs, "GPU"), ...);
    // A kernel gives the same bits every time, or a race has been won by luck.
    const std::vector<uint8_t> bytes = all_bytes(outputs...);
    (outputs.restore(), ...);
    run_once<K>(p);
    EXPECT_EQ(all_bytes(outputs...), bytes) << "the second run gave other bits";
    return;
  }
  (expect_alive(outputs, "CPU"), ...);
  const std::vector<uint8_t> bytes = all_bytes(outputs...);
  emulate_all<K, 32>(p, bytes, outputs...);
  emulate_all<K, 64>(p, bytes, outputs...);
}

}  // namespace ingot::testing
