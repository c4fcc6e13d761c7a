#include "load/figures.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

namespace ingot::load {

namespace {
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kSecond = 1e9;
// Bounds of warnings.
constexpr double kLateMs = 5, kLateShare = 0.05;  // of sends: more than both, of the median TTFT
constexpr double kLagMs = 10;
constexpr double kCpuShare = 0.9;
constexpr double kRateShare = 0.95;
constexpr double kMergedEvents = 1.05;  // tokens an event
constexpr double kHitDifference = 0.05;

double ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

bool all_told(const Sample& s) {
  return std::all_of(s.arrived.begin(), s.arrived.end(), [](const Arrived& a) { return a.tokens >= 0; });
}

// Tokens of each event. `counted` becomes the worse of itself and how they were counted.
std::vector<int64_t> tokens_of_events(const Sample& s, TokenCount& counted) {
  std::vector<int64_t> tokens(s.arrived.size());
  if (all_told(s)) {
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = s.arrived[i].tokens;
    return tokens;
  }
  counted = std::max(counted, s.usage.completion_tokens >= 0 ? TokenCount::usage : TokenCount::one_per_event);
  if (tokens.empty()) return tokens;
  // The first event is one token, as TPOT has it; the others share what is left.
  const auto total = static_cast<size_t>(std::max<int64_t>(output_tokens(s), 1));
  const size_t others = tokens.size() - 1;
  tokens[0] = static_cast<int64_t>(others == 0 ? total : 1);
  for (size_t i = 0; i < others; ++i)
    tokens[i + 1] = static_cast<int64_t>((i + 1) * (total - 1) / others) - static_cast<int64_t>(i * (total - 1) / others);
  return tokens;
}

// Gaps between tokens of one answer, ms: an event with k tokens that comes g after the one before it is k gaps of g / k. `tokens`: of each
// event.
void add_gaps_ms(const Sample& s, const std::vector<int64_t>& tokens, std::vector<double>& gaps) {
  int64_t before = s.first_token_ns;
  for (size_t i = 1; i < tokens.size(); ++i) {
    if (tokens[i] == 0) continue;  // part of a token's text: its time is the whole token's
    gaps.insert(gaps.end(), static_cast<size_t>(tokens[i]), ms(s.arrived[i].at_ns - before) / static_cast<double>(tokens[i]));
    before = s.arrived[i].at_ns;
  }
}

Distribution distribution_ms(std::span<const int64_t> ns) {
  std::vector<double> values;
  for (const int64_t one : ns) values.push_back(ms(one));
  return Distribution(std::move(values));
}

// The most tokens in any second.
double peak_per_second(std::vector<std::pair<int64_t, int64_t>> arrivals) {
  std::sort(arrivals.begin(), arrivals.end());
  int64_t sum = 0, most = 0;
  size_t from = 0;
  for (const auto& [at, tokens] : arrivals) {
    sum += tokens;
    while (at - arrivals[from].first >= static_cast<int64_t>(kSecond)) sum -= arrivals[from++].second;
    most = std::max(most, sum);
  }
  return static_cast<double>(most);
}

bool meets(const Sample& s, const std::vector<Objective>& objectives) {
  if (!s.ok()) return false;
  return std::all_of(objectives.begin(), objectives.end(), [&](const Objective& o) {
    switch (o.metric) {
      case Objective::Metric::ttft: return ms(s.first_token_ns - s.sent_ns) <= o.limit_ms;
      case Objective::Metric::tpot: {
        const double tpot = tpot_ms(s);
        return std::isnan(tpot) || tpot <= o.limit_ms;
      }
      case Objective::Metric::e2e: return ms(s.end_ns - s.sent_ns) <= o.limit_ms;
      case Objective::Metric::itl: return true;  // the parser refuses it for one request
    }
    return false;
  });
}

void judge_client(Figures& f, const std::vector<Sample>& samples, const RunFacts& facts) {
  std::vector<int64_t> late;
  for (const Sample& s : samples)
    if (!s.is_warmup && s.due_ns >= 0) late.push_back(std::max<int64_t>(0, s.sent_ns - s.due_ns));
  ClientHealth& c = f.client;
  if (const auto d = distribution_ms(late); !d.empty())
    c.late_p50_ms = d.percentile(50), c.late_p99_ms = d.percentile(99), c.late_max_ms = d.percentile(100);
  if (const auto d = distribution_ms(facts.lags_ns); !d.empty())
    c.lag_p50_ms = d.percentile(50), c.lag_p99_ms = d.percentile(99), c.lag_max_ms = d.percentile(100);
  c.cpu_share = facts.cpu_share;
  c.stalls = facts.stalls;
  const double ttft = f.ttft_ms.empty() ? 0 : f.ttft_ms.percentile(50);
  if (c.late_p99_ms > kLateMs && c.late_p99_ms > kLateShare * ttft)
    c.warnings.push_back(
        fmt::format("the client sent late: p99 {:.1f} ms behind the schedule; latencies of this run are the client's, too", c.late_p99_ms));
  if (c.lag_p99_ms > kLagMs)
    c.warnings.push_back(
        fmt::format("the client's thread was behind: p99 {:.1f} ms; gaps between tokens below that are not to be trusted", c.lag_p99_ms));
  if (c.cpu_share > kCpuShare)
    c.warnings.push_back(fmt::format("the client used {:.0f} % of its core: it may be the bottleneck", 100 * c.cpu_share));
  if (c.stalls > 0) c.warnings.push_back(fmt::format("{} requests waited for the client to make their text", c.stalls));
}

void judge(Figures& f, const RunFacts& facts, double scheduled_rate) {
  auto& w = f.warnings;
  if (f.ok < f.requests)
    w.push_back(fmt::format("{} of {} requests failed: latencies are of the others alone", f.requests - f.ok, f.requests));
  if (f.counted == TokenCount::one_per_event)
    w.push_back("the server tells no usage: events are counted as tokens, and with drafts an event holds several");
  else if (f.counted == TokenCount::usage && f.events > 0 &&
           static_cast<double>(f.counted_tokens) > kMergedEvents * static_cast<double>(f.events))
    w.push_back(
        fmt::format("an event held {:.2f} tokens in the mean: an answer's tokens are shared out evenly over its events; "
                    "--count-tokens logprobs counts each event's tokens",
                    static_cast<double>(f.counted_tokens) / static_cast<double>(f.events)));
  if (facts.offered_rate > 0 && scheduled_rate > 0) {
    if (f.sent_rate < kRateShare * scheduled_rate)
      w.push_back(fmt::format("{:.3f} requests/s were sent where the schedule had {:.3f}", f.sent_rate, scheduled_rate));
    if (f.steady_s > 0 && f.duration_s > 0 && f.requests >= 10) {
      const double drain = f.duration_s - f.steady_s;
      if (!f.e2e_ms.empty() && drain > 3 * f.e2e_ms.percentile(0) / 1e3 && drain > 0.5 * f.steady_s)
        w.push_back(
            fmt::format("the server was {:.1f} s behind when the last request had been sent: it does not hold this rate, and a longer "
                        "run would show longer latencies",
                        drain));
    }
  }
  if (f.wrong_prompt_length > 0)
    w.push_back(fmt::format("{} prompts were not of the planned length by the server's count (mean planned {:.0f}, told {:.0f})",
                            f.wrong_prompt_length, f.planned_input,
                            f.ok > 0 ? static_cast<double>(f.input_tokens) / static_cast<double>(f.ok) : 0.0));
  if (f.short_answers > 0 && facts.ignore_eos)
    w.push_back(fmt::format("{} answers ended before the planned length: the server does not obey ignore_eos", f.short_answers));
  if (f.hit_ratio && f.planned_input > 0 && std::abs(*f.hit_ratio - f.asked_hit_ratio) > kHitDifference)
    w.push_back(fmt::format("cache hits: {:.1f} % of the prompts' tokens, where the workload offers {:.1f} %", 100 * *f.hit_ratio,
                            100 * f.asked_hit_ratio));
}
}  // namespace

const char* name_of(TokenCount count) {
  switch (count) {
    case TokenCount::events_told: return "each event";
    case TokenCount::usage: return "usage";
    case TokenCount::one_per_event: return "one an event";
  }
  return "";
}

Distribution::Distribution(std::vector<double> values) : sorted(std::move(values)) { std::sort(sorted.begin(), sorted.end()); }

double Distribution::percentile(double p) const {
  if (sorted.empty()) return kNan;
  const double at = p / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  if (below + 1 >= sorted.size()) return sorted.back();
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[below + 1] - sorted[below]);
}

