// The scheduler against a plain model of its clients and a cache that remembers what was written where. Symptoms: lost or doubled pages,
// a sequence that reads another's cache, text that changes when a sequence is preempted, and a queue that never moves.
#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "base/rng.h"

namespace ingot::sched {
namespace {

SchedulerOptions small_options() {
  SchedulerOptions options;
  options.num_pages = 12;
  options.page_size = 4;
  options.chunked_prefill_size = 10;
  options.max_running_requests = 5;
  options.context_length = 40;
  return options;
}

// The model of the tests: the next token hashes all tokens before it. One in sixteen is 0, the stop token.
int32_t next_token(std::span<const int32_t> tokens) {
  uint64_t hash = 0;
  for (const int32_t token : tokens) hash = mix64(hash ^ static_cast<uint64_t>(token));
  return static_cast<int32_t>(hash % 16 == 0 ? 0 : hash % 50000 + 1);
}

// Runs a plan as the model would: copies pages between the tiers, writes the rows into their slots, reads the whole context back through
// the page table. It drafts as many as it may, fewer, or none. Drafts are right with a probability of `draft_truth`; wrong ones leave their
// rows behind, as a real model would.
class TokenCache {
 public:
  TokenCache(const SchedulerOptions& options, double draft_truth)
      : page_size_(options.page_size),
        draft_truth_(draft_truth),
        key_of_(options.page_key),
        slots_(static_cast<size_t>(options.num_pages * options.page_size), -1) {}

  BatchResult run(const BatchPlan& plan) {
    const auto page_bytes = static_cast<size_t>(page_size_) * sizeof(int32_t);
    for (const PageSave& save : plan.saves) {
      save.to->resize(page_bytes);
      std::memcpy(save.to->data(), &slots_.at(static_cast<size_t>(save.page * page_size_)), page_bytes);
      EXPECT_EQ(std::memcmp(save.to->data(), save.token_ids.data(), page_bytes), 0) << "a page is saved under the name of others";
      EXPECT_EQ(key_of_(save.parent, save.token_ids), save.key) << "the parent of a page is the page before it (D11)";
      EXPECT_TRUE(save.parent == kRootPageKey || announced_.contains(save.parent)) << "a parent that was never announced (D12)";
      announced_.insert(save.key);
    }
    for (const PageLoad& load : plan.loads) {
      EXPECT_EQ(load.from->size(), page_bytes) << "loaded before it was saved";
      std::memcpy(&slots_.at(static_cast<size_t>(load.page * page_size_)), load.from->data(), load.from->size());
    }
    BatchResult result;
    for (const BatchItem& item : plan.items) {
      for (size_t i = 0; i < item.token_ids.size(); ++i) slot(item, item.start + static_cast<int64_t>(i)) = item.token_ids[i];
    }
    for (const BatchItem& item : plan.items) {
      if (item.num_scored > 0) result.scored.push_back(score(item));
      if (!item.sample) continue;
      std::vector<int32_t> context;
      const int64_t end = item.start + static_cast<int64_t>(item.token_ids.size());
      for (int64_t position = 0; position < end; ++position) context.push_back(slot(item, position));
      SampledTokens sampled{.request = item.request, .token_ids = {next_token(context)}, .logprobs = {}, .num_drafted = item.num_draft};
      if (rng_.below(4) == 0) sampled.num_drafted = static_cast<int32_t>(rng_.below(static_cast<uint64_t>(item.num_draft) + 1));
      bool holds = true;
      for (int32_t d = 0; d < sampled.num_drafted; ++d) {
        const int32_t truth = sampled.token_ids.back();
        const bool right = rng_.uniform() < draft_truth_;
        slot(item, end + d) = right ? truth : truth + 1;
        holds = holds && right;
        if (!holds) continue;
        context.push_back(truth);
        sampled.token_ids.push_back(next_token(context));
      }
      result.sampled.push_back(std::move(sampled));
    }
    return result;
  }

 private:
  // A row's score is what is in the cache up to it, and the token that is asked about.
  ScoredTokens score(const BatchItem& item) {
    ScoredTokens scored{item.request, {}};
    for (int32_t i = 0; i < item.num_scored; ++i) {
      std::vector<int32_t> context;
      for (int64_t position = 0; position <= item.start + item.first_scored + i; ++position) context.push_back(slot(item, position));
      scored.logprobs.push_back({0, {{next_token(context), 0.0f}, {item.scored_token(i), 0.0f}}});
    }
    return scored;
  }
  int32_t& slot(const BatchItem& item, int64_t position) {
    EXPECT_LT(position / page_size_, static_cast<int64_t>(item.pages.size()));
    const int32_t page = item.pages[static_cast<size_t>(position / page_size_)];
    return slots_.at(static_cast<size_t>(page * page_size_ + position % page_size_));
  }
  int64_t page_size_;
  double draft_truth_;
  PageKeyFunction key_of_;
  std::vector<int32_t> slots_;
  std::set<PageKey> announced_;
  Rng rng_{7};
};

// A client of the model: what it must get is known when it asks.
struct Client {
  std::vector<int32_t> tokens;  // prompt, then what came
  int64_t prompt_len = 0;
  int64_t max_len = 0;
  int64_t computed = 0;  // rows committed or found since the last preemption
  int64_t deadline = 0;
  int64_t cached = 0;  // of the prompt, as told with the last event
  int32_t num_preempted = 0;
  int32_t max_drafts = 0;
  bool scored = false;     // wants logprobs of its prompt
  int64_t num_scored = 0;  // rows that plans have asked them of
  bool admitted = false;
  bool cancelled = false;
  FinishReason finish = FinishReason::none;
};

// The house as its rules say it must look, and clients that check each event against the token they expect.
class House {
 public:
  explicit House(const SchedulerOptions& options, double draft_truth = 0.7)
      : options_(options), scheduler_(options), cache_(options, draft_truth) {}

