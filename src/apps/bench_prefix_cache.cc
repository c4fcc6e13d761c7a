#include "apps/bench_prefix_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/file_map.h"
#include "base/json.h"
#include "base/log.h"

namespace ingot::apps {
namespace {

constexpr size_t kMaxTraceBytes = size_t{1} << 30;
constexpr int64_t kMaxLength = int64_t{1} << 24;  // tokens of a prompt or an answer; positions are 32 bits wide
constexpr double kMaxTimestampMs = 1e12;
constexpr int64_t kMaxPoolTokens = 1'000'000'000'000;

// ------------------------------------------------------------------------------------------------------------------------- the trace

// A line of the trace; its errors begin with file and line.
struct Line {
  std::string place;
  Json object;

  Result<const Json*> field(const char* name) const {
    const auto it = object.find(name);
    if (it == object.end()) return fail("{}: field {} is missing", place, name);
    return &*it;
  }
  Result<int64_t> whole_number(const char* name, int64_t least, int64_t greatest) const {
    INGOT_ASSIGN(const Json* value, field(name));
    // Numbers beyond int64 are unsigned or floating point to the parser.
    if (!value->is_number_integer() || (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX}) ||
        value->get<int64_t>() < least || value->get<int64_t>() > greatest) {
      return fail("{}: field {} is {}, not a whole number from {} to {}", place, name, value->dump(), least, greatest);
    }
    return value->get<int64_t>();
  }
};

class TraceBuilder {
 public:
  Result<> add(const Line& line) {
    TraceRequest request;
    INGOT_ASSIGN(const Json* timestamp, line.field("timestamp"));
    if (!timestamp->is_number() || !(timestamp->get<double>() >= 0 && timestamp->get<double>() <= kMaxTimestampMs)) {
      return fail("{}: field timestamp is {}, not a number of milliseconds from 0 to {}", line.place, timestamp->dump(), kMaxTimestampMs);
    }
    request.arrival_ns = std::llround(timestamp->get<double>() * 1e6);
    if (!trace.requests.empty() && request.arrival_ns < trace.requests.back().arrival_ns) {
      return fail("{}: field timestamp is {}, before that of the line above", line.place, timestamp->dump());
    }
    INGOT_ASSIGN(request.input_length, line.whole_number("input_length", 1, kMaxLength));
    INGOT_ASSIGN(request.output_length, line.whole_number("output_length", 0, kMaxLength));
    request.output_length = std::max<int64_t>(request.output_length, 1);  // computing a prompt draws a token

    INGOT_ASSIGN(const Json* ids, line.field("hash_ids"));
    const int64_t num_blocks = (request.input_length + kTraceBlockTokens - 1) / kTraceBlockTokens;
    if (!ids->is_array() || static_cast<int64_t>(ids->size()) != num_blocks) {
      return fail("{}: field hash_ids is not an array of {} numbers, one for each {} tokens of input_length {}", line.place, num_blocks,
                  kTraceBlockTokens, request.input_length);
    }
    int64_t chain = -1;
    for (const Json& id : *ids) {
      if (!id.is_number_integer()) return fail("{}: field hash_ids has {}, not a whole number", line.place, id.dump());
      const auto block = blocks_.try_emplace(id.get<int64_t>(), static_cast<int32_t>(blocks_.size())).first->second;
      const auto step = static_cast<uint64_t>(chain + 1) << 32 | static_cast<uint32_t>(block);
      chain = chains_.try_emplace(step, static_cast<int32_t>(chains_.size())).first->second;
      request.blocks.push_back(block);
      request.chains.push_back(static_cast<int32_t>(chain));
    }
    request.first_output = num_outputs_;
    num_outputs_ += request.output_length;
    trace.num_blocks = static_cast<int64_t>(blocks_.size());
    trace.num_chains = static_cast<int64_t>(chains_.size());
    // Prompts count token ids up from 0, answers down from the greatest.
    if (trace.num_blocks * kTraceBlockTokens + num_outputs_ > std::numeric_limits<int32_t>::max()) {
      return fail("{}: the trace has more different tokens than there are token ids (2^31)", line.place);
    }
    trace.requests.push_back(std::move(request));
    return {};
  }

