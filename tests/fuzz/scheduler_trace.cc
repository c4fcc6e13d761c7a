// Bytes as a program of submits, steps and cancels against the scheduler. verify() holds after each action; whatever a step reads from a
// page is what was computed for exactly this prefix, however it was shared, saved, loaded or evicted; each request ends once, for a reason
// that is true.
// Input: seven bytes of options, then actions: a byte whose low three bits are the verb (see Machine::act), and the verb's own bytes.
#include "sched/scheduler.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "fuzz.h"

namespace ingot::sched {
namespace {

constexpr int kMaxActions = 600;
constexpr size_t kMaxJobs = 64;
constexpr int64_t kMaxSteps = 20'000;  // of draining: hundreds of tokens, each computed anew many times
constexpr int32_t kStopToken = 0;
constexpr int32_t kStopString = 1;  // the watcher's
constexpr uint64_t kGarbage = ~uint64_t{0};

// Different prefixes often get the same key.
PageKey weak_key(PageKey parent, std::span<const int32_t> tokens) { return page_key(parent, tokens) % 8; }

class StopWatcher final : public TokenWatcher {
 public:
  bool on_token(int32_t token_id) override { return token_id == kStopString; }
};

// What the fuzzer knows of a request, from what it submitted and from its events.
struct Job {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> prefix;  // [i]: of tokens [0, i]: what position i must hold in the cache
  int64_t prompt_length = 0;
  int64_t max_length = 0;
  int64_t queue_deadline_ns = 0, deadline_ns = 0;
  bool watched = false, cancelled = false, failed = false;
  bool scored = false;         // wants logprobs of its prompt
  int64_t num_scored = 0;      // rows that plans have asked them of
  std::vector<int32_t> drawn;  // in the step that runs
  FinishReason finish = FinishReason::none;

  bool ended() const { return finish != FinishReason::none; }
  void append(int32_t token) {
    prefix.push_back(mix64((prefix.empty() ? 1 : prefix.back()) + static_cast<uint64_t>(token)));
    tokens.push_back(token);
  }
};

SchedulerOptions read_options(fuzz::Input& input) {
  SchedulerOptions options;
  options.num_pages = 1 + input.byte() % 24;
  options.page_size = 1 + input.byte() % 4;
  options.chunked_prefill_size = 1 + input.byte() % 16;
  options.max_running_requests = 1 + input.byte() % 6;
  options.context_length = 2 + input.byte() % 40;
  const uint8_t tiers = input.byte();
  options.host_pages = tiers % 8;
  options.draft.num_steps = tiers / 8 % 4;
  options.max_overtaken = tiers / 32 % 4;
  const uint8_t flags = input.byte();
  options.policy = (flags & 1) != 0 ? Policy::lpm : Policy::fcfs;
  options.prefix_cache = (flags & 2) == 0;
  if ((flags & 4) != 0) options.page_key = weak_key;
  return options;
}

// The scheduler under test, and a device whose pages hold, for each position, the prefix it was computed for.
class Machine {
 public:
  explicit Machine(fuzz::Input& input) : input_(input), options_(read_options(input)), scheduler_(options_) {
    device_.assign(static_cast<size_t>(options_.num_pages * options_.page_size), kGarbage);
  }

  void act() {
    const uint8_t action = input_.byte();
    const uint8_t argument = action >> 3;
    switch (action & 7) {
      case 0:
      case 1: submit(argument); break;
      case 2:
      case 3:
        if (plan_) commit();
        make_plan();
        break;
      case 4:
        if (plan_) commit();
        break;
      case 5:
        if (!jobs_.empty()) cancel(argument % jobs_.size());
        break;
      case 6: now_ns_ += argument; break;
      case 7:
        // Only with all bits set: it leaves little to look at.
        if (argument == 31 && !plan_) fail_all();
        break;
    }
    scheduler_.verify();
  }

  // Every request must come to its end.
  void drain() {
    for (int64_t step = 0; plan_ || scheduler_.has_work(); ++step) {
      INGOT_CHECK(step < kMaxSteps, "no end after {} steps", step);
      if (!plan_) make_plan();
      commit();
      scheduler_.verify();
    }
    for (const auto& job : jobs_) INGOT_CHECK(job->ended(), "a request without an end");
    const SchedulerStats stats = scheduler_.stats();
    INGOT_CHECK(stats.running == 0 && stats.waiting == 0 && stats.free_pages + stats.cached_pages == options_.num_pages);
    INGOT_CHECK(stats.finished_requests == static_cast<int64_t>(jobs_.size()));
  }

