// The experts' products on matrix instructions: one block has the columns of one tile of one expert and goes through all its rows. Rows,
// order and offsets as in GroupedMatmulParams; an element has the bits that tile_matmul.kernel.h gives it.
#pragma once

#include "kernels/params.h"
#include "kernels/tile_product.kernel.h"

namespace ingot::kernels {

template <TileSize Size, int Lanes>
struct TileGroupedMatmulParams : GroupedMatmulParams {
  static constexpr TileConfig kConfig = tile_config(Size, Lanes);
  constexpr int64_t column_tiles() const { return (n + kConfig.columns - 1) / kConfig.columns; }
  constexpr Grid grid() const { return {num_experts * column_tiles(), kConfig.threads(Lanes)}; }
};

// y[i,:] = silu(x[src(i),:] . gates[e]^T) * (x[src(i),:] . weights[e]^T): `weights` are the up projections.
template <TileSize Size, int Lanes>
struct TileGatedMatmulParams : TileGroupedMatmulParams<Size, Lanes> {
  const WeightView* gates;  // (num_experts), each (N, K), of the same format
};

// Which rows of an expert the block is at, and where they come from.
struct ExpertTile {
  const GroupedMatmulParams& p;
  int64_t first, last;  // permuted rows

  GPU_FN const float* operator()(int i) const {
    const int64_t row = first + i;
    if (row >= last) return nullptr;
    return p.x + (p.order == nullptr ? row : p.order[row] / p.rows_per_source) * p.x_stride;
  }
};

template <class I, TileSize Size, class Weight>
struct TileGroupedMatmul {
  using Params = TileGroupedMatmulParams<Size, I::lanes>;
  static constexpr TileConfig kConfig = Params::kConfig;
  using Product = TileProduct<I, kConfig, Weight>;
  using Shared = typename Product::Shared;
  static constexpr int kThreads = Product::kThreads;

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    const int64_t expert = g.block() / p.column_tiles();
    const int64_t first_column = g.block() % p.column_tiles() * kConfig.columns;
    const int64_t last = p.offsets[expert + 1];
    int64_t first = p.offsets[expert];
    if (first == last) return;  // an expert nobody chose: its weight is not touched
    const Weight weight(p.weights[expert]);
    const TileInput input(p.x, p.x_stride, weight.cols);
    for (; first < last; first += kConfig.rows) {
      typename Product::Sums sums;
      Product::run(g, s, input, ExpertTile{p, first, last}, weight, first_column, p.n, sums);
      Product::each(g, sums, [&](int row, int column, float sum) {
        if (first + row < last && first_column + column < p.n) p.y[(first + row) * p.y_stride + first_column + column] = sum;
      });
    }
  }
};

// Both products of a gated expert and its activation. A thread holds the same elements in both, so it leaves the activated gate in y and
// multiplies it there: keeping it in registers would double them.
template <class I, TileSize Size, class Weight>
struct TileGatedMatmul {
  using Params = TileGatedMatmulParams<Size, I::lanes>;
  static constexpr TileConfig kConfig = Params::kConfig;
  using Product = TileProduct<I, kConfig, Weight>;
  using Shared = typename Product::Shared;
  static constexpr int kThreads = Product::kThreads;

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    const int64_t expert = g.block() / p.column_tiles();
    const int64_t first_column = g.block() % p.column_tiles() * kConfig.columns;
    const int64_t last = p.offsets[expert + 1];
    int64_t first = p.offsets[expert];
    if (first == last) return;
    const TileInput input(p.x, p.x_stride, p.weights[expert].cols);
    for (; first < last; first += kConfig.rows) {
      const ExpertTile tile{p, first, last};
      typename Product::Sums sums;
      Product::run(g, s, input, tile, Weight(p.gates[expert]), first_column, p.n, sums);
      Product::each(g, sums, [&](int row, int column, float gate) {
        if (first + row < last && first_column + column < p.n)
          p.y[(first + row) * p.y_stride + first_column + column] = gate / (1.0f + g.exp(-gate));
      });
      Product::run(g, s, input, tile, Weight(p.weights[expert]), first_column, p.n, sums);
      Product::each(g, sums, [&](int row, int column, float up) {
        if (first + row < last && first_column + column < p.n) p.y[(first + row) * p.y_stride + first_column + column] *= up;
      });
    }
  }
};

}  // namespace ingot::kernels
