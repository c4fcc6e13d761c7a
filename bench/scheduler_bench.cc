// What the scheduler itself costs: plan() and commit() with sinks that do next to nothing, and the parts that the prefix cache adds.
// Contexts are spread evenly from 2,000 to 20,000 tokens, pages have 64 tokens. No runner: the drawn tokens are made up and prepared
// outside the measured time where that is possible.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "sched/scheduler.h"

namespace ingot::sched {
namespace {

constexpr int64_t kPageSize = 64;
constexpr int64_t kShortest = 2000;
constexpr int64_t kLongest = 20000;
constexpr int32_t kVocabulary = 154880;

std::vector<int32_t> random_tokens(uint64_t seed, int64_t count) {
  Rng rng(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.below(kVocabulary));
  return tokens;
}

// A scheduler, the load it is given, and the made-up results.
class Load {
 public:
  explicit Load(const SchedulerOptions& options) : scheduler(options) {}

  void submit(std::vector<int32_t> prompt, int32_t max_tokens) {
    Request request;
    request.id = next_id_++;
    request.prompt = std::move(prompt);
    request.sampling.max_tokens = max_tokens;
    request.sampling.stop_token_ids = {kVocabulary, kVocabulary + 1, kVocabulary + 2};  // looked for, never drawn
    request.sink = [this](const TokenEvent& event) { tokens_seen += event.token_ids.size(); };
    scheduler.submit(std::move(request));
  }

  // `count` sequences of different prompts, run until all of them decode.
  void start(int64_t count) {
    constexpr int32_t kNeverDone = 1 << 18;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t length = count == 1 ? kLongest : kShortest + (kLongest - kShortest) * i / (count - 1);
      submit(random_tokens(static_cast<uint64_t>(i), length), kNeverDone);
    }
    while (!decoding(count)) step();
    INGOT_CHECK(scheduler.stats().preemptions == 0);
  }

  bool decoding(int64_t count) const {
    if (scheduler.stats().running != count || scheduler.stats().waiting != 0) return false;
    for (RequestId id = next_id_ - static_cast<RequestId>(count); id < next_id_; ++id) {
      if (!scheduler.find(id)->decoding()) return false;
    }
    return true;
  }

  // Each item draws one token, and the first `request % 6` of its drafts hold.
  const BatchResult& draw(const BatchPlan& plan) {
    result_.sampled.clear();
    for (const BatchItem& item : plan.items) {
      if (!item.sample) continue;
      auto& sampled = result_.sampled.emplace_back();
      sampled.request = item.request;
      sampled.num_drafted = item.num_draft;
      const auto held = std::min(item.num_draft, static_cast<int32_t>(item.request % 6));
      sampled.token_ids.assign(1 + static_cast<size_t>(held), static_cast<int32_t>(item.request % 1000));
    }
    return result_;
  }

  void step() {
    const BatchPlan plan = scheduler.plan(++now_ns);
    scheduler.commit(plan, draw(plan));
  }

  Scheduler scheduler;
  int64_t now_ns = 0;
  size_t tokens_seen = 0;

