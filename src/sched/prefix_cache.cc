#include "sched/prefix_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace ingot::sched {

void PrefixCache::List::push_back(Node* node) {
  Link& link = node->*member;
  INGOT_CHECK(!link.linked);
  link = {.previous = back, .next = nullptr, .linked = true};
  if (back != nullptr) {
    (back->*member).next = node;
  } else {
    front = node;
  }
  back = node;
}

void PrefixCache::List::remove(Node* node) {
  Link& link = node->*member;
  INGOT_CHECK(link.linked);
  (link.previous != nullptr ? (link.previous->*member).next : front) = link.next;
  (link.next != nullptr ? (link.next->*member).previous : back) = link.previous;
  link = {};
}

PrefixCache::PrefixCache(PagePool& pool, int64_t page_size, int64_t host_capacity, PageKeyFunction key_of)
    : pool_(pool), page_size_(page_size), host_capacity_(host_capacity), key_of_(key_of) {
  INGOT_CHECK(page_size > 0 && host_capacity >= 0);
}

PrefixCache::~PrefixCache() = default;

PrefixCache::Node* PrefixCache::child(const Node* parent, PageKey key, std::span<const int32_t> tokens) {
  const auto it = nodes_.find(key);
  if (it == nodes_.end()) return nullptr;
  Node* node = it->second.get();
  return node->parent == parent && std::equal(tokens.begin(), tokens.end(), node->tokens.begin(), node->tokens.end()) ? node : nullptr;
}

PrefixCache::Match PrefixCache::match(std::span<const int32_t> tokens, std::span<const PageKey> keys, int64_t max_pages) {
  Match match{.device_tail = &root_, .host = {}};
  const Node* tail = &root_;
  const auto size = static_cast<size_t>(page_size_);
  const size_t limit = std::min(keys.size(), static_cast<size_t>(std::max<int64_t>(max_pages, 0)));
  for (size_t i = 0; i < limit; ++i) {
    Node* node = child(tail, keys[i], tokens.subspan(i * size, size));
    if (node == nullptr) break;
    if (node->page >= 0) {
      match.device_tail = node;
    } else {
      match.host.push_back(node);
    }
    tail = node;
  }
  return match;
}

int64_t PrefixCache::estimate(std::span<const PageKey> keys, int64_t max_pages, int64_t guess) const {
  // A node is there only when all above it are: widen from the guess until the end lies between low and high, then bisect.
  size_t low = 0;
  size_t high = std::min(keys.size(), static_cast<size_t>(std::max<int64_t>(max_pages, 0)));
  size_t probe = std::min(static_cast<size_t>(guess), high);
  if (probe > 0 && nodes_.contains(keys[probe - 1])) {
    low = probe;
    for (size_t stride = 1; low < high; stride *= 2) {
      probe = std::min(low + stride, high);
      if (!nodes_.contains(keys[probe - 1])) {
        high = probe - 1;
        break;
      }
      low = probe;
    }
  } else if (probe > 0) {
    high = probe - 1;
  }
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    if (nodes_.contains(keys[middle - 1])) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return static_cast<int64_t>(low);
}

void PrefixCache::lock(Node* tail) {
  for (Node* node = tail; node != &root_; node = node->parent) {
    INGOT_CHECK(node->page >= 0, "a page that is not on the device is locked");
    if (node->locks++ == 0) {
      device_lru_.remove(node);
      --num_evictable_;
    }
  }
}

void PrefixCache::unlock(Node* tail) {
  // From the tail up: in both lists a child comes to lie before its parent, so the front is always a leaf.
  for (Node* node = tail; node != &root_; node = node->parent) {
    INGOT_CHECK(node->locks > 0);
    if (--node->locks == 0) {
      device_lru_.push_back(node);
      ++num_evictable_;
    }
    if (node->host_lru.linked) {
      host_lru_.remove(node);
      host_lru_.push_back(node);
    }
  }
}

void PrefixCache::touch(Node* tail) {
  for (Node* node = tail; node != &root_; node = node->parent) {
    for (List* list : {&device_lru_, &host_lru_}) {
      if (!(node->*list->member).linked) continue;
      list->remove(node);
      list->push_back(node);
    }
  }
}

void PrefixCache::extend(Node* child) {
  INGOT_CHECK(child->page >= 0 && (child->parent == &root_ || child->parent->locks > 0));
  if (child->locks++ == 0) {
    device_lru_.remove(child);
    --num_evictable_;
  }
}

PrefixCache::Node* PrefixCache::add(Node* parent, PageKey key, std::span<const int32_t> tokens) {
  auto& slot = nodes_[key];
  INGOT_CHECK(slot == nullptr);
  slot = std::make_unique<Node>();
  Node* node = slot.get();
  node->key = key;
  node->parent = parent;
  node->tokens.assign(tokens.begin(), tokens.end());
  node->depth = parent->depth + 1;
  node->index_in_parent = parent->children.size();
  parent->children.push_back(node);
  return node;
}

