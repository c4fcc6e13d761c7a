// The skeleton of tile kernels: one block's rows x columns of x w^T on warp-level matrix instructions. x is rounded to bf16 when it is
// loaded, since that is what matrix units take; weights become bf16 exactly (tile_weight.kernel.h); sums are f32.
//
// An element of y is the chain of instructions along rising K, one accumulator, K never split: with FP8 weights one chain for each 128 of
// K, which is then multiplied by its scale and added. So its bits depend on its row of x, its row of w and K, and on nothing else: not on
// the number of rows, on their places in a tile or on the TileConfig. (They do depend on the instruction, hence on the GPU.)
//
// Tiles go through shared memory in two buffers: while the warps multiply one, the next one's loads from global memory are under way into
// registers, and are put into the other buffer afterwards. One barrier a step.
#pragma once

#include "gpu/kernel.h"
#include "gpu/mma.h"
#include "kernels/tile_config.h"
#include "kernels/tile_weight.kernel.h"

namespace ingot::kernels {

// f(0), f(1), ... with constant arguments: arrays that are indexed by them stay in registers.
template <int I>
struct Constant {
  constexpr operator int() const { return I; }
};
template <int End, int I = 0, class F>
GPU_FN void unrolled(F f) {
  if constexpr (I < End) {
    f(Constant<I>{});
    unrolled<End, I + 1>(f);
  }
}

// Rows of x, eight neighbours along K at a time; a null row is zeros.
struct TileInput {
  int64_t cols;
  bool aligned;
  GPU_FN TileInput(const float* x, int64_t stride, int64_t k) : cols(k), aligned(aligned_to(x, stride * 4, 16)) {}

  struct Raw {
    float v[kChunk];
  };
  GPU_FN Raw load(const float* row, int64_t k) const {
    Raw raw = {};
    if (row == nullptr || k >= cols) return raw;
    if (aligned && k + kChunk <= cols) {
      load_aligned<16>(raw, row + k);
      return raw;
    }
    for (int i = 0; i < kChunk; ++i) {
      if (k + i < cols) raw.v[i] = row[k + i];
    }
    return raw;
  }
  GPU_FN static Words<4> bf16(const Raw& raw) {
    Words<4> out;
    for (int i = 0; i < 4; ++i) out.v[i] = gpu::to_bf16(raw.v[2 * i]) | static_cast<uint32_t>(gpu::to_bf16(raw.v[2 * i + 1])) << 16;
    return out;
  }
};

template <class I, TileConfig Config, class Weight>
struct TileProduct {
  using Instruction = I;
  static constexpr int kThreads = Config.threads(I::lanes);
  static constexpr int kTilesM = Config.rows / Config.warps_m / I::kM;                              // instructions a warp has along rows
  static constexpr int kTilesN = Config.columns / Config.warps_n / I::kN;                           // and along columns
  static constexpr int kChunksX = (Config.rows * Config.depth / kChunk + kThreads - 1) / kThreads;  // a thread moves
  static constexpr int kChunksW = (Config.columns * Config.depth / kChunk + kThreads - 1) / kThreads;
  static constexpr int kAcross = Config.depth / kChunk;    // chunks of a row
  static constexpr int kPad = 4;                           // words: eight rows of a fragment then lie in different banks
  static constexpr int kStride = Config.depth / 2 + kPad;  // of a tile's row, in words of two numbers
  static_assert(I::kAType == gpu::MatrixNumber::bf16 && I::kBType == gpu::MatrixNumber::bf16);
  static_assert(kTilesM * I::kM * Config.warps_m == Config.rows && kTilesN * I::kN * Config.warps_n == Config.columns);
  static_assert(Config.depth % I::kK == 0 && 128 % Config.depth == 0 && Config.depth % kChunk == 0);

  struct Shared {
    alignas(16) uint32_t x[2][Config.rows * kStride];
    alignas(16) uint32_t w[2][Config.columns * kStride];
  };
  struct Sums {
    typename I::C at[kTilesM][kTilesN];
  };

