#include "sched/scheduler.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace ingot::sched {

namespace {
bool before(const Sequence& a, const Sequence& b) {
  return std::tuple(-int64_t{a.request.priority}, a.arrival) < std::tuple(-int64_t{b.request.priority}, b.arrival);
}

std::span<const int32_t> slice(const std::vector<int32_t>& tokens, int64_t begin, int64_t count) {
  return std::span<const int32_t>(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
}
}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      pool_(options.num_pages),
      cache_(pool_, options.page_size, options.prefix_cache ? options.host_pages : 0, options.page_key),
      waiting_(options.policy, options.max_overtaken),
      planner_(options.draft) {
  INGOT_CHECK(options.page_size > 0 && options.chunked_prefill_size > 0 && options.max_running_requests > 0 && options.context_length > 0);
  INGOT_CHECK(options.max_overtaken >= 0);
  if (options.cache_events) cache_.note_events();
}

Result<> Scheduler::admissible(const Request& request, const SchedulerOptions& options) {
  if (request.prompt.empty()) return fail("the prompt is empty");
  const auto length = static_cast<int64_t>(request.prompt.size());
  const bool only_scored = request.sampling.max_tokens == 0 && request.sampling.prompt_logprobs >= 0;
  if (request.sampling.max_tokens <= 0 && !only_scored) return fail("max_tokens must be at least 1, or 0 with logprobs of the prompt");
  if (length < options.max_length() || (only_scored && length == options.max_length())) return {};
  return fail("the prompt has {} tokens; the context length is {} tokens{}", length, options.max_length(),
              only_scored ? "" : ", of which at least one is for the answer");
}

void Scheduler::submit(Request request) {
  INGOT_CHECK(admissible(request, options_).has_value() && request.sink && !by_id_.contains(request.id));
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = request.prompt;
  sequence->max_length = std::min(options_.max_length(), static_cast<int64_t>(request.prompt.size()) + request.sampling.max_tokens);
  sequence->arrival = next_arrival_++;
  const std::vector<FetchedPage> fetched = std::exchange(request.fetched, {});
  sequence->request = std::move(request);
  // Who is to be scored reads nothing: then nothing is kept for it, and what the disk tier fetched for it is dropped.
  if (options_.prefix_cache && !sequence->scoring()) {
    sequence->keys = page_keys(sequence->tokens, options_.page_size, options_.page_key);
    // What it will need is now the most recently used: others are evicted before it.
    const auto match = cache_.match(sequence->tokens, sequence->keys, static_cast<int64_t>(sequence->keys.size()));
    auto* tail = match.host.empty() ? match.device_tail : match.host.back();
    cache_.touch(tail);
    for (const FetchedPage& page : fetched) {
      if (page.index < tail->depth) continue;
      if (page.index > tail->depth) break;
      auto* node = cache_.add_host(tail, slice(sequence->tokens, page.index * options_.page_size, options_.page_size), page.bytes);
      if (node == nullptr) break;
      tail = node;
    }
  }
  for (const int64_t deadline : {sequence->request.queue_deadline_ns, sequence->request.deadline_ns}) {
    if (deadline != 0) next_deadline_ns_ = std::min(next_deadline_ns_, deadline);
  }
  by_id_[sequence->request.id] = sequence.get();
  waiting_.push(std::move(sequence));
}

const Sequence* Scheduler::find(RequestId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

void Scheduler::flush_cache() {
  INGOT_CHECK(idle(), "the prefix cache is flushed while {} sequences run and {} wait", running_.size(), waiting_.size());
  cache_.clear();
}

void Scheduler::cancel(RequestId id) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  Sequence& sequence = *it->second;
  if (sequence.in_flight) {
    sequence.cancelled = true;
    return;
  }
  TokenEvent event;
  event.finish = FinishReason::cancelled;
  finish(sequence, std::move(event));
  drop(id);
}

void Scheduler::fail_all(const std::string& error) {
  const auto end = [&](Sequence& sequence) {
    TokenEvent event;
    event.finish = FinishReason::error;
    event.error = error;
    finish(sequence, std::move(event));
  };
  for (auto& sequence : running_) end(*sequence);
  waiting_.each(end);
  running_.clear();
  waiting_.clear();
  by_id_.clear();
}

bool Scheduler::expire(Sequence& sequence, int64_t now_ns) {
  const Request& request = sequence.request;
  const bool queued_too_long = sequence.scheduled_ns == 0 && request.queue_deadline_ns != 0 && now_ns >= request.queue_deadline_ns;
  const bool too_late = request.deadline_ns != 0 && now_ns >= request.deadline_ns;
  if (!queued_too_long && !too_late) {
    if (request.queue_deadline_ns != 0 && sequence.scheduled_ns == 0) {
      next_deadline_ns_ = std::min(next_deadline_ns_, request.queue_deadline_ns);
    }
    if (request.deadline_ns != 0) next_deadline_ns_ = std::min(next_deadline_ns_, request.deadline_ns);
    return false;
  }
  TokenEvent event;
  event.finish = too_late ? FinishReason::timeout : FinishReason::queue_timeout;
  finish(sequence, std::move(event));
  return true;
}

void Scheduler::expire_all(int64_t now_ns) {
  next_deadline_ns_ = std::numeric_limits<int64_t>::max();
  std::vector<RequestId> ended;
  const auto look_at = [&](Sequence& sequence) {
    if (expire(sequence, now_ns)) ended.push_back(sequence.request.id);
  };
  for (auto& sequence : running_) look_at(*sequence);
  waiting_.each(look_at);
  for (const RequestId id : ended) drop(id);
}

// ---------------------------------------------------------------------------------------------------------------------------- admission

Sequence& Scheduler::next_waiting() {
  return waiting_.next(
      [this](Sequence& s) { return s.ranked_pages = cache_.estimate(s.keys, s.num_cacheable() / options_.page_size, s.ranked_pages); });
}

bool Scheduler::try_admit(Sequence& sequence, int64_t promised, BatchPlan& plan) {
  PrefixCache::Match match{.device_tail = cache_.root(), .host = {}};
  if (options_.prefix_cache) match = cache_.match(sequence.tokens, sequence.keys, sequence.num_cacheable() / options_.page_size);
  cache_.lock(match.device_tail);
  const int64_t need = pages_for(sequence.length() + 1) - match.device_tail->depth;
  // One page of slack for each running sequence, so that an admitted one is not preempted by the next few decodes.
  const auto slack = static_cast<int64_t>(running_.size());
  if (!running_.empty() && need + promised + slack > available()) {
    cache_.unlock(match.device_tail);  // and it is the most recently used: evicted last
    if (!match.host.empty()) cache_.touch(match.host.back());
    return false;
  }
  auto* tail = match.device_tail;
  for (auto* node : match.host) {
    if (pool_.num_free() == 0) cache_.evict(1);
    cache_.promote(node, pool_.take());
    plan.loads.push_back({.from = node->host, .page = node->page});
    tail = node;
  }
  sequence.tail = tail;
  sequence.num_shared = tail->depth;
  sequence.pages.resize(static_cast<size_t>(tail->depth));
  for (auto* node = tail; node != cache_.root(); node = node->parent) sequence.pages[static_cast<size_t>(node->depth) - 1] = node->page;
  sequence.num_computed = sequence.num_shared * options_.page_size;
  if (sequence.num_preempted == 0) {
    sequence.cached_tokens = sequence.num_computed;
    if (!sequence.scoring()) counters_.cache_query_tokens += sequence.length();
    counters_.cache_hit_tokens += sequence.cached_tokens;
    counters_.host_hit_tokens += static_cast<int64_t>(match.host.size()) * options_.page_size;
  }
  return true;
}

void Scheduler::admit(int64_t budget, BatchPlan& plan) {
  if (waiting_.empty() || budget <= 0) return;
  // Pages the running sequences will still ask for until their known tokens and the next one are computed.
  int64_t promised = 0;
  for (const auto& s : running_) promised += std::max<int64_t>(pages_for(s->length() + 1) - static_cast<int64_t>(s->pages.size()), 0);
  while (!waiting_.empty() && budget > 0 && static_cast<int64_t>(running_.size()) < options_.max_running_requests) {
    Sequence& chosen = next_waiting();
    if (!try_admit(chosen, promised, plan)) return;  // nobody slips past the one whose turn it is
    auto sequence = waiting_.admit(chosen);
    promised += pages_for(sequence->length() + 1) - static_cast<int64_t>(sequence->pages.size());
    budget -= sequence->num_left();
    const auto place =
        std::upper_bound(running_.begin(), running_.end(), sequence, [](const auto& a, const auto& b) { return before(*a, *b); });
    running_.insert(place, std::move(sequence));
  }
}

// A neighbour may have computed the next pages of this prompt in the meantime.
void Scheduler::jump_ahead(Sequence& sequence) {
  const int64_t size = options_.page_size;
  if (!options_.prefix_cache || !sequence.publishes) return;
  while (sequence.num_computed == sequence.num_shared * size && static_cast<int64_t>(sequence.pages.size()) == sequence.num_shared) {
    const auto index = static_cast<size_t>(sequence.num_shared);
    if (index >= sequence.keys.size() || sequence.num_computed + size > sequence.num_cacheable()) return;
    auto* node = cache_.child(sequence.tail, sequence.keys[index], slice(sequence.tokens, sequence.num_computed, size));
    if (node == nullptr || node->page < 0) return;
    cache_.extend(node);
    sequence.tail = node;
    sequence.pages.push_back(node->page);
    ++sequence.num_shared;
    sequence.num_computed += size;
    if (sequence.num_preempted > 0) continue;
    sequence.cached_tokens += size;
    counters_.cache_hit_tokens += size;
  }
}

// --------------------------------------------------------------------------------------------------------------------------------- plan

int64_t Scheduler::more_pages(const Work& work) const {
  const int64_t end = work.sequence->num_computed + work.rows + work.drafts;
  return std::max<int64_t>(pages_for(end) - static_cast<int64_t>(work.sequence->pages.size()), 0);
}

// Gives the decodes, which are all of `work`, their drafts. Prompts keep what they want of the budget, up to half of it.
void Scheduler::draft(std::vector<Work>& work, int64_t& budget) {
  candidates_.clear();
  for (const Work& w : work) {
    const Sequence& s = *w.sequence;
    const int64_t most = std::min({s.max_length - s.length() - 1, int64_t{planner_.num_steps()}, int64_t{s.request.max_draft_tokens}});
    candidates_.push_back({.acceptance = &s.acceptance, .limit = static_cast<int32_t>(std::max<int64_t>(most, 0)), .depth = 0});
  }
  int64_t prompt_rows = 0;
  for (const auto& s : running_) prompt_rows += s->decoding() ? 0 : s->num_left();
  prompt_rows = std::min(prompt_rows, (budget + 1) / 2);
  planner_.plan(candidates_, prompt_rows, budget - prompt_rows);
  for (size_t i = 0; i < work.size(); ++i) {
    work[i].drafts = candidates_[i].depth;
    budget -= work[i].drafts;
  }
}

std::vector<Scheduler::Work> Scheduler::choose() {
  std::vector<Work> work;
  work.reserve(running_.size());
  for (const auto& sequence : running_) {
    if (sequence->decoding()) work.push_back({.sequence = sequence.get(), .rows = 1, .drafts = 0});
  }
  int64_t budget = options_.chunked_prefill_size;
  const auto count = static_cast<int64_t>(work.size());
  if (count > budget) {
    // More sequences than budget: the one that waited longest first, so that all take turns.
    std::stable_sort(work.begin(), work.end(), [](const Work& a, const Work& b) { return a.sequence->last_step < b.sequence->last_step; });
    work.resize(static_cast<size_t>(budget));
    return work;
  }
  budget -= count;
  if (count > 0 && planner_.num_steps() > 0) draft(work, budget);
  for (const auto& sequence : running_) {
    if (budget <= 0) break;
    if (sequence->decoding()) continue;
    jump_ahead(*sequence);
    const int64_t rows = std::min(budget, sequence->num_left());
    work.push_back({.sequence = sequence.get(), .rows = rows, .drafts = 0});
    budget -= rows;
  }
  return work;
}

// Cuts drafts until the `need` of pages is met or there is no draft left that takes a page, the newest sequence's first; each gives one
// page before one gives two. Returns the new need.
int64_t Scheduler::cut_drafts(std::vector<Work>& work, int64_t need) {
  for (bool cut = true; cut && need > available();) {
    cut = false;
    for (auto w = work.rbegin(); w != work.rend() && need > available(); ++w) {
      const int64_t pages = more_pages(*w);
      const int64_t covered = (static_cast<int64_t>(w->sequence->pages.size()) + pages - 1) * options_.page_size;
      const int64_t room = covered - w->sequence->num_computed - w->rows;
      if (pages == 0 || w->drafts == 0 || room < 0) continue;
      w->drafts = room;
      --need;
      cut = true;
    }
  }
  return need;
}

// Makes what is chosen fit into the pages there are: drafts go first, then the newest sequence takes only what is left, then it is
// preempted.
void Scheduler::fit(std::vector<Work>& work) {
  const auto needed = [&] {
    int64_t sum = 0;
    for (const Work& w : work) sum += more_pages(w);
    return sum;
  };
  for (int64_t need = needed(); need > available(); need = needed()) {
    need = cut_drafts(work, need);
    if (need <= available()) return;
    const Sequence* newest = running_.back().get();
    const auto it = std::find_if(work.begin(), work.end(), [&](const Work& w) { return w.sequence == newest; });
    const int64_t its_need = it == work.end() ? 0 : more_pages(*it);
    if (its_need > 0) {
      const int64_t room = std::max<int64_t>(available() - (need - its_need), 0);
      const int64_t covered = (static_cast<int64_t>(newest->pages.size()) + room) * options_.page_size;
      it->rows = std::min(it->rows, covered - newest->num_computed);
      if (it->rows <= 0) work.erase(it);
      continue;
    }
    INGOT_CHECK(running_.size() > 1, "one sequence alone needs {} pages of {}", need, available());
    if (it != work.end()) work.erase(it);
    preempt_newest();
  }
}

void Scheduler::preempt_newest() {
  auto sequence = std::move(running_.back());
  running_.pop_back();
  release(*sequence);
  if (options_.prefix_cache) sequence->keys = page_keys(sequence->tokens, options_.page_size, options_.page_key);
  ++sequence->num_preempted;
  ++counters_.preemptions;
  waiting_.push(std::move(sequence));
}

void Scheduler::take_pages(int64_t count, std::vector<int32_t>& pages) {
  if (count > pool_.num_free()) cache_.evict(count - pool_.num_free());
  pool_.take(count, pages);
}

BatchPlan Scheduler::plan(int64_t now_ns) {
  ++step_;
  BatchPlan plan;
  cache_.take_saves(plan.saves);  // before anything is evicted
  if (now_ns >= next_deadline_ns_) expire_all(now_ns);

  int64_t known = 0;  // rows that those who run already want
  for (const auto& sequence : running_) known += sequence->num_left();
  admit(options_.chunked_prefill_size - known, plan);

  std::vector<Work> work = choose();
  fit(work);
  plan.items.reserve(work.size());
  for (const Work& w : work) {
    Sequence& sequence = *w.sequence;
    take_pages(more_pages(w), sequence.pages);
    BatchItem item;
    item.request = sequence.request.id;
    item.context = sequence.tokens;
    item.token_ids = slice(sequence.tokens, sequence.num_computed, w.rows);
    item.start = static_cast<int32_t>(sequence.num_computed);
    item.pages = sequence.pages;
    item.sample = w.rows == sequence.num_left();
    const int64_t scored_end = std::min(sequence.num_computed + w.rows, sequence.most_scored());
    if (sequence.num_scored < scored_end) {
      item.first_scored = static_cast<int32_t>(sequence.num_scored - sequence.num_computed);
      item.num_scored = static_cast<int32_t>(scored_end - sequence.num_scored);
    }
    item.sampling = &sequence.request.sampling;
    item.constraint = sequence.request.constraint.get();
    item.num_generated = sequence.num_generated;
    item.num_draft = static_cast<int32_t>(w.drafts);
    plan.num_tokens += w.rows + w.drafts;
    plan.items.push_back(item);
    sequence.in_flight = true;
    sequence.runner_knows = true;
    sequence.last_step = step_;
    if (sequence.scheduled_ns == 0) sequence.scheduled_ns = now_ns;
  }
  if (!plan.items.empty()) plan.released.swap(released_);
  INGOT_CHECK(!plan.items.empty() || idle(), "{} sequences run and {} wait, but nothing can go on", running_.size(), waiting_.size());
  return plan;
}

// ------------------------------------------------------------------------------------------------------------------------------- commit

void Scheduler::append(Sequence& sequence, const SampledTokens& sampled) {
  INGOT_CHECK(!sampled.token_ids.empty() || !sampled.error.empty());
  const SamplingParams& sampling = sequence.request.sampling;
  const bool wants_logprobs = sampling.top_logprobs >= 0;
  const auto& stops = sampling.stop_token_ids;
  if (sequence.num_generated == 0) counters_.prompt_tokens += static_cast<int64_t>(sequence.request.prompt.size());
  if (planner_.num_steps() > 0 && !sampled.token_ids.empty()) {
    planner_.record(sequence.acceptance, static_cast<int32_t>(sampled.token_ids.size()), sampled.num_drafted);
  }
  TokenEvent event;
  event.prompt_logprobs = std::exchange(sequence.prompt_logprobs, {});
  event.token_ids.reserve(sampled.token_ids.size());
  // With max_tokens 0 the draw is for the runner alone, which needs a token behind the last row like any other.
  const bool only_scored = sampling.max_tokens == 0;
  if (only_scored && sampled.error.empty()) event.finish = FinishReason::length;
  // What was drawn behind the end never happened: it reaches neither the client nor the cache.
  for (size_t i = 0; i < sampled.token_ids.size() && event.finish == FinishReason::none && !only_scored; ++i) {
    const int32_t token = sampled.token_ids[i];
    sequence.tokens.push_back(token);
    ++sequence.num_generated;
    event.token_ids.push_back(token);
    if (wants_logprobs) event.logprobs.push_back(sampled.logprobs.at(i));
    // The watcher sees every token; a stop token inside the budget wins over the watcher, and both over the budget.
    const bool watcher_stops = sequence.request.watcher && sequence.request.watcher->on_token(token);
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      event.finish = FinishReason::stop_token;
    } else if (watcher_stops) {
      event.finish = FinishReason::stop_string;
    } else if (sequence.length() >= sequence.max_length) {
      event.finish = FinishReason::length;
    }
  }
  if (event.finish == FinishReason::none && !sampled.error.empty()) {
    event.finish = FinishReason::error;
    event.error = sampled.error;
  }
  counters_.completion_tokens += static_cast<int64_t>(event.token_ids.size());
  if (sampled.num_drafted > 0 && !event.token_ids.empty()) {
    event.num_drafted = sampled.num_drafted;
    event.num_accepted = static_cast<int32_t>(event.token_ids.size()) - 1;
    ++counters_.drafts;
    counters_.draft_tokens += event.num_drafted;
    counters_.accepted_tokens += event.num_accepted;
    for (size_t i = 0; i < static_cast<size_t>(event.num_drafted); ++i) ++counters_.drafted_at.at(i);
    for (size_t i = 0; i < static_cast<size_t>(event.num_accepted); ++i) ++counters_.accepted_at.at(i);
  }
  sequence.num_computed = sequence.length() - (only_scored && event.finish == FinishReason::length ? 0 : 1);
  publish(sequence);
  if (event.finish != FinishReason::none) return finish(sequence, std::move(event));
  event.cached_tokens = sequence.cached_tokens;
  event.scheduled_ns = sequence.scheduled_ns;
  event.num_preempted = sequence.num_preempted;
  sequence.request.sink(std::move(event));
}