  PrefixTrace trace;

 private:
  std::unordered_map<int64_t, int32_t> blocks_;
  std::unordered_map<uint64_t, int32_t> chains_;  // (chain before + 1, block)
  int64_t num_outputs_ = 0;
};

// ------------------------------------------------------------------------------------------------------------------------- the bound

// How much of each chain's last block somebody has: the whole truth about shared prefixes, in (num_chains) numbers. Knows nothing of
// pages, keys or the cache's tree, so that it can judge them.
class Coverage {
 public:
  explicit Coverage(int64_t num_chains) : tokens_(static_cast<size_t>(num_chains), 0) {}

  // Tokens [begin, end) of the prompt are there, as all before them were when they were added.
  void add(const TraceRequest& request, int64_t begin, int64_t end) {
    end = std::min(end, request.input_length);
    for (int64_t block = begin / kTraceBlockTokens; block * kTraceBlockTokens < end; ++block) {
      int32_t& tokens = tokens_[static_cast<size_t>(request.chains[static_cast<size_t>(block)])];
      tokens = std::max(tokens, static_cast<int32_t>(std::min(end - block * kTraceBlockTokens, kTraceBlockTokens)));
    }
  }

  // Tokens a cache with this content saves: whole pages, and at least one token is left to compute.
  int64_t saves(const TraceRequest& request, int64_t page_size) const {
    int64_t shared = 0;
    for (const int32_t chain : request.chains) {
      const int64_t there = tokens_[static_cast<size_t>(chain)];
      shared += there;
      if (there < kTraceBlockTokens) break;
    }
    return std::min(shared, request.input_length - 1) / page_size * page_size;
  }

 private:
  std::vector<int32_t> tokens_;
};

double points(int64_t tokens, int64_t of) { return of == 0 ? 0.0 : 100.0 * static_cast<double>(tokens) / static_cast<double>(of); }

// What is known of a request while it runs.
struct Progress {
  bool started = false;
  int64_t bound = 0;  // tokens
  int64_t ready = 0;  // of them, computed by others before its first rows
  int64_t hit = 0;
};

}  // namespace

int32_t PrefixTrace::output_token(const TraceRequest& request, int64_t index) const {
  return static_cast<int32_t>(std::numeric_limits<int32_t>::max() - (request.first_output + index));
}

std::vector<int32_t> PrefixTrace::prompt(const TraceRequest& request) const {
  std::vector<int32_t> tokens(static_cast<size_t>(request.input_length));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto size = static_cast<size_t>(kTraceBlockTokens);
    tokens[i] = request.blocks[i / size] * static_cast<int32_t>(kTraceBlockTokens) + static_cast<int32_t>(i % size);
  }
  return tokens;
}

int64_t PrefixTrace::pages_of_all(int64_t page_size) const {
  int64_t pages = 0;
  for (const TraceRequest& r : requests) pages += (r.input_length + r.output_length) / page_size + 1;
  return pages;
}

Result<PrefixTrace> read_prefix_trace(const std::string& path) {
  INGOT_ASSIGN(const std::string text, read_file(path, kMaxTraceBytes));
  TraceBuilder builder;
  INGOT_TRY(for_each_json_line(text, path, [&](Json object, const std::string& place) -> Result<bool> {
    if (!object.is_object()) return fail("{}: not a JSON object", place);
    const auto added = builder.add({.place = place, .object = std::move(object)});
    if (!added) return tl::unexpected(added.error());
    return true;
  }));
  if (builder.trace.requests.empty()) return fail("{}: no request in it", path);
  return std::move(builder.trace);
}

