// Where the models under test run: on the CPU, or on the GPU that the test program was told to use.
#pragma once

#include <filesystem>
#include <memory>

#include "base/check.h"
#include "gpu/accelerator.h"
#include "model/glm.h"

namespace ingot::test_support {

inline std::shared_ptr<gpu::Accelerator> model_device;  // null: the CPU

inline std::unique_ptr<model::Glm> load_glm(const std::filesystem::path& dir, const model::GlmOptions& options = {}) {
  auto glm = model::Glm::load(dir, options, model_device);
  INGOT_CHECK(glm.has_value(), "{}", glm.error().text());
  return std::move(*glm);
}

}  // namespace ingot::test_support
