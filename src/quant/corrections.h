// Corrections: what calibration decided about single weights. Made by calibrate.h, read by the pipeline; null means round to nearest.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "tensor/quantize.h"

namespace ingot::quant {

class Corrections {
 public:
  virtual ~Corrections() = default;

  // The packed weight of `module` (checkpoint name without ".weight"), in the format that the recipe gives it and the shape of the
  // source; empty when calibration has nothing to say about it. May be called from one thread at a time for each module, from several
  // threads for different ones.
  virtual Result<std::optional<tensor::PackedWeight>> find(const std::string& module) const = 0;
};

}  // namespace ingot::quant