void Scheduler::publish(Sequence& sequence) {
  const int64_t size = options_.page_size;
  if (!options_.prefix_cache) return;
  while (sequence.publishes && (sequence.num_shared + 1) * size <= sequence.num_computed) {
    const auto index = static_cast<size_t>(sequence.num_shared);
    auto* node = cache_.publish(sequence.tail, slice(sequence.tokens, sequence.num_shared * size, size), sequence.pages[index]);
    if (node == nullptr) {
      sequence.publishes = false;
      return;
    }
    sequence.pages[index] = node->page;
    sequence.tail = node;
    ++sequence.num_shared;
  }
}

void Scheduler::commit(const BatchPlan& plan, const BatchResult& result) {
  size_t next_sampled = 0, next_scored = 0;
  std::vector<RequestId> ended;
  for (const BatchItem& item : plan.items) {
    const auto it = by_id_.find(item.request);
    INGOT_CHECK(it != by_id_.end() && it->second->in_flight);
    Sequence& sequence = *it->second;
    sequence.in_flight = false;
    const SampledTokens* sampled = nullptr;
    if (item.sample) {
      INGOT_CHECK(next_sampled < result.sampled.size() && result.sampled[next_sampled].request == item.request);
      sampled = &result.sampled[next_sampled++];
      INGOT_CHECK(sampled->num_drafted <= item.num_draft && static_cast<int64_t>(sampled->token_ids.size()) <= 1 + sampled->num_drafted);
    }
    if (item.num_scored > 0) {
      INGOT_CHECK(next_scored < result.scored.size() && result.scored[next_scored].request == item.request);
      const ScoredTokens& scored = result.scored[next_scored++];
      INGOT_CHECK(std::ssize(scored.logprobs) == item.num_scored);
      sequence.prompt_logprobs.insert(sequence.prompt_logprobs.end(), scored.logprobs.begin(), scored.logprobs.end());
      sequence.num_scored += item.num_scored;
    }
    if (sequence.cancelled || sampled == nullptr) {
      sequence.num_computed += static_cast<int64_t>(item.token_ids.size());
      publish(sequence);
    }
    if (sequence.cancelled) {
      TokenEvent event;
      event.finish = FinishReason::cancelled;
      finish(sequence, std::move(event));
      ended.push_back(item.request);
    } else if (sampled != nullptr) {
      append(sequence, *sampled);
      if (!sequence.request.sink) ended.push_back(item.request);
    }
  }
  INGOT_CHECK(next_sampled == result.sampled.size() && next_scored == result.scored.size());
  for (RequestId id : ended) drop(id);
}

