// PagePool: which pages of the KV cache are free. Owned by the scheduler, one thread. Never touches the pages' content.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ingot::sched {

class PagePool {
 public:
  explicit PagePool(int64_t num_pages);

  int64_t num_pages() const { return static_cast<int64_t>(in_use_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

  // The caller has asked num_free() before: an empty pool is a programmer error.
  int32_t take();
  void take(int64_t count, std::vector<int32_t>& pages);  // appends
  // A page that is free already is a programmer error.
  void give_back(int32_t page);
  void give_back(std::span<const int32_t> pages);

  // Recomputes the truth: `held` are all pages that somebody holds. Aborts on a page that is held twice, held and free, or lost.
  void verify(std::span<const int32_t> held) const;

 private:
  std::vector<int32_t> free_;    // a stack: the page freed last is used first
  std::vector<uint8_t> in_use_;  // (num_pages)
};

}  // namespace ingot::sched
