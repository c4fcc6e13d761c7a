// A GPU without a GPU: a driver library (gpu/driver_fake.cc) that knows every kernel of list.h and runs it on the host's processors, the
// tile kernels in the emulator. What is put on it goes the way that it goes on a real one: the driver, code by name, device memory that
// the host cannot touch, params that must point into it.
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/thread_pool.h"
#include "gpu/cpu.h"
#include "gpu/driver_fake.h"
#include "gpu/emu.h"
#include "kernels/combine.kernel.h"
#include "kernels/copy_rows.kernel.h"
#include "kernels/device/list.h"
#include "kernels/embed.kernel.h"
#include "kernels/expanded_mla.kernel.h"
#include "kernels/fill_random.kernel.h"
#include "kernels/grouped_matmul.kernel.h"
#include "kernels/head_matmul.kernel.h"
#include "kernels/index_key_store.kernel.h"
#include "kernels/index_scores.kernel.h"
#include "kernels/latent_gather.kernel.h"
#include "kernels/latent_store.kernel.h"
#include "kernels/layer_norm.kernel.h"
#include "kernels/matmul.kernel.h"
#include "kernels/matmul_transposed.kernel.h"
#include "kernels/permute.kernel.h"
#include "kernels/qkv_prepare.kernel.h"
#include "kernels/rms_norm.kernel.h"
#include "kernels/rope.kernel.h"
#include "kernels/rope_table.kernel.h"
#include "kernels/router.kernel.h"
#include "kernels/sample.kernel.h"
#include "kernels/sample_adjust.kernel.h"
#include "kernels/sample_draft.kernel.h"
#include "kernels/sample_logprob.kernel.h"
#include "kernels/sparse_mla.kernel.h"
#include "kernels/swiglu.kernel.h"
#include "kernels/tile_grouped_matmul.kernel.h"
#include "kernels/tile_matmul.kernel.h"
#include "kernels/top_k.kernel.h"

