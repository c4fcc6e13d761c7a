// What the prefix cache costs by the number of pages it holds, for a prompt of 20,000 tokens (312 pages of 64) whose first 60 % (187
// pages) it has: the keys, the match, lock and unlock of what was found, the publishing of the other 125 pages, and the eviction of as
// many. With 1,000 pages the tree stays in the processor's caches; with 100,000 (26 MB of tokens, beside the nodes) it does not, and
// each prompt takes another path. `per_page`: of the pages the verb goes through. The *_at_once are roofs: the same tokens without
// pages and without a tree.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "sched/page_key.h"
#include "sched/page_pool.h"
#include "sched/prefix_cache.h"

namespace ingot::sched {
namespace {

constexpr int64_t kPageSize = 64;
constexpr int64_t kPromptTokens = 20000;
constexpr int64_t kPromptPages = kPromptTokens / kPageSize;
constexpr int64_t kSharedPages = kPromptPages * 6 / 10;
constexpr int64_t kOwnPages = kPromptPages - kSharedPages;
constexpr int32_t kVocabulary = 154880;

using Tokens = std::vector<int32_t>;

Tokens random_tokens(uint64_t seed, int64_t count) {
  Rng rng(seed);
  Tokens tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.below(kVocabulary));
  return tokens;
}

std::span<const int32_t> pages_of(const Tokens& tokens, int64_t first, int64_t count) {
  return std::span(tokens).subspan(static_cast<size_t>(first * kPageSize), static_cast<size_t>(count * kPageSize));
}

// A cache of prompts that share nothing, all its pages evictable; and for each of them a prompt that has its first 187 pages.
class FullCache {
 public:
  explicit FullCache(int64_t num_pages) : pool(num_pages + kOwnPages), cache(pool, kPageSize, 0) {
    for (int64_t left = num_pages; left > 0; left -= kPromptPages) {
      const Tokens cached = random_tokens(next_seed_++, kPromptTokens);
      cache.unlock(publish(cache.root(), cached, 0, std::min(left, kPromptPages)));
      if (left < kSharedPages) break;
      Tokens prompt = random_tokens(next_seed_++, kPromptTokens);
      std::copy_n(cached.begin(), kSharedPages * kPageSize, prompt.begin());
      keys.push_back(page_keys(prompt, kPageSize));
      prompts.push_back(std::move(prompt));
    }
    INGOT_CHECK(cache.num_device_pages() == num_pages);
  }

  // Locked by the caller, as a sequence does.
  PrefixCache::Node* publish(PrefixCache::Node* tail, const Tokens& tokens, int64_t first, int64_t count) {
    for (int64_t page = first; page < first + count; ++page) tail = cache.publish(tail, pages_of(tokens, page, 1), pool.take());
    return tail;
  }

  // The next prompt: another path than the last one's.
  size_t next() { return turn_++ % prompts.size(); }
  PrefixCache::Match match(size_t prompt) { return cache.match(prompts[prompt], keys[prompt], kPromptPages); }
  // The part that is not shared becomes one that nobody has seen.
  void renew(size_t prompt) {
    const Tokens own = random_tokens(next_seed_++, kOwnPages * kPageSize);
    std::copy(own.begin(), own.end(), prompts[prompt].begin() + kSharedPages * kPageSize);
    keys[prompt] = page_keys(prompts[prompt], kPageSize);
  }

  PagePool pool;
  PrefixCache cache;
  std::vector<Tokens> prompts;
  std::vector<std::vector<PageKey>> keys;