double Distribution::mean() const {
  return sorted.empty() ? kNan : std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(sorted.size());
}

Json Distribution::json() const {
  if (sorted.empty()) return {{"n", 0}};
  Json json{{"n", sorted.size()}, {"mean", mean()}, {"min", sorted.front()}};
  for (const int p : {50, 90, 95, 99}) json[fmt::format("p{}", p)] = percentile(p);
  json["max"] = sorted.back();
  return json;
}

int64_t output_tokens(const Sample& s) {
  if (s.usage.completion_tokens >= 0) return s.usage.completion_tokens;
  if (!all_told(s)) return static_cast<int64_t>(s.arrived.size());
  int64_t sum = 0;
  for (const Arrived& a : s.arrived) sum += a.tokens;
  return sum;
}

double tpot_ms(const Sample& s) {
  const int64_t tokens = output_tokens(s);
  if (tokens < 2 || s.arrived.empty()) return kNan;
  return ms(s.last_token_ns() - s.first_token_ns) / static_cast<double>(tokens - 1);
}

std::optional<double> Figures::value(const Objective& o) const {
  const Distribution& d = o.metric == Objective::Metric::ttft   ? ttft_ms
                          : o.metric == Objective::Metric::tpot ? tpot_ms
                          : o.metric == Objective::Metric::itl  ? itl_ms
                                                                : e2e_ms;
  if (d.empty()) return std::nullopt;
  return d.percentile(o.percentile);
}

