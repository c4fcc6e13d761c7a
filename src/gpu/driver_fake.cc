// A library with the functions of both vendors' drivers that works in host memory, for tests. It loads one program ("FAKE CODE") with the
// kernels that fake_kernels() names. Queues run at once; a queue in capture writes down launches, and refuses anything else.
//
// Device memory is what a GPU's is to the host: out of reach. It can be touched only while a copy, a fill or a kernel runs; a host that
// reads or writes it is stopped by the machine. A kernel is refused that was given a pointer to anything else. Fresh memory begins with
// NaN.
#include "gpu/driver_fake.h"

#include "gpu/driver_api.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

namespace {

using ingot::gpu::FakeKernel;

struct Launch {
  const FakeKernel* kernel;
  std::vector<uint8_t> params;
  int* event = nullptr;  // in place of a kernel: the count of an event that is recorded
};
using Recorded = std::vector<Launch>;

constexpr int kInvalid = 1, kNoMemory = 2, kNotFound = 500, kNotReady = 600, kIllegalAddress = 700;
int using_device = -1;
int contexts = 0;
Recorded* capturing = nullptr;

// One range of addresses, given out in rising order; what was freed is given back to the system and its addresses are not used again
// until nothing is left.
class DeviceMemory {
 public:
  int allocate(void** to, size_t bytes) {
    if (base_ == nullptr) {
      void* range = mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (range == MAP_FAILED) return kNoMemory;
      madvise(range, kRange, MADV_HUGEPAGE);  // the range is opened and closed for every launch: the fewer pages the better
      base_ = static_cast<uint8_t*>(range);
    }
    if (bytes > kRange - used_) return kNoMemory;
    uint8_t* memory = base_ + used_;
    used_ += (bytes + kPage - 1) / kPage * kPage;
    pieces_[memory] = bytes;
    open(true);
    std::memset(memory, 0xff, std::min(bytes, kPoisoned));
    open(false);
    *to = memory;
    return 0;
  }
  int release(void* memory) {
    const auto piece = pieces_.find(static_cast<uint8_t*>(memory));
    if (piece == pieces_.end()) return kInvalid;
    madvise(memory, (piece->second + kPage - 1) / kPage * kPage, MADV_DONTNEED);
    pieces_.erase(piece);
    if (pieces_.empty()) used_ = 0;
    return 0;
  }
  bool has(const void* pointer) const {
    const auto* p = static_cast<const uint8_t*>(pointer);
    auto next = pieces_.upper_bound(const_cast<uint8_t*>(p));
    if (next == pieces_.begin()) return false;
    --next;
    return p < next->first + std::max<size_t>(next->second, 1);
  }
  void open(bool yes) const {
    if (base_ != nullptr && used_ > 0) mprotect(base_, used_, yes ? PROT_READ | PROT_WRITE : PROT_NONE);
  }

 private:
  static constexpr size_t kRange = size_t{32} << 30, kPage = 4096;
  static constexpr size_t kPoisoned = 256 << 10;  // what nobody touches costs nothing, least of all when the range is opened
  uint8_t* base_ = nullptr;
  size_t used_ = 0;
  std::map<uint8_t*, size_t> pieces_;
};
DeviceMemory& device_memory = *new DeviceMemory;  // never destroyed: who has memory here may outlive this library's own statics

// While a machine's work touches device memory.
struct Opened {
  Opened() { device_memory.open(true); }
  ~Opened() { device_memory.open(false); }
};

int give(void** to, void* value) {
  *to = value;
  return 0;
}
int run(const Launch& launch) {
  if (launch.event != nullptr) {
    ++*launch.event;
    return 0;
  }
  bool reaches = true;
  launch.kernel->pointers(
      launch.params.data(),
      [](void* all, const void* pointer) {
        if (pointer != nullptr && !device_memory.has(pointer)) *static_cast<bool*>(all) = false;
      },
      &reaches);
  if (!reaches) return kIllegalAddress;
  const Opened opened;
  launch.kernel->run(launch.params.data());
  return 0;
}

// Runs the kernel, or writes it down while a queue is in capture.
int launch(const FakeKernel* kernel, unsigned blocks, unsigned threads, void** arguments) {
  if (kernel == nullptr || blocks == 0 || threads != static_cast<unsigned>(kernel->threads)) return kInvalid;
  const auto* params = static_cast<const uint8_t*>(arguments[0]);
  Launch one{kernel, {params, params + kernel->params_bytes}, nullptr};
  if (capturing == nullptr) return run(one);
  capturing->push_back(std::move(one));
  return 0;
}
int name_of(int code, const char** text, bool long_form) {
  const char* name = code == kNoMemory         ? "FAKE_OUT_OF_MEMORY"
                     : code == kNotFound       ? "FAKE_NOT_FOUND"
                     : code == kInvalid        ? "FAKE_INVALID"
                     : code == kIllegalAddress ? "FAKE_ILLEGAL_ADDRESS"
                                               : nullptr;
  if (name == nullptr) return kInvalid;
  *text = long_form ? "as the test asked for" : name;
  return 0;
}
int allocate_host(void** to, size_t bytes) { return give(to, std::aligned_alloc(256, (bytes + 255) / 256 * 256)); }
int copy(void* to, const void* from, size_t bytes) {
  if (capturing != nullptr) return kInvalid;
  const Opened opened;
  std::memcpy(to, from, bytes);
  return 0;
}
int release(void* memory) {
  std::free(memory);
  return 0;
}
int attribute(int* value, int which, int device, int warp, int units, int major, int minor, int l2, int shared, int lanes,
              int minor_value) {
  const int wanted[][2] = {{warp, lanes}, {units, 100 + device}, {major, 9}, {minor, minor_value}, {l2, 4 << 20}, {shared, 64 << 10}};
  for (const auto& [number, answer] : wanted) {
    if (number == which) {
      *value = answer;
      return 0;
    }
  }
  return kInvalid;
}

}  // namespace

