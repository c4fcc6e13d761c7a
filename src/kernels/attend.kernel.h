// Softmax attention of one query over a list of keys of any length, by one block: the inner part of sparse_mla and expanded_mla.
// Keys are taken 64 at a time; the sum so far is rescaled when a larger score comes (Milakov and Gimelshein, "Online normalizer
// calculation for softmax", 2018). The values of the output are kept in `out` between tiles, so no dimension has a limit.
#pragma once

#include "gpu/kernel.h"

namespace ingot::kernels {

struct Attend {
  static constexpr int kThreads = 128;
  static constexpr int kTile = 64;       // keys
  static constexpr int64_t kDims = 512;  // output numbers gathered in one go: registers on a GPU, one cached array on the CPU
  struct Shared {
    float score[kTile];
    float weight[kTile];
  };

  static constexpr float kNoKey = -__builtin_huge_valf();  // the score of an unused place: its weight is 0

  // out[d] = sum over j < count of softmax(score(j)) * value(j, d), d < dims; zeros when there is no key at all.
  // score(j) is evaluated by a whole warp and must be the same in all its lanes.
  template <class G, class Score, class Value>
  GPU_FN static void run(G& g, Shared& s, float* out, int64_t dims, int64_t count, Score score, Value value) {
    float greatest = kNoKey, total = 0.0f;
    bool first = true;
    for (int64_t tile = 0; tile < count; tile += kTile) {
      const int64_t keys = count - tile < kTile ? count - tile : kTile;
      g.sync();  // the last tile's scores and weights have been read
      for (int64_t j = g.warp(); j < keys; j += g.warps()) {
        const float v = score(tile + j);
        if (g.lane() == 0) s.score[j] = v;
      }
      g.sync();
      const float tile_greatest = gpu::warp_greatest(g, keys, kNoKey, [&](int64_t j) { return s.score[j]; });
      const float now_greatest = tile_greatest > greatest ? tile_greatest : greatest;
      for (int64_t j = g.thread(); j < keys; j += g.threads()) s.weight[j] = s.score[j] == kNoKey ? 0.0f : g.exp(s.score[j] - now_greatest);
      g.sync();
      const float rescale = greatest == kNoKey ? 0.0f : g.exp(greatest - now_greatest);
      total = total * rescale + gpu::warp_total(g, keys, [&](int64_t j) { return s.weight[j]; });
      greatest = now_greatest;
      add_values(g, s, out, dims, tile, keys, first ? 0.0f : rescale, first, value);
      first = false;
    }
    const float scale = total == 0.0f ? 0.0f : 1.0f / total;
    for (int64_t d = g.thread(); d < dims; d += g.threads()) out[d] = first ? 0.0f : out[d] * scale;
  }

 private:
  template <class G, class Value>
  GPU_FN static void add_values(G& g, const Shared& s, float* out, int64_t dims, int64_t tile, int64_t keys, float rescale, bool first,
                                Value value) {
    constexpr int kOwn = static_cast<int>(G::lanes == 1 ? kDims : kDims / kThreads);
    for (int64_t base = g.thread(); base < dims; base += kDims) {
      float sum[kOwn] = {};
      for (int64_t j = 0; j < keys; ++j) {
        if (s.score[j] == kNoKey) continue;  // an unused place has no value to read
        const float weight = s.weight[j];
        for (int i = 0; i < kOwn; ++i) {
          const int64_t d = base + i * g.threads();
          if (d < dims) sum[i] += weight * value(tile + j, d);
        }
      }
      for (int i = 0; i < kOwn; ++i) {
        const int64_t d = base + i * g.threads();
        if (d < dims) out[d] = first ? sum[i] : out[d] * rescale + sum[i];
      }
    }
  }
};

}  // namespace ingot::kernels