 private:
  RequestId next_id_ = 1;
  BatchResult result_;
};

SchedulerOptions options_for(int64_t running, int64_t pages) {
  SchedulerOptions options;
  options.num_pages = pages;
  options.page_size = kPageSize;
  options.chunked_prefill_size = 8192;
  options.max_running_requests = running;
  options.context_length = 1 << 20;
  return options;
}

int64_t pages_of(int64_t running) { return running * ((kShortest + kLongest) / 2 / kPageSize + 100) + 2000; }

// Time is that of one step. Drafts: at most 5, of which the first `request % 6` hold. Fixed: all of them are planned;
// adaptive: on a machine where a batch of 256 leaves room for some.
enum Drafts : int64_t { kNoDrafts, kFixed, kAdaptive };

const StepCost kMachine = {
    .step = {.points = {{1, 0.020}, {8, 0.021}, {32, 0.022}, {64, 0.024}, {128, 0.028}, {256, 0.036}, {512, 0.055}, {1024, 0.095}}},
    .pass = {.points = {{1, 0.001}, {32, 0.0012}, {256, 0.002}, {1024, 0.005}}}};

void decode(benchmark::State& state) {
  const int64_t running = state.range(0);
  const int64_t drafts = state.range(1);
  SchedulerOptions options = options_for(running, pages_of(running));
  options.draft.num_steps = drafts == kNoDrafts ? 0 : 5;
  options.draft.adaptive = drafts == kAdaptive;
  options.draft.cost = kMachine;
  std::unique_ptr<Load> load;
  int64_t steps_left = 0;
  for (auto _ : state) {
    if (steps_left-- == 0) {
      state.PauseTiming();
      load = nullptr;
      load = std::make_unique<Load>(options);
      load->start(running);
      steps_left = 499;  // before the pool is short
      state.ResumeTiming();
    }
    const BatchPlan plan = load->scheduler.plan(++load->now_ns);
    load->scheduler.commit(plan, load->draw(plan));
  }
  const SchedulerStats stats = load->scheduler.stats();
  state.counters["depth"] = stats.drafts == 0 ? 0 : static_cast<double>(stats.draft_tokens) / static_cast<double>(stats.drafts);
}
BENCHMARK(decode)
    ->ArgsProduct({{32, 64, 256, 1024}, {kNoDrafts, kFixed, kAdaptive}})
    ->ArgNames({"running", "drafts"})
    ->Unit(benchmark::kMicrosecond);

// The choice of depths alone, for 256 sequences of all rates: a budget that is enough, one for two drafts each, and adaptive.
enum Choice : int64_t { kAll, kCut, kChosen };

void depths(benchmark::State& state) {
  constexpr int64_t kRunning = 256;
  DraftPlanner planner({.num_steps = 5, .adaptive = state.range(0) == kChosen, .cost = kMachine});
  Rng rng(1);
  std::vector<Acceptance> acceptances(kRunning);
  std::vector<DraftCandidate> candidates;
  for (Acceptance& acceptance : acceptances) {
    acceptance.rate = static_cast<float>(rng.uniform());
    candidates.push_back({.acceptance = &acceptance, .limit = 5, .depth = 0});
  }
  for (auto _ : state) {
    planner.plan(candidates, 0, state.range(0) == kCut ? kRunning * 5 / 2 : kRunning * 5);
    benchmark::DoNotOptimize(candidates.data());
  }
}
BENCHMARK(depths)->Arg(kAll)->Arg(kCut)->Arg(kChosen)->ArgName("choice")->Unit(benchmark::kMicrosecond);

// The making of results alone, which `decode` includes: what a runner would do.
void draw_alone(benchmark::State& state) {
  const int64_t running = state.range(0);
  Load load(options_for(running, pages_of(running)));
  load.start(running);
  const BatchPlan plan = load.scheduler.plan(++load.now_ns);
  for (auto _ : state) benchmark::DoNotOptimize(load.draw(plan));
}
BENCHMARK(draw_alone)->Arg(256)->ArgName("running")->Unit(benchmark::kMicrosecond);

// Decodes beside one prompt of 20,000 tokens that is computed in chunks; the chunk's pages are published by each step.
void mixed(benchmark::State& state) {
  const int64_t running = state.range(0);
  SchedulerOptions options = options_for(running + 1, pages_of(running));
  options.chunked_prefill_size = running + state.range(1);
  std::unique_ptr<Load> load;
  uint64_t seed = 1 << 20;
  int64_t steps_left = 0;
  for (auto _ : state) {
    const bool idle = load == nullptr || load->scheduler.stats().running <= running;
    if (steps_left-- <= 0 || idle) {
      state.PauseTiming();
      if (steps_left <= 0) {
        load = nullptr;
        load = std::make_unique<Load>(options);
        load->start(running);
        steps_left = 1500;
      }
      load->submit(random_tokens(seed++, kLongest), 1);
      state.ResumeTiming();
    }
    const BatchPlan plan = load->scheduler.plan(++load->now_ns);
    load->scheduler.commit(plan, load->draw(plan));
  }
}
BENCHMARK(mixed)->ArgsProduct({{32, 256}, {512, 8192}})->ArgNames({"decodes", "chunk"})->Unit(benchmark::kMicrosecond);

// A step of 256 decodes with 1,000 or 10,000 requests waiting, when the batch is full; when it has one place, which each step gives to a
// request of one token (admission and its whole life); and when it has a place, but the pages are too few for the request whose turn it is.
enum Room : int64_t { kNoPlace, kOnePlace, kNoPages };

void waiting(benchmark::State& state) {
  const int64_t room = state.range(1);
  const int64_t queued = state.range(2);
  constexpr int64_t kRunning = 256;
  SchedulerOptions options = options_for(kRunning + (room == kNoPlace ? 0 : 1), pages_of(kRunning));
  if (room == kNoPages) options.num_pages -= kRunning * 80;
  options.policy = state.range(0) != 0 ? Policy::lpm : Policy::fcfs;
  const std::vector<int32_t> shared = random_tokens(99, kLongest);
  std::unique_ptr<Load> load;
  uint64_t seed = 1 << 20;
  int64_t steps_left = 0;
  // The first `cached` tokens are in the cache, `own` tokens are this request's alone.
  const auto submit = [&](int64_t cached, int64_t own) {
    std::vector<int32_t> prompt(shared.begin(), shared.begin() + cached);
    const auto rest = random_tokens(seed++, own);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    load->submit(std::move(prompt), 1);
  };
  for (auto _ : state) {
    if (steps_left-- == 0) {
      state.PauseTiming();
      load = nullptr;
      load = std::make_unique<Load>(options);
      load->start(kRunning);
      load->submit(shared, 1);
      if (room == kNoPlace) {
        load->step();
      } else {
        while (load->scheduler.stats().finished_requests == 0) load->step();
      }
      if (room == kNoPages) submit(kLongest, options.num_pages * kPageSize / 4);
      // The more wait, the shorter they are: all of them take the same memory.
      for (int64_t i = 0; i < queued; ++i) submit(kLongest / 2 * 1000 / queued, 100);
      steps_left = 499;
      state.ResumeTiming();
    }
    const BatchPlan plan = load->scheduler.plan(++load->now_ns);
    load->scheduler.commit(plan, load->draw(plan));
  }
  const SchedulerStats stats = load->scheduler.stats();
  INGOT_CHECK(room == kOnePlace || stats.waiting >= queued, "{} wait", stats.waiting);
}
BENCHMARK(waiting)
    ->ArgsProduct({{0, 1}, {kNoPlace, kOnePlace, kNoPages}, {1000, 10000}})
    ->ArgNames({"lpm", "room", "queued"})
    ->Unit(benchmark::kMicrosecond);

// ---------------------------------------------------------------------------------------------------------------- the cache's own verbs

// `prompts` of 20,000 tokens, published and not locked.
struct FullCache {
  explicit FullCache(int64_t prompts) : pool(prompts * (kLongest / kPageSize)), cache(pool, kPageSize, 0) {
    for (int64_t i = 0; i < prompts; ++i) fill(static_cast<uint64_t>(i));
  }
  void fill(uint64_t seed) {
    const auto tokens = random_tokens(seed, kLongest);
    auto* tail = cache.root();
    for (int64_t page = 0; page < kLongest / kPageSize; ++page) {
      tail = cache.publish(tail, std::span(tokens).subspan(static_cast<size_t>(page * kPageSize), kPageSize), pool.take());
    }
    cache.unlock(tail);
  }
  PagePool pool;
  PrefixCache cache;
};

constexpr int64_t kManyPrompts = 256;  // 80,000 pages: far more nodes than the processor's cache holds

void page_keys_of_prompt(benchmark::State& state) {
  const auto tokens = random_tokens(1, kLongest);
  for (auto _ : state) benchmark::DoNotOptimize(page_keys(tokens, kPageSize));
}
BENCHMARK(page_keys_of_prompt)->Unit(benchmark::kMicrosecond);

// A full hit of 20,000 tokens in a cache of 256 such prompts; each time another one, so that nothing is warm.
void match_prompt(benchmark::State& state) {
  FullCache full(kManyPrompts);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<PageKey>> keys;
  for (int64_t i = 0; i < kManyPrompts; ++i) {
    prompts.push_back(random_tokens(static_cast<uint64_t>(i), kLongest));
    keys.push_back(page_keys(prompts.back(), kPageSize));
  }
  size_t next = 0;
  for (auto _ : state) {
    const size_t i = next++ % prompts.size();
    const auto match = full.cache.match(prompts[i], keys[i], static_cast<int64_t>(keys[i].size()));
    INGOT_CHECK(match.num_pages() == kLongest / kPageSize);
  }
}
BENCHMARK(match_prompt)->Unit(benchmark::kMicrosecond);

void estimate_prompt(benchmark::State& state) {
  FullCache full(kManyPrompts);
  std::vector<std::vector<PageKey>> keys;
  for (int64_t i = 0; i < kManyPrompts; ++i) keys.push_back(page_keys(random_tokens(static_cast<uint64_t>(i), kLongest), kPageSize));
  size_t next = 0;
  for (auto _ : state) {
    const auto& its = keys[next++ % keys.size()];
    benchmark::DoNotOptimize(full.cache.estimate(its, static_cast<int64_t>(its.size())));
  }
}
BENCHMARK(estimate_prompt)->Unit(benchmark::kMicrosecond);

void lock_and_unlock_prompt(benchmark::State& state) {
  FullCache full(kManyPrompts);
  std::vector<PrefixCache::Node*> tails;
  for (int64_t i = 0; i < kManyPrompts; ++i) {
    const auto tokens = random_tokens(static_cast<uint64_t>(i), kLongest);
    tails.push_back(full.cache.match(tokens, page_keys(tokens, kPageSize), kLongest).device_tail);
  }
  size_t next = 0;
  for (auto _ : state) {
    auto* tail = tails[next++ % tails.size()];
    full.cache.lock(tail);
    full.cache.unlock(tail);
  }
}
BENCHMARK(lock_and_unlock_prompt)->Unit(benchmark::kMicrosecond);

// One page at a time, with the eviction that makes room for it: the steady state of a full cache. items_per_second: pages.
void publish_and_evict(benchmark::State& state) {
  FullCache full(kManyPrompts);
  constexpr int64_t kPages = kLongest / kPageSize;
  uint64_t seed = 1 << 20;
  for (auto _ : state) {
    state.PauseTiming();
    const auto tokens = random_tokens(seed++, kLongest);
    state.ResumeTiming();
    auto* tail = full.cache.root();
    for (int64_t page = 0; page < kPages; ++page) {
      full.cache.evict(1);
      tail = full.cache.publish(tail, std::span(tokens).subspan(static_cast<size_t>(page * kPageSize), kPageSize), full.pool.take());
    }
    full.cache.unlock(tail);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * kPages);
}
BENCHMARK(publish_and_evict)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ingot::sched

BENCHMARK_MAIN();
