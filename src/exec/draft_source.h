// Where drafts come from. The runner verifies each one against what it draws itself, so a draft source can cost time but never change an
// answer. The MTP layer is one; tests script theirs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sched/batch_plan.h"

namespace ingot::exec {

class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // Appends at most item.num_draft token ids that may follow `context`: all tokens of the sequence, the one just drawn included.
  virtual void propose(const sched::BatchItem& item, std::span<const int32_t> context, std::vector<int32_t>& drafts) = 0;
};

}  // namespace ingot::exec
