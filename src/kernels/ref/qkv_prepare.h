// Reference of qkv_prepare: the references of its parts, one after another, with f32 between them.
#pragma once

#include "kernels/ref/index_key_store.h"
#include "kernels/ref/latent_store.h"
#include "kernels/ref/layer_norm.h"
#include "kernels/ref/rms_norm.h"
#include "kernels/ref/rope.h"

namespace ingot::kernels::ref {

struct QkvPrepareOutput {
  std::vector<double> q;        // (T, q_norm.dim)
  std::vector<double> latents;  // (T, latent_dim + rope_dim), as latent_store
  std::vector<double> keys;     // (T, dim), as index_key_store; empty without an indexer
};

inline std::vector<float> floats(const std::vector<double>& numbers) { return {numbers.begin(), numbers.end()}; }

inline QkvPrepareOutput qkv_prepare(const QkvPrepareParams& p) {
  QkvPrepareOutput out;
  out.q = rms_norm(p.q_norm);
  const std::vector<float> latent = floats(rms_norm(p.kv_norm)), k_pe = floats(rope(p.k_rope));
  LatentStoreParams latents = p.latent_store;
  latents.latent = latent.data();
  latents.latent_stride = latents.latent_dim;
  latents.k_pe = k_pe.data();
  latents.k_pe_stride = latents.rope_dim;
  out.latents = latent_store(latents);
  if (!p.has_index()) return out;
  std::vector<float> keys = floats(layer_norm(p.index_norm));
  IndexKeyStoreParams stored = p.index_store;
  RopeParams turned = p.index_rope;
  turned.offset += turned.x - stored.keys;
  turned.x = keys.data();
  turned.token_stride = stored.key_stride = stored.dim;
  stored.keys = keys.data();
  const std::vector<float> part = floats(rope(turned));
  for (int64_t t = 0; t < stored.num_tokens; ++t)
    std::copy_n(part.data() + t * turned.rope_dim, turned.rope_dim, keys.data() + t * stored.dim + turned.offset);
  out.keys = index_key_store(stored);
  return out;
}

}  // namespace ingot::kernels::ref