namespace ingot::kernels {
namespace {

#define INGOT_TILE_TYPE(K, Format, Size, size) using K##Format##Size = K<gpu::MmaSyncBf16, TileSize::size, Tile##Format>;
INGOT_DEVICE_TILES(INGOT_TILE_TYPE)
#undef INGOT_TILE_TYPE

// What each kernel's params point to.
template <class... Pointer>
std::vector<const void*> list(Pointer... pointers) {
  return {static_cast<const void*>(pointers)...};
}
auto pointers(const CombineParams& p) { return list(p.out, p.y, p.inverse, p.weights); }
auto pointers(const CopyRowsParams& p) { return list(p.to, p.from, p.source_rows); }
auto pointers(const EmbedParams& p) { return list(p.out, p.token_ids, p.table.data); }
auto pointers(const ExpandedMlaParams& p) { return list(p.out, p.q, p.kv, p.k_pe, p.positions, p.indices); }
auto pointers(const FillRandomParams& p) { return list(p.data); }
auto pointers(const GroupedMatmulParams& p) { return list(p.y, p.x, p.order, p.offsets, p.weights); }
auto pointers(const HeadMatmulParams& p) { return list(p.y, p.x, p.w.data, p.w.scale); }
auto pointers(const IndexKeyStoreParams& p) { return list(p.cache, p.keys, p.slots); }
auto pointers(const IndexScoresParams& p) {
  return list(p.scores, p.q, p.weights, p.cache, p.where.page_table, p.where.seq_of_token, p.where.positions);
}
auto pointers(const LatentGatherParams& p) { return list(p.latent, p.k_pe, p.cache, p.pages); }
auto pointers(const LatentStoreParams& p) { return list(p.cache, p.latent, p.k_pe, p.slots); }
auto pointers(const LayerNormParams& p) { return list(p.y, p.x, p.weight, p.bias); }
auto pointers(const MatmulParams& p) { return list(p.y, p.x, p.w.data, p.w.scale); }
auto pointers(const MatmulTransposedParams& p) { return list(p.y, p.x, p.w.data, p.w.scale); }
auto pointers(const PermuteParams& p) { return list(p.order, p.inverse, p.offsets, p.experts); }
auto pointers(const RmsNormParams& p) { return list(p.y, p.x, p.weight); }
auto pointers(const RopeParams& p) { return list(p.x, p.cos_sin, p.copy); }
auto pointers(const QkvPrepareParams& p) {
  return list(p.q_norm.y, p.q_norm.x, p.q_norm.weight, p.kv_norm.x, p.kv_norm.weight, p.k_rope.cos_sin, p.latent_store.cache,
              p.latent_store.k_pe, p.latent_store.slots, p.index_norm.weight, p.index_norm.bias, p.index_rope.x, p.index_rope.cos_sin,
              p.index_store.cache, p.index_store.keys, p.index_store.slots);
}
auto pointers(const RopeTableParams& p) { return list(p.cos_sin, p.positions, p.inv_freq); }
auto pointers(const RouterParams& p) { return list(p.experts, p.weights, p.logits, p.bias); }
auto pointers(const AdjustRowsParams& p) { return list(p.logits, p.before, p.results, p.rows, p.changes, p.token_ids, p.masks); }
auto pointers(const ExtendListsParams& p) { return list(p.to, p.from, p.sources, p.positions); }
auto pointers(const KeepDraftsParams& p) { return list(p.drafted, p.results, p.places); }
auto pointers(const MoveRowsParams& p) { return list(p.to, p.targets, p.from, p.kept, p.sources); }
auto pointers(const TakeDraftsParams& p) { return list(p.token_ids, p.drafted, p.places); }
auto pointers(const LogprobRowsParams& p) { return list(p.results, p.top, p.logits, p.rows); }
auto pointers(const SampleRowsParams& p) { return list(p.results, p.logits, p.rows, p.changes, p.token_ids, p.before); }
auto pointers(const SparseMlaParams& p) {
  return list(p.out, p.q, p.cache, p.indices, p.where.page_table, p.where.seq_of_token, p.where.positions);
}
auto pointers(const SwiGluParams& p) { return list(p.y, p.gate, p.up); }
auto pointers(const TopKParams& p) { return list(p.indices, p.scores, p.positions); }

template <class Params>
Params params_of(const void* bytes) {
  Params p;
  std::memcpy(static_cast<void*>(&p), bytes, sizeof p);
  return p;
}

template <class K>
void run(const void* bytes) {
  const auto p = params_of<typename K::Params>(bytes);
  if constexpr (std::is_base_of_v<GroupedMatmulParams, typename K::Params>) {
    for (int64_t e = 0; e < p.num_experts; ++e)
      INGOT_CHECK(gpu::is_fake_memory(p.weights[e].data), "the weight of expert {} is in memory of the host", e);
  }
  if constexpr (requires { typename K::Product; }) {
    const auto result = gpu::emu::launch<K, K::Product::Instruction::lanes>(p);
    INGOT_CHECK(result.has_value(), "{}", result.error().text());
  } else {
    static ThreadPool pool(2);
    gpu::Stream stream{&pool};
    gpu::cpu_launch<K>(stream, p);
  }
}

template <class K>
gpu::FakeKernel fake(const char* name) {
  using Params = typename K::Params;
  return {name, sizeof(Params), Params{}.grid().threads, run<K>, [](const void* bytes, void (*visit)(void*, const void*), void* context) {
            for (const void* pointer : pointers(params_of<Params>(bytes))) visit(context, pointer);
          }};
}

}  // namespace
}  // namespace ingot::kernels

namespace ingot::gpu {

std::span<const FakeKernel> fake_kernels() {
  using namespace kernels;
#define INGOT_FAKE_KERNEL(K) fake<K>("ingot_" #K),
#define INGOT_FAKE_TILE(K, Format, Size, size) fake<K##Format##Size>("ingot_" #K #Format #Size),
  static const FakeKernel kernels[] = {INGOT_DEVICE_KERNELS(INGOT_FAKE_KERNEL) INGOT_DEVICE_TILES(INGOT_FAKE_TILE)};
  return kernels;
}
size_t fake_memory_bytes() { return size_t{4} << 30; }

}  // namespace ingot::gpu
