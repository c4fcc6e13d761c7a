#include "sched/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace ingot::sched {

Scheduler::Scheduler(const SchedulerOptions& options) : options_(options), pool_(options.num_pages) {
  INGOT_CHECK(options.page_size > 0 && options.chunked_prefill_size > 0 && options.max_running_requests > 0 && options.context_length > 0);
}

Result<> Scheduler::admissible(const Request& request, const SchedulerOptions& options) {
  if (request.prompt.empty()) return fail("the prompt is empty");
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length >= options.max_length()) {
    return fail("the prompt has {} tokens; the context length is {} tokens, of which at least one is for the answer", length,
                options.max_length());
  }
  if (request.sampling.max_tokens <= 0) return fail("max_tokens must be at least 1");
  return {};
}

void Scheduler::submit(Request request) {
  INGOT_CHECK(admissible(request, options_).has_value() && request.sink && !by_id_.contains(request.id));
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = request.prompt;
  sequence->max_length = std::min(options_.max_length(), static_cast<int64_t>(request.prompt.size()) + request.sampling.max_tokens);
  sequence->arrival = next_arrival_++;
  sequence->request = std::move(request);
  by_id_[sequence->request.id] = sequence.get();
  waiting_.push_back(std::move(sequence));
}

const Sequence* Scheduler::find(RequestId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

void Scheduler::cancel(RequestId id) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  Sequence& sequence = *it->second;
  if (sequence.in_flight) {
    sequence.cancelled = true;
    return;
  }
  finish(sequence, {.token_ids = {}, .logprobs = {}, .finish = FinishReason::cancelled, .error = {}});
  drop(id);
}

void Scheduler::fail_all(const std::string& error) {
  for (List* list : {&running_, &waiting_}) {
    for (auto& sequence : *list) finish(*sequence, {.token_ids = {}, .logprobs = {}, .finish = FinishReason::error, .error = error});
    list->clear();
  }
  by_id_.clear();
}

void Scheduler::preempt_newest(BatchPlan& plan) {
  auto sequence = std::move(running_.back());
  running_.pop_back();
  pool_.give_back(sequence->pages);
  sequence->num_computed = 0;
  sequence->in_flight = false;
  ++sequence->num_preempted;
  ++counters_.preemptions;
  const auto planned =
      std::find_if(plan.items.begin(), plan.items.end(), [&](const BatchItem& item) { return item.request == sequence->request.id; });
  if (planned != plan.items.end()) {
    plan.num_tokens -= static_cast<int64_t>(planned->token_ids.size());
    plan.items.erase(planned);
  }
  // It arrived before everything that waits: only the newest of the running is preempted, and waiting is entered in order.
  waiting_.push_front(std::move(sequence));
}

bool Scheduler::make_room(int64_t count, const Sequence& sequence, BatchPlan& plan) {
  while (pool_.num_free() < count) {
    if (running_.back().get() == &sequence) return false;
    preempt_newest(plan);
  }
  return true;
}

bool Scheduler::add_rows(Sequence& sequence, int64_t budget, BatchPlan& plan) {
  int64_t rows = std::min(budget, sequence.num_left());
  const auto held = static_cast<int64_t>(sequence.pages.size());
  const int64_t more = pages_for(sequence.num_computed + rows) - held;
  if (more > 0) {
    if (make_room(more, sequence, plan)) {
      pool_.take(more, sequence.pages);
    } else {
      // The newest of all: it takes what is left and waits for the others.
      pool_.take(pool_.num_free(), sequence.pages);
      rows = std::min(rows, static_cast<int64_t>(sequence.pages.size()) * options_.page_size - sequence.num_computed);
    }
  }
  if (rows <= 0) return false;
  BatchItem item;
  item.request = sequence.request.id;
  const auto first = sequence.tokens.begin() + sequence.num_computed;
  item.token_ids.assign(first, first + rows);
  item.start = static_cast<int32_t>(sequence.num_computed);
  item.pages = sequence.pages;
  item.sample = rows == sequence.num_left();
  item.sampling = &sequence.request.sampling;
  item.num_generated = sequence.num_generated;
  plan.num_tokens += rows;
  plan.items.push_back(std::move(item));
  sequence.in_flight = true;
  sequence.last_step = step_;
  return true;
}

