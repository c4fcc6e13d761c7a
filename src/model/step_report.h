// What a model's steps on its GPU are made of, seen by running them once: the smallest and the largest of those that are to come.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "model/glm.h"

namespace ingot::model {

// Glm::reserve, and the lines of startup_report() for its steps (main layers, then the MTP layer) and for a step of one row that sees a
// whole context. glm must be on a GPU. Errors: those of reserve.
Result<std::vector<std::string>> reserve_and_report(Glm& glm, const StepLimits& limits);

}  // namespace ingot::model
