// y = x w^T on matrix instructions: what tile_product.kernel.h says, block by block. MatmulParams as for matmul.kernel.h; the weight's
// format is fixed at compile time and must be the view's.
#pragma once

#include "kernels/params.h"
#include "kernels/tile_product.kernel.h"

namespace ingot::kernels {

// MatmulParams with the grid of one size on a machine of Lanes lanes.
template <TileSize Size, int Lanes>
struct TileMatmulParams : MatmulParams {
  static constexpr TileConfig kConfig = tile_config(Size, Lanes);
  constexpr int64_t row_tiles() const { return (rows + kConfig.rows - 1) / kConfig.rows; }
  constexpr Grid grid() const { return {row_tiles() * ((w.rows + kConfig.columns - 1) / kConfig.columns), kConfig.threads(Lanes)}; }
};

template <class I, TileSize Size, class Weight>
struct TileMatmul {
  using Params = TileMatmulParams<Size, I::lanes>;
  using Product = TileProduct<I, Params::kConfig, Weight>;
  using Shared = typename Product::Shared;
  static constexpr int kThreads = Product::kThreads;

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    run(g, s, p, g.block());
  }

  // Block number `block` of the product.
  template <class G>
  GPU_FN static void run(G& g, Shared& s, const Params& p, int64_t block) {
    // Neighbouring blocks have the same columns, so that the weight is read from memory once and from the cache after.
    const int64_t first_row = block % p.row_tiles() * Params::kConfig.rows;
    const int64_t first_column = block / p.row_tiles() * Params::kConfig.columns;
    const auto source = [&](int i) { return first_row + i < p.rows ? p.x + (first_row + i) * p.x_stride : nullptr; };
    typename Product::Sums sums;
    Product::run(g, s, TileInput(p.x, p.x_stride, p.w.cols), source, Weight(p.w), first_column, p.w.rows, sums);
    Product::each(g, sums, [&](int row, int column, float sum) {
      const int64_t m = first_row + row, n = first_column + column;
      if (m >= p.rows || n >= p.w.rows) return;
      float& y = p.y[m * p.y_stride + n];
      y = p.accumulate ? y + sum : sum;
    });
  }
};

// The products of all heads: those of one are neighbours in the grid. Not transposed.
template <TileSize Size, int Lanes>
struct TileHeadMatmulParams : HeadMatmulParams {
  constexpr TileMatmulParams<Size, Lanes> head(int64_t h) const { return {product(h)}; }
  constexpr Grid grid() const {
    const Grid one = head(0).grid();
    return {heads * one.blocks, one.threads};
  }
};

template <class I, TileSize Size, class Weight>
struct TileHeadMatmul {
  using Params = TileHeadMatmulParams<Size, I::lanes>;
  using One = TileMatmul<I, Size, Weight>;
  using Product = typename One::Product;
  using Shared = typename One::Shared;
  static constexpr int kThreads = One::kThreads;

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    const int64_t blocks = p.head(0).grid().blocks;
    One::run(g, s, p.head(g.block() / blocks), g.block() % blocks);
  }
};

}  // namespace ingot::kernels
