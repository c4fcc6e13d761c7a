// PTX of sm_90a that the native kernels share, as functions. Seen by nvcc alone. Names and operands: PTX ISA 9.0, chapters on
// cp.async, cp.async.bulk, mbarrier, ldmatrix, mma and wgmma.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)

namespace ingot::kernels::sm90 {

#define SM90_FN __device__ __forceinline__

// ---- numbers ----

// Two f32 rounded to nearest even bf16; `low` in the low half.
SM90_FN uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
SM90_FN uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
SM90_FN float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
SM90_FN float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
// Two e4m3 numbers (OCP "fn", the first in the low byte) in bf16, exactly; a NaN stays one.
SM90_FN uint32_t bf16_of_e4m3(uint16_t pair) {
  uint32_t packed;
  asm("{\n"
      ".reg .b32 halves;\n"
      ".reg .b16 low, high;\n"
      ".reg .f32 f_low, f_high;\n"
      "cvt.rn.f16x2.e4m3x2 halves, %1;\n"
      "mov.b32 {low, high}, halves;\n"
      "cvt.f32.f16 f_low, low;\n"
      "cvt.f32.f16 f_high, high;\n"
      "cvt.rn.bf16x2.f32 %0, f_high, f_low;\n"
      "}"
      : "=r"(packed)
      : "h"(pair));
  return packed;
}

// ---- global memory ----

// 16 bytes that are read once: not kept in L1. `from` is aligned to 16 bytes.
SM90_FN uint4 load_stream(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// ---- shared memory ----

SM90_FN uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// 16 bytes from global to shared memory behind the thread's back; both aligned to 16. With `valid` false the 16 bytes become zero and
// nothing is read.
SM90_FN void copy_async_16(uint32_t to, const void* from, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
// The same for 4 bytes, through L1.
SM90_FN void copy_async_4(uint32_t to, const void* from, bool valid = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}
SM90_FN void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `kPending` of this thread's groups are under way.
template <int kPending>
SM90_FN void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8 x 8 matrices of 16-bit numbers; lane l gives the address of row l % 8 of matrix l / 8.
SM90_FN void load_matrices(uint32_t (&v)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address));
}
SM90_FN void load_matrices_transposed(uint32_t (&v)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address));
}
SM90_FN void load_matrices(uint32_t (&v)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(address));
}

// By address, and volatile: what is read twice is not kept in a register between.
SM90_FN uint4 load_shared_16(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
  return v;
}
SM90_FN uint32_t load_shared_byte(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
SM90_FN float load_shared_float(uint32_t from) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
  return v;
}
SM90_FN void store_shared(uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
SM90_FN void store_shared(uint32_t to, uint32_t v) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory"); }
SM90_FN uint32_t load_shared_word(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
SM90_FN float4 load_shared_4(uint32_t from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(from) : "memory");
  return v;
}
SM90_FN void store_shared(uint32_t to, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory"); }

// ---- barriers in shared memory ----

SM90_FN void init_barrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to bulk copies; a block barrier must follow.
SM90_FN void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
SM90_FN void arrive(uint32_t barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
// Arrives, and says that `bytes` of bulk copies are to come in this phase.
SM90_FN void arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Waits for the end of the phase with this parity (0 for the first).
SM90_FN void wait_barrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni out;\n"
      "bra.uni again;\n"
      "out:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// `bytes` (a multiple of 16) from global to shared memory by the copy engine; both aligned to 16. Counts against `barrier`.
SM90_FN void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
               "r"(barrier)
               : "memory");
}
// Makes what this thread wrote to shared memory visible to wgmma and bulk copies.
SM90_FN void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- parts of a block, and the kernel before ----

// Barrier `id` (1 to 15; 0 is that of the block) among `threads` threads, whole warps.
SM90_FN void sync_threads_of(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// Programmatic dependent launch: until the kernels before have ended and what they wrote is visible; at once in an ordinary launch.
SM90_FN void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Lets the next kernel start (it has to wait as above before it touches what this one reads or writes).
SM90_FN void allow_next_kernel() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Every kernel waits before it reads or writes what others have made: it may have been set up before the one ahead of it was done. One that
// has nothing to prepare does both at once, first of all.
SM90_FN void start_after_previous() {
  wait_for_previous_kernel();
  allow_next_kernel();
}

// ---- the blocks of a cluster ----

SM90_FN int cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
// Barrier among all threads of the cluster, in two halves; what was written before the first is visible after the second.
SM90_FN void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
SM90_FN void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The same place in the shared memory of another block of the cluster, for the functions below.
SM90_FN uint32_t address_in_block(uint32_t address, int block) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
SM90_FN float load_cluster(uint32_t from) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
  return v;
}
SM90_FN float4 load_cluster_4(uint32_t from) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(from) : "memory");
  return v;
}
SM90_FN void store_cluster(uint32_t to, const float (&v)[4]) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}
// *p, a number of shared memory, as block `rank` has it.
SM90_FN int32_t load_of_block(const int32_t* p, int rank) {
  int32_t v;
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.s32 %0, [there];\n"
      "}"
      : "=r"(v)
      : "r"(shared_address(p)), "r"(rank)
      : "memory");
  return v;
}

// ---- matrix instructions of a warp ----

// c (16 x 8, f32) += a (16 x 16) b (16 x 8), bf16. Fragments as in gpu/mma.h, MmaSyncBf16.
SM90_FN void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- matrix instructions of a warpgroup ----

SM90_FN void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
SM90_FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
SM90_FN void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

}  // namespace ingot::kernels::sm90

#endif
