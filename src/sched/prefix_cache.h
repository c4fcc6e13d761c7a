// PrefixCache: the tree of prefixes that are computed. One node is one full page of tokens below the page before it, so a path from the
// root is a prefix. A page holds latents and index keys of all layers together, on the device, in host memory, or both.
//
// Ownership: the pages of nodes belong to the cache; a sequence locks the path it uses. What nobody locks can be evicted, least recently
// used first, children before parents: the device page goes, and the node stays only if it has a host copy. One thread owns it all.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "sched/batch_plan.h"
#include "sched/cache_event.h"
#include "sched/page_key.h"
#include "sched/page_pool.h"

namespace ingot::sched {

class PrefixCache {
 public:
  struct Node;
  // A doubly linked list through the nodes; front: the least recently used.
  struct Link {
    Node* previous = nullptr;
    Node* next = nullptr;
    bool linked = false;
  };
  struct Node {
    PageKey key = kRootPageKey;
    Node* parent = nullptr;
    std::vector<int32_t> tokens;  // page_size; empty for the root
    int32_t page = -1;            // on the device; -1: the host alone has it
    HostPage host;                // copy in host memory; null: the device alone has it
    int32_t depth = 0;            // pages from the root up to and with this one
    int32_t locks = 0;            // sequences whose path goes through here
    int32_t num_device_children = 0;
    std::vector<Node*> children;
    size_t index_in_parent = 0;
    Link device_lru;  // linked when on the device and not locked: it can be evicted
    Link host_lru;    // linked when there is a host copy
    bool unsaved = false;
  };
  struct Match {
    Node* device_tail = nullptr;  // deepest node that is on the device, as all above it are; the root when none
    std::vector<Node*> host;      // nodes below it, in order, that the host has
    int64_t num_pages() const { return device_tail->depth + static_cast<int64_t>(host.size()); }
  };

  // `pool` must outlive the cache. host_capacity: pages the host tier holds; 0: no host tier.
  PrefixCache(PagePool& pool, int64_t page_size, int64_t host_capacity, PageKeyFunction key_of = page_key);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;
  ~PrefixCache();

  Node* root() { return &root_; }

  // The longest cached prefix of at most max_pages pages. `keys` are page_keys(tokens): they find the nodes, the tokens prove them.
  Match match(std::span<const int32_t> tokens, std::span<const PageKey> keys, int64_t max_pages);
  // The same length in pages by keys alone, quickly: to rank, not to use. `guess`: what it was last time; near the truth it costs two
  // look-ups, whatever the length.
  int64_t estimate(std::span<const PageKey> keys, int64_t max_pages, int64_t guess = 0) const;
  // The child of `parent` with these tokens, or null.
  Node* child(const Node* parent, PageKey key, std::span<const int32_t> tokens);

  // Locks the path from the root to `tail`, all of which is on the device. unlock() makes it the most recently used.
  void lock(Node* tail);
  void unlock(Node* tail);
  // Makes the path the most recently used without locking it.
  void touch(Node* tail);
  // A path that is locked grows by `child`, which is on the device.
  void extend(Node* child);

  // `page` of a sequence is full and committed: it becomes the cache's, locked by that sequence. When the cache has these tokens already,
  // the duplicate is given back: use the returned node's page. Null when another prefix has the same key: the page stays the sequence's.
  Node* publish(Node* parent, std::span<const int32_t> tokens, int32_t page);

  // Device pages that evict() could free now.
  int64_t num_evictable() const { return num_evictable_; }
  // Frees `count` device pages. Asking for more than num_evictable() is a programmer error.
  void evict(int64_t count);

  // -- the host tier
  // ------------------------------------------------------------------------------------------------------------------------

  // Copies to make before the next step writes anything: every page published since the last call.
  void take_saves(std::vector<PageSave>& saves);
  bool has_saves() const { return !unsaved_.empty(); }
  // A page that came from the disk. Ignored when the cache has it, or has no host tier.
  Node* add_host(Node* parent, std::span<const int32_t> tokens, HostPage host);
  // The node gets a device page, locked; the caller sees to it that `node->host` is loaded into it.
  void promote(Node* node, int32_t page);

  // Forgets every page of both tiers. No path may be locked.
  void clear();

  // -- what mirrors are told
  // ----------------------------------------------------------------------------------------------------------------

  // From now on every page that comes or goes is noted, for take_events(): to be called before the first page.
  void note_events() { notes_events_ = true; }
  // Appends what has happened since the last call.
  void take_events(std::vector<CacheEvent>& events);
  // What rebuilds a mirror that missed something: `cleared`, then all pages that are there, parents first. Includes what take_events()
  // would have given, which is dropped.
  void take_snapshot(std::vector<CacheEvent>& events);

  // -- figures and truth
  // --------------------------------------------------------------------------------------------------------------------

  int64_t num_device_pages() const { return num_device_; }  // locked or not
  int64_t num_host_pages() const { return num_host_; }
  int64_t num_evicted() const { return num_evicted_; }

  // All device pages of the cache, for the pool's verify().
  std::vector<int32_t> device_pages() const;
  // Recomputes locks (from the tails of all sequences), counts, lists and the tree's shape; aborts when something disagrees.
  void verify(std::span<const Node* const> tails) const;

 private:
  struct List {
    Link Node::*member;
    Node* front = nullptr;
    Node* back = nullptr;
    void push_back(Node* node);
    void remove(Node* node);
  };

  Node* add(Node* parent, PageKey key, std::span<const int32_t> tokens);
  void remove_subtree(Node* node);
  void set_host(Node* node, HostPage host);
  void drop_host(Node* node);
  void drop_device(Node* node);
  void note(CacheEvent::Kind kind, CacheEvent::Tier tier, const Node* node);

  PagePool& pool_;
  const int64_t page_size_;
  const int64_t host_capacity_;
  const PageKeyFunction key_of_;
  Node root_;
  std::unordered_map<PageKey, std::unique_ptr<Node>> nodes_;
  List device_lru_{&Node::device_lru};
  List host_lru_{&Node::host_lru};
  std::vector<PageKey> unsaved_;
  std::vector<CacheEvent> events_;  // not yet taken
  bool notes_events_ = false;
  int64_t num_evictable_ = 0;
  int64_t num_device_ = 0;
  int64_t num_host_ = 0;
  int64_t num_evicted_ = 0;
};

}  // namespace ingot::sched