Figures figures_of(const std::vector<Sample>& samples, const RunFacts& facts) {
  Figures f;
  f.offered_rate = facts.offered_rate;
  int64_t first_sent = INT64_MAX, last_sent = INT64_MIN, last_end = INT64_MIN, first_due = INT64_MAX, last_due = INT64_MIN, num_due = 0;
  int64_t first_due_sent = INT64_MAX, last_due_sent = INT64_MIN;
  for (const Sample& s : samples) {
    if (s.is_warmup) {
      ++f.warmup;
      continue;
    }
    ++f.requests;
    first_sent = std::min(first_sent, s.sent_ns);
    last_sent = std::max(last_sent, s.sent_ns);
    last_end = std::max(last_end, s.end_ns);
    if (s.due_ns < 0) continue;
    ++num_due;
    first_due = std::min(first_due, s.due_ns), last_due = std::max(last_due, s.due_ns);
    first_due_sent = std::min(first_due_sent, s.sent_ns), last_due_sent = std::max(last_due_sent, s.sent_ns);
  }
  if (f.requests == 0) return f;
  f.duration_s = static_cast<double>(last_end - first_sent) / kSecond;
  f.steady_s = static_cast<double>(last_sent - first_sent) / kSecond;
  const auto rate = [](int64_t n, int64_t from, int64_t to) {
    return n > 1 && to > from ? static_cast<double>(n - 1) * kSecond / static_cast<double>(to - from) : 0.0;
  };
  f.sent_rate = rate(num_due, first_due_sent, last_due_sent);

  std::vector<double> ttft, ttft_content, tpot, itl, e2e;
  std::vector<std::pair<int64_t, int64_t>> arrivals;
  int64_t cached = 0, expected_cached = 0, told_input = 0, planned_input = 0, steady_tokens = 0, good = 0, drafted = 0, accepted = 0;
  int64_t speculative_tokens = 0;
  double verifications = 0, in_flight_s = 0;
  bool cached_told = true;
  f.counted = TokenCount::events_told;
  for (const Sample& s : samples) {
    TokenCount counted = TokenCount::events_told;
    const auto tokens = tokens_of_events(s, counted);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (s.arrived[i].at_ns >= first_sent && s.arrived[i].at_ns < last_sent) steady_tokens += tokens[i];
      if (s.arrived[i].at_ns >= first_sent && s.arrived[i].at_ns <= last_end) arrivals.emplace_back(s.arrived[i].at_ns, tokens[i]);
    }
    if (s.is_warmup) continue;
    in_flight_s += static_cast<double>(s.end_ns - s.sent_ns) / kSecond;
    if (!facts.goodput.empty() && meets(s, facts.goodput)) ++good;
    if (!s.ok()) {
      ++f.errors[s.error];
      f.error_examples.try_emplace(s.error, s.detail);
      continue;
    }
    ++f.ok;
    ++f.finish_reasons[s.finish_reason.empty() ? "none" : s.finish_reason];
    ttft.push_back(ms(s.first_token_ns - s.sent_ns));
    if (s.first_content_ns >= 0) ttft_content.push_back(ms(s.first_content_ns - s.sent_ns));
    e2e.push_back(ms(s.end_ns - s.sent_ns));
    if (const double t = tpot_ms(s); !std::isnan(t)) tpot.push_back(t);
    add_gaps_ms(s, tokens, itl);
    f.counted = std::max(f.counted, counted);
    f.events += static_cast<int64_t>(s.arrived.size());
    f.counted_tokens += std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
    const int64_t out = output_tokens(s);
    f.output_tokens += out;
    if (s.planned_output > 0 && out != s.planned_output) ++f.wrong_output_length;
    if (s.planned_output > 0 && out < s.planned_output) ++f.short_answers;
    planned_input += s.planned_input;
    const int64_t in = s.usage.prompt_tokens >= 0 ? s.usage.prompt_tokens : s.planned_input;
    f.input_tokens += in;
    if (s.has_exact_input && s.usage.prompt_tokens >= 0 && s.usage.prompt_tokens != s.planned_input) ++f.wrong_prompt_length;
    if (s.usage.cached_tokens < 0) cached_told = false;
    cached += s.usage.cached_tokens;
    told_input += s.usage.prompt_tokens;
    expected_cached += s.expected_cached;
    if (s.usage.mean_acceptance_length > 0) {
      // Weighted by verifications.
      verifications += static_cast<double>(out) / s.usage.mean_acceptance_length;
      speculative_tokens += out;
      drafted += std::max<int64_t>(0, s.usage.drafted);
      accepted += std::max<int64_t>(0, s.usage.accepted);
    }
  }
  const auto n = static_cast<double>(f.ok);
  if (f.ok > 0) f.planned_input = static_cast<double>(planned_input) / n;
  if (verifications > 0) {
    f.acceptance_length = static_cast<double>(speculative_tokens) / verifications;
    if (drafted > 0) f.acceptance_rate = static_cast<double>(accepted) / static_cast<double>(drafted);
  }
  if (planned_input > 0) f.asked_hit_ratio = static_cast<double>(expected_cached) / static_cast<double>(planned_input);
  if (f.ok > 0 && cached_told && told_input > 0) f.hit_ratio = static_cast<double>(cached) / static_cast<double>(told_input);
  f.ttft_ms = Distribution(std::move(ttft));
  f.ttft_content_ms = Distribution(std::move(ttft_content));
  f.tpot_ms = Distribution(std::move(tpot));
  f.itl_ms = Distribution(std::move(itl));
  f.e2e_ms = Distribution(std::move(e2e));
  if (f.duration_s > 0) {
    f.input_tok_s = static_cast<double>(f.input_tokens) / f.duration_s;
    f.output_tok_s = static_cast<double>(f.output_tokens) / f.duration_s;
    f.total_tok_s = f.input_tok_s + f.output_tok_s;
    f.request_s = n / f.duration_s;
    f.mean_concurrency = in_flight_s / f.duration_s;
    if (!facts.goodput.empty()) f.goodput_s = static_cast<double>(good) / f.duration_s;
  }
  if (!facts.goodput.empty()) f.goodput_share = static_cast<double>(good) / static_cast<double>(f.requests);
  if (f.steady_s > 0) f.steady_output_tok_s = static_cast<double>(steady_tokens) / f.steady_s;
  // A run shorter than two seconds may have no second that is as good as its mean.
  f.peak_output_tok_s = std::max(peak_per_second(std::move(arrivals)), f.output_tok_s);
  judge_client(f, samples, facts);
  judge(f, facts, rate(num_due, first_due, last_due));
  return f;
}