  // Prompts of one family share all the tokens that they both have.
  void submit(int64_t prompt_len, int32_t max_tokens, uint64_t family, int32_t priority = 0, int64_t patience = 0,
              int32_t max_drafts = kMaxDraftTokens, bool scored = false) {
    const RequestId id = ++last_id_;
    Request request;
    request.id = id;
    for (int64_t i = 0; i < prompt_len; ++i)
      request.prompt.push_back(static_cast<int32_t>(random_bits(family, static_cast<uint64_t>(i)) & 0xffff));
    request.sampling.max_tokens = max_tokens;
    request.sampling.stop_token_ids = {0};
    request.priority = priority;
    request.max_draft_tokens = max_drafts;
    if (scored) request.sampling.prompt_logprobs = 1;
    request.deadline_ns = patience == 0 ? 0 : now_ + patience;
    request.sink = [this, id](const TokenEvent& event) { took(id, event); };
    const int64_t room = std::min(options_.context_length, options_.num_pages * options_.page_size);
    const bool fits = prompt_len > 0 && prompt_len + (max_tokens == 0 ? 0 : 1) <= room && (max_tokens > 0 || scored);
    ASSERT_EQ(Scheduler::admissible(request, options_).has_value(), fits);
    if (!fits) return;
    Client& client = clients[id];
    client.tokens = request.prompt;
    client.prompt_len = prompt_len;
    client.max_len = std::min(room, prompt_len + max_tokens);
    client.deadline = request.deadline_ns;
    client.max_drafts = max_drafts;
    client.scored = scored;
    live.insert(id);
    scheduler_.submit(std::move(request));
    scheduler_.verify();
  }

  void cancel(RequestId id) {
    clients[id].cancelled = true;
    const bool in_flight = in_flight_.contains(id);
    scheduler_.cancel(id);
    ASSERT_EQ(live.contains(id), in_flight) << "the last event comes at once unless the rows are running";
    scheduler_.verify();
  }

  // One step; `between` runs while the plan is in flight.
  template <class Between>
  void step(Between between) {
    ++now_;
    const BatchPlan plan = scheduler_.plan(now_);
    scheduler_.verify();
    ASSERT_EQ(plan.items.empty(), live.empty()) << "work in the house, but nobody runs";
    for (const RequestId id : live) ASSERT_TRUE(clients[id].deadline == 0 || now_ < clients[id].deadline) << "request " << id << " is late";
    check(plan);
    between(plan);
    const BatchResult result = cache_.run(plan);
    for (const BatchItem& item : plan.items) {
      Client& client = clients[item.request];
      client.computed += static_cast<int64_t>(item.token_ids.size());
      remember(client);
    }
    std::set<RequestId> expected;
    for (const BatchItem& item : plan.items) {
      const Client& client = clients[item.request];
      if (item.sample || client.cancelled) expected.insert(item.request);
    }
    told_.clear();
    in_flight_.clear();
    scheduler_.commit(plan, result);
    ASSERT_EQ(told_, expected) << "who was told in this step";
    scheduler_.verify();
    for (const RequestId id : told_) remember(clients[id]);
    int64_t owned = 0;
    for (const RequestId id : live) {
      const Sequence* s = scheduler_.find(id);
      owned += static_cast<int64_t>(s->pages.size()) - s->num_shared;
      ASSERT_LE(scheduler_.num_overtaken(id), options_.max_overtaken) << "request " << id << " starves";
    }
    const SchedulerStats stats = scheduler_.stats();
    ASSERT_EQ(stats.free_pages + scheduler_.cache().num_device_pages() + owned, options_.num_pages) << "free + cached + private = total";
    check_counters(stats);
  }
  void step() {
    step([](const BatchPlan&) {});
  }