 private:
  // Prompts of one family begin alike; behind the shared part each goes its own way.
  void submit(uint8_t argument) {
    if (jobs_.size() == kMaxJobs) return;
    const int64_t length = input_.byte() % 40;
    const uint8_t family = input_.byte();
    const int64_t shared = family % 40;
    const uint8_t more = input_.byte();
    const uint8_t deadlines = input_.byte();
    const RequestId id = jobs_.size();
    auto job = std::make_unique<Job>();
    for (int64_t i = 0; i < length; ++i) {
      const uint64_t stream = i < shared ? argument % 4 : 1000 + id;
      job->append(static_cast<int32_t>(random_bits(stream, static_cast<uint64_t>(i)) % 4));
    }
    Request request;
    request.id = id;
    request.prompt = job->tokens;
    request.sampling.max_tokens = more % 16;
    request.sampling.stop_token_ids = {kStopToken};
    request.sampling.top_logprobs = (more & 16) != 0 ? 0 : -1;
    job->scored = family >= 200;
    if (job->scored) request.sampling.prompt_logprobs = 0;
    request.priority = more >> 5 & 1;
    job->watched = (more & 64) != 0;
    if (job->watched) request.watcher = std::make_shared<StopWatcher>();
    request.submitted_ns = now_ns_;
    if (deadlines % 16 != 0) request.queue_deadline_ns = job->queue_deadline_ns = now_ns_ + deadlines % 16 * 4;
    if (deadlines / 16 != 0) request.deadline_ns = job->deadline_ns = now_ns_ + deadlines / 16 * 16;
    if ((more & 128) != 0) {
      // The disk has some pages of the prompt, from any one on.
      for (int64_t page = argument / 4; (page + 1) * options_.page_size <= length; ++page) {
        request.fetched.push_back({.index = page, .bytes = page_bytes(&job->prefix[static_cast<size_t>(page * options_.page_size)])});
      }
    }
    job->prompt_length = length;
    job->max_length = std::min(options_.max_length(), length + request.sampling.max_tokens);
    const bool draws = request.sampling.max_tokens > 0;
    const bool can_run = length > 0 && length + (draws ? 1 : 0) <= options_.max_length() && (draws || job->scored);
    INGOT_CHECK(Scheduler::admissible(request, options_).has_value() == can_run);
    if (!can_run) return;
    request.sink = [this, raw = job.get()](const TokenEvent& event) { on_event(*raw, event); };
    jobs_.push_back(std::move(job));
    scheduler_.submit(std::move(request));
  }

  void on_event(Job& job, const TokenEvent& event) {
    INGOT_CHECK(!job.ended(), "an event after the last one");
    INGOT_CHECK(event.token_ids.size() <= job.drawn.size() && std::equal(event.token_ids.begin(), event.token_ids.end(), job.drawn.begin()),
                "tokens that were not drawn");
    INGOT_CHECK(event.finish != FinishReason::none || event.token_ids.size() == job.drawn.size(), "drawn tokens are lost");
    const bool tells_scores = job.scored && !generated(job) && (!event.token_ids.empty() || event.finish == FinishReason::length);
    INGOT_CHECK(std::ssize(event.prompt_logprobs) == (tells_scores ? job.prompt_length - 1 : 0), "{} scores of {} tokens",
                event.prompt_logprobs.size(), job.prompt_length);
    for (size_t i = 0; i < event.prompt_logprobs.size(); ++i)
      INGOT_CHECK(event.prompt_logprobs[i].top.front().first == static_cast<int32_t>(i + 1), "the score of another position");
    for (const int32_t token : event.token_ids) {
      INGOT_CHECK(static_cast<int64_t>(job.tokens.size()) < job.max_length && !stopped(job), "a token behind the end");
      job.append(token);
    }
    INGOT_CHECK(event.cached_tokens >= 0 && event.cached_tokens < job.prompt_length, "{} tokens cached of {}", event.cached_tokens,
                job.prompt_length);
    job.drawn.clear();
    job.finish = event.finish;
    const bool at_length = static_cast<int64_t>(job.tokens.size()) == job.max_length;
    switch (event.finish) {
      case FinishReason::none: INGOT_CHECK(!event.token_ids.empty() && !at_length && !stopped(job), "it should have ended"); break;
      case FinishReason::stop_token: INGOT_CHECK(generated(job) && job.tokens.back() == kStopToken); break;
      case FinishReason::stop_string: INGOT_CHECK(generated(job) && job.watched && job.tokens.back() == kStopString); break;
      case FinishReason::length: INGOT_CHECK(at_length && !stopped(job)); break;
      case FinishReason::cancelled: INGOT_CHECK(job.cancelled && event.token_ids.empty()); break;
      case FinishReason::queue_timeout: INGOT_CHECK(job.queue_deadline_ns != 0 && now_ns_ >= job.queue_deadline_ns); break;
      case FinishReason::timeout: INGOT_CHECK(job.deadline_ns != 0 && now_ns_ >= job.deadline_ns); break;
      case FinishReason::error: INGOT_CHECK(job.failed && !event.error.empty()); break;
    }
  }

