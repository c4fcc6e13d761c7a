// The dense products of stream_matmul.h for more than kStreamRows rows of x, by clusters of blocks. The body is stream_team.h.
#include "kernels/native/sm90/stream_team.h"

namespace ingot::kernels::sm90 {

extern __shared__ uint4 stream_shared[];

template <class Work, class F, class Params>
SM90_FN void stream_team(const Params& p, int slices) {
  const Work work{p, {static_cast<int>(blockIdx.x) / kStreamTeamBlocks, static_cast<int>(gridDim.x) / kStreamTeamBlocks, kStreamTeamRows}};
  StreamTeamBody<Work, F>(work, shared_address(stream_shared), slices).run();
}

}  // namespace ingot::kernels::sm90

// The kernels, a line each: name, work, params, slices, format.
#define STREAM_KERNEL(NAME, WORK, PARAMS, SLICES, FORMAT)                                                                          \
  extern "C" __global__ void __cluster_dims__(ingot::kernels::sm90::kStreamTeamBlocks, 1, 1) __launch_bounds__(                    \
      ingot::kernels::sm90::kStreamWarps * 32, 1) ingot_Sm90Stream##NAME(const __grid_constant__ ingot::kernels::sm90::PARAMS p) { \
    using namespace ingot::kernels::sm90;                                                                                          \
    stream_team<WORK, FORMAT>(p, SLICES);                                                                                          \
  }
#define STREAM_DENSE(NAME, FORMAT) STREAM_KERNEL(NAME, StreamDenseWork, StreamDenseParams, p.slices, FORMAT)

STREAM_DENSE(DenseMxfp4Many, StreamMxfp4)
STREAM_DENSE(DenseFp8Many, StreamFp8)
STREAM_DENSE(DenseBf16Many, StreamBf16)
#undef STREAM_DENSE
#undef STREAM_KERNEL