  std::map<RequestId, Client> clients;
  std::set<RequestId> live;
  std::map<RequestId, std::vector<int32_t>> counters;  // draw counters seen in plans
  int64_t num_found = 0;                               // prompt rows that were not computed
  int64_t num_drafted = 0, num_accepted = 0;           // as told to clients
  int64_t zero_drafts = 0;                             // decodes that may draft nothing
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  // All full pages of what a client has computed are in the cache from now on, until something is evicted.
  void remember(const Client& client) {
    const int64_t size = options_.page_size;
    for (int64_t end = size; end <= client.computed; end += size) {
      computed_.insert(std::vector<int32_t>(client.tokens.begin(), client.tokens.begin() + end));
    }
  }
  int64_t longest_computed(const Client& client) const {
    int64_t end = 0;
    while (end + options_.page_size < static_cast<int64_t>(client.tokens.size()) &&
           computed_.contains(std::vector<int32_t>(client.tokens.begin(), client.tokens.begin() + end + options_.page_size)))
      end += options_.page_size;
    return end;
  }

  // Counters only grow (K1), and the two ways to count drafts agree.
  void check_counters(const SchedulerStats& stats) {
    const auto list = [](const SchedulerStats& s) {
      std::vector<int64_t> all = {s.prompt_tokens,   s.completion_tokens, s.cache_query_tokens, s.cache_hit_tokens,
                                  s.host_hit_tokens, s.evicted_pages,     s.preemptions,        s.finished_requests,
                                  s.drafts,          s.draft_tokens,      s.accepted_tokens};
      all.insert(all.end(), s.drafted_at.begin(), s.drafted_at.end());
      all.insert(all.end(), s.accepted_at.begin(), s.accepted_at.end());
      return all;
    };
    const auto before = list(last_stats_), now = list(stats);
    for (size_t i = 0; i < now.size(); ++i) ASSERT_GE(now[i], before[i]) << "counter " << i << " fell";
    last_stats_ = stats;
    ASSERT_EQ(std::accumulate(stats.drafted_at.begin(), stats.drafted_at.end(), int64_t{0}), stats.draft_tokens);
    ASSERT_EQ(std::accumulate(stats.accepted_at.begin(), stats.accepted_at.end(), int64_t{0}), stats.accepted_tokens);
    ASSERT_EQ(stats.drafted_at[0], stats.drafts);
    ASSERT_EQ(stats.draft_tokens, num_drafted) << "what clients were told";
    ASSERT_EQ(stats.accepted_tokens, num_accepted);
    for (size_t i = 0; i < stats.drafted_at.size(); ++i) ASSERT_LE(stats.accepted_at[i], stats.drafted_at[i]);
  }

  // A runner that keeps something for each request it has seen must hear when that is void: once, and for none that goes on.
  void check_released(const BatchPlan& plan) {
    if (plan.items.empty()) {
      ASSERT_TRUE(plan.released.empty()) << "a plan without rows may not reach the runner";
      return;
    }
    for (const RequestId id : plan.released) ASSERT_EQ(kept_.erase(id), 1u) << "request " << id << " was released before";
    for (const auto& [id, num_preempted] : kept_) {
      ASSERT_TRUE(live.contains(id) && scheduler_.find(id)->num_preempted == num_preempted) << "request " << id << " is not released";
    }
    for (const BatchItem& item : plan.items) kept_[item.request] = scheduler_.find(item.request)->num_preempted;
  }