void Scheduler::release(Sequence& sequence) {
  pool_.give_back(slice(sequence.pages, sequence.num_shared, static_cast<int64_t>(sequence.pages.size()) - sequence.num_shared));
  if (sequence.tail != nullptr) cache_.unlock(sequence.tail);
  sequence.tail = nullptr;
  sequence.pages.clear();
  sequence.num_shared = 0;
  sequence.num_computed = 0;
  sequence.publishes = true;
  if (sequence.runner_knows) released_.push_back(sequence.request.id);
  sequence.runner_knows = false;
}

void Scheduler::finish(Sequence& sequence, TokenEvent event) {
  release(sequence);
  ++counters_.finished_requests;
  event.cached_tokens = sequence.cached_tokens;
  event.scheduled_ns = sequence.scheduled_ns;
  event.num_preempted = sequence.num_preempted;
  // Taken out first: a sink is never called after its last event.
  const EventSink sink = std::move(sequence.request.sink);
  sequence.request.sink = nullptr;
  sink(std::move(event));
}

void Scheduler::drop(RequestId id) {
  const Sequence* sequence = by_id_.at(id);
  by_id_.erase(id);
  const auto it = std::find_if(running_.begin(), running_.end(), [&](const auto& s) { return s.get() == sequence; });
  if (it != running_.end())
    running_.erase(it);
  else
    waiting_.remove(*sequence);
}

