// The name of a full page of a prefix: a hash over its tokens and the name of the page before it. The same on every machine and in every
// run, so that files, other servers and routers can share it: XXH3-64 over the page's token ids as little-endian 32-bit words, seeded
// with the key of the page before; the first page is seeded with kRootPageKey. A hit is verified by tokens: a key alone proves nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ingot::sched {

using PageKey = uint64_t;
constexpr PageKey kRootPageKey = 0x696e676f74ULL;  // "ingot"

PageKey page_key(PageKey parent, std::span<const int32_t> tokens);

using PageKeyFunction = PageKey (*)(PageKey parent, std::span<const int32_t> tokens);

// Keys of all full pages of `tokens`, first page first.
std::vector<PageKey> page_keys(std::span<const int32_t> tokens, int64_t page_size, PageKeyFunction key_of = page_key);

}  // namespace ingot::sched
