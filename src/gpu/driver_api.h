// The functions that driver.cc uses of NVIDIA's driver and of AMD's runtime, as one table: where both have a function of the same
// arguments they share an entry. Own declarations, found by name in a library that is opened at run time; no vendor header. All return
// 0 for success. Used by driver.cc alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ingot::gpu {

// CUlaunchConfig and CUlaunchAttribute of CUDA 11.8 and later.
struct LaunchAttribute {
  int id;
  int gap;
  int value;  // the first word of a union of 64 bytes
  int rest[15];
};
struct LaunchConfig {
  unsigned grid[3], block[3];
  unsigned shared_bytes;
  void* queue;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};
inline constexpr int kStartEarly = 6;  // programmatic stream serialisation

// FUNCTION(field, arguments, name in libcuda, name in libamdhip64); a null name: that library needs no such call.
// clang-format off
#define INGOT_DRIVER_FUNCTIONS(FUNCTION)                                                                                      \
  FUNCTION(error_name, (int, const char**), "cuGetErrorName", "hipDrvGetErrorName")                                           \
  FUNCTION(error_text, (int, const char**), "cuGetErrorString", "hipDrvGetErrorString")                                       \
  FUNCTION(init, (unsigned), "cuInit", "hipInit")                                                                             \
  FUNCTION(version, (int*), "cuDriverGetVersion", "hipDriverGetVersion")                                                      \
  FUNCTION(device_count, (int*), "cuDeviceGetCount", "hipGetDeviceCount")                                                     \
  FUNCTION(device_get, (int*, int), "cuDeviceGet", "hipDeviceGet")                                                            \
  FUNCTION(device_name, (char*, int, int), "cuDeviceGetName", "hipDeviceGetName")                                             \
  FUNCTION(device_attribute, (int*, int, int), "cuDeviceGetAttribute", "hipDeviceGetAttribute")                               \
  FUNCTION(device_memory, (size_t*, int), "cuDeviceTotalMem_v2", "hipDeviceTotalMem")                                         \
  FUNCTION(context_retain, (void**, int), "cuDevicePrimaryCtxRetain", nullptr)                                                \
  FUNCTION(context_release, (int), "cuDevicePrimaryCtxRelease_v2", nullptr)                                                   \
  FUNCTION(context_use, (void*), "cuCtxSetCurrent", nullptr)                                                                  \
  FUNCTION(device_use, (int), nullptr, "hipSetDevice")                                                                        \
  FUNCTION(memory_info, (size_t*, size_t*), "cuMemGetInfo_v2", "hipMemGetInfo")                                               \
  FUNCTION(alloc, (void**, size_t), "cuMemAlloc_v2", "hipMalloc")                                                             \
  FUNCTION(free, (void*), "cuMemFree_v2", "hipFree")                                                                          \
  FUNCTION(alloc_host, (void**, size_t, unsigned), "cuMemHostAlloc", "hipHostMalloc")                                         \
  FUNCTION(free_host, (void*), "cuMemFreeHost", "hipHostFree")                                                                \
  FUNCTION(copy, (void*, const void*, size_t, void*), "cuMemcpyAsync", nullptr)                                               \
  FUNCTION(copy_of_kind, (void*, const void*, size_t, int, void*), nullptr, "hipMemcpyAsync")                                 \
  FUNCTION(fill, (void*, unsigned char, size_t, void*), "cuMemsetD8Async", "hipMemsetD8Async")                                \
  FUNCTION(queue_create, (void**, unsigned), "cuStreamCreate", "hipStreamCreateWithFlags")                                    \
  FUNCTION(queue_destroy, (void*), "cuStreamDestroy_v2", "hipStreamDestroy")                                                  \
  FUNCTION(queue_wait, (void*), "cuStreamSynchronize", "hipStreamSynchronize")                                                \
  FUNCTION(queue_wait_event, (void*, void*, unsigned), "cuStreamWaitEvent", "hipStreamWaitEvent")                             \
  FUNCTION(event_create, (void**, unsigned), "cuEventCreate", "hipEventCreateWithFlags")                                      \
  FUNCTION(event_destroy, (void*), "cuEventDestroy_v2", "hipEventDestroy")                                                    \
  FUNCTION(event_record, (void*, void*), "cuEventRecord", "hipEventRecord")                                                   \
  FUNCTION(event_record_with, (void*, void*, unsigned), "cuEventRecordWithFlags", "hipEventRecordWithFlags")                  \
  FUNCTION(event_query, (void*), "cuEventQuery", "hipEventQuery")                                                             \
  FUNCTION(event_wait, (void*), "cuEventSynchronize", "hipEventSynchronize")                                                  \
  FUNCTION(event_elapsed, (float*, void*, void*), "cuEventElapsedTime", "hipEventElapsedTime")                                \
  FUNCTION(module_load, (void**, const void*), "cuModuleLoadData", "hipModuleLoadData")                                       \
  FUNCTION(module_unload, (void*), "cuModuleUnload", "hipModuleUnload")                                                       \
  FUNCTION(module_function, (void**, void*, const char*), "cuModuleGetFunction", "hipModuleGetFunction")                      \
  FUNCTION(function_set, (void*, int, int), "cuFuncSetAttribute", nullptr)                                                    \
  FUNCTION(launch, (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**),      \
           "cuLaunchKernel", "hipModuleLaunchKernel")                                                                         \
  FUNCTION(launch_with, (const LaunchConfig*, void*, void**, void**), "cuLaunchKernelEx", nullptr)                            \
  FUNCTION(capture_begin, (void*, int), "cuStreamBeginCapture_v2", "hipStreamBeginCapture")                                   \
  FUNCTION(capture_end, (void*, void**), "cuStreamEndCapture", "hipStreamEndCapture")                                         \
  FUNCTION(graph_nodes, (void*, void**, size_t*), "cuGraphGetNodes", "hipGraphGetNodes")                                      \
  FUNCTION(graph_instantiate, (void**, void*, unsigned long long), "cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags") \
  FUNCTION(graph_launch, (void*, void*), "cuGraphLaunch", "hipGraphLaunch")                                                   \
  FUNCTION(graph_destroy, (void*), "cuGraphDestroy", "hipGraphDestroy")                                                       \
  FUNCTION(graph_exec_destroy, (void*), "cuGraphExecDestroy", "hipGraphExecDestroy")
