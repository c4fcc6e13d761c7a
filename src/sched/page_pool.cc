#include "sched/page_pool.h"

#include <limits>

#include "base/check.h"

namespace ingot::sched {

PagePool::PagePool(int64_t num_pages) {
  INGOT_CHECK(num_pages > 0 && num_pages <= std::numeric_limits<int32_t>::max());
  in_use_.assign(static_cast<size_t>(num_pages), 0);
  free_.reserve(static_cast<size_t>(num_pages));
  for (int64_t page = num_pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

int32_t PagePool::take() {
  INGOT_CHECK(!free_.empty(), "asked for a page of an empty pool");
  const int32_t page = free_.back();
  free_.pop_back();
  in_use_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::take(int64_t count, std::vector<int32_t>& pages) {
  INGOT_CHECK(count >= 0 && count <= num_free(), "asked for {} pages of {} free", count, num_free());
  for (int64_t i = 0; i < count; ++i) pages.push_back(take());
}

void PagePool::give_back(int32_t page) {
  INGOT_CHECK(page >= 0 && page < num_pages() && in_use_[static_cast<size_t>(page)], "page {} is not in use", page);
  in_use_[static_cast<size_t>(page)] = 0;
  free_.push_back(page);
}

void PagePool::give_back(std::span<const int32_t> pages) {
  for (size_t i = pages.size(); i-- > 0;) give_back(pages[i]);
}

void PagePool::verify(std::span<const int32_t> held) const {
  std::vector<uint8_t> seen(in_use_.size(), 0);
  const auto see = [&](int32_t page, bool is_free) {
    INGOT_CHECK(page >= 0 && page < num_pages() && !seen[static_cast<size_t>(page)], "page {} is held twice, or held and free", page);
    INGOT_CHECK((in_use_[static_cast<size_t>(page)] != 0) != is_free, "page {} is marked wrongly", page);
    seen[static_cast<size_t>(page)] = 1;
  };
  for (const int32_t page : free_) see(page, true);
  for (const int32_t page : held) see(page, false);
  INGOT_CHECK(free_.size() + held.size() == in_use_.size(), "{} pages are lost", in_use_.size() - free_.size() - held.size());
}

}  // namespace ingot::sched
