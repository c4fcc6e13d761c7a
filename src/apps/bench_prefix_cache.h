// `ingot bench prefix-cache`: what the prefix cache saves on a recorded load. A trace in Mooncake's format (one JSON object a line) is
// replayed through the scheduler that serves, with a runner that computes nothing, on simulated time. Called by main.cc.
//
// Tokens. A trace names blocks of 512 prompt tokens by number; equal numbers are equal tokens. Each block becomes 512 token ids of its
// own, the last one cut to the prompt's length. Answers are drawn token by token, exactly as long as the trace says, from ids that occur
// nowhere else: a trace does not tell which later prompt quotes them, so hits on answers are not counted.
// Time. A step lasts step_ms + rows / tokens_per_second; requests arrive at their timestamps; copies between tiers take no time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "sched/scheduler.h"

namespace ingot::apps {

constexpr int64_t kTraceBlockTokens = 512;

struct TraceRequest {
  int64_t arrival_ns = 0;
  int64_t input_length = 0;     // prompt tokens, at least 1
  int64_t output_length = 0;    // tokens to draw, at least 1
  std::vector<int32_t> blocks;  // ceil(input_length / 512); numbered from 0 in order of first sight
  std::vector<int32_t> chains;  // as many: the number of the sequence of blocks up to and with this one
  int64_t first_output = 0;     // output tokens of all requests before this one
};

struct PrefixTrace {
  std::vector<TraceRequest> requests;  // by arrival
  int64_t num_blocks = 0;
  int64_t num_chains = 0;

  int32_t output_token(const TraceRequest& request, int64_t index) const;
  std::vector<int32_t> prompt(const TraceRequest& request) const;
  // Pages that hold every prompt and answer at once, nothing shared.
  int64_t pages_of_all(int64_t page_size) const;
};

// Errors name file, line and field: unreadable, not JSON, a field that is missing or out of range, as many block numbers as do not fit
// the length, a timestamp before the last one, no request at all.
Result<PrefixTrace> read_prefix_trace(const std::string& path);

struct ReplayOptions {
  sched::SchedulerOptions scheduler;  // context_length 0: the longest request
  double step_ms = 10;
  double tokens_per_second = 60000;
};

struct ReplayFigures {
  int64_t prompt_tokens = 0;  // of the requests that ran
  int64_t hit_tokens = 0;
  int64_t bound_tokens = 0;  // hits of a cache without limit, every prompt computed the moment it arrives
  // bound_tokens - hit_tokens, in two parts: what was still to be computed when a request first had rows, and what had been computed and
  // was gone again.
  int64_t not_ready_tokens = 0;
  int64_t lost_tokens = 0;
  int64_t refused_requests = 0;  // longer than the pool; they count nowhere
  int64_t max_waiting = 0;       // requests that a step left waiting
  int64_t max_running = 0;
  int64_t steps = 0;
  double simulated_s = 0;
  double wall_s = 0;
  sched::SchedulerStats stats;
};

ReplayFigures replay_prefix_trace(const PrefixTrace& trace, const ReplayOptions& options);

struct BenchPrefixCacheOptions {
  std::string trace;
  std::vector<std::string> pool_tokens{"100k", "300k", "1M", "3M", "10M", "30M", "all"};
  std::string host_tokens = "0";
  int64_t page_size = 64;
  int64_t chunked_prefill_size = 8192;
  int64_t max_running_requests = 256;
  std::string policy = "fcfs";  // fcfs or lpm
  double step_ms = 10;
  double tokens_per_second = 60000;
  bool json = false;
};

// A count of tokens: digits with k (thousand), M (million) or G behind them.
Result<int64_t> parse_token_count(const std::string& text, const std::string& flag);

// Returns the exit status. Figures go to standard output, errors to standard error: flags by name, the trace's by file, line and field.
int run_bench_prefix_cache(const BenchPrefixCacheOptions& options);

}  // namespace ingot::apps
