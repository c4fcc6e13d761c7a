#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "base/check.h"
#include "model/glm.h"

namespace ingot::model {
namespace {

using tensor::DType;
using tensor::LatentFormat;

constexpr size_t kAlignment = 64;  // a cache line; also what the vector loads like

// Zeroed lazily by the system, so that an unused page costs nothing.
std::shared_ptr<void> allocate(size_t bytes) {
  void* memory = std::calloc(1, bytes + kAlignment);
  if (memory == nullptr) return nullptr;
  const auto aligned = (reinterpret_cast<uintptr_t>(memory) + kAlignment - 1) / kAlignment * kAlignment;
  return std::shared_ptr<void>(reinterpret_cast<void*>(aligned), [memory](void*) { std::free(memory); });
}

// Where the next part of a device's piece begins.
size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

int64_t index_key_bytes(const spec::ModelConfig& config, LatentFormat format) {
  return config.index_head_dim * static_cast<int64_t>(tensor::dtype_bytes(KvCache::index_dtype(format)));
}

}  // namespace

DType KvCache::index_dtype(LatentFormat format) { return format == LatentFormat::f32 ? DType::f32 : DType::bf16; }

int64_t KvCache::latent_bytes(const spec::ModelConfig& config, LatentFormat format) {
  return tensor::latent_row_bytes(format, config.kv_lora_rank, config.qk_rope_head_dim);
}

int64_t KvCache::bytes_per_token(const spec::ModelConfig& config, LatentFormat format) {
  int64_t bytes = 0;
  for (int64_t layer = 0; layer < config.total_layers(); ++layer) {
    bytes += latent_bytes(config, format);
    if (config.has_indexer(layer)) bytes += index_key_bytes(config, format);
  }
  return bytes;
}

Result<KvCache> KvCache::create(const spec::ModelConfig& config, const Options& options, std::shared_ptr<gpu::Accelerator> device) {
  if (!tensor::latent_fits(options.format, config.kv_lora_rank, config.qk_rope_head_dim))
    return fail_hint("use bf16 or fp8_e4m3",
                     "KV cache type {} does not fit the model: kv_lora_rank {} is not a multiple of 4, or "
                     "qk_rope_head_dim {} is odd",
                     tensor::latent_format_name(options.format), config.kv_lora_rank, config.qk_rope_head_dim);
  if (options.num_pages <= 0 || options.page_size <= 0)
    return fail("KV cache of {} pages of {} tokens: both must be positive", options.num_pages, options.page_size);
  KvCache cache;
  cache.options_ = options;
  const int64_t tokens = options.num_pages * options.page_size;
  cache.latent_page_bytes_ = options.page_size * latent_bytes(config, options.format);
  cache.index_page_bytes_ = options.page_size * index_key_bytes(config, options.format);
  cache.page_bytes_ = options.page_size * bytes_per_token(config, options.format);
  const auto all_pages = static_cast<size_t>(options.num_pages);
  const size_t latent_bytes = all_pages * static_cast<size_t>(cache.latent_page_bytes_);
  const size_t index_bytes = all_pages * static_cast<size_t>(cache.index_page_bytes_);
  const auto no_memory = [&](const std::string& reason) {
    return fail_hint("use fewer pages or a smaller cache type", "no memory for the KV cache: {} bytes for {} tokens, {}",
                     tokens * bytes_per_token(config, options.format), tokens, reason);
  };

  // A device's memory is one piece, that is shared by the layers' parts of it.
  std::shared_ptr<gpu::DeviceMemory> piece;
  size_t end = 0;
  if (device) {
    size_t bytes = 0;
    for (int64_t layer = 0; layer < config.total_layers(); ++layer)
      bytes += aligned(latent_bytes) + (config.has_indexer(layer) ? aligned(index_bytes) : 0);
    auto memory = gpu::DeviceMemory::allocate(device, bytes);
    if (!memory) return no_memory(memory.error().message);
    piece = std::make_shared<gpu::DeviceMemory>(std::move(*memory));
    device->fill(piece->data(), 0, bytes);
    INGOT_ASSIGN(gpu::HostMemory copy, gpu::HostMemory::allocate(device, static_cast<size_t>(cache.page_bytes_)));
    cache.page_copy_ = std::make_shared<gpu::HostMemory>(std::move(copy));
    INGOT_TRY(device->finish());
    cache.device_ = std::move(device);
  }
  const auto add = [&](std::vector<std::shared_ptr<void>>& list, size_t bytes) -> Result<> {
    if (piece) {
      list.emplace_back(piece, static_cast<std::byte*>(piece->data()) + end);
      end += aligned(bytes);
      return {};
    }
    list.push_back(allocate(bytes));
    if (!list.back()) return no_memory(fmt::format("{} of them for one layer", bytes));
    return {};
  };
  for (int64_t layer = 0; layer < config.total_layers(); ++layer) {
    INGOT_TRY(add(cache.latents_, latent_bytes));
    if (config.has_indexer(layer)) {
      INGOT_TRY(add(cache.index_keys_, index_bytes));
    } else {
      cache.index_keys_.push_back(nullptr);
    }
  }
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
  if (device_) device_->enter();
  std::byte* const first = device_ ? page_copy_->data() : to.data();
  std::byte* next = first;
  visit_page(page, [&](const std::byte* memory, size_t bytes) {
    if (device_)
      device_->copy(next, memory, bytes);
    else
      std::memcpy(next, memory, bytes);
    next += bytes;
  });
  INGOT_CHECK(next == first + to.size(), "the parts of a page do not add up to page_bytes()");
  if (!device_) return;
  if (device_->finish()) std::memcpy(to.data(), first, to.size());
}

void KvCache::load_page(std::span<const std::byte> from, int64_t page) {
  INGOT_CHECK(static_cast<int64_t>(from.size()) == page_bytes_ && page >= 0 && page < options_.num_pages);
  if (device_) {
    device_->enter();
    std::memcpy(page_copy_->data(), from.data(), from.size());
  }
  const std::byte* const first = device_ ? page_copy_->data() : from.data();
  const std::byte* next = first;
  visit_page(page, [&](std::byte* memory, size_t bytes) {
    if (device_)
      device_->copy(memory, next, bytes);
    else
      std::memcpy(memory, next, bytes);
    next += bytes;
  });
  INGOT_CHECK(next == first + from.size(), "the parts of a page do not add up to page_bytes()");
  // The copy is used again by the next page. A failure is kept for the next step.
  if (device_) static_cast<void>(device_->finish());
}

void* KvCache::latents(int64_t layer) { return latents_.at(static_cast<size_t>(layer)).get(); }
void* KvCache::index_keys(int64_t layer) { return index_keys_.at(static_cast<size_t>(layer)).get(); }

}  // namespace ingot::model