  // The block's sums. source(i) is row i of the tile of x, or null; the block's columns are rows first_column.. of the weight, of which
  // there are num_columns in all. Every thread must come here. Shared memory is free again when it returns.
  template <class G, class Source>
  GPU_FN static void run(G& g, Shared& s, TileInput input, Source source, const Weight& weight, int64_t first_column, int64_t num_columns,
                         Sums& sums) {
    const float* x_rows[kChunksX];
    typename Weight::Row w_rows[kChunksW];
    unrolled<kChunksX>([&](auto j) {
      const int chunk = g.thread() + j * kThreads;
      x_rows[j] = chunk < Config.rows * kAcross ? source(chunk / kAcross) : nullptr;
    });
    unrolled<kChunksW>([&](auto j) {
      const int chunk = g.thread() + j * kThreads;
      const int64_t n = first_column + chunk / kAcross;
      w_rows[j] = chunk < Config.columns * kAcross && n < num_columns ? weight.row(n) : Weight::none();
    });
    typename TileInput::Raw x_raw[kChunksX];
    typename Weight::Raw w_raw[kChunksW];
    const auto load = [&](int64_t k0) {
      unrolled<kChunksX>([&](auto j) { x_raw[j] = input.load(x_rows[j], k0 + (g.thread() + j * kThreads) % kAcross * kChunk); });
      unrolled<kChunksW>([&](auto j) { w_raw[j] = weight.load(w_rows[j], k0 + (g.thread() + j * kThreads) % kAcross * kChunk); });
    };
    const auto put = [&](uint32_t* x, uint32_t* w) {
      unrolled<kChunksX>([&](auto j) { put_chunk<Config.rows>(x, g.thread() + j * kThreads, TileInput::bf16(x_raw[j])); });
      unrolled<kChunksW>([&](auto j) { put_chunk<Config.columns>(w, g.thread() + j * kThreads, Weight::bf16(w_raw[j])); });
    };

    sums = {};
    Sums part = {};  // of the present 128 of K, when they have a scale of their own
    load(0);
    put(s.x[0], s.w[0]);
    g.sync();
    int buffer = 0;
    for (int64_t k0 = 0; k0 < input.cols; k0 += Config.depth) {
      const int64_t next = k0 + Config.depth;
      if (next < input.cols) load(next);
      multiply(g, s.x[buffer], s.w[buffer], Weight::kBlockScales ? part : sums);
      if constexpr (Weight::kBlockScales) {
        if (next % 128 == 0 || next >= input.cols) add_scaled(g, weight, first_column, num_columns, k0 / 128, part, sums);
      }
      if (next < input.cols) put(s.x[buffer ^ 1], s.w[buffer ^ 1]);
      g.sync();  // the other buffer is full, and nobody reads this one any more
      buffer ^= 1;
    }
  }

  // store(row, column, sum) for every element of the tile that this thread holds.
  template <class G, class Store>
  GPU_FN static void each(G& g, const Sums& sums, Store store) {
    unrolled<kTilesM>([&](auto i) {
      unrolled<kTilesN>([&](auto j) {
        unrolled<I::kAccumulators>([&](auto e) {
          const gpu::Place at = I::c(g.lane(), e);
          store(row_of_warp(g) + i * I::kM + at.row, column_of_warp(g) + j * I::kN + at.col, sums.at[i][j].v[e]);
        });
      });
    });
  }

 private:
  template <class G>
  GPU_FN static int row_of_warp(G& g) {
    return g.warp() / Config.warps_n * (kTilesM * I::kM);
  }
  template <class G>
  GPU_FN static int column_of_warp(G& g) {
    return g.warp() % Config.warps_n * (kTilesN * I::kN);
  }

  template <int Rows>
  GPU_FN static void put_chunk(uint32_t* tile, int chunk, const Words<4>& words) {
    if (chunk >= Rows * kAcross) return;
    store_aligned<16>(tile + chunk / kAcross * kStride + chunk % kAcross * (kChunk / 2), words);
  }

  // A lane's fragment, run by run, from a tile whose rows are those of A, or the columns of B; K is contiguous in both.
  template <class Fragment, class At>
  GPU_FN static void load_fragment(Fragment& fragment, const uint32_t* tile, At at) {
    constexpr int kWordsInRun = I::kRun / 2;
    constexpr int kRuns = static_cast<int>(sizeof fragment.v / 4) / kWordsInRun;
    unrolled<kRuns>([&](auto r) {
      const gpu::Place p = at(r * I::kRun);  // its row in the tile, and K
      Words<kWordsInRun> run;
      load_aligned<kWordsInRun * 4>(run, tile + p.row * kStride + p.col / 2);
      for (int i = 0; i < kWordsInRun; ++i) fragment.v[r * kWordsInRun + i] = run.v[i];
    });
  }

  template <class G>
  GPU_FN static void multiply(G& g, const uint32_t* x, const uint32_t* w, Sums& sums) {
    const int lane = g.lane();
    const uint32_t* x_warp = x + row_of_warp(g) * kStride;
    const uint32_t* w_warp = w + column_of_warp(g) * kStride;
    unrolled<Config.depth / I::kK>([&](auto step) {
      typename I::A a[kTilesM];
      unrolled<kTilesM>(
          [&](auto i) { load_fragment(a[i], x_warp + i * I::kM * kStride + step * (I::kK / 2), [&](int e) { return I::a(lane, e); }); });
      unrolled<kTilesN>([&](auto j) {
        typename I::B b;
        load_fragment(b, w_warp + j * I::kN * kStride + step * (I::kK / 2), [&](int e) {
          const gpu::Place p = I::b(lane, e);
          return gpu::Place{p.col, p.row};
        });
        unrolled<kTilesM>([&](auto i) { mma(g, I{}, sums.at[i][j], a[i], b); });
      });
    });
  }

  // sums += scale * part; part = 0.
  template <class G>
  GPU_FN static void add_scaled(G& g, const Weight& weight, int64_t first_column, int64_t num_columns, int64_t block, Sums& part,
                                Sums& sums) {
    unrolled<kTilesN>([&](auto j) {
      unrolled<I::kAccumulators>([&](auto e) {
        const int64_t n = first_column + column_of_warp(g) + j * I::kN + I::c(g.lane(), e).col;
        const float scale = n < num_columns ? weight.block_scale(n, block) : 0.0f;
        unrolled<kTilesM>([&](auto i) {
          sums.at[i][j].v[e] += scale * part.at[i][j].v[e];
          part.at[i][j].v[e] = 0.0f;
        });
      });
    });
  }
};

}  // namespace ingot::kernels
