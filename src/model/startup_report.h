// What a step is made of on this GPU, as told at start: each operation and shape with its kernel, what bounds it, and the time that it
// would take at the roof. A pure function.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spec/hardware.h"

namespace ingot::model {

// One launch. Launches of equal op, shape, kernel and cost are told together.
struct OpReport {
  std::string op;      // "q_b"
  std::string shape;   // "8 x 16384 x 2048"
  std::string kernel;  // "wgmma 128x64", "lanes"
  bool tuned = false;  // written and measured for this GPU; else one of those that all GPUs have
  double bytes = 0;    // that must be moved at least
  double flop = 0;     // that must be computed
  spec::Arithmetic arithmetic = spec::Arithmetic::f32;
};

// A heading, a line for each kind of launch in the order of `launches`, and the sum. `step` says which step it is: "8 rows, 4096
// positions". Where the hardware is not known there are no times.
std::vector<std::string> startup_report(std::span<const OpReport> launches, std::string_view device_name, std::string_view step);

}  // namespace ingot::model
