// What the prefix cache tells of its pages, for mirrors of it elsewhere (serve/kv_events). In the order in which it happens: a page is told
// after the page before it, and untold before it. Full pages only.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/page_key.h"

namespace ingot::sched {

struct CacheEvent {
  enum class Kind : uint8_t {
    stored,   // the tier has this page now
    removed,  // and now no longer
    cleared,  // no tier has any page
  };
  enum class Tier : uint8_t { device, host };

  Kind kind = Kind::cleared;
  Tier tier = Tier::device;
  PageKey key = 0;
  PageKey parent = 0;             // of `stored`; kRootPageKey: none
  std::vector<int32_t> tokens{};  // of `stored`: (page_size)
};

}  // namespace ingot::sched