Json to_json(const Figures& f) {
  const auto optional = [](const std::optional<double>& v) { return v ? Json(*v) : Json(); };
  Json json{{"requests", f.requests},
            {"ok", f.ok},
            {"warmup_requests", f.warmup},
            {"errors", f.errors},
            {"error_examples", f.error_examples},
            {"finish_reasons", f.finish_reasons},
            {"duration_s", f.duration_s},
            {"sending_s", f.steady_s},
            {"offered_rate", f.offered_rate},
            {"sent_rate", f.sent_rate},
            {"request_s", f.request_s},
            {"mean_concurrency", f.mean_concurrency},
            {"input_tokens", f.input_tokens},
            {"output_tokens", f.output_tokens},
            {"input_tok_s", f.input_tok_s},
            {"output_tok_s", f.output_tok_s},
            {"total_tok_s", f.total_tok_s},
            {"steady_output_tok_s", f.steady_output_tok_s},
            {"peak_output_tok_s", f.peak_output_tok_s}};
  json["ttft_ms"] = f.ttft_ms.json();
  json["ttft_content_ms"] = f.ttft_content_ms.json();
  json["tpot_ms"] = f.tpot_ms.json();
  json["itl_ms"] = f.itl_ms.json();
  json["e2e_ms"] = f.e2e_ms.json();
  json["goodput_s"] = optional(f.goodput_s);
  json["goodput_share"] = optional(f.goodput_share);
  json["tokens_counted_by"] = name_of(f.counted);
  json["events"] = f.events;
  json["prompts_of_wrong_length"] = f.wrong_prompt_length;
  json["answers_of_wrong_length"] = f.wrong_output_length;
  json["asked_hit_ratio"] = f.asked_hit_ratio;
  json["hit_ratio"] = optional(f.hit_ratio);
  json["acceptance_length"] = optional(f.acceptance_length);
  json["acceptance_rate"] = optional(f.acceptance_rate);
  json["client"] = {{"late_ms", {{"p50", f.client.late_p50_ms}, {"p99", f.client.late_p99_ms}, {"max", f.client.late_max_ms}}},
                    {"lag_ms", {{"p50", f.client.lag_p50_ms}, {"p99", f.client.lag_p99_ms}, {"max", f.client.lag_max_ms}}},
                    {"cpu_share", f.client.cpu_share},
                    {"stalls", f.client.stalls},
                    {"warnings", f.client.warnings}};
  json["warnings"] = f.warnings;
  return json;
}

