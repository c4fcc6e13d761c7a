#include "sched/page_key.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>

namespace ingot::sched {

static_assert(std::endian::native == std::endian::little, "token ids are hashed as little-endian words");

PageKey page_key(PageKey parent, std::span<const int32_t> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), parent);
}

std::vector<PageKey> page_keys(std::span<const int32_t> tokens, int64_t page_size, PageKeyFunction key_of) {
  const auto size = static_cast<size_t>(page_size);
  std::vector<PageKey> keys;
  keys.reserve(tokens.size() / size);
  PageKey parent = kRootPageKey;
  for (size_t begin = 0; begin + size <= tokens.size(); begin += size) {
    parent = key_of(parent, tokens.subspan(begin, size));
    keys.push_back(parent);
  }
  return keys;
}

}  // namespace ingot::sched
