// The products of stream_matmul.h for few rows of x but the transposed one. The body is stream_engine.h.
#include "kernels/native/sm90/stream_engine.h"

namespace ingot::kernels::sm90 {

extern __shared__ uint4 stream_shared[];

template <class Work, class F, int kTiles, int kColumns, class Params>
SM90_FN void stream(const Params& p, int slices) {
  const Work work{p, {static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), kColumns * kStreamRows}};
  StreamBody<Work, F, kTiles, kColumns>(work, shared_address(stream_shared), slices).run();
}

}  // namespace ingot::kernels::sm90

// The kernels, a line each: name, work, params, slices, format, tiles of 16 rows at once, groups of eight rows of x.
#define STREAM_KERNEL(NAME, WORK, PARAMS, SLICES, FORMAT, TILES, COLUMNS)                  \
  extern "C" __global__ void __launch_bounds__(ingot::kernels::sm90::kStreamWarps * 32, 1) \
      ingot_Sm90Stream##NAME(const __grid_constant__ ingot::kernels::sm90::PARAMS p) {     \
    using namespace ingot::kernels::sm90;                                                  \
    stream<WORK, FORMAT, TILES, COLUMNS>(p, SLICES);                                       \
  }
#define STREAM_GROUPED(NAME, GATED, FORMAT, TILES) \
  STREAM_KERNEL(NAME, StreamGroupedWork<GATED>, StreamGroupedParams, stream_slices_grouped(FORMAT::kFormat, p.k), FORMAT, TILES, 1)
#define STREAM_DENSE(NAME, FORMAT)                                                \
  STREAM_KERNEL(NAME, StreamDenseWork, StreamDenseParams, p.slices, FORMAT, 1, 1) \
  STREAM_KERNEL(NAME##Several, StreamDenseWork, StreamDenseParams, p.slices, FORMAT, 1, kStreamSeveralRows / kStreamRows)
#define STREAM_HEADS(NAME, FORMAT)                                                \
  STREAM_KERNEL(NAME, StreamHeadsWork, StreamHeadsParams, p.slices, FORMAT, 1, 1) \
  STREAM_KERNEL(NAME##Several, StreamHeadsWork, StreamHeadsParams, p.slices, FORMAT, 1, kStreamSeveralRows / kStreamRows)

STREAM_GROUPED(GroupedMxfp4, false, StreamMxfp4, 2)
STREAM_GROUPED(GroupedFp8, false, StreamFp8, 1)
STREAM_GROUPED(GroupedBf16, false, StreamBf16, 1)
STREAM_GROUPED(GatedMxfp4, true, StreamMxfp4, 2)
STREAM_GROUPED(GatedFp8, true, StreamFp8, 1)
STREAM_GROUPED(GatedBf16, true, StreamBf16, 1)
STREAM_DENSE(DenseMxfp4, StreamMxfp4)
STREAM_DENSE(DenseFp8, StreamFp8)
STREAM_DENSE(DenseBf16, StreamBf16)
STREAM_HEADS(HeadsMxfp4, StreamMxfp4)
STREAM_HEADS(HeadsFp8, StreamFp8)
STREAM_HEADS(HeadsBf16, StreamBf16)
#undef STREAM_GROUPED
#undef STREAM_DENSE
#undef STREAM_HEADS
#undef STREAM_KERNEL
