// Every matrix instruction that the device has, one kernel each, for the test of mma.h's tables on silicon (src/kernels/device_test.cc).
#include "gpu/device.h"
#include "gpu/mma_probe.kernel.h"

#define INGOT_PROBE(name, ...) GPU_ENTRY_AS(Probe##name, ::ingot::gpu::MmaProbe<__VA_ARGS__>)

#if defined(__CUDACC__)
INGOT_PROBE(SyncBf16, ::ingot::gpu::MmaSyncBf16)
INGOT_PROBE(SyncE4m3, ::ingot::gpu::MmaSyncE4m3)
#else
INGOT_PROBE(MfmaBf16K16, ::ingot::gpu::MfmaBf16K16)
#if defined(__gfx950__)
INGOT_PROBE(MfmaBf16K32, ::ingot::gpu::MfmaBf16K32)
INGOT_PROBE(MfmaE4m3, ::ingot::gpu::MfmaFp8K32< ::ingot::gpu::MatrixNumber::e4m3>)
INGOT_PROBE(MfmaScaledE4m3, ::ingot::gpu::MfmaScaledK128< ::ingot::gpu::MatrixNumber::e4m3>)
INGOT_PROBE(MfmaScaledE2m1, ::ingot::gpu::MfmaScaledK128< ::ingot::gpu::MatrixNumber::e2m1>)
#elif defined(__gfx942__)
INGOT_PROBE(MfmaE4m3Fnuz, ::ingot::gpu::MfmaFp8K32< ::ingot::gpu::MatrixNumber::e4m3_fnuz>)
#endif
#endif
