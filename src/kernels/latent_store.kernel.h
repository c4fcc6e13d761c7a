// Writes the latent and the rotated key part of each token into its slot of the cache, in the cache's format. One block a token.
#pragma once

#include "kernels/latent_rows.kernel.h"
#include "kernels/params.h"

namespace ingot::kernels {

struct LatentStore {
  using Params = LatentStoreParams;
  struct Shared {};

  template <class G>
  GPU_FN void operator()(G& g, Shared&, const Params& p) const {
    const int64_t slot = p.slots[g.block()];
    if (slot < 0) return;  // padding; the whole block leaves, and there is no barrier
    store(g, p, slot, F32Numbers{p.latent + g.block() * p.latent_stride}, F32Numbers{p.k_pe + g.block() * p.k_pe_stride});
  }

  // Row `slot` of the cache, from latent[i] and k_pe[i]. By all threads of a block.
  template <class G, class Latent, class Key>
  GPU_FN static void store(G& g, const Params& p, int64_t slot, const Latent& latent, const Key& k_pe) {
    if (p.cache_format == LatentFormat::fp8_scaled) return store_scaled(g, p, slot, latent, k_pe);
    const DType type = p.cache_format == LatentFormat::f32    ? DType::f32
                       : p.cache_format == LatentFormat::bf16 ? DType::bf16
                                                              : DType::f8_e4m3;
    const int64_t dim = p.latent_dim + p.rope_dim;
    for (int64_t i = g.thread(); i < dim; i += g.threads()) {
      const float value = i < p.latent_dim ? latent[i] : k_pe[i - p.latent_dim];
      store_number(p.cache, type, slot * dim + i, value);
    }
  }

 private:
  // A warp a group of 128; all of the block then share the rotated part.
  template <class G, class Latent, class Key>
  GPU_FN static void store_scaled(G& g, const Params& p, int64_t slot, const Latent& latent, const Key& k_pe) {
    const int64_t groups = tensor::latent_groups(p.latent_dim);
    uint8_t* row = static_cast<uint8_t*>(p.cache) + slot * tensor::latent_row_bytes(p.cache_format, p.latent_dim, p.rope_dim);
    void* scales = row + p.latent_dim;
    void* rope = row + p.latent_dim + 4 * groups;
    for (int64_t group = g.warp(); group < groups; group += g.warps()) {
      const int64_t first = group * tensor::kLatentGroup;
      const int64_t count = p.latent_dim - first < tensor::kLatentGroup ? p.latent_dim - first : tensor::kLatentGroup;
      // A NaN is not the greatest: the rest of its group keeps its scale.
      const float amax =
          gpu::warp_greatest(g, count, 0.0f, [&](int64_t i) { return gpu::bits_float(gpu::float_bits(latent[first + i]) & 0x7fffffffu); });
      const float scale = latent_scale(amax);
      const float inverse = gpu::bits_float((254u << 23) - gpu::float_bits(scale));  // of a power of two: exact
      for (int64_t i = g.lane(); i < count; i += G::lanes) row[first + i] = gpu::to_e4m3(latent[first + i] * inverse);
      if (g.lane() == 0) static_cast<float*>(scales)[group] = scale;
    }
    for (int64_t i = g.thread(); i < p.rope_dim; i += g.threads()) static_cast<uint16_t*>(rope)[i] = gpu::to_bf16(k_pe[i]);
  }
};

}  // namespace ingot::kernels
