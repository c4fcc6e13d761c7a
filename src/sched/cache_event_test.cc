// A mirror that is told what the prefix cache does must equal it. Symptoms: a parent that was never announced (D12), half pages, the parent
// hash equal for every block (D11), a page that is told as removed and still there, a mirror that never recovers from a gap.
#include "sched/cache_event.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "base/rng.h"
#include "sched/prefix_cache.h"

namespace ingot::sched {
namespace {

constexpr int64_t kPageSize = 4;

// What a router knows.
class Mirror {
 public:
  void hear(const CacheEvent& event) {
    if (event.kind == CacheEvent::Kind::cleared) {
      tiers_.clear();
      parents_.clear();
      return;
    }
    std::set<CacheEvent::Tier>& tiers = tiers_[event.key];
    if (event.kind == CacheEvent::Kind::removed) {
      EXPECT_EQ(tiers.erase(event.tier), 1u) << "removed, and was not there";
      if (!tiers.empty()) return;
      tiers_.erase(event.key);
      for (const auto& [child, parent] : parents_) EXPECT_FALSE(parent == event.key && tiers_.contains(child)) << "a child outlives it";
      return;
    }
    EXPECT_EQ(static_cast<int64_t>(event.tokens.size()), kPageSize) << "not a full page";
    EXPECT_EQ(page_key(event.parent, event.tokens), event.key) << "not the hash of its tokens after its parent";
    EXPECT_TRUE(event.parent == kRootPageKey || tiers_.contains(event.parent)) << "a parent that was never announced";
    EXPECT_TRUE(tiers.insert(event.tier).second) << "stored twice";
    parents_[event.key] = event.parent;
  }
  void hear(const std::vector<CacheEvent>& events) {
    for (const CacheEvent& event : events) hear(event);
  }
  // The keys by tier.
  const std::map<PageKey, std::set<CacheEvent::Tier>>& tiers() const { return tiers_; }

 private:
  std::map<PageKey, std::set<CacheEvent::Tier>> tiers_;
  std::map<PageKey, PageKey> parents_;
};

std::map<PageKey, std::set<CacheEvent::Tier>> truth(PrefixCache& cache) {
  std::map<PageKey, std::set<CacheEvent::Tier>> tiers;
  std::vector<PrefixCache::Node*> open{cache.root()};
  while (!open.empty()) {
    const PrefixCache::Node* node = open.back();
    open.pop_back();
    if (node->page >= 0) tiers[node->key].insert(CacheEvent::Tier::device);
    if (node->host) tiers[node->key].insert(CacheEvent::Tier::host);
    open.insert(open.end(), node->children.begin(), node->children.end());
  }
  return tiers;
}

// A cache that lives: conversations with common beginnings come, go, are evicted, return from the host or the disk.
class House {
 public:
  explicit House(uint64_t seed, int64_t host_pages) : rng_(seed), pool_(12), cache_(pool_, kPageSize, host_pages) { cache_.note_events(); }
  PrefixCache& cache() { return cache_; }

  void act() {
    std::vector<PageSave> saves;
    switch (rng_.below(12)) {
      case 0: cache_.evict(static_cast<int64_t>(rng_.below(static_cast<uint64_t>(cache_.num_evictable()) + 1))); break;
      case 1: from_disk(); break;
      case 2: cache_.take_saves(saves); break;
      case 3:
        if (rng_.below(8) == 0) cache_.clear();
        break;
      default: converse(); break;
    }
    cache_.verify({});
  }

 private:
  std::vector<int32_t> text() {
    std::vector<int32_t> tokens;
    for (uint64_t page = 0; page < 1 + rng_.below(4); ++page) tokens.insert(tokens.end(), kPageSize, static_cast<int32_t>(rng_.below(3)));
    return tokens;
  }
  std::span<const int32_t> page_of(const std::vector<int32_t>& tokens, int64_t index) {
    return std::span<const int32_t>(tokens).subspan(static_cast<size_t>(index * kPageSize), static_cast<size_t>(kPageSize));
  }
  bool take(int32_t& page) {
    if (pool_.num_free() == 0) {
      if (cache_.num_evictable() == 0) return false;
      cache_.evict(1);
    }
    page = pool_.take();
    return true;
  }
  void converse() {
    const auto tokens = text();
    const auto keys = page_keys(tokens, kPageSize);
    auto match = cache_.match(tokens, keys, static_cast<int64_t>(keys.size()));
    cache_.lock(match.device_tail);
    auto* tail = match.device_tail;
    int32_t page = -1;
    for (auto* node : match.host) {
      if (!take(page)) break;
      cache_.promote(node, page);
      tail = node;
    }
    for (int64_t i = tail->depth; i < static_cast<int64_t>(keys.size()) && take(page); ++i) {
      auto* node = cache_.publish(tail, page_of(tokens, i), page);
      ASSERT_NE(node, nullptr);
      tail = node;
    }
    cache_.unlock(tail);
  }
  void from_disk() {
    const auto tokens = text();
    const auto keys = page_keys(tokens, kPageSize);
    const auto match = cache_.match(tokens, keys, static_cast<int64_t>(keys.size()));
    auto* tail = match.host.empty() ? match.device_tail : match.host.back();
    for (int64_t i = tail->depth; i < static_cast<int64_t>(keys.size()); ++i) {
      auto* node = cache_.add_host(tail, page_of(tokens, i), std::make_shared<PageBytes>());
      if (node == nullptr) return;
      tail = node;
    }
  }

  Rng rng_;
  PagePool pool_;
  PrefixCache cache_;
};

class CacheEvents : public ::testing::TestWithParam<int64_t> {};

TEST_P(CacheEvents, AMirrorEqualsTheCacheAfterEveryActAndASnapshotRebuildsIt) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    House house(seed, GetParam());
    Mirror mirror;
    uint64_t most = 0;
    for (int i = 0; i < 400; ++i) {
      house.act();
      std::vector<CacheEvent> events;
      if (i % 50 == 49) {
        // What happened is lost on the way; the mirror hears a snapshot instead.
        house.cache().take_events(events);
        house.act();
        events.clear();
        house.cache().take_snapshot(events);
      } else {
        house.cache().take_events(events);
      }
      mirror.hear(events);
      ASSERT_EQ(mirror.tiers(), truth(house.cache())) << "act " << i;
      most = std::max<uint64_t>(most, mirror.tiers().size());
    }
    EXPECT_GT(most, 8u) << "the test must fill the cache";
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, CacheEvents, ::testing::Values(0, 5, 40));

TEST(CacheEventNotes, NothingIsNotedWhenNobodyListens) {
  PagePool pool(4);
  PrefixCache cache(pool, kPageSize, 0);
  const std::vector<int32_t> tokens(kPageSize, 1);
  cache.unlock(cache.publish(cache.root(), tokens, pool.take()));
  std::vector<CacheEvent> events;
  cache.take_events(events);
  EXPECT_TRUE(events.empty());
}

TEST(CacheEventNotes, AClearedCacheGivesAllPagesBack) {
  PagePool pool(4);
  PrefixCache cache(pool, kPageSize, 4);
  const std::vector<int32_t> tokens(kPageSize, 1);
  cache.unlock(cache.publish(cache.root(), tokens, pool.take()));
  std::vector<PageSave> saves;
  cache.take_saves(saves);
  cache.clear();
  EXPECT_EQ(pool.num_free(), 4);
  EXPECT_EQ(cache.match(tokens, page_keys(tokens, kPageSize), 1).num_pages(), 0);
  cache.verify({});
  pool.verify({});
}

}  // namespace
}  // namespace ingot::sched
