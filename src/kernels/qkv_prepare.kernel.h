// All that a layer makes of its tokens' projections before attention. One block a row of one kind: first those of the queries, which are
// the longest, then the latents, then the indexer's keys. A latent or a key goes from its projection to its cache without a place between:
// a number is computed where it is wanted, in a rotated pair twice.
#pragma once

#include "kernels/latent_store.kernel.h"
#include "kernels/numbers.kernel.h"
#include "kernels/params.h"
#include "kernels/rope.kernel.h"

namespace ingot::kernels {

struct QkvPrepare {
  using Params = QkvPrepareParams;
  static constexpr int kThreads = 256;
  struct Shared {
    float scratch[kThreads];
  };

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    const int64_t tokens = p.q_norm.rows;
    if (g.block() < tokens)
      query(g, s, p.q_norm, g.block());
    else if (g.block() < 2 * tokens)
      latent(g, s, p, g.block() - tokens);
    else
      index_key(g, s, p, g.block() - 2 * tokens);
  }

 private:
  // Rows after their norms.
  template <class Weight>
  struct RmsRow {
    const float* x;
    float scale;
    Weight weight;
    GPU_FN float operator[](int64_t i) const { return x[i] * scale * weight[i]; }
  };
  template <class Weight>
  struct LayerRow {
    const float* x;
    float mean, scale;
    Weight weight, bias;
    GPU_FN float operator[](int64_t i) const { return (x[i] - mean) * scale * weight[i] + bias[i]; }
  };
  // What is rotated, and what it is then.
  template <class Row>
  struct Part {
    const Row& row;
    int64_t offset;
    GPU_FN float operator[](int64_t i) const { return row[offset + i]; }
  };
  template <class Row>
  struct Rotated {
    const RopeParams& p;
    const float* table;
    Row row;
    GPU_FN float operator[](int64_t i) const { return Rope::rotated(p, table, row, i); }
  };

  // body(row) with row number `token` after its norm.
  template <class G, class Body>
  GPU_FN static void with_normed(G& g, Shared& s, const RmsNormParams& p, int64_t token, Body body) {
    const float* x = p.x + token * p.x_stride;
    const float sum = gpu::block_total<kThreads>(g, s.scratch, p.dim, [&](int64_t i) { return x[i] * x[i]; });
    const float scale = g.rsqrt(sum / static_cast<float>(p.dim) + p.eps);
    with_numbers(p.weight, p.weight_dtype, [&](auto weight) { body(RmsRow<decltype(weight)>{x, scale, weight}); });
  }

  template <class G>
  GPU_FN static void query(G& g, Shared& s, const RmsNormParams& p, int64_t token) {
    float* y = p.y + token * p.y_stride;
    with_normed(g, s, p, token, [&](const auto& row) {
      for (int64_t i = g.thread(); i < p.dim; i += g.threads()) y[i] = row[i];
    });
  }

  template <class G>
  GPU_FN static void latent(G& g, Shared& s, const Params& p, int64_t token) {
    const int64_t slot = p.latent_store.slots[token];
    if (slot < 0) return;  // padding; the whole block leaves
    const F32Numbers k_pe{p.latent_store.k_pe + token * p.latent_store.k_pe_stride};
    const Rotated<F32Numbers> rotated{p.k_rope, p.k_rope.cos_sin + token * p.k_rope.rope_dim, k_pe};
    with_normed(g, s, p.kv_norm, token, [&](const auto& row) { LatentStore::store(g, p.latent_store, slot, row, rotated); });
  }

  template <class G>
  GPU_FN static void index_key(G& g, Shared& s, const Params& p, int64_t token) {
    const IndexKeyStoreParams& to = p.index_store;
    const LayerNormParams& norm = p.index_norm;
    const RopeParams& rope = p.index_rope;
    const int64_t slot = to.slots[token];
    if (slot < 0) return;
    const float* x = norm.x + token * norm.x_stride;
    const auto dim = static_cast<float>(norm.dim);
    const float mean = gpu::block_total<kThreads>(g, s.scratch, norm.dim, [&](int64_t i) { return x[i]; }) / dim;
    const float sum = gpu::block_total<kThreads>(g, s.scratch, norm.dim, [&](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
    const float scale = g.rsqrt(sum / dim + norm.eps);
    with_numbers(norm.weight, norm.weight_dtype, [&](auto weight) {
      using Weight = decltype(weight);
      const Weight bias{static_cast<decltype(weight.data)>(norm.bias)};  // of the same type, as Params says
      const LayerRow<Weight> row{x, mean, scale, weight, bias};
      const int64_t first = rope.x - to.keys + rope.offset;
      const Rotated<Part<LayerRow<Weight>>> rotated{rope, rope.cos_sin + token * rope.rope_dim, {row, first}};
      for (int64_t i = g.thread(); i < norm.dim; i += g.threads()) {
        const bool turns = i >= first && i < first + rope.rope_dim;
        store_number(to.cache, to.cache_dtype, slot * to.dim + i, turns ? rotated[i - first] : row[i]);
      }
    });
  }
};

}  // namespace ingot::kernels