  static bool generated(const Job& job) { return static_cast<int64_t>(job.tokens.size()) > job.prompt_length; }
  static bool stopped(const Job& job) {
    return generated(job) && (job.tokens.back() == kStopToken || (job.watched && job.tokens.back() == kStopString));
  }

  void cancel(size_t index) {
    jobs_[index]->cancelled = true;
    scheduler_.cancel(index);
    INGOT_CHECK(plan_ || jobs_[index]->ended(), "a cancelled request goes on");
  }

  void fail_all() {
    for (auto& job : jobs_) job->failed = true;
    scheduler_.fail_all("the runner failed");
    INGOT_CHECK(scheduler_.idle());
    for (auto& job : jobs_) job->failed = false;
  }

  void make_plan() {
    plan_ = scheduler_.plan(now_ns_);
    INGOT_CHECK(!plan_->empty() || !scheduler_.has_work());
    int64_t num_tokens = 0;
    std::set<RequestId> seen;
    for (const BatchItem& item : plan_->items) {
      INGOT_CHECK(seen.insert(item.request).second && item.request < jobs_.size(), "a request twice in a step");
      Job& job = *jobs_[item.request];
      const auto begin = static_cast<size_t>(item.start);
      const size_t end = begin + item.token_ids.size();
      INGOT_CHECK(!job.ended() && !item.token_ids.empty() && end <= job.tokens.size());
      INGOT_CHECK(std::equal(item.token_ids.begin(), item.token_ids.end(), job.tokens.begin() + item.start), "rows of other tokens");
      INGOT_CHECK(item.sample == (end == job.tokens.size()) && item.sampling != nullptr);
      const int64_t scored_end = std::min(static_cast<int64_t>(end), job.prompt_length - 1);
      INGOT_CHECK(item.num_scored == (job.scored ? std::max<int64_t>(scored_end - job.num_scored, 0) : 0), "rows not scored once");
      INGOT_CHECK(item.num_scored == 0 || item.start + item.first_scored == job.num_scored, "rows scored out of order, or not at all");
      job.num_scored += item.num_scored;
      INGOT_CHECK(item.num_generated == static_cast<int64_t>(job.tokens.size()) - job.prompt_length);
      INGOT_CHECK(item.num_draft >= 0 && item.num_draft <= options_.draft.num_steps && (item.num_draft == 0 || item.sample));
      INGOT_CHECK(static_cast<int64_t>(end) + item.num_draft <= static_cast<int64_t>(item.pages.size()) * options_.page_size);
      num_tokens += static_cast<int64_t>(item.token_ids.size()) + item.num_draft;
    }
    INGOT_CHECK(num_tokens == plan_->num_tokens && num_tokens <= options_.chunked_prefill_size, "{} rows, {} said, {} allowed", num_tokens,
                plan_->num_tokens, options_.chunked_prefill_size);
  }