bool ingot::gpu::is_fake_memory(const void* pointer) { return device_memory.has(pointer); }

#define BOTH(first, second, arguments, ...)                               \
  extern "C" __attribute__((visibility("default"))) int first arguments;  \
  extern "C" __attribute__((visibility("default"))) int second arguments; \
  int first arguments __VA_ARGS__ int second arguments __VA_ARGS__
#define ONE(name, arguments, ...)                                       \
  extern "C" __attribute__((visibility("default"))) int name arguments; \
  int name arguments __VA_ARGS__

BOTH(cuInit, hipInit, (unsigned flags), { return flags == 0 ? 0 : kInvalid; })
BOTH(cuGetErrorName, hipDrvGetErrorName, (int code, const char** text), { return name_of(code, text, false); })
BOTH(cuGetErrorString, hipDrvGetErrorString, (int code, const char** text), { return name_of(code, text, true); })
BOTH(cuDriverGetVersion, hipDriverGetVersion, (int* version), {
  *version = 4711;
  return 0;
})
BOTH(cuDeviceGetCount, hipGetDeviceCount, (int* count), {
  *count = 2;
  return 0;
})
BOTH(cuDeviceGet, hipDeviceGet, (int* device, int ordinal), {
  *device = ordinal;
  return 0;
})
BOTH(cuDeviceGetName, hipDeviceGetName, (char* name, int length, int device), {
  std::strncpy(name, device == 0 ? "Fake A" : "Fake B", static_cast<size_t>(length));
  return 0;
})
ONE(cuDeviceGetAttribute, (int* value, int which, int device), { return attribute(value, which, device, 10, 16, 75, 76, 38, 97, 32, 0); })
ONE(hipDeviceGetAttribute, (int* value, int which, int device), { return attribute(value, which, device, 87, 63, 23, 61, 19, 74, 64, 5); })
BOTH(cuDeviceTotalMem_v2, hipDeviceTotalMem, (size_t * bytes, int), {
  *bytes = size_t{3} << 30;
  return 0;
})
ONE(cuDevicePrimaryCtxRetain, (void** context, int device), {
  ++contexts;
  return give(context, reinterpret_cast<void*>(uintptr_t{1000} + static_cast<uintptr_t>(device)));
})
ONE(cuDevicePrimaryCtxRelease_v2, (int), { return --contexts < 0 ? kInvalid : 0; })
ONE(cuCtxSetCurrent, (void* context), {
  using_device = static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1000;
  return 0;
})
ONE(hipSetDevice, (int device), {
  using_device = device;
  return 0;
})
BOTH(cuMemGetInfo_v2, hipMemGetInfo, (size_t * free, size_t* total), {
  *free = static_cast<size_t>(using_device + 1) << 20;
  *total = size_t{3} << 30;
  return 0;
})
BOTH(cuMemAlloc_v2, hipMalloc, (void** to, size_t bytes),
     { return bytes > ingot::gpu::fake_memory_bytes() ? kNoMemory : device_memory.allocate(to, bytes); })
BOTH(cuMemFree_v2, hipFree, (void* memory), { return device_memory.release(memory); })
BOTH(cuMemHostAlloc, hipHostMalloc, (void** to, size_t bytes, unsigned flags), { return flags == 3 ? allocate_host(to, bytes) : kInvalid; })
BOTH(cuMemFreeHost, hipHostFree, (void* memory), { return release(memory); })
ONE(cuMemcpyAsync, (void* to, const void* from, size_t bytes, void*), { return copy(to, from, bytes); })
ONE(hipMemcpyAsync, (void* to, const void* from, size_t bytes, int kind, void*), { return kind == 4 ? copy(to, from, bytes) : kInvalid; })
BOTH(cuMemsetD8Async, hipMemsetD8Async, (void* to, unsigned char byte, size_t bytes, void*), {
  if (capturing != nullptr) return kInvalid;
  const Opened opened;
  std::memset(to, byte, bytes);
  return 0;
})
BOTH(cuStreamCreate, hipStreamCreateWithFlags, (void** queue, unsigned flags),
     { return flags == 1 ? give(queue, std::malloc(1)) : kInvalid; })