// ------------------------------------------------------------------------------------------------------------------- figures and truth

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = counters_;
  stats.running = static_cast<int64_t>(running_.size());
  stats.waiting = static_cast<int64_t>(waiting_.size());
  stats.free_pages = pool_.num_free();
  stats.cached_pages = cache_.num_evictable();
  stats.host_pages = cache_.num_host_pages();
  stats.evicted_pages = cache_.num_evicted();
  return stats;
}

void Scheduler::verify(const Sequence& sequence) const {
  const auto it = by_id_.find(sequence.request.id);
  INGOT_CHECK(it != by_id_.end() && it->second == &sequence);
  INGOT_CHECK(sequence.num_computed <= sequence.length() &&
              sequence.num_computed <= static_cast<int64_t>(sequence.pages.size()) * options_.page_size);
  INGOT_CHECK(sequence.length() == static_cast<int64_t>(sequence.request.prompt.size()) + sequence.num_generated);
  const auto kept_scores = std::ssize(sequence.prompt_logprobs);
  INGOT_CHECK(sequence.scoring() ? sequence.num_computed <= sequence.num_scored && kept_scores == sequence.num_scored
                                 : kept_scores == (sequence.num_generated == 0 ? sequence.num_scored : 0),
              "a row that is to be scored was not computed, or its score is lost");
}

