// Where drafts come from. The runner verifies each one against what it draws itself, so a draft source can cost time but never change an
// answer. The MTP layer is one; tests script theirs.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/batch_plan.h"

namespace ingot::exec {

// Tokens that may follow what is known of one sequence: a tree, of which a chain is the special case. Draft i follows draft parents[i]
// (which is less than i), or the last known token when that is -1. No two drafts of one parent are the same token.
struct Draft {
  std::vector<int32_t> token_ids;
  std::vector<int32_t> parents;
  // Of a chain only: (token_ids.size(), vocab_size), the distribution each token was drawn from. Empty: they are not random.
  std::vector<double> probabilities;

  int32_t size() const { return static_cast<int32_t>(token_ids.size()); }
  void append_to_chain(int32_t token_id) {
    parents.push_back(size() - 1);
    token_ids.push_back(token_id);
  }
};

class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // Adds at most item.num_draft drafts. item.context ends with the last known token.
  virtual void propose(const sched::BatchItem& item, Draft& draft) = 0;
};

}  // namespace ingot::exec
