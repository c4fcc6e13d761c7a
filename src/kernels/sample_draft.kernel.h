// What a chain of drafts needs between the passes of the MTP layer so that the host is not asked: the tokens drawn go into the next rows,
// the lists of positions get one more, and hidden states go to the rows that want them.
#pragma once

#include "gpu/kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct KeepDrafts {
  using Params = KeepDraftsParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    for (int64_t r = g.thread(); r < p.num_rows; r += g.threads()) p.drafted[p.places[r]] = p.results[r].token_id;
  }
};

struct TakeDrafts {
  using Params = TakeDraftsParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    for (int64_t t = g.thread(); t < p.num_tokens; t += g.threads()) {
      if (p.places[t] < 0) continue;
      // A chain that broke off goes on with any token, and nobody looks at what comes of it.
      const int32_t token = p.drafted[p.places[t]];
      p.token_ids[t] = token < 0 ? 0 : token;
    }
  }
};

struct ExtendLists {
  using Params = ExtendListsParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const int32_t* from = p.from + p.sources[g.block()] * p.width;
    int32_t* to = p.to + g.block() * (p.width + 1);
    for (int64_t i = g.thread(); i <= p.width; i += g.threads()) {
      const int32_t own = i < p.width ? from[i] : -1;
      const bool first_free = own < 0 && (i == 0 || from[i - 1] >= 0);
      to[i] = first_free ? p.positions[g.block()] : own;
    }
  }
};

struct MoveRows {
  using Params = MoveRowsParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const int64_t source = p.sources[g.block()], target = p.targets == nullptr ? g.block() : p.targets[g.block()];
    const float* from = source >= 0 ? p.from + source * p.dim : p.kept + (-1 - source) * p.dim;
    float* to = p.to + target * p.dim;
    for (int64_t i = g.thread(); i < p.dim; i += g.threads()) to[i] = from[i];
  }
};

}  // namespace ingot::kernels
