// From samples to figures. Every sample is kept, so percentiles are exact: linear between the two nearest ranks, as numpy's default. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "load/objective.h"
#include "load/sample.h"

namespace ingot::load {

struct Distribution {
  std::vector<double> sorted;

  Distribution() = default;
  explicit Distribution(std::vector<double> values);
  bool empty() const { return sorted.empty(); }
  double percentile(double p) const;  // 0 to 100; NaN when empty
  double mean() const;
  Json json() const;  // n, mean, min, p50, p90, p95, p99, max
};

// How the tokens of an answer were counted, the best first.
enum class TokenCount : uint8_t {
  events_told,    // each event tells its tokens: every gap between tokens is known
  usage,          // the answer's number is known: its first event is one token, the others share the rest
  one_per_event,  // nobody tells: events are counted, and the report warns
};
const char* name_of(TokenCount count);

struct ClientHealth {
  double late_p50_ms = 0, late_p99_ms = 0, late_max_ms = 0;  // sends behind their time (open loop)
  double lag_p50_ms = 0, lag_p99_ms = 0, lag_max_ms = 0;     // of the client's thread
  double cpu_share = 0;                                      // of one core
  int64_t stalls = 0;                                        // requests whose text was not made in time
  std::vector<std::string> warnings;
};

struct Figures {
  int64_t requests = 0, ok = 0, warmup = 0;
  std::map<std::string, int64_t> errors;
  std::map<std::string, std::string> error_examples;
  std::map<std::string, int64_t> finish_reasons;
  double duration_s = 0;                        // first measured request sent, last one ended
  double steady_s = 0;                          // first to last measured request sent
  int64_t input_tokens = 0, output_tokens = 0;  // of answered, measured requests
  double input_tok_s = 0, output_tok_s = 0, total_tok_s = 0, request_s = 0;
  double steady_output_tok_s = 0;          // tokens that came while requests were being sent; 0 when that was no time
  double peak_output_tok_s = 0;            // the most in any second, not below the mean
  double offered_rate = 0, sent_rate = 0;  // requests a second: asked for, sent; 0: closed loop
  double mean_concurrency = 0;
  Distribution ttft_ms, ttft_content_ms, tpot_ms, itl_ms, e2e_ms;
  std::optional<double> goodput_s, goodput_share;
  TokenCount counted = TokenCount::usage;
  int64_t events = 0, counted_tokens = 0;  // tokens counted per event; equal to output_tokens with usage
  // The asked and the told: prompt lengths, cached tokens.
  int64_t wrong_prompt_length = 0, wrong_output_length = 0, short_answers = 0;
  double planned_input = 0;         // mean tokens
  double asked_hit_ratio = 0;       // of a cache without limit
  std::optional<double> hit_ratio;  // empty: the server does not tell cached_tokens
  std::optional<double> acceptance_length, acceptance_rate;
  ClientHealth client;
  std::vector<std::string> warnings;

  // "ttft_p95" and so on, in ms; nothing without a sample.
  std::optional<double> value(const Objective& objective) const;
};

struct RunFacts {
  double offered_rate = 0;  // 0: closed loop
  std::vector<int64_t> lags_ns;
  double cpu_share = 0;
  int64_t stalls = 0;
  std::vector<Objective> goodput;
  bool ignore_eos = true;
};
Figures figures_of(const std::vector<Sample>& samples, const RunFacts& facts);

// Tokens of an answer by the best count there is.
int64_t output_tokens(const Sample& sample);
double tpot_ms(const Sample& sample);  // NaN below two tokens

Json to_json(const Figures& figures);
Json to_json(const Sample& sample);
// What every name means, for reports.
Json definitions();

}  // namespace ingot::load
