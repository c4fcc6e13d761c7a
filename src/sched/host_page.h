// One page of the cache in host memory: latents and index keys of all layers together, as the runner lays them out. Opaque to all others.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace ingot::sched {

using PageBytes = std::vector<std::byte>;
using HostPage = std::shared_ptr<PageBytes>;

}  // namespace ingot::sched