  void check(const BatchPlan& plan) {
    check_released(plan);
    int64_t num_rows = 0;
    bool prefills_began = false;
    std::set<RequestId> ids;
    std::map<int32_t, std::vector<int32_t>> pages;  // what each page holds
    for (const BatchItem& item : plan.items) {
      ASSERT_TRUE(live.contains(item.request) && ids.insert(item.request).second);
      Client& client = clients[item.request];
      const Sequence* sequence = scheduler_.find(item.request);
      if (sequence->num_preempted != client.num_preempted) client.computed = 0;
      client.num_preempted = sequence->num_preempted;
      const auto len = static_cast<int64_t>(client.tokens.size());
      const auto rows = static_cast<int64_t>(item.token_ids.size());
      if (item.start != client.computed) {
        // It found pages that somebody computed: whole ones, truly computed by someone, and one token is left to do.
        ASSERT_GT(item.start, client.computed) << "request " << item.request;
        ASSERT_EQ(item.start % options_.page_size, 0);
        ASSERT_LE(item.start, longest_computed(client));
        ASSERT_TRUE(!client.scored || item.start <= client.num_scored || client.num_scored == client.prompt_len - 1)
            << "a row is not scored";
        if (client.num_preempted == 0) num_found += item.start - client.computed;
        client.computed = item.start;
      }
      if (!client.admitted && options_.prefix_cache && options_.page_key == page_key && scheduler_.stats().evicted_pages == 0) {
        ASSERT_EQ(item.start, client.scored ? 0 : longest_computed(client)) << "a cached prefix is not used";
      }
      client.admitted = true;
      ASSERT_GE(rows, 1);
      ASSERT_LE(item.start + rows, len);
      ASSERT_TRUE(std::equal(item.token_ids.begin(), item.token_ids.end(), client.tokens.begin() + item.start));
      ASSERT_TRUE(std::equal(item.context.begin(), item.context.end(), client.tokens.begin(), client.tokens.end()));
      ASSERT_EQ(item.sample, item.start + rows == len);
      if (client.scored && std::min(item.start + rows, client.prompt_len - 1) > client.num_scored) {
        ASSERT_EQ(item.start + item.first_scored, client.num_scored) << "each row is scored once";
        client.num_scored += item.num_scored;
        ASSERT_EQ(client.num_scored, std::min(item.start + rows, client.prompt_len - 1));
      } else {
        ASSERT_EQ(item.num_scored, 0);
      }
      ASSERT_EQ(item.num_generated, len - client.prompt_len);
      if (item.sample) {
        ASSERT_NE(item.sampling, nullptr);
        counters[item.request].push_back(item.num_generated);
      }
      const bool decode = client.computed == len - 1 && len > client.prompt_len;
      ASSERT_FALSE(decode && prefills_began) << "decodes come first";
      prefills_began = prefills_began || !decode;
      ASSERT_LE(item.num_draft, decode ? std::min(options_.draft.num_steps, client.max_drafts) : 0);
      zero_drafts += decode && item.num_draft == 0 ? 1 : 0;
      ASSERT_TRUE(item.num_draft == 0 || len + item.num_draft < client.max_len) << "drafts behind the end";
      ASSERT_GE(static_cast<int64_t>(item.pages.size()) * options_.page_size, item.start + rows + item.num_draft);
      for (size_t i = 0; i < item.pages.size(); ++i) {
        // A page is in two sequences only when both begin with the same tokens up to its end, and neither writes to it.
        const auto end = static_cast<int64_t>(i + 1) * options_.page_size;
        std::vector<int32_t> prefix(client.tokens.begin(), client.tokens.begin() + std::min(end, len));
        const auto [it, is_new] = pages.try_emplace(item.pages[i], prefix);
        if (is_new) continue;
        ASSERT_TRUE(end <= item.start && it->second == prefix) << "page " << item.pages[i] << " is in two sequences";
      }
      num_rows += rows + item.num_draft;
      in_flight_.insert(item.request);
    }
    ASSERT_EQ(plan.num_tokens, num_rows);
    ASSERT_LE(num_rows, options_.chunked_prefill_size);
    ASSERT_LE(scheduler_.stats().running, options_.max_running_requests);
    ASSERT_EQ(scheduler_.stats().running + scheduler_.stats().waiting, static_cast<int64_t>(live.size()));
    const auto is_running = [&](RequestId id) { return scheduler_.find(id)->tail != nullptr; };
    if (options_.policy == Policy::fcfs && !has_priorities) {
      // First come, first served: who ever ran came before who never did.
      for (const RequestId id : ids) newest_ran_ = std::max(newest_ran_, id);
      for (const RequestId id : live) ASSERT_TRUE(id <= newest_ran_ || scheduler_.find(id)->scheduled_ns == 0);
    }
    // The first of the running always goes on when the budget allows.
    const Sequence* first = nullptr;
    for (const RequestId id : live) {
      const Sequence* s = scheduler_.find(id);
      if (is_running(id) && (first == nullptr || s->request.priority > first->request.priority)) first = s;
    }
    const bool has_room = num_rows < options_.chunked_prefill_size;
    ASSERT_TRUE(first == nullptr || !has_room || ids.contains(first->request.id)) << "the oldest stands still";
  }

  void took(RequestId id, const TokenEvent& event) {
    Client& client = clients[id];
    told_.insert(id);
    EXPECT_TRUE(live.contains(id)) << "event after the last one, request " << id;
    bool ended = false;
    const bool tells_scores = client.scored && static_cast<int64_t>(client.tokens.size()) == client.prompt_len &&
                              (!event.token_ids.empty() || event.finish == FinishReason::length);
    EXPECT_EQ(std::ssize(event.prompt_logprobs), tells_scores ? client.prompt_len - 1 : 0) << "request " << id;
    for (size_t i = 1; i <= event.prompt_logprobs.size(); ++i) {
      const auto& top = event.prompt_logprobs[i - 1].top;
      EXPECT_EQ(top[0].first, next_token(std::span(client.tokens).first(i))) << "a score under another context";
      EXPECT_EQ(top[1].first, client.tokens[i]) << "a score of another token";
    }
    client.cached = event.cached_tokens;
    num_drafted += event.num_drafted;
    num_accepted += event.num_accepted;
    EXPECT_LE(event.num_accepted, event.num_drafted);
    for (const int32_t token : event.token_ids) {
      EXPECT_FALSE(ended) << "a token behind the end leaks, request " << id;  // C1
      EXPECT_EQ(token, next_token(client.tokens)) << "request " << id << " went astray";
      client.tokens.push_back(token);
      ended = token == 0 || static_cast<int64_t>(client.tokens.size()) == client.max_len;
    }
    if (!event.token_ids.empty()) client.computed = static_cast<int64_t>(client.tokens.size()) - 1;
    FinishReason expected = FinishReason::none;
    if (client.cancelled) {
      EXPECT_TRUE(event.token_ids.empty());
      expected = FinishReason::cancelled;
    } else if (event.finish == FinishReason::timeout) {
      EXPECT_TRUE(client.deadline > 0 && now_ >= client.deadline);
      expected = FinishReason::timeout;
    } else if (client.tokens.back() == 0 && static_cast<int64_t>(client.tokens.size()) > client.prompt_len) {
      expected = FinishReason::stop_token;
    } else if (static_cast<int64_t>(client.tokens.size()) == client.max_len) {
      expected = FinishReason::length;
    }
    EXPECT_EQ(event.finish, expected) << "request " << id;
    client.finish = event.finish;
    if (event.finish != FinishReason::none) live.erase(id);
  }

