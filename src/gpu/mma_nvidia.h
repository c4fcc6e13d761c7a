// How NVIDIA's compiler is told to issue the instructions of mma.h. Included by it alone.
#pragma once

#include "gpu/mma.h"

#if defined(__CUDACC__)
namespace ingot::gpu {

template <class G>
GPU_FN void issue_mma(G&, MmaSyncBf16, MmaSyncBf16::C& c, const MmaSyncBf16::A& a, const MmaSyncBf16::B& b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
               : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
}

template <class G>
GPU_FN void issue_mma(G&, MmaSyncE4m3, MmaSyncE4m3::C& c, const MmaSyncE4m3::A& a, const MmaSyncE4m3::B& b) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
               : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
}

// The instruction of tile kernels in bf16.
using DeviceMmaBf16 = MmaSyncBf16;

}  // namespace ingot::gpu
#endif
