// What GPUs can do at most by their data sheets: the roofs that times are told as fractions of. Values only; any thread.
//
// Source of all but f32: SemiAnalysis InferenceX-app, packages/app/src/lib/gpu-specs.ts, commit 77ca49a (2026-04-03): dense peaks, no
// sparsity. f32 is the vendors' figure for vector units, from memory and not re-read. Measured roofs are lower and depend on the kernel:
// one H200 read 4.33 TB/s and reached 782 bf16 and 1455 fp8 TFLOP/s here (8192^3, random data).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ingot::spec {

enum class Arithmetic : uint8_t { f32, bf16, fp8, fp4 };  // the type of what is multiplied; sums are f32

struct Hardware {
  std::string_view name;  // "H200", which the driver's name of the device has as a word
  double fp4;             // flop/s of matrix units, as the next two; 0: it has none
  double fp8;
  double bf16;
  double f32;     // flop/s of vector units
  double memory;  // byte/s
  double memory_bytes;
  int compute_units;

  // The peak of products of that type, or of the next wider one where there is no unit for it.
  double flops(Arithmetic arithmetic) const;
};

// H200, B200, MI300X or MI355X, by the driver's name: "NVIDIA H200", "AMD Instinct MI300X". None: a GPU that is not in the table.
std::optional<Hardware> hardware_of(std::string_view device_name);

}  // namespace ingot::spec
