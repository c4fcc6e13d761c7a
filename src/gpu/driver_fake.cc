// A library with the functions of both vendors' drivers that keeps everything in host memory, for driver_test.cc. It knows one program
// ("FAKE CODE") with one kernel, "ingot_Double", which doubles n floats at x. Queues run at once; a queue in capture writes down.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

struct Kernel {
  float* x;
  int64_t n;
};
struct Recorded {
  std::vector<Kernel> launches;
};

constexpr int kInvalid = 1, kNoMemory = 2, kNotFound = 500, kNotReady = 600;
int using_device = -1;
int contexts = 0;
Recorded* capturing = nullptr;

int give(void** to, void* value) {
  *to = value;
  return 0;
}
void run(const Kernel& kernel) {
  for (int64_t i = 0; i < kernel.n; ++i) kernel.x[i] *= 2.0f;
}
int name_of(int code, const char** text, bool long_form) {
  const char* name = code == kNoMemory   ? "FAKE_OUT_OF_MEMORY"
                     : code == kNotFound ? "FAKE_NOT_FOUND"
                     : code == kInvalid  ? "FAKE_INVALID"
                                         : nullptr;
  if (name == nullptr) return kInvalid;
  *text = long_form ? "as the test asked for" : name;
  return 0;
}
int allocate(void** to, size_t bytes) {
  return bytes > (1 << 20) ? kNoMemory : give(to, std::aligned_alloc(256, (bytes + 255) / 256 * 256));
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
BOTH(cuMemAlloc_v2, hipMalloc, (void** to, size_t bytes), { return allocate(to, bytes); })
BOTH(cuMemFree_v2, hipFree, (void* memory), { return release(memory); })
BOTH(cuMemHostAlloc, hipHostMalloc, (void** to, size_t bytes, unsigned flags), { return flags == 3 ? allocate(to, bytes) : kInvalid; })
BOTH(cuMemFreeHost, hipHostFree, (void* memory), { return release(memory); })
ONE(cuMemcpyAsync, (void* to, const void* from, size_t bytes, void*), {
  std::memcpy(to, from, bytes);
  return 0;
})
ONE(hipMemcpyAsync, (void* to, const void* from, size_t bytes, int kind, void*), {
  std::memcpy(to, from, bytes);
  return kind == 4 ? 0 : kInvalid;
})
BOTH(cuMemsetD8Async, hipMemsetD8Async, (void* to, unsigned char byte, size_t bytes, void*), {
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
  ++static_cast<int*>(event)[0];
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
BOTH(cuModuleGetFunction, hipModuleGetFunction, (void** function, void*, const char* name),
     { return std::strcmp(name, "ingot_Double") == 0 ? give(function, reinterpret_cast<void*>(uintptr_t{77})) : kNotFound; })
ONE(cuFuncSetAttribute, (void*, int which, int value), { return which == 8 && value <= 64 << 10 ? 0 : kInvalid; })
BOTH(cuLaunchKernel, hipModuleLaunchKernel,
     (void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned, void*, void** arguments,
      void** extra),
     {
       if (function != reinterpret_cast<void*>(uintptr_t{77}) || x == 0 || y * z * ty * tz != 1 || threads != 64 || extra != nullptr)
         return kInvalid;
       Kernel kernel;
       std::memcpy(&kernel, arguments[0], sizeof kernel);
       if (capturing != nullptr) {
         capturing->launches.push_back(kernel);
       } else {
         run(kernel);
       }
       return 0;
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
  *count = static_cast<Recorded*>(graph)->launches.size();
  return nodes == nullptr ? 0 : kInvalid;
})
BOTH(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags, (void** exec, void* graph, unsigned long long flags),
     { return flags == 0 ? give(exec, new Recorded(*static_cast<Recorded*>(graph))) : kInvalid; })
BOTH(cuGraphLaunch, hipGraphLaunch, (void* exec, void*), {
  for (const Kernel& kernel : static_cast<Recorded*>(exec)->launches) run(kernel);
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