void Scheduler::admit(int64_t budget) {
  // Pages the running sequences will still ask for until their known tokens and the next one are computed.
  int64_t promised = 0;
  for (const auto& sequence : running_) promised += pages_for(sequence->length() + 1) - static_cast<int64_t>(sequence->pages.size());
  while (!waiting_.empty() && budget > 0 && static_cast<int64_t>(running_.size()) < options_.max_running_requests) {
    const Sequence& next = *waiting_.front();
    const int64_t need = pages_for(next.length() + 1);
    // One page of slack for each running sequence, so that an admitted one is not preempted by the next few decodes.
    const int64_t slack = static_cast<int64_t>(running_.size());
    if (!running_.empty() && need + promised + slack > pool_.num_free()) return;
    promised += need;
    budget -= next.num_left();
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

BatchPlan Scheduler::plan() {
  ++step_;
  BatchPlan plan;
  // Decodes, the one that waited longest first: with more sequences than budget, all still take turns.
  std::vector<Sequence*> decodes;
  for (const auto& sequence : running_) {
    if (sequence->decoding()) decodes.push_back(sequence.get());
  }
  std::stable_sort(decodes.begin(), decodes.end(), [](const Sequence* a, const Sequence* b) { return a->last_step < b->last_step; });
  for (Sequence* sequence : decodes) {
    if (plan.num_tokens >= options_.chunked_prefill_size) break;
    // Preempted by an older one a moment ago: it has no computed rows and no longer decodes.
    if (sequence->decoding()) add_rows(*sequence, 1, plan);
  }
  int64_t known = 0;  // prefill rows of those admitted already
  for (const auto& sequence : running_) known += sequence->decoding() ? 0 : sequence->num_left();
  admit(options_.chunked_prefill_size - plan.num_tokens - known);
  for (size_t i = 0; i < running_.size() && plan.num_tokens < options_.chunked_prefill_size; ++i) {
    Sequence& sequence = *running_[i];
    if (!sequence.decoding()) add_rows(sequence, options_.chunked_prefill_size - plan.num_tokens, plan);
  }
  INGOT_CHECK(!plan.empty() || idle(), "{} sequences run and {} wait, but nothing can go on", running_.size(), waiting_.size());
  return plan;
}

void Scheduler::append(Sequence& sequence, const SampledToken& sampled) {
  const SamplingParams& sampling = sequence.request.sampling;
  sequence.tokens.push_back(sampled.token_id);
  if (sequence.num_generated++ == 0) counters_.prompt_tokens += static_cast<int64_t>(sequence.request.prompt.size());
  ++counters_.completion_tokens;
  TokenEvent event;
  event.token_ids = {sampled.token_id};
  if (sampling.top_logprobs >= 0) event.logprobs = {sampled.logprob};
  // The watcher sees every token; a stop token inside the budget wins over the watcher, and both over the budget.
  const bool watcher_stops = sequence.request.watcher && sequence.request.watcher->on_token(sampled.token_id);
  const auto& stops = sampling.stop_token_ids;
  if (std::find(stops.begin(), stops.end(), sampled.token_id) != stops.end()) {
    event.finish = FinishReason::stop_token;
  } else if (watcher_stops) {
    event.finish = FinishReason::stop_string;
  } else if (sequence.length() >= sequence.max_length) {
    event.finish = FinishReason::length;
  }
  if (event.finish != FinishReason::none) {
    finish(sequence, std::move(event));
  } else {
    sequence.request.sink(std::move(event));
  }
}

void Scheduler::commit(const BatchPlan& plan, const BatchResult& result) {
  size_t next_sampled = 0;
  std::vector<RequestId> ended;
  for (const BatchItem& item : plan.items) {
    const auto it = by_id_.find(item.request);
    INGOT_CHECK(it != by_id_.end() && it->second->in_flight);
    Sequence& sequence = *it->second;
    sequence.in_flight = false;
    sequence.num_computed += static_cast<int64_t>(item.token_ids.size());
    const SampledToken* sampled = nullptr;
    if (item.sample) {
      INGOT_CHECK(next_sampled < result.sampled.size() && result.sampled[next_sampled].request == item.request);
      sampled = &result.sampled[next_sampled++];
    }
    if (sequence.cancelled) {
      finish(sequence, {.token_ids = {}, .logprobs = {}, .finish = FinishReason::cancelled, .error = {}});
      ended.push_back(item.request);
    } else if (sampled != nullptr) {
      append(sequence, *sampled);
      if (!sequence.request.sink) ended.push_back(item.request);
    }
  }
  INGOT_CHECK(next_sampled == result.sampled.size());
  for (RequestId id : ended) drop(id);
}

void Scheduler::finish(Sequence& sequence, TokenEvent event) {
  pool_.give_back(sequence.pages);
  ++counters_.finished_requests;
  // Taken out first: a sink is never called after its last event.
  const EventSink sink = std::move(sequence.request.sink);
  sequence.request.sink = nullptr;
  sink(std::move(event));
}

void Scheduler::drop(RequestId id) {
  const Sequence* sequence = by_id_.at(id);
  by_id_.erase(id);
  for (List* list : {&running_, &waiting_}) {
    const auto it = std::find_if(list->begin(), list->end(), [&](const auto& s) { return s.get() == sequence; });
    if (it != list->end()) {
      list->erase(it);
      return;
    }
  }
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = counters_;
  stats.running = static_cast<int64_t>(running_.size());
  stats.waiting = static_cast<int64_t>(waiting_.size());
  stats.free_pages = pool_.num_free();
  return stats;
}

void Scheduler::verify() const {
  std::vector<const std::vector<int32_t>*> held;
  size_t count = 0;
  for (const List* list : {&running_, &waiting_}) {
    uint64_t last = 0;
    for (const auto& sequence : *list) {
      INGOT_CHECK(sequence->arrival + 1 > last, "a list is out of order");
      last = sequence->arrival + 1;
      const auto it = by_id_.find(sequence->request.id);
      INGOT_CHECK(it != by_id_.end() && it->second == sequence.get());
      INGOT_CHECK(sequence->num_computed <= sequence->length() &&
                  sequence->num_computed <= static_cast<int64_t>(sequence->pages.size()) * options_.page_size);
      INGOT_CHECK(sequence->length() == static_cast<int64_t>(sequence->request.prompt.size()) + sequence->num_generated);
      if (list == &waiting_) INGOT_CHECK(sequence->pages.empty() && sequence->num_computed == 0 && !sequence->in_flight);
      held.push_back(&sequence->pages);
      ++count;
    }
  }
  INGOT_CHECK(count == by_id_.size() && static_cast<int64_t>(running_.size()) <= options_.max_running_requests);
  pool_.verify(held);
}

}  // namespace ingot::sched
