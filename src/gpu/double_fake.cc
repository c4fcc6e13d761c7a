// The one kernel of driver_test.cc's library: it doubles n floats at x.
#include <cstring>

#include "gpu/driver_fake.h"

namespace ingot::gpu {
namespace {

struct DoubleParams {
  float* x;
  int64_t n;
};
DoubleParams params_of(const void* bytes) {
  DoubleParams p;
  std::memcpy(&p, bytes, sizeof p);
  return p;
}

}  // namespace

std::span<const FakeKernel> fake_kernels() {
  static const FakeKernel kernels[] = {
      {"ingot_Double", sizeof(DoubleParams), 64,
       [](const void* params) {
         const DoubleParams p = params_of(params);
         for (int64_t i = 0; i < p.n; ++i) p.x[i] *= 2.0f;
       },
       [](const void* params, void (*visit)(void*, const void*), void* context) { visit(context, params_of(params).x); }}};
  return kernels;
}
size_t fake_memory_bytes() { return 1 << 20; }

}  // namespace ingot::gpu
