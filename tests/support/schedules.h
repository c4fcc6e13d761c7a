// The orders in which the emulator's threads take turns in tests, and a kernel run as CPU code.
#pragma once

#include <string>

#include "base/thread_pool.h"
#include "gpu/cpu.h"
#include "gpu/emu.h"

namespace ingot::testing {

inline constexpr gpu::emu::Schedule kSchedules[] = {
    {gpu::emu::Order::ascending, 0}, {gpu::emu::Order::descending, 0}, {gpu::emu::Order::shuffled, 17}, {gpu::emu::Order::run_ahead, 23}};

inline std::string schedule_name(int lanes, gpu::emu::Schedule schedule) {
  static constexpr const char* kNames[] = {"ascending", "descending", "shuffled", "run-ahead"};
  return std::to_string(lanes) + " lanes, " + kNames[static_cast<int>(schedule.order)] + ", seed " + std::to_string(schedule.seed);
}

template <class K>
void cpu_run(const typename K::Params& p) {
  static ThreadPool pool(2);
  gpu::Stream stream{&pool};
  gpu::cpu_launch<K>(stream, p);
}

}  // namespace ingot::testing
