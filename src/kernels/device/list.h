// The kernels that device code is made of. A kernel K becomes the entry point ingot_K.
#pragma once

// clang-format off

// Those of one form: KERNEL(K) each, in the order of their names. Compiled by entries.cu.
#define INGOT_DEVICE_KERNELS(KERNEL) \
  KERNEL(AdjustRows)                 \
  KERNEL(Combine)                    \
  KERNEL(CopyRows)                   \
  KERNEL(Embed)                      \
  KERNEL(ExpandedMla)                \
  KERNEL(FillRandom)                 \
  KERNEL(ExtendLists)                \
  KERNEL(GroupedMatmul)              \
  KERNEL(HeadMatmul)                 \
  KERNEL(IndexKeyStore)              \
  KERNEL(IndexScores)                \
  KERNEL(KeepDrafts)                 \
  KERNEL(LatentGather)               \
  KERNEL(LatentStore)                \
  KERNEL(LayerNorm)                  \
  KERNEL(LogprobRows)                \
  KERNEL(Matmul)                     \
  KERNEL(MatmulTransposed)           \
  KERNEL(MoveRows)                   \
  KERNEL(Permute)                    \
  KERNEL(QkvPrepare)                 \
  KERNEL(RmsNorm)                    \
  KERNEL(Rope)                       \
  KERNEL(RopeTable)                  \
  KERNEL(Router)                     \
  KERNEL(SampleRows)                 \
  KERNEL(SparseMla)                  \
  KERNEL(SwiGlu)                     \
  KERNEL(TakeDrafts)                 \
  KERNEL(TopK)

// Those of matrix instructions: TILE(template, weight format, size, TileSize) each, for a kernel named by the first three together.
// Compiled by tiles.cu with the device's own instruction, so that the host knows them by name and parameters alone.
#define INGOT_DEVICE_TILES(TILE)                \
  INGOT_TILES_OF_FORMATS(TILE, TileMatmul)        \
  INGOT_TILES_OF_FORMATS(TILE, TileHeadMatmul)    \
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

// Those written for the H200: NATIVE(name, file of src/kernels/native/sm90) each. Other GPUs do not have them.
#define INGOT_SM90_KERNELS(NATIVE)                                   \
  NATIVE(Sm90StreamGroupedMxfp4, "stream_matmul.cu")                 \
  NATIVE(Sm90StreamGroupedFp8, "stream_matmul.cu")                   \
  NATIVE(Sm90StreamGroupedBf16, "stream_matmul.cu")                  \
  NATIVE(Sm90StreamGatedMxfp4, "stream_matmul.cu")                   \
  NATIVE(Sm90StreamGatedFp8, "stream_matmul.cu")                     \
  NATIVE(Sm90StreamGatedBf16, "stream_matmul.cu")                    \
  NATIVE(Sm90StreamDenseMxfp4, "stream_matmul.cu")                   \
  NATIVE(Sm90StreamDenseFp8, "stream_matmul.cu")                     \
  NATIVE(Sm90StreamDenseBf16, "stream_matmul.cu")                    \
  NATIVE(Sm90StreamDenseMxfp4Several, "stream_matmul.cu")            \
  NATIVE(Sm90StreamDenseFp8Several, "stream_matmul.cu")              \
  NATIVE(Sm90StreamDenseBf16Several, "stream_matmul.cu")             \
  NATIVE(Sm90StreamHeadsMxfp4, "stream_matmul.cu")                   \
  NATIVE(Sm90StreamHeadsFp8, "stream_matmul.cu")                     \
  NATIVE(Sm90StreamHeadsBf16, "stream_matmul.cu")                    \
  NATIVE(Sm90StreamHeadsMxfp4Several, "stream_matmul.cu")            \
  NATIVE(Sm90StreamHeadsFp8Several, "stream_matmul.cu")              \
  NATIVE(Sm90StreamHeadsBf16Several, "stream_matmul.cu")             \
  NATIVE(Sm90StreamDenseMxfp4Many, "stream_team.cu")                 \
  NATIVE(Sm90StreamDenseFp8Many, "stream_team.cu")                   \
  NATIVE(Sm90StreamDenseBf16Many, "stream_team.cu")                  \
  NATIVE(Sm90StreamHeadsTransposedMxfp4, "stream_transposed.cu")     \
  NATIVE(Sm90StreamHeadsTransposedFp8, "stream_transposed.cu")       \
  NATIVE(Sm90StreamHeadsTransposedBf16, "stream_transposed.cu")      \
  NATIVE(Sm90StreamHeadsTransposedMxfp4Several, "stream_transposed.cu")\
  NATIVE(Sm90StreamHeadsTransposedFp8Several, "stream_transposed.cu")\
  NATIVE(Sm90StreamHeadsTransposedBf16Several, "stream_transposed.cu")\
  NATIVE(Sm90RoundRows, "wide_matmul.cu")                            \
  NATIVE(Sm90CombineRounded, "wide_matmul.cu")                       \
  NATIVE(Sm90WideMatmulMxfp4, "wide_matmul.cu")                      \
  NATIVE(Sm90WideMatmulMxfp4Few, "wide_matmul.cu")                   \
  NATIVE(Sm90WideMatmulFp8, "wide_matmul.cu")                        \
  NATIVE(Sm90WideMatmulFp8Few, "wide_matmul.cu")                     \
  NATIVE(Sm90WideMatmulBf16, "wide_matmul.cu")                       \
  NATIVE(Sm90WideMatmulBf16Few, "wide_matmul.cu")                    \
  NATIVE(Sm90IndexScores, "indexer.cu")                              \
  NATIVE(Sm90MlaFewBf16x8, "mla.cu")                              \
  NATIVE(Sm90MlaFewBf16x16, "mla.cu")                             \
  NATIVE(Sm90MlaFewFp8x8, "mla.cu")                               \
  NATIVE(Sm90MlaFewFp8x16, "mla.cu")                              \
  NATIVE(Sm90MlaFewScaledx8, "mla.cu")                            \
  NATIVE(Sm90MlaFewScaledx16, "mla.cu")                           \
  NATIVE(Sm90MlaSomeBf16x8, "mla.cu")                             \
  NATIVE(Sm90MlaSomeBf16x16, "mla.cu")                             \
  NATIVE(Sm90MlaSomeFp8x8, "mla.cu")                             \
  NATIVE(Sm90MlaSomeFp8x16, "mla.cu")                             \
  NATIVE(Sm90MlaSomeScaledx8, "mla.cu")                             \
  NATIVE(Sm90MlaSomeScaledx16, "mla.cu")                             \
  NATIVE(Sm90MlaManyBf16x8, "mla.cu")                             \
  NATIVE(Sm90MlaManyBf16x16, "mla.cu")                            \
  NATIVE(Sm90MlaManyFp8x8, "mla.cu")                              \
  NATIVE(Sm90MlaManyFp8x16, "mla.cu")                             \
  NATIVE(Sm90MlaManyScaledx8, "mla.cu")                           \
  NATIVE(Sm90MlaManyScaledx16, "mla.cu")                          \
  NATIVE(Sm90Router, "route.cu")                                     \
  NATIVE(Sm90Permute, "route.cu")                                    \
  NATIVE(Sm90RouteFew, "route.cu")                                   \
  NATIVE(Sm90RouteMany, "route.cu")                                  \
  NATIVE(Sm90TopKFew, "indexer_top_k.cu")                            \
  NATIVE(Sm90TopKMany, "indexer_top_k.cu")
// clang-format on