 private:
  uint64_t next_seed_ = 1;
  size_t turn_ = 0;
};

void count_pages(benchmark::State& state, int64_t pages) {
  using benchmark::Counter;
  state.counters["per_page"] = Counter(static_cast<double>(pages), Counter::kIsIterationInvariantRate | Counter::kInvert);
}

void keys(benchmark::State& state) {
  const Tokens prompt = random_tokens(1, kPromptTokens);
  for (auto _ : state) benchmark::DoNotOptimize(page_keys(prompt, kPageSize));
  count_pages(state, kPromptPages);
}
BENCHMARK(keys)->Unit(benchmark::kMicrosecond);

void hash_at_once(benchmark::State& state) {
  const Tokens prompt = random_tokens(1, kPromptTokens);
  for (auto _ : state) benchmark::DoNotOptimize(page_key(kRootPageKey, pages_of(prompt, 0, kPromptPages)));
  count_pages(state, kPromptPages);
}
BENCHMARK(hash_at_once)->Unit(benchmark::kMicrosecond);

void match(benchmark::State& state) {
  FullCache full(state.range(0));
  for (auto _ : state) {
    const auto found = full.match(full.next());
    INGOT_CHECK(found.num_pages() == kSharedPages);
  }
  count_pages(state, kSharedPages);
}
BENCHMARK(match)->Arg(1000)->Arg(100000)->ArgName("pages")->Unit(benchmark::kMicrosecond);

// The roof of match: the tokens of the prompt beside those that prove it, both in one piece.
void compare_at_once(benchmark::State& state) {
  std::vector<Tokens> prompts;
  for (int64_t i = 0; i < state.range(0) / kPromptPages; ++i) prompts.push_back(random_tokens(static_cast<uint64_t>(i), kPromptTokens));
  const std::vector<Tokens> cached = prompts;
  size_t turn = 0;
  for (auto _ : state) {
    const size_t i = turn++ % prompts.size();
    const auto ours = pages_of(prompts[i], 0, kSharedPages);
    INGOT_CHECK(std::memcmp(ours.data(), cached[i].data(), ours.size_bytes()) == 0);
  }
  count_pages(state, kSharedPages);
}
BENCHMARK(compare_at_once)->Arg(1000)->Arg(100000)->ArgName("pages")->Unit(benchmark::kMicrosecond);

void lock_and_unlock(benchmark::State& state) {
  FullCache full(state.range(0));
  std::vector<PrefixCache::Node*> tails;
  for (size_t i = 0; i < full.prompts.size(); ++i) tails.push_back(full.match(i).device_tail);
  for (auto _ : state) {
    PrefixCache::Node* tail = tails[full.next()];
    full.cache.lock(tail);
    full.cache.unlock(tail);
  }
  count_pages(state, kSharedPages);
}
BENCHMARK(lock_and_unlock)->Arg(1000)->Arg(100000)->ArgName("pages")->Unit(benchmark::kMicrosecond);

// A prompt's life in a full cache, of which one verb is measured. What is evicted is the part of an earlier prompt that it alone had: the
// shared part was used since, so each prompt finds its 187 pages at every turn.
enum class Verb : uint8_t { publish, evict };

void live(benchmark::State& state, Verb verb) {
  FullCache full(state.range(0));
  for (auto _ : state) {
    state.PauseTiming();
    const size_t prompt = full.next();
    full.renew(prompt);
    PrefixCache::Node* tail = full.match(prompt).device_tail;
    INGOT_CHECK(tail->depth == kSharedPages);
    full.cache.lock(tail);
    if (verb == Verb::publish) state.ResumeTiming();
    tail = full.publish(tail, full.prompts[prompt], kSharedPages, kOwnPages);
    if (verb == Verb::publish) state.PauseTiming();
    full.cache.unlock(tail);
    if (verb == Verb::evict) state.ResumeTiming();
    full.cache.evict(kOwnPages);
    if (verb == Verb::publish) state.ResumeTiming();
  }
  full.cache.verify({});
  INGOT_CHECK(full.cache.num_device_pages() == state.range(0));
  count_pages(state, kOwnPages);
}
BENCHMARK_CAPTURE(live, publish, Verb::publish)->Arg(1000)->Arg(100000)->ArgName("pages")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(live, evict, Verb::evict)->Arg(1000)->Arg(100000)->ArgName("pages")->Unit(benchmark::kMicrosecond);

// The clock's part in the two above: stopped and started as often as there.
void pause_alone(benchmark::State& state) {
  for (auto _ : state) {
    state.PauseTiming();
    state.ResumeTiming();
    state.PauseTiming();
    state.ResumeTiming();
  }
}
BENCHMARK(pause_alone)->Unit(benchmark::kMicrosecond);

void copy_at_once(benchmark::State& state) {
  const Tokens prompt = random_tokens(1, kPromptTokens);
  Tokens out(static_cast<size_t>(kOwnPages * kPageSize));
  for (auto _ : state) {
    std::memcpy(out.data(), pages_of(prompt, kSharedPages, kOwnPages).data(), out.size() * sizeof(int32_t));
    benchmark::ClobberMemory();
  }
  count_pages(state, kOwnPages);
}
BENCHMARK(copy_at_once)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ingot::sched

BENCHMARK_MAIN();
