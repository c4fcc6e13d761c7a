// Device<Lanes>: a GPU thread's view of its machine, the form of kernel.h's vocabulary that real GPUs have, and GPU_ENTRY, which makes
// a function of a kernel that a driver can find by name. Seen by device compilers alone (src/kernels/device/*.cu); for any other
// compiler this file is empty. No vendor header is needed: AMD's compiler knows what is used here by itself.
#pragma once

#include "gpu/angle.h"
#include "gpu/kernel.h"

#if defined(__CUDACC__) || defined(__HIP__)

namespace ingot::gpu {

// The longest block of K: what the compiler shares the registers among. A kernel that wants more than 256 threads says so.
template <class K>
constexpr int max_threads() {
  if constexpr (requires { K::kThreads; })
    return K::kThreads;
  else
    return 256;
}

#if defined(__CUDACC__)

namespace vendor {
inline constexpr int kLanes = 32;
GPU_FN int thread() { return static_cast<int>(threadIdx.x); }
GPU_FN int threads() { return static_cast<int>(blockDim.x); }
GPU_FN int64_t block() { return static_cast<int64_t>(blockIdx.x); }
GPU_FN void sync() { __syncthreads(); }
GPU_FN uint32_t shfl_xor(uint32_t v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
template <class T>
GPU_FN void block_add(T* p, T v) {
  atomicAdd_block(p, v);
}
GPU_FN float exp(float v) { return expf(v); }
GPU_FN float rsqrt(float v) { return rsqrtf(v); }
// A kernel may have been set up before the one ahead of it was done: its work begins here, after that, and the next may be set up.
GPU_FN void start_after_previous() { asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory"); }
}  // namespace vendor

#define GPU_ENTRY_AS(name, ...)                                                          \
  extern "C" __global__ void __launch_bounds__(::ingot::gpu::max_threads<__VA_ARGS__>()) \
      ingot_##name(const __grid_constant__ typename __VA_ARGS__::Params p) {             \
    __shared__ typename __VA_ARGS__::Shared s;                                           \
    ::ingot::gpu::vendor::start_after_previous();                                        \
    ::ingot::gpu::Device<::ingot::gpu::vendor::kLanes> g;                                \
    __VA_ARGS__{}(g, s, p);                                                              \
  }

#else

namespace vendor {
inline constexpr int kLanes = 64;  // of every data-centre GPU of AMD; the consumers' 32 is not aimed at
GPU_FN int thread() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
GPU_FN int threads() { return static_cast<int>(__builtin_amdgcn_workgroup_size_x()); }
GPU_FN int64_t block() { return static_cast<int64_t>(__builtin_amdgcn_workgroup_id_x()); }
GPU_FN void sync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
GPU_FN uint32_t shfl_xor(uint32_t v, int mask) {
  const int source = (thread() % kLanes) ^ mask;
  return static_cast<uint32_t>(__builtin_amdgcn_ds_bpermute(source * 4, static_cast<int>(v)));
}
template <class T>
GPU_FN void block_add(T* p, T v) {
  __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
GPU_FN float exp(float v) { return __builtin_expf(v); }
GPU_FN float rsqrt(float v) { return __builtin_amdgcn_rsqf(v); }
}  // namespace vendor

// The compiler ignores launch bounds for this target and would spill: it wants the block's size by this name.
#define GPU_ENTRY_AS(name, ...)                                                                                                   \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, ::ingot::gpu::max_threads<__VA_ARGS__>()))) void ingot_##name( \
      const typename __VA_ARGS__::Params p) {                                                                                     \
    __attribute__((shared)) typename __VA_ARGS__::Shared s;                                                                       \
    ::ingot::gpu::Device<::ingot::gpu::vendor::kLanes> g;                                                                         \
    __VA_ARGS__{}(g, s, p);                                                                                                       \
  }

#endif

// Entry point ingot_K of a kernel of ours. GPU_ENTRY_AS(name, type) gives any kernel type an entry point ingot_name.
#define GPU_ENTRY(K) GPU_ENTRY_AS(K, ::ingot::kernels::K)

template <int Lanes>
struct Device {
  static_assert(Lanes == vendor::kLanes);
  static constexpr int lanes = Lanes;
  GPU_FN int64_t block() const { return vendor::block(); }
  GPU_FN int thread() const { return vendor::thread(); }
  GPU_FN int threads() const { return vendor::threads(); }
  GPU_FN int lane() const { return vendor::thread() % Lanes; }
  GPU_FN int warp() const { return vendor::thread() / Lanes; }
  GPU_FN int warps() const { return vendor::threads() / Lanes; }
  GPU_FN void sync() { vendor::sync(); }
  template <class T>
  GPU_FN T shfl_xor(T v, int mask) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    struct Words {
      uint32_t word[sizeof(T) / 4];
    };
    Words words = __builtin_bit_cast(Words, v);
    for (uint32_t& word : words.word) word = vendor::shfl_xor(word, mask);
    return __builtin_bit_cast(T, words);
  }
  template <class T>
  GPU_FN void block_add(T* p, T v) {
    vendor::block_add(p, v);
  }
  GPU_FN float exp(float v) const { return vendor::exp(v); }
  GPU_FN float rsqrt(float v) const { return vendor::rsqrt(v); }
  GPU_FN float sin(float v) const { return sine_of_quarter(v, 0); }
  GPU_FN float cos(float v) const { return sine_of_quarter(v, 1); }
};

}  // namespace ingot::gpu

#endif