Json to_json(const Sample& s) {
  const auto time = [](int64_t ns) { return ns < 0 ? Json() : Json(ms(ns)); };
  Json json{{"index", s.index}, {"session", s.session}, {"turn", s.turn}, {"warmup", s.is_warmup}};
  json["due_ms"] = time(s.due_ns);
  json["sent_ms"] = ms(s.sent_ns);
  json["first_token_ms"] = time(s.first_token_ns);
  json["first_content_ms"] = time(s.first_content_ns);
  json["last_token_ms"] = time(s.last_token_ns());
  json["end_ms"] = ms(s.end_ns);
  json["planned_input"] = s.planned_input;
  json["planned_output"] = s.planned_output;
  json["prompt_tokens"] = s.usage.prompt_tokens;
  json["cached_tokens"] = s.usage.cached_tokens;
  json["output_tokens"] = s.ok() ? output_tokens(s) : 0;
  json["events"] = s.arrived.size();
  json["finish_reason"] = s.finish_reason;
  if (s.usage.mean_acceptance_length > 0) json["acceptance_length"] = s.usage.mean_acceptance_length;
  if (!s.ok()) json["error"] = s.error, json["detail"] = s.detail;
  return json;
}

Json definitions() {
  return {
      {"ttft",
       "from the moment the client begins a request (connecting included) to the first text of any kind: reasoning, answer or tool call"},
      {"ttft_content", "the same to the first text of the answer itself, behind reasoning"},
      {"tpot", "(last token - first token) / (output tokens - 1), of each answer"},
      {"itl",
       "gaps between tokens: an event with k tokens that comes g after the one before it is k gaps of g / k. k is told by the event "
       "(log-probabilities), else one for the first event and an even share of the answer's other tokens (usage) for each of the others"},
      {"e2e", "from the moment the client begins a request to the end of its stream"},
      {"percentiles", "exact, over all measured requests that were answered; linear between neighbours"},
      {"request_s", "measured requests answered / (first one sent to last one ended)"},
      {"output_tok_s", "their output tokens / the same time; input_tok_s and total_tok_s alike"},
      {"steady_output_tok_s", "tokens that came, of any request, while measured requests were being sent / that time"},
      {"peak_output_tok_s", "the most tokens in any second, not less than the mean"},
      {"goodput_s", "measured requests that met every objective by themselves / the same time as request_s"},
      {"offered_rate", "requests a second asked for; sent_rate: that were sent"},
      {"asked_hit_ratio", "share of prompt tokens that a cache without limit would have held, requests computed one after the other"},
      {"hit_ratio", "cached_tokens / prompt_tokens, both as the server tells them"},
      {"acceptance_length", "output tokens / verifications, from usage.speculative"},
      {"late", "sends behind their time in an open loop; lag: how late the client's own 10 ms timer was served"},
      {"warm-up", "requests sent before the first measured one; in no figure but steady_output_tok_s"},
  };
}

}  // namespace ingot::load