BOTH(cuStreamDestroy_v2, hipStreamDestroy, (void* queue), { return release(queue); })
BOTH(cuStreamSynchronize, hipStreamSynchronize, (void*), { return 0; })
BOTH(cuStreamWaitEvent, hipStreamWaitEvent, (void*, void*, unsigned), { return 0; })
// An event is the number of times that it was recorded; it is done at the second look.
BOTH(cuEventCreate, hipEventCreateWithFlags, (void** event, unsigned flags),
     { return flags == 0 || flags == 2 ? give(event, std::calloc(2, sizeof(int))) : kInvalid; })
BOTH(cuEventDestroy_v2, hipEventDestroy, (void* event), { return release(event); })
BOTH(cuEventRecord, hipEventRecord, (void* event, void*), {
  if (capturing != nullptr) return kInvalid;
  ++static_cast<int*>(event)[0];
  return 0;
})
BOTH(cuEventRecordWithFlags, hipEventRecordWithFlags, (void* event, void*, unsigned flags), {
  if (capturing == nullptr || flags != 1) return kInvalid;
  capturing->push_back({nullptr, {}, static_cast<int*>(event)});
  return 0;
})
BOTH(cuEventQuery, hipEventQuery, (void* event), { return static_cast<int*>(event)[1]++ == 0 ? kNotReady : 0; })
BOTH(cuEventSynchronize, hipEventSynchronize, (void*), { return 0; })
BOTH(cuEventElapsedTime, hipEventElapsedTime, (float* ms, void* from, void* to), {
  *ms = static_cast<float>(*static_cast<int*>(to) - *static_cast<int*>(from)) + 0.5f;
  return 0;
})
BOTH(cuModuleLoadData, hipModuleLoadData, (void** module, const void* code),
     { return std::memcmp(code, "FAKE CODE", 9) == 0 ? give(module, std::malloc(1)) : kInvalid; })
BOTH(cuModuleUnload, hipModuleUnload, (void* module), { return release(module); })
BOTH(cuModuleGetFunction, hipModuleGetFunction, (void** function, void*, const char* name), {
  for (const FakeKernel& kernel : ingot::gpu::fake_kernels()) {
    if (std::strcmp(name, kernel.name) == 0) return give(function, const_cast<FakeKernel*>(&kernel));
  }
  return kNotFound;
})
ONE(cuFuncSetAttribute, (void*, int which, int value), { return which == 8 && value <= 64 << 10 ? 0 : kInvalid; })
BOTH(cuLaunchKernel, hipModuleLaunchKernel,
     (void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned, void*, void** arguments,
      void** extra),
     {
       if (y * z * ty * tz != 1 || extra != nullptr) return kInvalid;
       return launch(static_cast<const FakeKernel*>(function), x, threads, arguments);
     })
ONE(cuLaunchKernelEx, (const ingot::gpu::LaunchConfig* config, void* function, void** arguments, void** extra), {
  const auto& [grid, block, shared_bytes, queue, attributes, num_attributes] = *config;
  if (grid[1] * grid[2] * block[1] * block[2] != 1 || extra != nullptr || num_attributes != 1) return kInvalid;
  if (attributes[0].id != ingot::gpu::kStartEarly || attributes[0].value != 1) return kInvalid;
  return launch(static_cast<const FakeKernel*>(function), grid[0], block[0], arguments);
})
BOTH(cuStreamBeginCapture_v2, hipStreamBeginCapture, (void*, int mode), {
  capturing = new Recorded;
  return mode == 1 ? 0 : kInvalid;
})
BOTH(cuStreamEndCapture, hipStreamEndCapture, (void*, void** graph), {
  if (capturing == nullptr) return kInvalid;
  *graph = capturing;
  capturing = nullptr;
  return 0;
})
BOTH(cuGraphGetNodes, hipGraphGetNodes, (void* graph, void** nodes, size_t* count), {
  *count = static_cast<Recorded*>(graph)->size();
  return nodes == nullptr ? 0 : kInvalid;
})
BOTH(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags, (void** exec, void* graph, unsigned long long flags),
     { return flags == 0 ? give(exec, new Recorded(*static_cast<Recorded*>(graph))) : kInvalid; })
BOTH(cuGraphLaunch, hipGraphLaunch, (void* exec, void*), {
  for (const Launch& launch : *static_cast<Recorded*>(exec)) {
    if (const int code = run(launch)) return code;
  }
  return 0;
})
BOTH(cuGraphDestroy, hipGraphDestroy, (void* graph), {
  delete static_cast<Recorded*>(graph);
  return 0;
})
BOTH(cuGraphExecDestroy, hipGraphExecDestroy, (void* exec), {
  delete static_cast<Recorded*>(exec);
  return 0;
})
