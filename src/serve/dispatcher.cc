#include "serve/dispatcher.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <thread>

#include "base/check.h"

namespace ingot::serve {

namespace {
// An answer's length is not known when it is dispatched: max_tokens is a bound, often a wild one.
constexpr int64_t kMostExpectedAnswer = 1024;
}  // namespace

int64_t SeenPrefixes::match(const std::vector<sched::PageKey>& keys) const {
  int64_t count = 0;
  while (count < static_cast<int64_t>(keys.size()) && places_.contains(keys[static_cast<size_t>(count)])) ++count;
  return count;
}

void SeenPrefixes::add(const std::vector<sched::PageKey>& keys) {
  // Last page first: the first page of a prefix is forgotten last.
  for (size_t i = std::min(keys.size(), static_cast<size_t>(capacity_)); i-- > 0;) {
    const auto [it, is_new] = places_.try_emplace(keys[i]);
    if (!is_new) order_.erase(it->second);
    order_.push_front(keys[i]);
    it->second = order_.begin();
  }
  while (static_cast<int64_t>(places_.size()) > capacity_) {
    places_.erase(order_.back());
    order_.pop_back();
  }
}

void SeenPrefixes::clear() {
  order_.clear();
  places_.clear();
}

Dispatcher::Dispatcher(std::vector<std::unique_ptr<Engine>> engines, int64_t page_size, int64_t pages)
    : page_size_(page_size), books_(std::make_shared<Books>()), engines_(std::move(engines)) {
  INGOT_CHECK(!engines_.empty() && page_size > 0 && pages > 0);
  for (size_t i = 0; i < engines_.size(); ++i) books_->replicas.emplace_back(pages);
}

tl::expected<Dispatcher::Ticket, Refusal> Dispatcher::submit(sched::Request request) {
  const auto length = static_cast<int64_t>(request.prompt.size());
  const int64_t answer = std::min<int64_t>(request.sampling.max_tokens, kMostExpectedAnswer);
  const std::vector<sched::PageKey> keys =
      engines_.size() > 1 ? sched::page_keys(request.prompt, page_size_) : std::vector<sched::PageKey>();

  // Candidates, best first; the load is taken at once, so that the next one to be dispatched sees it.
  std::vector<int64_t> cost(engines_.size());
  std::vector<int64_t> work(engines_.size());
  std::vector<size_t> order(engines_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto book = [&](size_t i) {
    books_->replicas[i].load.tokens += work[i];
    ++books_->replicas[i].load.requests;
  };
  {
    const std::lock_guard lock(books_->mutex);
    for (size_t i = 0; i < engines_.size(); ++i) {
      const Replica& replica = books_->replicas[i];
      work[i] = length - replica.seen.match(keys) * page_size_ + answer;
      cost[i] = replica.load.tokens + work[i];
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return cost[a] < cost[b]; });
    book(order[0]);
  }
  std::optional<Refusal> first_refusal;
  for (size_t n = 0; n < order.size(); ++n) {
    const size_t i = order[n];
    if (n > 0) {
      const std::lock_guard lock(books_->mutex);
      book(i);
    }
    sched::Request attempt = request;
    attempt.sink = [books = books_, i, tokens = work[i], sink = request.sink](sched::TokenEvent event) {
      if (event.finish != sched::FinishReason::none) {
        const std::lock_guard lock(books->mutex);
        books->replicas[i].load.tokens -= tokens;
        --books->replicas[i].load.requests;
      }
      sink(std::move(event));
    };
    const auto id = engines_[i]->submit(std::move(attempt));
    const std::lock_guard lock(books_->mutex);
    if (id) {
      books_->replicas[i].seen.add(keys);
      return Ticket{static_cast<int>(i), *id};
    }
    books_->replicas[i].load.tokens -= work[i];
    --books_->replicas[i].load.requests;
    if (!first_refusal) first_refusal = id.error();
    if (id.error().kind == Refusal::Kind::too_long || id.error().kind == Refusal::Kind::stopping) break;
  }
  return tl::unexpected(*first_refusal);
}

ReplicaState Dispatcher::total() const {
  ReplicaState sum;
  for (const auto& engine : engines_) {
    const ReplicaState state = engine->state();
    for (int64_t ReplicaState::*field :
         {&ReplicaState::running, &ReplicaState::waiting, &ReplicaState::free_pages, &ReplicaState::cached_pages,
          &ReplicaState::total_pages, &ReplicaState::steps, &ReplicaState::prompt_tokens, &ReplicaState::completion_tokens,
          &ReplicaState::cache_query_tokens, &ReplicaState::cache_hit_tokens, &ReplicaState::host_hit_tokens, &ReplicaState::evicted_pages,
          &ReplicaState::preemptions, &ReplicaState::finished_requests, &ReplicaState::drafts, &ReplicaState::draft_tokens,
          &ReplicaState::accepted_tokens})
      sum.*field += state.*field;
  }
  return sum;
}

Dispatcher::Load Dispatcher::load(int replica) const {
  const std::lock_guard lock(books_->mutex);
  return books_->replicas[static_cast<size_t>(replica)].load;
}

bool Dispatcher::healthy(std::string* reason) const {
  std::string all;
  for (const auto& engine : engines_) {
    std::string why;
    if (!engine->healthy(&why)) all += (all.empty() ? "" : "; ") + why;
  }
  if (reason != nullptr) *reason = all;
  return all.empty();
}

Result<> Dispatcher::flush_caches(std::chrono::milliseconds timeout) {
  int64_t requests = 0;
  for (int i = 0; i < num_replicas(); ++i) requests += load(i).requests;
  if (requests > 0) return fail("{} requests run or wait", requests);
  for (size_t i = 0; i < engines_.size(); ++i) {
    const Result<> flushed = engines_[i]->flush_cache(timeout);
    if (!flushed) return fail("{}; {} of {} replicas are flushed", flushed.error().text(), i, engines_.size());
    const std::lock_guard lock(books_->mutex);
    books_->replicas[i].seen.clear();
  }
  return {};
}

bool Dispatcher::drain(std::chrono::milliseconds timeout) {
  std::vector<std::thread> threads;
  std::vector<uint8_t> done(engines_.size(), 0);
  for (size_t i = 0; i < engines_.size(); ++i) {
    threads.emplace_back([&, i] { done[i] = engines_[i]->drain(timeout) ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  return std::all_of(done.begin(), done.end(), [](uint8_t d) { return d != 0; });
}

}  // namespace ingot::serve