// clang-format on

// What the two libraries number differently, or call differently.
struct VendorConstants {
  const char* kind;          // as --device takes it
  const char* vendor;        // for people
  const char* libraries[2];  // tried in this order; the second may be null
  int lanes;                 // what device code is compiled for
  // Numbers of device_attribute.
  int warp_size, compute_units, major, minor, l2_bytes, shared_bytes;
};
inline constexpr VendorConstants kCuda{"cuda", "NVIDIA", {"libcuda.so.1", nullptr}, 32, 10, 16, 75, 76, 38, 97};
inline constexpr VendorConstants kHip{"hip", "AMD", {"libamdhip64.so.7", "libamdhip64.so.6"}, 64, 87, 63, 23, 61, 19, 74};

// The same in both.
inline constexpr unsigned kQueueNonBlocking = 1;    // not ordered against the default queue
inline constexpr unsigned kHostPortableMapped = 3;  // every device reaches it, at the address the host has
inline constexpr unsigned kEventWithoutTiming = 2;
inline constexpr unsigned kEventRecordExternal = 1;  // event_record_with: a node of the graph that is being captured
inline constexpr int kCaptureThreadLocal = 1;        // other threads may go on allocating
inline constexpr int kNotReady = 600;
inline constexpr int kCopyDefault = 4;            // copy_of_kind: the direction is told from the pointers
inline constexpr int kMaxDynamicSharedBytes = 8;  // function_set

struct DriverApi {
#define INGOT_DRIVER_FIELD(field, arguments, cuda, hip) int(*field) arguments = nullptr;
  INGOT_DRIVER_FUNCTIONS(INGOT_DRIVER_FIELD)
#undef INGOT_DRIVER_FIELD
};

}  // namespace ingot::gpu