void PrefixCache::promote(Node* node, int32_t page) {
  INGOT_CHECK(node->page < 0 && node->locks == 0 && (node->parent == &root_ || node->parent->page >= 0));
  node->page = page;
  node->locks = 1;
  ++node->parent->num_device_children;
  ++num_device_;
  note(CacheEvent::Kind::stored, CacheEvent::Tier::device, node);
}

PrefixCache::Node* PrefixCache::publish(Node* parent, std::span<const int32_t> tokens, int32_t page) {
  INGOT_CHECK(static_cast<int64_t>(tokens.size()) == page_size_);
  const PageKey key = key_of_(parent->key, tokens);
  const bool known = nodes_.contains(key);
  Node* node = known ? child(parent, key, tokens) : add(parent, key, tokens);
  if (node == nullptr) return nullptr;
  if (node->page >= 0) {
    pool_.give_back(page);
    extend(node);
    return node;
  }
  promote(node, page);
  if (!node->host && host_capacity_ > 0) {
    node->unsaved = true;
    unsaved_.push_back(key);
  }
  return node;
}

void PrefixCache::drop_device(Node* node) {
  if (node->device_lru.linked) {
    device_lru_.remove(node);
    --num_evictable_;
  }
  pool_.give_back(node->page);
  node->page = -1;
  --node->parent->num_device_children;
  --num_device_;
  note(CacheEvent::Kind::removed, CacheEvent::Tier::device, node);
}

void PrefixCache::drop_host(Node* node) {
  host_lru_.remove(node);
  node->host = nullptr;
  --num_host_;
  note(CacheEvent::Kind::removed, CacheEvent::Tier::host, node);
}

void PrefixCache::remove_subtree(Node* node) {
  while (!node->children.empty()) remove_subtree(node->children.back());
  INGOT_CHECK(node->locks == 0);
  if (node->page >= 0) drop_device(node);
  if (node->host) drop_host(node);
  auto& siblings = node->parent->children;
  siblings[node->index_in_parent] = siblings.back();
  siblings[node->index_in_parent]->index_in_parent = node->index_in_parent;
  siblings.pop_back();
  nodes_.erase(node->key);
}

void PrefixCache::evict(int64_t count) {
  INGOT_CHECK(count <= num_evictable_, "asked to evict {} pages of {}", count, num_evictable_);
  for (int64_t i = 0; i < count; ++i) {
    Node* node = device_lru_.front;
    INGOT_CHECK(node->num_device_children == 0, "a page would be evicted before the pages behind it");
    ++num_evicted_;
    if (node->host) {
      drop_device(node);
    } else {
      remove_subtree(node);  // what the host has behind it could not be reached any more
    }
  }
}

void PrefixCache::set_host(Node* node, HostPage host) {
  node->host = std::move(host);
  host_lru_.push_back(node);
  ++num_host_;
  note(CacheEvent::Kind::stored, CacheEvent::Tier::host, node);
  while (num_host_ > host_capacity_) {
    Node* oldest = host_lru_.front;
    if (oldest->page >= 0) {
      drop_host(oldest);
    } else {
      remove_subtree(oldest);
    }
  }
}

void PrefixCache::take_saves(std::vector<PageSave>& saves) {
  for (const PageKey key : unsaved_) {
    const auto it = nodes_.find(key);
    // Evicted since, or evicted and published again: then it is in the list once more.
    if (it == nodes_.end() || !it->second->unsaved) continue;
    Node* node = it->second.get();
    node->unsaved = false;
    if (node->host || node->page < 0) continue;
    auto host = std::make_shared<PageBytes>();
    saves.push_back({.page = node->page, .to = host, .key = node->key, .parent = node->parent->key, .token_ids = node->tokens});
    // From here on the copy counts: the runner makes it before it does anything else.
    set_host(node, std::move(host));
  }
  unsaved_.clear();
}

PrefixCache::Node* PrefixCache::add_host(Node* parent, std::span<const int32_t> tokens, HostPage host) {
  INGOT_CHECK(static_cast<int64_t>(tokens.size()) == page_size_ && host != nullptr);
  if (host_capacity_ == 0) return nullptr;
  const PageKey key = key_of_(parent->key, tokens);
  if (nodes_.contains(key)) return child(parent, key, tokens);
  // The newcomer must not push out its own parents.
  touch(parent);
  const Node* oldest = host_lru_.front;
  if (num_host_ >= host_capacity_ && (oldest == parent || (oldest->page < 0 && !oldest->children.empty()))) return nullptr;
  Node* node = add(parent, key, tokens);
  set_host(node, std::move(host));
  touch(node);
  return node;
}

