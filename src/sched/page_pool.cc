#include "sched/page_pool.h"

#include "base/check.h"

namespace ingot::sched {

PagePool::PagePool(int64_t num_pages) : in_use_(static_cast<size_t>(num_pages), 0) {
  INGOT_CHECK(num_pages > 0 && num_pages <= INT32_MAX);
  free_.reserve(static_cast<size_t>(num_pages));
  for (int64_t page = num_pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

void PagePool::take(int64_t count, std::vector<int32_t>& pages) {
  INGOT_CHECK(count <= num_free(), "{} pages asked for, {} free", count, num_free());
  for (int64_t i = 0; i < count; ++i) {
    const int32_t page = free_.back();
    free_.pop_back();
    in_use_[static_cast<size_t>(page)] = 1;
    pages.push_back(page);
  }
}

void PagePool::give_back(std::vector<int32_t>& pages) {
  for (int32_t page : pages) {
    INGOT_CHECK(in_use_[static_cast<size_t>(page)] == 1, "page {} is freed twice", page);
    in_use_[static_cast<size_t>(page)] = 0;
    free_.push_back(page);
  }
  pages.clear();
}

void PagePool::verify(std::span<const std::vector<int32_t>* const> held) const {
  std::vector<int> owners(in_use_.size(), 0);
  for (const auto* pages : held) {
    for (int32_t page : *pages) ++owners[static_cast<size_t>(page)];
  }
  for (int32_t page : free_) ++owners[static_cast<size_t>(page)];
  int64_t num_held = 0;
  for (const auto* pages : held) num_held += static_cast<int64_t>(pages->size());
  for (size_t page = 0; page < owners.size(); ++page) INGOT_CHECK(owners[page] == 1, "page {} has {} owners", page, owners[page]);
  INGOT_CHECK(num_held + num_free() == num_pages(), "{} held + {} free is not {}", num_held, num_free(), num_pages());
}

}  // namespace ingot::sched