ReplayFigures replay_prefix_trace(const PrefixTrace& trace, const ReplayOptions& options) {
  const auto wall_start = std::chrono::steady_clock::now();
  sched::SchedulerOptions scheduling = options.scheduler;
  if (scheduling.context_length == 0) {
    for (const TraceRequest& r : trace.requests) {
      scheduling.context_length = std::max(scheduling.context_length, r.input_length + r.output_length + 1);
    }
  }
  sched::Scheduler scheduler(scheduling);
  ReplayFigures figures;
  std::vector<Progress> progress(trace.requests.size());
  Coverage arrived(trace.num_chains);
  Coverage computed(trace.num_chains);
  const double row_ns = 1e9 / options.tokens_per_second;
  int64_t now_ns = 0;

  const auto arrive = [&](size_t index) {
    const TraceRequest& traced = trace.requests[index];
    sched::Request request;
    request.id = index;
    request.prompt = trace.prompt(traced);
    request.sampling.max_tokens = static_cast<int32_t>(traced.output_length);
    request.submitted_ns = now_ns;
    if (!sched::Scheduler::admissible(request, scheduling)) {
      ++figures.refused_requests;
      return;
    }
    Progress& its = progress[index];
    its.bound = arrived.saves(traced, scheduling.page_size);
    arrived.add(traced, 0, traced.input_length);
    figures.prompt_tokens += traced.input_length;
    request.sink = [&its](const sched::TokenEvent& event) { its.hit = event.cached_tokens; };
    scheduler.submit(std::move(request));
  };

  for (size_t next = 0; next < trace.requests.size() || scheduler.has_work();) {
    if (!scheduler.has_work()) now_ns = std::max(now_ns, trace.requests[next].arrival_ns);
    while (next < trace.requests.size() && trace.requests[next].arrival_ns <= now_ns) arrive(next++);
    if (!scheduler.has_work()) continue;  // all that came were refused

    const sched::BatchPlan plan = scheduler.plan(now_ns);
    sched::BatchResult result;
    for (const sched::BatchItem& item : plan.items) {
      const TraceRequest& traced = trace.requests[item.request];
      Progress& its = progress[item.request];
      if (!its.started) {
        its.started = true;
        its.ready = std::min(computed.saves(traced, scheduling.page_size), its.bound);
      }
      if (item.sample) {
        result.sampled.push_back({.request = item.request, .token_ids = {trace.output_token(traced, item.num_generated)}, .logprobs = {}});
      }
    }
    const sched::SchedulerStats stats = scheduler.stats();
    figures.max_waiting = std::max(figures.max_waiting, stats.waiting);
    figures.max_running = std::max(figures.max_running, stats.running);
    if (!plan.items.empty()) {
      now_ns += std::llround(options.step_ms * 1e6 + static_cast<double>(plan.num_tokens) * row_ns);
      ++figures.steps;
    }
    for (const sched::BatchItem& item : plan.items) {
      computed.add(trace.requests[item.request], item.start, item.start + static_cast<int64_t>(item.token_ids.size()));
    }
    scheduler.commit(plan, result);
  }

  figures.stats = scheduler.stats();
  for (const Progress& its : progress) {
    const int64_t lost = std::max<int64_t>(its.ready - its.hit, 0);
    figures.hit_tokens += its.hit;
    figures.bound_tokens += its.bound;
    figures.lost_tokens += lost;
    figures.not_ready_tokens += its.bound - its.hit - lost;
  }
  INGOT_CHECK(figures.hit_tokens == figures.stats.cache_hit_tokens && figures.prompt_tokens == figures.stats.cache_query_tokens,
              "the requests were told of {} cached tokens of {}, the scheduler counted {} of {}", figures.hit_tokens, figures.prompt_tokens,
              figures.stats.cache_hit_tokens, figures.stats.cache_query_tokens);
  figures.simulated_s = static_cast<double>(now_ns) / 1e9;
  figures.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_start).count();
  return figures;
}

