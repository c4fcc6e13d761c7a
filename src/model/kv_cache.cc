#include <cstdlib>
#include <cstring>
#include <new>

#include "base/check.h"
#include "model/glm.h"

namespace ingot::model {
namespace {

using tensor::DType;

constexpr size_t kAlignment = 64;  // a cache line; also what the vector loads like

// Zeroed lazily by the system, so that an unused page costs nothing.
std::shared_ptr<void> allocate(size_t bytes) {
  void* memory = std::calloc(1, bytes + kAlignment);
  if (memory == nullptr) return nullptr;
  const auto aligned = (reinterpret_cast<uintptr_t>(memory) + kAlignment - 1) / kAlignment * kAlignment;
  return std::shared_ptr<void>(reinterpret_cast<void*>(aligned), [memory](void*) { std::free(memory); });
}

}  // namespace

DType KvCache::index_dtype(DType dtype) { return dtype == DType::f32 ? DType::f32 : DType::bf16; }

int64_t KvCache::bytes_per_token(const spec::ModelConfig& config, DType dtype) {
  int64_t bytes = 0;
  for (int64_t layer = 0; layer < config.total_layers(); ++layer) {
    bytes += config.latent_dim() * static_cast<int64_t>(tensor::dtype_bytes(dtype));
    if (config.has_indexer(layer)) bytes += config.index_head_dim * static_cast<int64_t>(tensor::dtype_bytes(index_dtype(dtype)));
  }
  return bytes;
}

Result<KvCache> KvCache::create(const spec::ModelConfig& config, const Options& options) {
  if (options.dtype != DType::f32 && options.dtype != DType::bf16 && options.dtype != DType::f8_e4m3)
    return fail_hint("use bf16, fp8_e4m3 or f32", "KV cache type {} is not supported", tensor::dtype_name(options.dtype));
  if (options.num_pages <= 0 || options.page_size <= 0)
    return fail("KV cache of {} pages of {} tokens: both must be positive", options.num_pages, options.page_size);
  KvCache cache;
  cache.options_ = options;
  const int64_t tokens = options.num_pages * options.page_size;
  const auto add = [&](std::vector<std::shared_ptr<void>>& list, int64_t dim, DType dtype) -> Result<> {
    const size_t bytes = static_cast<size_t>(tokens * dim) * tensor::dtype_bytes(dtype);
    list.push_back(allocate(bytes));
    if (list.back()) return {};
    return fail_hint("use fewer pages or a smaller cache type",
                     "no memory for the KV cache: {} bytes for {} tokens, {} of them for one layer",
                     tokens * bytes_per_token(config, options.dtype), tokens, bytes);
  };
  for (int64_t layer = 0; layer < config.total_layers(); ++layer) {
    INGOT_TRY(add(cache.latents_, config.latent_dim(), options.dtype));
    if (config.has_indexer(layer)) {
      INGOT_TRY(add(cache.index_keys_, config.index_head_dim, index_dtype(options.dtype)));
    } else {
      cache.index_keys_.push_back(nullptr);
    }
  }
  cache.latent_page_bytes_ = options.page_size * config.latent_dim() * static_cast<int64_t>(tensor::dtype_bytes(options.dtype));
  cache.index_page_bytes_ =
      options.page_size * config.index_head_dim * static_cast<int64_t>(tensor::dtype_bytes(index_dtype(options.dtype)));
  cache.page_bytes_ = options.page_size * bytes_per_token(config, options.dtype);
  return cache;
}

template <class Visit>
void KvCache::visit_page(int64_t page, Visit visit) const {
  for (size_t layer = 0; layer < latents_.size(); ++layer) {
    visit(static_cast<std::byte*>(latents_[layer].get()) + page * latent_page_bytes_, static_cast<size_t>(latent_page_bytes_));
    if (index_keys_[layer])
      visit(static_cast<std::byte*>(index_keys_[layer].get()) + page * index_page_bytes_, static_cast<size_t>(index_page_bytes_));
  }
}

void KvCache::save_page(int64_t page, std::span<std::byte> to) const {
  INGOT_CHECK(static_cast<int64_t>(to.size()) == page_bytes_ && page >= 0 && page < options_.num_pages);
  std::byte* next = to.data();
  visit_page(page, [&](const std::byte* memory, size_t bytes) {
    std::memcpy(next, memory, bytes);
    next += bytes;
  });
  INGOT_CHECK(next == to.data() + to.size(), "the parts of a page do not add up to page_bytes()");
}

void KvCache::load_page(std::span<const std::byte> from, int64_t page) {
  INGOT_CHECK(static_cast<int64_t>(from.size()) == page_bytes_ && page >= 0 && page < options_.num_pages);
  const std::byte* next = from.data();
  visit_page(page, [&](std::byte* memory, size_t bytes) {
    std::memcpy(memory, next, bytes);
    next += bytes;
  });
  INGOT_CHECK(next == from.data() + from.size(), "the parts of a page do not add up to page_bytes()");
}

void* KvCache::latents(int64_t layer) { return latents_.at(static_cast<size_t>(layer)).get(); }
void* KvCache::index_keys(int64_t layer) { return index_keys_.at(static_cast<size_t>(layer)).get(); }

}  // namespace ingot::model
