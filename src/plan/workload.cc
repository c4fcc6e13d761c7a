#include "plan/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/rng.h"
#include "plan/workload_trace.h"

namespace ingot::plan {

namespace {
// Streams of random numbers of one seed, so that changing the number of requests changes no length and no arrival before.
enum class Draw : uint64_t { gap = 1, input, output, order, think, unique };

double uniform(uint64_t seed, Draw draw, uint64_t index) { return random_uniform(mix64(seed) + static_cast<uint64_t>(draw), index); }
double exponential(uint64_t seed, Draw draw, uint64_t index) { return -std::log1p(-uniform(seed, draw, index)); }

// Contents that requests of other seeds do not have: a second run must not find the first one's prompts in the cache.
uint64_t unique_content(uint64_t seed, uint64_t index) {
  return random_bits(mix64(seed) + static_cast<uint64_t>(Draw::unique), index) >> 1;
}
// The same in every run, so that a prefix may be warm.
uint64_t shared_content(uint64_t group) { return random_bits(0x5ea1, group) >> 1; }

int64_t drawn_length(int64_t length, double ratio, double at) {
  const auto least = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(static_cast<double>(length) * ratio)));
  return least + static_cast<int64_t>(at * static_cast<double>(length - least + 1));
}

std::vector<PlannedRequest> plan_made_up(const Workload& w, int64_t count, uint64_t seed) {
  std::vector<int64_t> groups(static_cast<size_t>(count));
  for (size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<int64_t>(i) % std::max<int64_t>(w.num_groups, 1);
  if (w.shuffled) {
    for (size_t i = groups.size(); i > 1; --i)
      std::swap(groups[i - 1], groups[static_cast<size_t>(uniform(seed, Draw::order, i) * static_cast<double>(i))]);
  }
  std::vector<PlannedRequest> requests(static_cast<size_t>(count));
  for (size_t i = 0; i < requests.size(); ++i) {
    PlannedRequest& r = requests[i];
    const int64_t input = drawn_length(scaled(w.input_len, w.length_scale), w.range_ratio, uniform(seed, Draw::input, i));
    r.output_tokens = drawn_length(scaled(w.output_len, w.length_scale), w.range_ratio, uniform(seed, Draw::output, i));
    // One token is left to compute, whatever the rounding did.
    const int64_t prefix = w.kind == Workload::Kind::shared_prefix ? std::min(scaled(w.prefix_len, w.length_scale), input - 1) : 0;
    if (prefix > 0) r.prompt.push_back({shared_content(static_cast<uint64_t>(groups[i])), prefix, PromptPiece::Role::user});
    r.prompt.push_back({unique_content(seed, i), input - prefix, PromptPiece::Role::user});
    r.session = static_cast<int64_t>(i);
  }
  return requests;
}

std::vector<PlannedRequest> plan_agents(const Workload& w, int64_t sessions, uint64_t seed) {
  std::vector<PlannedRequest> requests;
  for (int64_t s = 0; s < sessions; ++s) {
    std::vector<PromptPiece> history;
    if (w.system_len > 0) history.push_back({shared_content(0), scaled(w.system_len, w.length_scale), PromptPiece::Role::system});
    for (int64_t turn = 0; turn < w.turns; ++turn) {
      const auto serial = static_cast<uint64_t>(requests.size());
      const bool is_tool = w.tool_len > 0 && turn % std::max<int64_t>(w.tool_turns, 1) != 0;
      const int64_t length = scaled(is_tool ? w.tool_len : w.input_len, w.length_scale);
      history.push_back({unique_content(seed, serial), length, PromptPiece::Role::user});
      PlannedRequest r;
      r.session = s;
      r.turn = turn;
      r.think_s = turn == 0 ? 0 : (is_tool ? w.tool_s : w.think_s) * exponential(seed, Draw::think, serial);
      r.prompt = history;
      r.output_tokens = scaled(w.output_len, w.length_scale);
      r.index = static_cast<int64_t>(serial);
      history.push_back({r.answer_content(), r.output_tokens, PromptPiece::Role::answer});
      requests.push_back(std::move(r));
    }
  }
  return requests;
}

struct Named {
  const char* name;
  Workload workload;
};

std::vector<Named> made_up_workloads() {
  using Kind = Workload::Kind;
  std::vector<Named> all;
  const auto add = [&](const char* name, const char* about, auto fill) {
    Workload w;
    w.name = name;
    w.about = about;
    fill(w);
    all.push_back({name, std::move(w)});
  };
  add("article", "20,000 tokens in, 1,000 out, the first 60 % of every prompt the same, Poisson arrivals", [](Workload& w) {
    w.kind = Kind::shared_prefix;
    w.input_len = 20'000, w.output_len = 1'000, w.prefix_len = 12'000;
  });
  add("aa-single", "10,000 tokens in, 1,500 out, unique prompts, one at a time",
      [](Workload& w) { w.input_len = 10'000, w.output_len = 1'500, w.concurrency = 1, w.num_requests = 8; });
  add("aa-short", "1,000 tokens in, 1,000 out, unique prompts, one at a time",
      [](Workload& w) { w.input_len = 1'000, w.output_len = 1'000, w.concurrency = 1, w.num_requests = 8; });
  add("shared-prefix", "64 groups of 16 prompts: 2,048 tokens of the group, 128 of their own, 256 out, shuffled", [](Workload& w) {
    w.kind = Kind::shared_prefix;
    w.input_len = 2'048 + 128, w.output_len = 256, w.prefix_len = 2'048, w.num_groups = 64, w.num_requests = 1'024;
    w.shuffled = true;
  });
  const auto random = [](int64_t input) {
    return
        [input](Workload& w) { w.input_len = input, w.output_len = 1'024, w.range_ratio = 0.8, w.concurrency = 16, w.num_requests = 160; };
  };
  add("random-1k1k", "unique prompts of 820 to 1,024 tokens, 820 to 1,024 out", random(1'024));
  add("random-8k1k", "unique prompts of 6,554 to 8,192 tokens, 820 to 1,024 out", random(8'192));
  add("agent", "sessions of 8 turns: 4,000 tokens of tools and rules, messages of 200, results of tools of 1,000, answers of 300, pauses",
      [](Workload& w) {
        w.kind = Kind::agent;
        w.turns = 8, w.system_len = 4'000, w.input_len = 200, w.tool_len = 1'000, w.tool_turns = 4, w.output_len = 300;
        w.think_s = 10, w.tool_s = 1, w.concurrency = 16, w.num_requests = 32;
      });
  return all;
}

uint64_t chained(uint64_t chain, const PromptPiece& piece) {
  return mix64(mix64(chain ^ piece.content) + static_cast<uint64_t>(piece.num_tokens));
}
}  // namespace

int64_t scaled(int64_t tokens, double scale) {
  if (tokens == 0) return 0;
  return std::max<int64_t>(1, std::llround(static_cast<double>(tokens) * scale));
}

int64_t PlannedRequest::input_tokens() const {
  return std::accumulate(prompt.begin(), prompt.end(), int64_t{0}, [](int64_t sum, const PromptPiece& p) { return sum + p.num_tokens; });
}

std::string_view name_of(Arrival arrival) {
  switch (arrival) {
    case Arrival::poisson: return "poisson";
    case Arrival::constant: return "constant";
    case Arrival::trace: return "trace";
  }
  return "";
}

Result<Arrival> arrival_named(std::string_view name) {
  for (const Arrival arrival : {Arrival::poisson, Arrival::constant, Arrival::trace})
    if (name == name_of(arrival)) return arrival;
  return fail_hint("use poisson, constant or trace", "arrival {} is unknown", name);
}

std::vector<std::string> workload_names() {
  std::vector<std::string> names;
  for (const Named& named : made_up_workloads()) names.emplace_back(named.name);
  for (const char* name : {"mooncake:FILE", "azure:FILE", "jsonl:FILE"}) names.emplace_back(name);
  return names;
}

Result<Workload> workload_named(std::string_view name) {
  for (Named& named : made_up_workloads())
    if (name == named.name) return std::move(named.workload);
  const size_t colon = name.find(':');
  const std::string_view kind = name.substr(0, colon);
  Workload w;
  w.name = name;
  w.num_requests = 0;
  w.arrival = Arrival::trace;
  if (kind == "mooncake")
    w.kind = Workload::Kind::mooncake, w.about = "a recorded load in Mooncake's format: times, lengths and shared blocks of 512 tokens";
  else if (kind == "azure")
    w.kind = Workload::Kind::azure, w.about = "a recorded load in Azure's format: times and lengths, unique prompts";
  else if (kind == "jsonl")
    w.kind = Workload::Kind::jsonl, w.about = "prompts or conversations of a file, one JSON object a line";
  else {
    std::string known;
    for (const std::string& one : workload_names()) known += (known.empty() ? "" : ", ") + one;
    return fail_hint("use one of " + known, "workload {} is unknown", name);
  }
  if (colon == std::string_view::npos || colon + 1 == name.size()) return fail("workload {}: expected {}:FILE", name, kind);
  w.file = name.substr(colon + 1);
  return w;
}

Result<std::vector<PlannedRequest>> plan_requests(const Workload& w, const PlanOptions& options) {
  using Kind = Workload::Kind;
  const int64_t wanted = options.num_requests.value_or(w.num_requests);
  const int64_t limit = wanted > 0 ? std::min(wanted, options.max_requests) : options.max_requests;
  std::vector<PlannedRequest> requests;
  const bool is_recorded = w.kind == Kind::mooncake || w.kind == Kind::azure || w.kind == Kind::jsonl;
  bool has_times = false;
  if (is_recorded) {
    INGOT_ASSIGN(RecordedLoad load, read_recorded_load(w, limit, options.seed));
    requests = std::move(load.requests);
    has_times = load.has_times;
  } else if (w.kind == Kind::agent) {
    requests = plan_agents(w, limit, options.seed);
  } else {
    requests = plan_made_up(w, limit, options.seed);
  }
  if (requests.empty()) return fail("workload {} has no request", w.name);
  const Arrival arrival = options.arrival.value_or(is_recorded && !has_times ? Arrival::poisson : w.arrival);
  if (arrival == Arrival::trace && !has_times)
    return fail_hint("give a rate, or a recorded load with times", "workload {} does not say when its requests arrive", w.name);
  const double rate = options.rate.value_or(w.rate);
  double at = 0;
  uint64_t session_serial = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    PlannedRequest& r = requests[i];
    r.index = static_cast<int64_t>(i);
    if (arrival == Arrival::trace || r.turn > 0) continue;
    r.arrival_s = at;
    if (rate > 0) at += (arrival == Arrival::constant ? 1.0 : exponential(options.seed, Draw::gap, session_serial++)) / rate;
  }
  return requests;
}

int64_t PrefixOracle::add(const PlannedRequest& request) {
  uint64_t chain = 0;
  int64_t hit = 0;
  bool hits = true;
  for (const PromptPiece& piece : request.prompt) {
    int64_t& there = seen_[chain][piece.content];
    if (hits) hit += std::min(there, piece.num_tokens);
    // What follows is at another place, and computed anew, unless this very piece was there to its end.
    if (there < piece.num_tokens) hits = false;
    there = std::max(there, piece.num_tokens);
    chain = chained(chain, piece);
  }
  int64_t& answer = seen_[chain][request.answer_content()];
  answer = std::max(answer, request.output_tokens);
  return std::max<int64_t>(0, std::min(hit, request.input_tokens() - 1));
}

}  // namespace ingot::plan