// ----------------------------------------------------------------------------------------------------------------------- the command

Result<int64_t> parse_token_count(const std::string& text, const std::string& flag) {
  int64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, count);
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  const int64_t factor = unit.empty() ? 1 : unit == "k" ? 1000 : unit == "M" ? 1'000'000 : unit == "G" ? 1'000'000'000 : 0;
  if (code != std::errc() || factor == 0 || count < 0 || count > kMaxPoolTokens / factor) {
    return fail_hint("for example 65536, 100k, 1M or 2G", "{} {}: not a count of tokens up to {}", flag, text, kMaxPoolTokens);
  }
  return count * factor;
}

namespace {

struct Pool {
  std::string name;  // as given
  int64_t pages = 0;
};

struct Settings {
  ReplayOptions replay;  // without the pool
  std::vector<Pool> pools;
};

Result<Settings> settings_of(const BenchPrefixCacheOptions& options, const PrefixTrace& trace) {
  Settings settings;
  sched::SchedulerOptions& scheduling = settings.replay.scheduler;
  scheduling.page_size = options.page_size;
  scheduling.chunked_prefill_size = options.chunked_prefill_size;
  scheduling.max_running_requests = options.max_running_requests;
  scheduling.policy = options.policy == "lpm" ? sched::Policy::lpm : sched::Policy::fcfs;
  INGOT_ASSIGN(const int64_t host_tokens, parse_token_count(options.host_tokens, "--host-tokens"));
  scheduling.host_pages = host_tokens / options.page_size;
  settings.replay.step_ms = options.step_ms;
  settings.replay.tokens_per_second = options.tokens_per_second;
  for (const std::string& name : options.pool_tokens) {
    if (name == "all") {
      settings.pools.push_back({.name = name, .pages = trace.pages_of_all(options.page_size)});
      continue;
    }
    INGOT_ASSIGN(const int64_t tokens, parse_token_count(name, "--pool-tokens"));
    const int64_t pages = tokens / options.page_size;
    if (pages < 1 || pages > std::numeric_limits<int32_t>::max()) {
      return fail("--pool-tokens {} is {} pages of {} tokens; from 1 to {} are possible", name, pages, options.page_size,
                  std::numeric_limits<int32_t>::max());
    }
    settings.pools.push_back({.name = name, .pages = pages});
  }
  return settings;
}

Result<> check_flags(const BenchPrefixCacheOptions& options) {
  constexpr int64_t kMost = 1 << 20;
  for (const auto& [flag, value] : {std::pair("--page-size", options.page_size),
                                    {"--chunked-prefill-size", options.chunked_prefill_size},
                                    {"--max-running-requests", options.max_running_requests}}) {
    if (value < 1 || value > kMost) return fail("{} {} is not from 1 to {}", flag, value, kMost);
  }
  if (options.policy != "fcfs" && options.policy != "lpm") return fail("--policy {} is neither fcfs nor lpm", options.policy);
  if (!(options.step_ms >= 0 && options.step_ms <= 1e6)) return fail("--step-ms {} is not from 0 to 1e6", options.step_ms);
  if (!(options.tokens_per_second >= 1 && options.tokens_per_second <= 1e9)) {
    return fail("--tokens-per-second {} is not from 1 to 1e9", options.tokens_per_second);
  }
  if (options.pool_tokens.empty()) return fail("--pool-tokens names no pool");
  return {};
}

Json to_json(const Pool& pool, int64_t page_size, const ReplayFigures& f) {
  return {{"pool", pool.name},
          {"pool_tokens", pool.pages * page_size},
          {"prompt_tokens", f.prompt_tokens},
          {"hit_tokens", f.hit_tokens},
          {"bound_tokens", f.bound_tokens},
          {"hit_percent", points(f.hit_tokens, f.prompt_tokens)},
          {"bound_percent", points(f.bound_tokens, f.prompt_tokens)},
          {"not_ready_tokens", f.not_ready_tokens},
          {"lost_tokens", f.lost_tokens},
          {"host_hit_tokens", f.stats.host_hit_tokens},
          {"evicted_pages", f.stats.evicted_pages},
          {"preemptions", f.stats.preemptions},
          {"max_waiting", f.max_waiting},
          {"max_running", f.max_running},
          {"finished_requests", f.stats.finished_requests},
          {"refused_requests", f.refused_requests},
          {"completion_tokens", f.stats.completion_tokens},
          {"steps", f.steps},
          {"simulated_seconds", f.simulated_s},
          {"wall_seconds", f.wall_s}};
}

Result<> bench(const BenchPrefixCacheOptions& options) {
  INGOT_TRY(check_flags(options));
  INGOT_ASSIGN(const PrefixTrace trace, read_prefix_trace(options.trace));
  INGOT_ASSIGN(const Settings settings, settings_of(options, trace));
  if (!options.json) {
    fmt::print(
        "{}: {} requests, {} different blocks of {} tokens; page {}, {}, host tier {} tokens, at most {} rows and {} requests a step\n",
        options.trace, trace.requests.size(), trace.num_blocks, kTraceBlockTokens, options.page_size, options.policy, options.host_tokens,
        options.chunked_prefill_size, options.max_running_requests);
    fmt::print("simulated: a step lasts {} ms and 1 s for {} rows; outputs are as long as in the trace\n", options.step_ms,
               options.tokens_per_second);
    fmt::print(
        "hit and bound in % of prompt tokens; what misses to the bound in points: not ready (still to be computed), lost (evicted)\n\n");
    fmt::print("{:>9} {:>7} {:>7} {:>7} {:>10} {:>7} {:>10} {:>10} {:>9} {:>9} {:>9} {:>8} {:>9} {:>7}\n", "pool", "hit", "bound", "misses",
               "not ready", "lost", "host hits", "evictions", "preempted", "waiting", "running", "refused", "steps", "wall s");
  }
  Json rows = Json::array();
  for (const Pool& pool : settings.pools) {
    ReplayOptions replay = settings.replay;
    replay.scheduler.num_pages = pool.pages;
    const ReplayFigures f = replay_prefix_trace(trace, replay);
    rows.push_back(to_json(pool, options.page_size, f));
    if (options.json) continue;
    const auto part = [&](int64_t tokens) { return points(tokens, f.prompt_tokens); };
    fmt::print("{:>9} {:>7.2f} {:>7.2f} {:>7.2f} {:>10.2f} {:>7.2f} {:>10.2f} {:>10} {:>9} {:>9} {:>9} {:>8} {:>9} {:>7.1f}\n", pool.name,
               part(f.hit_tokens), part(f.bound_tokens), part(f.bound_tokens - f.hit_tokens), part(f.not_ready_tokens), part(f.lost_tokens),
               part(f.stats.host_hit_tokens), f.stats.evicted_pages, f.stats.preemptions, f.max_waiting, f.max_running, f.refused_requests,
               f.steps, f.wall_s);
    std::fflush(stdout);
  }
  if (options.json) {
    const Json report = {{"trace", options.trace},
                         {"requests", trace.requests.size()},
                         {"page_size", options.page_size},
                         {"policy", options.policy},
                         {"host_tokens", options.host_tokens},
                         {"chunked_prefill_size", options.chunked_prefill_size},
                         {"max_running_requests", options.max_running_requests},
                         {"step_ms", options.step_ms},
                         {"tokens_per_second", options.tokens_per_second},
                         {"pools", rows}};
    fmt::print("{}\n", report.dump(2));
  }
  return {};
}

}  // namespace

int run_bench_prefix_cache(const BenchPrefixCacheOptions& options) {
  const auto done = bench(options);
  if (!done) return log_error("{}", done.error().text()), 1;
  return 0;
}

}  // namespace ingot::apps