  const SchedulerOptions options_;
  Scheduler scheduler_;
  TokenCache cache_;
  RequestId last_id_ = 0;
  RequestId newest_ran_ = 0;
  int64_t now_ = 0;
  std::set<RequestId> told_;
  std::set<RequestId> in_flight_;
  std::set<std::vector<int32_t>> computed_;  // prefixes of whole pages
  std::map<RequestId, int32_t> kept_;        // what a runner may keep something for, and how often it had been preempted then
  SchedulerStats last_stats_;

 public:
  bool has_priorities = false;
};

// Sixteen names for all pages: nearly every hit is a hit of other tokens.
PageKey bad_key(PageKey parent, std::span<const int32_t> tokens) { return page_key(parent, tokens) % 16; }

struct Totals {
  int64_t preemptions = 0, evicted = 0, found = 0, from_host = 0, accepted = 0, adaptive_accepted = 0, zero_drafts = 0;
};

void property_run(uint64_t seed, int num_actions, Totals& totals) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  SchedulerOptions options;
  options.num_pages = 4 + static_cast<int64_t>(rng.below(16));
  options.page_size = 1 + static_cast<int64_t>(rng.below(6));
  options.chunked_prefill_size = 1 + static_cast<int64_t>(rng.below(20));
  options.max_running_requests = 1 + static_cast<int64_t>(rng.below(8));
  options.context_length = 2 + static_cast<int64_t>(rng.below(60));
  options.policy = rng.below(2) == 0 ? Policy::fcfs : Policy::lpm;
  options.prefix_cache = rng.below(5) != 0;
  options.host_pages = rng.below(2) == 0 ? 0 : static_cast<int64_t>(rng.below(40));
  options.draft.num_steps = rng.below(3) == 0 ? 0 : static_cast<int32_t>(rng.below(1 + kMaxDraftTokens));
  options.draft.adaptive = rng.below(2) == 0;
  options.draft.cost.step.points = {{1, 1.0}, {2 + static_cast<double>(rng.below(30)), 1.0 + rng.uniform() * 10}};
  options.draft.cost.pass.points = {{1, 0.01 + rng.uniform()}};
  options.max_overtaken = static_cast<int32_t>(rng.below(5));
  if (rng.below(5) == 0) options.page_key = bad_key;
  const double draft_truth = rng.uniform();
  House house(options, draft_truth);
  house.has_priorities = rng.below(3) == 0;
  for (int action = 0; action < num_actions && !::testing::Test::HasFailure(); ++action) {
    const uint64_t dice = rng.below(10);
    const auto submit = [&](int64_t prompt_len, int32_t max_tokens) {
      const auto priority = house.has_priorities ? static_cast<int32_t>(rng.below(3)) : 0;
      const auto patience = rng.below(10) == 0 ? static_cast<int64_t>(1 + rng.below(20)) : 0;
      const auto max_drafts = rng.below(3) == 0 ? static_cast<int32_t>(rng.below(4)) : kMaxDraftTokens;
      const bool scored = rng.below(4) == 0;
      if (scored && rng.below(3) == 0) max_tokens = 0;
      house.submit(prompt_len, max_tokens, rng.below(4), priority, patience, max_drafts, scored);
    };
    if (dice < 2) {
      submit(static_cast<int64_t>(rng.below(30)), 1 + static_cast<int32_t>(rng.below(60)));
    } else if (dice == 2 && !house.live.empty()) {
      house.cancel(*std::next(house.live.begin(), static_cast<std::ptrdiff_t>(rng.below(house.live.size()))));
    } else if (dice == 3) {
      house.step([&](const BatchPlan& plan) {
        if (!plan.items.empty()) house.cancel(plan.items[rng.below(plan.items.size())].request);
        submit(3, 2);
      });
    } else {
      house.step();
    }
  }
  for (int steps = 0; !house.live.empty() && !::testing::Test::HasFailure(); ++steps) {
    EXPECT_LT(steps, 100000) << "the house never empties";
    house.step();
  }
  const SchedulerStats stats = house.scheduler().stats();
  EXPECT_EQ(stats.free_pages + stats.cached_pages, options.num_pages) << "pages in use after the last request are the cached ones";
  totals.preemptions += stats.preemptions;
  totals.evicted += stats.evicted_pages;
  totals.found += house.num_found;
  totals.from_host += stats.host_hit_tokens;
  totals.accepted += stats.accepted_tokens;
  if (options.draft.adaptive) totals.adaptive_accepted += stats.accepted_tokens;
  if (options.draft.num_steps > 0) totals.zero_drafts += house.zero_drafts;
}

TEST(Scheduler, RandomArrivalsCancelsFinishesAndEvictionsKeepTheRules) {
  Totals totals;
  for (uint64_t seed = 1; seed <= 300 && !HasFailure(); ++seed) property_run(seed, 1000, totals);
  EXPECT_GT(totals.preemptions, 100) << "the cases were meant to preempt";
  EXPECT_GT(totals.evicted, 1000);
  EXPECT_GT(totals.found, 1000);
  EXPECT_GT(totals.from_host, 100);
  EXPECT_GT(totals.accepted, 1000);
  EXPECT_GT(totals.adaptive_accepted, 1000);
  EXPECT_GT(totals.zero_drafts, 1000);
}

TEST(PrefixCache, AnEstimateIsTheLengthOfTheMatchFromAnyGuess) {
  PagePool pool(64);
  PrefixCache cache(pool, 2, 0);
  std::vector<int32_t> tokens(80);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  const auto keys = page_keys(tokens, 2);
  auto* tail = cache.root();
  for (int64_t pages = 0; pages <= 40; ++pages) {
    for (int64_t guess = 0; guess <= 40; ++guess) {
      ASSERT_EQ(cache.estimate(keys, 100, guess), pages);
      ASSERT_EQ(cache.estimate(keys, 7, guess), std::min<int64_t>(pages, 7));
    }
    ASSERT_EQ(cache.match(tokens, keys, 100).num_pages(), pages);
    if (pages == 40) break;
    tail = cache.publish(tail, std::span(tokens).subspan(static_cast<size_t>(2 * pages), 2), pool.take());
    ASSERT_EQ(tail->depth, pages + 1);
  }
  cache.verify(std::vector<const PrefixCache::Node*>{tail});
  cache.unlock(tail);
  EXPECT_EQ(cache.num_evictable(), 40);
  cache.evict(15);
  EXPECT_EQ(cache.estimate(keys, 100, 40), 25) << "the end of a prefix goes first";
  cache.verify({});
  pool.verify(cache.device_pages());
}

TEST(Scheduler, SequencesThatOutgrowA64PagePoolAllEndWithTheTextTheyHaveAlone) {
  SchedulerOptions options = small_options();
  options.num_pages = 64;
  options.page_size = 1;
  options.context_length = 64;
  options.max_running_requests = 32;
  House house(options);
  // Each may grow to the whole pool.
  for (uint64_t i = 0; i < 24; ++i) house.submit(5 + static_cast<int64_t>(i % 3), 64, i % 5);
  for (int steps = 0; !house.live.empty(); ++steps) {
    ASSERT_LT(steps, 5000) << "waiting work and evictable pages coexist for ever";
    house.step();
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(house.scheduler().stats().preemptions, 0) << "the case was meant to preempt";
  EXPECT_GT(house.scheduler().stats().evicted_pages, 0);
  int64_t prompt_tokens = 0;
  for (const auto& [id, client] : house.clients) {
    prompt_tokens += client.prompt_len;
    const auto generated = static_cast<int32_t>(static_cast<int64_t>(client.tokens.size()) - client.prompt_len);
    // The draw counter goes on after a preemption: (seed, num_generated) is all that a draw may depend on.
    std::vector<int32_t> counters;
    for (int32_t i = 0; i < generated; ++i) counters.push_back(i);
    EXPECT_EQ(house.counters[id], counters) << "request " << id;
  }
  EXPECT_EQ(house.scheduler().stats().prompt_tokens, prompt_tokens) << "a prompt computed twice is counted once (K1)";
}

// The two tests of rejected rows: what a client gets is checked token by token against the model's own text, that of a cold server.
TEST(Scheduler, RejectedDraftsNeverReachLaterAnswersThroughThePrefixCache) {  // D3, D1
  SchedulerOptions options = small_options();
  options.num_pages = 100;
  options.page_size = 32;
  options.chunked_prefill_size = 256;
  options.context_length = 2400;
  options.draft.num_steps = 5;
  House house(options, 0.05);
  const auto run = [&](int64_t prompt_len, int32_t max_tokens) {
    house.submit(prompt_len, max_tokens, 1);
    while (!house.live.empty() && !HasFailure()) house.step();
    return std::prev(house.clients.end())->second;
  };
  const Client first = run(100, 60);
  const Client longer = run(2100, 60);  // the same prefix and 8 KB
  const Client again = run(100, 60);
  EXPECT_EQ(first.tokens, again.tokens) << "the answer of a cold server";
  EXPECT_EQ(longer.cached, 96);
  EXPECT_EQ(again.cached, 96) << "cached tokens with drafts (D1)";
  const SchedulerStats stats = house.scheduler().stats();
  EXPECT_GT(stats.draft_tokens, 10 * stats.accepted_tokens) << "the case was meant to reject";
}

TEST(Scheduler, AThousandInterleavedRequestsWithRejectedDraftsEqualAColdServerAnswerByAnswer) {
  for (const bool adaptive : {false, true}) {
    SCOPED_TRACE(testing::Message() << "adaptive " << adaptive);
    SchedulerOptions options = small_options();
    options.num_pages = 36;
    options.context_length = 60;
    options.chunked_prefill_size = 40;
    options.max_running_requests = 12;
    options.host_pages = 40;
    options.draft.num_steps = 6;
    options.draft.adaptive = adaptive;
    options.draft.cost.step.points = {{1, 1.0}, {100, 1.1}};
    House house(options, 0.15);
    Rng rng(17);
    for (int submitted = 0; (submitted < 1000 || !house.live.empty()) && !HasFailure();) {
      for (uint64_t n = rng.below(4); n > 0 && submitted < 1000; --n, ++submitted) {
        house.submit(1 + static_cast<int64_t>(rng.below(40)), 1 + static_cast<int32_t>(rng.below(20)), rng.below(6), 0, 0,
                     rng.below(5) == 0 ? static_cast<int32_t>(rng.below(6)) : kMaxDraftTokens);
      }
      house.step();
    }
    ASSERT_EQ(house.clients.size(), 1000u);
    for (const auto& [id, client] : house.clients) {
      ASSERT_TRUE(client.finish == FinishReason::stop_token || client.finish == FinishReason::length) << "request " << id;
    }
    const SchedulerStats stats = house.scheduler().stats();
    EXPECT_GT(stats.draft_tokens, 1000);
    EXPECT_LT(stats.accepted_at[0], stats.drafted_at[0] / 2) << "the case was meant to reject";
    EXPECT_GT(stats.cache_hit_tokens, 1000) << "and to share";
    EXPECT_GT(stats.preemptions, 0) << "and to preempt";
    EXPECT_GT(stats.host_hit_tokens, 0);
  }
}

TEST(Scheduler, ACompletionIsCutByThePoolWhenThatIsSmallerThanTheContext) {
  SchedulerOptions options = small_options();
  options.num_pages = 2;
  Request request;
  request.prompt = {1, 2, 3, 4, 5, 6, 7, 8};
  request.sampling.max_tokens = 1;
  const auto checked = Scheduler::admissible(request, options);
  ASSERT_FALSE(checked.has_value());
  EXPECT_NE(checked.error().message.find("8 tokens"), std::string::npos) << checked.error().message;
}

struct StopAfter final : TokenWatcher {
  explicit StopAfter(int count) : left(count) {}
  bool on_token(int32_t token) override {
    seen.push_back(token);
    return --left == 0;
  }
  int left;
  std::vector<int32_t> seen;
};

// What one request with these draws ends with.
std::vector<FinishReason> finishes_of(std::shared_ptr<StopAfter> watcher, int32_t max_tokens, const std::vector<int32_t>& draws) {
  Scheduler scheduler(small_options());
  std::vector<FinishReason> finishes;
  Request request;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = max_tokens;
  request.sampling.stop_token_ids = {100, 101, 102};
  request.watcher = std::move(watcher);
  request.sink = [&](const TokenEvent& event) { finishes.push_back(event.finish); };
  scheduler.submit(std::move(request));
  size_t next = 0;
  for (BatchPlan plan = scheduler.plan(1); !plan.empty(); plan = scheduler.plan(1)) {
    scheduler.commit(plan, {.sampled = {{plan.items[0].request, {draws.at(next++)}, {}, 0}}});
  }
  return finishes;
}

TEST(Scheduler, AStopStringEndsTheSequenceAfterItsToken) {
  EXPECT_EQ(finishes_of(std::make_shared<StopAfter>(2), 9, {1, 2, 3}),
            (std::vector<FinishReason>{FinishReason::none, FinishReason::stop_string}));
}

TEST(Scheduler, TheWatcherSeesTheStopTokenToo) {
  const auto watcher = std::make_shared<StopAfter>(100);
  finishes_of(watcher, 9, {1, 2, 101});
  EXPECT_EQ(watcher->seen, (std::vector<int32_t>{1, 2, 101}));
}

TEST(Scheduler, AStopOnTheLastAllowedTokenIsAStopAndEveryEosCounts) {  // C1, E8
  for (const int32_t stop : {100, 101, 102})
    EXPECT_EQ(finishes_of(nullptr, 2, {1, stop}), (std::vector<FinishReason>{FinishReason::none, FinishReason::stop_token}));
  EXPECT_EQ(finishes_of(std::make_shared<StopAfter>(2), 2, {1, 2}).back(), FinishReason::stop_string);
  EXPECT_EQ(finishes_of(nullptr, 2, {1, 2, 100}), (std::vector<FinishReason>{FinishReason::none, FinishReason::length}));
}

TEST(Scheduler, WhatWasAcceptedBehindAStopStringReachesNeitherClientNorCacheNorCounters) {  // C1
  SchedulerOptions options = small_options();
  options.draft.num_steps = 5;
  Scheduler scheduler(options);
  const auto watcher = std::make_shared<StopAfter>(3);
  std::vector<TokenEvent> events;
  Request request;
  request.prompt = {11, 12, 13};
  request.sampling.max_tokens = 20;
  request.watcher = watcher;
  request.max_draft_tokens = 4;
  request.sink = [&](TokenEvent event) { events.push_back(std::move(event)); };
  scheduler.submit(std::move(request));
  BatchPlan plan = scheduler.plan(1);
  scheduler.commit(plan, {.sampled = {{0, {1}, {}, 0}}});
  plan = scheduler.plan(2);
  ASSERT_EQ(plan.items[0].num_draft, 4);
  scheduler.commit(plan, {.sampled = {{0, {2, 3, 4, 5, 6}, {}, 4}}});
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].token_ids, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(events[1].finish, FinishReason::stop_string);
  EXPECT_EQ(events[1].num_drafted, 4);
  EXPECT_EQ(events[1].num_accepted, 1);
  EXPECT_EQ(watcher->seen, (std::vector<int32_t>{1, 2, 3}));
  const SchedulerStats stats = scheduler.stats();
  EXPECT_EQ(stats.drafted_at, (std::array<int64_t, kMaxDraftTokens>{1, 1, 1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(stats.accepted_at, (std::array<int64_t, kMaxDraftTokens>{1, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(stats.cached_pages, 1) << "five rows of six tokens are true, pages have four";
  EXPECT_EQ(stats.completion_tokens, 3);
  scheduler.verify();
}

struct NoConstraint final : TokenConstraint {
  void restrict(std::span<float>) override {}
  void on_token(int32_t) override {}
};

TEST(Scheduler, AFailedStepEndsAllWithTheReasonAndFreesAllPages) {
  Scheduler scheduler(small_options());
  std::vector<std::string> errors;
  for (RequestId id = 1; id <= 9; ++id) {
    Request request;
    request.id = id;
    request.prompt = {1, 2, 3, 4, 5, 6};
    request.sampling.max_tokens = 9;
    request.sink = [&](const TokenEvent& event) { errors.push_back(event.error); };
    scheduler.submit(std::move(request));
  }
  std::vector<RequestId> ran;
  for (const BatchItem& item : scheduler.plan(1).items) ran.push_back(item.request);
  ASSERT_FALSE(ran.empty());
  scheduler.fail_all("device lost");
  EXPECT_EQ(errors, std::vector<std::string>(9, "device lost"));
  EXPECT_EQ(scheduler.stats().free_pages, small_options().num_pages);
  EXPECT_EQ(scheduler.stats().finished_requests, 9);
  EXPECT_TRUE(scheduler.idle());
  scheduler.verify();

  // The runner hears of it with the next rows, however many plans without rows come before; those who never had rows it does not know.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(scheduler.plan(2).released.empty());
  Request request;
  request.id = 10;
  request.prompt = {1, 2};
  request.sampling.max_tokens = 9;
  request.constraint = std::make_shared<NoConstraint>();
  const TokenConstraint* constraint = request.constraint.get();
  request.sink = [](const TokenEvent&) {};
  scheduler.submit(std::move(request));
  BatchPlan plan = scheduler.plan(3);
  std::sort(plan.released.begin(), plan.released.end());
  std::sort(ran.begin(), ran.end());
  EXPECT_EQ(plan.released, ran);
  EXPECT_EQ(plan.items[0].constraint, constraint);
}

TEST(PagePool, APageFreedTwiceIsCaught) {
  PagePool pool(4);
  std::vector<int32_t> pages;
  pool.take(2, pages);
  pool.give_back(pages);
  EXPECT_EQ(pool.num_free(), 4);
  EXPECT_DEATH(pool.give_back(pages), "");
  EXPECT_DEATH(pool.take(5, pages), "");
}

TEST(PagePool, ALostPageIsFound) {
  PagePool pool(4);
  std::vector<int32_t> pages;
  pool.take(2, pages);
  pool.verify(pages);
  EXPECT_DEATH(pool.verify(std::vector<int32_t>{pages[0], pages[1], pages[1]}), "");
  EXPECT_DEATH(pool.verify(std::vector<int32_t>{}), "");
}

}  // namespace
}  // namespace ingot::sched