void PrefixCache::clear() {
  for (auto& [key, node] : nodes_) {
    INGOT_CHECK(node->locks == 0, "a page that a sequence reads would be forgotten");
    if (node->page >= 0) pool_.give_back(node->page);
  }
  nodes_.clear();
  root_.children.clear();
  root_.num_device_children = 0;
  device_lru_.front = device_lru_.back = host_lru_.front = host_lru_.back = nullptr;
  unsaved_.clear();
  num_evictable_ = num_device_ = num_host_ = 0;
  events_.clear();
  if (notes_events_) events_.push_back({.kind = CacheEvent::Kind::cleared});
}

void PrefixCache::note(CacheEvent::Kind kind, CacheEvent::Tier tier, const Node* node) {
  if (!notes_events_) return;
  CacheEvent event{.kind = kind, .tier = tier, .key = node->key, .parent = node->parent->key};
  if (kind == CacheEvent::Kind::stored) event.tokens = node->tokens;
  events_.push_back(std::move(event));
}

void PrefixCache::take_events(std::vector<CacheEvent>& events) {
  events.insert(events.end(), std::make_move_iterator(events_.begin()), std::make_move_iterator(events_.end()));
  events_.clear();
}

void PrefixCache::take_snapshot(std::vector<CacheEvent>& events) {
  events_.assign(1, {.kind = CacheEvent::Kind::cleared});
  std::vector<const Node*> open(root_.children.begin(), root_.children.end());
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (node->page >= 0) note(CacheEvent::Kind::stored, CacheEvent::Tier::device, node);
    if (node->host) note(CacheEvent::Kind::stored, CacheEvent::Tier::host, node);
    open.insert(open.end(), node->children.begin(), node->children.end());
  }
  take_events(events);
}

std::vector<int32_t> PrefixCache::device_pages() const {
  std::vector<int32_t> pages;
  for (const auto& [key, node] : nodes_) {
    if (node->page >= 0) pages.push_back(node->page);
  }
  return pages;
}

void PrefixCache::verify(std::span<const Node* const> tails) const {
  std::unordered_map<const Node*, int32_t> locks;
  for (const Node* tail : tails) {
    for (const Node* node = tail; node != &root_; node = node->parent) ++locks[node];
  }
  int64_t device = 0;
  int64_t host = 0;
  int64_t evictable = 0;
  int64_t children = 0;
  for (const auto& [key, owned] : nodes_) {
    const Node* node = owned.get();
    const Node* parent = node->parent;
    INGOT_CHECK(key == node->key && key == key_of_(parent->key, node->tokens), "a node's key is not that of its tokens");
    INGOT_CHECK(parent == &root_ || nodes_.at(parent->key).get() == parent, "a node's parent is gone");
    INGOT_CHECK(node->index_in_parent < parent->children.size() && parent->children[node->index_in_parent] == node);
    INGOT_CHECK(node->depth == parent->depth + 1 && static_cast<int64_t>(node->tokens.size()) == page_size_);
    const auto held = locks.find(node);
    INGOT_CHECK(node->locks == (held == locks.end() ? 0 : held->second), "a node has {} locks, its sequences are {}", node->locks,
                held == locks.end() ? 0 : held->second);
    INGOT_CHECK(node->page >= 0 || node->host, "a node without a page");
    INGOT_CHECK(node->page < 0 || parent == &root_ || parent->page >= 0, "a page on the device below one that is not");
    INGOT_CHECK(node->device_lru.linked == (node->page >= 0 && node->locks == 0) && node->host_lru.linked == (node->host != nullptr));
    INGOT_CHECK(node->num_device_children ==
                std::count_if(node->children.begin(), node->children.end(), [](const Node* child) { return child->page >= 0; }));
    device += node->page >= 0 ? 1 : 0;
    host += node->host ? 1 : 0;
    evictable += node->device_lru.linked ? 1 : 0;
    children += static_cast<int64_t>(node->children.size());
  }
  INGOT_CHECK(children + static_cast<int64_t>(root_.children.size()) == static_cast<int64_t>(nodes_.size()));
  INGOT_CHECK(device == num_device_ && host == num_host_ && evictable == num_evictable_ && num_host_ <= host_capacity_);
  for (const List& list : {device_lru_, host_lru_}) {
    int64_t length = 0;
    const Node* last = nullptr;
    for (const Node* node = list.front; node != nullptr; node = (node->*list.member).next) {
      INGOT_CHECK((node->*list.member).previous == last);
      // Children before parents. (A page saved while its sequence runs may lie behind its parent until that sequence ends.)
      last = node;
      ++length;
    }
    INGOT_CHECK(last == list.back && length == (list.member == &Node::device_lru ? evictable : host));
  }
}

}  // namespace ingot::sched
