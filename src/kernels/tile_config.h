// How tile kernels divide a product among blocks and warps. A pure function of the row count and the machine's lanes; the sums do not
// depend on it (see tile_product.kernel.h), so a row gets the same bits in every size.
#pragma once

#include <cstdint>

namespace ingot::kernels {

// A block computes `rows` x `columns` of y, stepping along K by `depth`; its warps are a grid of warps_m x warps_n over that.
struct TileConfig {
  int rows, columns, depth;
  int warps_m, warps_n;

  constexpr int threads(int lanes) const { return warps_m * warps_n * lanes; }
};

// small: up to 16 rows of x, bound by the bytes of the weight; medium: up to 64, which still read it once; large: more.
enum class TileSize : uint8_t { small, medium, large };

constexpr TileSize tile_size(int64_t rows) { return rows <= 16 ? TileSize::small : rows <= 64 ? TileSize::medium : TileSize::large; }

// Every depth divides 128, the K of an FP8 scale block, and is whole instructions. Shared memory stays below 48 KiB.
constexpr TileConfig tile_config(TileSize size, int lanes) {
  if (lanes == 32) {  // instructions of 16 x 8
    if (size == TileSize::small) return {16, 32, 128, 1, 4};
    if (size == TileSize::medium) return {64, 32, 64, 2, 2};
    return {128, 128, 32, 2, 4};
  }
  if (size == TileSize::small) return {16, 64, 128, 1, 4};  // 16 x 16
  if (size == TileSize::medium) return {64, 64, 64, 2, 2};
  return {128, 128, 32, 2, 2};
}

}  // namespace ingot::kernels
