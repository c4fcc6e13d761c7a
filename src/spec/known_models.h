// Models that are known by name, without a checkpoint: for tools that need shapes and no weights. Values only; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "spec/model_config.h"

namespace ingot::spec {

// "glm-5.2": the published model (spec section 1.1). "tiny": every structural feature of it in widths that eight ranks can share and a
// processor computes in a moment; nobody published it.
std::vector<std::string> known_models();

// Errors: a name that is not known, with those that are.
Result<ModelConfig> known_model(std::string_view name);

}  // namespace ingot::spec
