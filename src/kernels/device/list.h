// The kernels that device code is made of. A kernel K becomes the entry point ingot_K.
#pragma once

// clang-format off

// Those of one form: KERNEL(K) each, in the order of their names. Compiled by entries.cu.
#define INGOT_DEVICE_KERNELS(KERNEL) \
  KERNEL(Combine)                    \
  KERNEL(CopyRows)                   \
  KERNEL(Embed)                      \
  KERNEL(ExpandedMla)                \
  KERNEL(GroupedMatmul)              \
  KERNEL(IndexKeyStore)              \
  KERNEL(IndexScores)                \
  KERNEL(LatentGather)               \
  KERNEL(LatentStore)                \
  KERNEL(LayerNorm)                  \
  KERNEL(Matmul)                     \
  KERNEL(MatmulTransposed)           \
  KERNEL(Permute)                    \
  KERNEL(RmsNorm)                    \
  KERNEL(Rope)                       \
  KERNEL(RopeTable)                  \
  KERNEL(Router)                     \
  KERNEL(SparseMla)                  \
  KERNEL(SwiGlu)                     \
  KERNEL(TopK)

// Those of matrix instructions: TILE(template, weight format, size, TileSize) each, for a kernel named by the first three together.
// Compiled by tiles.cu with the device's own instruction, so that the host knows them by name and parameters alone.
#define INGOT_DEVICE_TILES(TILE)                \
  INGOT_TILES_OF_FORMATS(TILE, TileMatmul)        \
  INGOT_TILES_OF_FORMATS(TILE, TileGroupedMatmul) \
  INGOT_TILES_OF_FORMATS(TILE, TileGatedMatmul)
#define INGOT_TILES_OF_FORMATS(TILE, K) \
  INGOT_TILES_OF_SIZES(TILE, K, Bf16)   \
  INGOT_TILES_OF_SIZES(TILE, K, Fp8)    \
  INGOT_TILES_OF_SIZES(TILE, K, Mxfp4)
#define INGOT_TILES_OF_SIZES(TILE, K, Format) \
  TILE(K, Format, Small, small)               \
  TILE(K, Format, Medium, medium)             \
  TILE(K, Format, Large, large)
// clang-format on