  // Runs the plan on the device, draws tokens, commits.
  void commit() {
    for (const PageSave& save : plan_->saves) *save.to = *page_bytes(slot(save.page, 0));
    for (const PageLoad& load : plan_->loads) {
      INGOT_CHECK(load.from && load.from->size() == num_page_bytes(), "a host page that nobody has filled");
      std::memcpy(slot(load.page, 0), load.from->data(), num_page_bytes());
    }
    for (const BatchItem& item : plan_->items) check_device(item, item.start);
    BatchResult result;
    for (const BatchItem& item : plan_->items) {
      Job& job = *jobs_[item.request];
      const int64_t end = item.start + static_cast<int64_t>(item.token_ids.size());
      for (int64_t i = item.start; i < end; ++i) at(item, i) = job.prefix[static_cast<size_t>(i)];
      if (item.num_scored > 0) {
        ScoredTokens& scored = result.scored.emplace_back(ScoredTokens{item.request, {}});
        for (int32_t i = 1; i <= item.num_scored; ++i) scored.logprobs.push_back({0, {{item.start + item.first_scored + i, 0.0f}}});
      }
      if (!item.sample) continue;
      SampledTokens& sampled = result.sampled.emplace_back();
      sampled.request = item.request;
      const uint64_t draw = random_bits(input_.byte(), item.request * 1000 + static_cast<uint64_t>(item.num_generated));
      sampled.num_drafted = item.num_draft == 0 ? 0 : static_cast<int32_t>(draw % static_cast<uint64_t>(item.num_draft + 1));
      const auto count = sampled.num_drafted == 0 ? 1 : 1 + draw / 16 % static_cast<uint64_t>(sampled.num_drafted + 1);
      // Few stops, so that answers get long; and few others, so that answers are prefixes of each other.
      for (uint64_t i = 0; i < count; ++i) {
        const uint64_t bits = draw >> (8 + 5 * i) & 31;
        sampled.token_ids.push_back(bits < 2 ? static_cast<int32_t>(bits) : 2 + static_cast<int32_t>(bits & 1));
      }
      if (item.sampling->top_logprobs >= 0) sampled.logprobs.resize(count);
      // A draft's row is in the cache, too: a right one holds, a wrong one leaves garbage behind the end.
      uint64_t prefix = job.prefix.back();
      for (int64_t i = 0; i < sampled.num_drafted; ++i) {
        const bool accepted = i + 1 < static_cast<int64_t>(count);
        prefix = accepted ? mix64(prefix + static_cast<uint64_t>(sampled.token_ids[static_cast<size_t>(i)])) : kGarbage;
        at(item, end + i) = prefix;
      }
      job.drawn = sampled.token_ids;
    }
    // Nobody wrote into what another one reads.
    for (const BatchItem& item : plan_->items) check_device(item, item.start + static_cast<int64_t>(item.token_ids.size()));
    scheduler_.commit(*plan_, result);
    for (const BatchItem& item : plan_->items) {
      Job& job = *jobs_[item.request];
      INGOT_CHECK(job.drawn.empty() || job.ended(), "drawn tokens without an event");
      job.drawn.clear();
    }
    plan_.reset();
  }

  void check_device(const BatchItem& item, int64_t end) {
    const Job& job = *jobs_[item.request];
    for (int64_t i = 0; i < end; ++i) {
      INGOT_CHECK(at(item, i) == job.prefix[static_cast<size_t>(i)], "request {}: position {} of [0, {}) holds another prefix",
                  item.request, i, end);
    }
  }

  size_t num_page_bytes() const { return static_cast<size_t>(options_.page_size) * sizeof(uint64_t); }
  HostPage page_bytes(const uint64_t* prefix) const {
    const auto* bytes = reinterpret_cast<const std::byte*>(prefix);
    return std::make_shared<PageBytes>(bytes, bytes + num_page_bytes());
  }
  uint64_t* slot(int32_t page, int64_t offset) {
    INGOT_CHECK(page >= 0 && page < options_.num_pages, "page {}", page);
    return &device_[static_cast<size_t>(page * options_.page_size + offset)];
  }
  uint64_t& at(const BatchItem& item, int64_t position) {
    return *slot(item.pages[static_cast<size_t>(position / options_.page_size)], position % options_.page_size);
  }

  fuzz::Input& input_;
  const SchedulerOptions options_;
  std::vector<std::unique_ptr<Job>> jobs_;  // by id
  Scheduler scheduler_;
  std::vector<uint64_t> device_;  // (num_pages, page_size)
  std::optional<BatchPlan> plan_;
  int64_t now_ns_ = 1;
};

void run(fuzz::Input input) {
  Machine machine(input);
  for (int i = 0; i < kMaxActions && !input.empty(); ++i) machine.act();
  machine.drain();
}

}  // namespace
}  // namespace ingot::sched

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ingot::sched::run({data, size});
  return 0;
}