void Scheduler::verify() const {
  std::vector<int32_t> held = cache_.device_pages();
  std::vector<const PrefixCache::Node*> tails;
  const Sequence* last = nullptr;
  for (const auto& sequence : running_) {
    INGOT_CHECK(last == nullptr || before(*last, *sequence), "the running sequences are out of order");
    last = sequence.get();
    verify(*sequence);
    tails.push_back(sequence->tail);
    INGOT_CHECK(sequence->tail->depth == sequence->num_shared && sequence->num_shared <= static_cast<int64_t>(sequence->pages.size()));
    for (const auto* node = sequence->tail; node->parent != nullptr; node = node->parent) {
      const int64_t begin = (node->depth - 1) * options_.page_size;
      INGOT_CHECK(sequence->pages[static_cast<size_t>(node->depth) - 1] == node->page, "a page table and the tree disagree");
      INGOT_CHECK(std::equal(node->tokens.begin(), node->tokens.end(), sequence->tokens.begin() + begin), "a page of other tokens");
    }
    held.insert(held.end(), sequence->pages.begin() + sequence->num_shared, sequence->pages.end());
  }
  waiting_.each([&](const Sequence& sequence) {
    verify(sequence);
    INGOT_CHECK(sequence.pages.empty() && sequence.num_computed == 0 && !sequence.in_flight && sequence.tail == nullptr);
  });
  waiting_.verify();
  INGOT_CHECK(static_cast<int64_t>(released_.size()) <= options_.max_running_requests);
  for (const RequestId id : released_) INGOT_CHECK(find(id) == nullptr || !find(id)->runner_knows);
  INGOT_CHECK(running_.size() + waiting_.size() == by_id_.size() && static_cast<int64_t>(running_.size()) <= options_.max_running_requests);
  cache_.verify(tails);
  pool_.verify(held);
}

}  // namespace ingot::sched
