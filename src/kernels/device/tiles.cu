// The tile kernels for one GPU: every weight format and size, with the device's own instruction for bf16 operands.
#include "gpu/device.h"
#include "kernels/device/list.h"
#include "kernels/tile_grouped_matmul.kernel.h"
#include "kernels/tile_matmul.kernel.h"

#define INGOT_TILE_ENTRY(K, Format, Size, size)                                \
  namespace ingot::kernels {                                                   \
  using K##Format##Size = K<gpu::DeviceMmaBf16, TileSize::size, Tile##Format>; \
  }                                                                            \
  GPU_ENTRY(K##Format##Size)
INGOT_DEVICE_TILES(INGOT_TILE_ENTRY)
