// Stream: where an operation runs. On the CPU it is a thread pool and operations run in call order, at once. Passed as an argument,
// never global. The GPU drivers will add their queue here.
#pragma once

#include "base/thread_pool.h"

namespace ingot::gpu {

struct Stream {
  ThreadPool* pool = nullptr;  // not owned
};

}  // namespace ingot::gpu
