// The weights of a model in a GPU's memory: one allocation, filled once from the mapped checkpoint. Owned by the Glm.
#pragma once

#include <memory>
#include <utility>

#include "base/result.h"
#include "gpu/accelerator.h"
#include "model/weights.h"

namespace ingot::model {

class DeviceWeights {
 public:
  // Errors: no memory for them, with the bytes; the driver's.
  static Result<DeviceWeights> upload(const Weights& host, std::shared_ptr<gpu::Accelerator> device);

  // Of weights that lie in device memory already, which is not this object's.
  static DeviceWeights there(Weights on_device) {
    DeviceWeights made;
    made.weights_ = std::move(on_device);
    return made;
  }

  // As the host's, with every pointer into device memory but those of the vectors themselves.
  const Weights& weights() const { return weights_; }
  size_t bytes() const { return memory_.bytes(); }

 private:
  gpu::DeviceMemory memory_;
  Weights weights_;
};

}  // namespace ingot::model
