#include "serve/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <thread>

#include "base/json.h"

namespace ingot::serve {
namespace {

using Labels = std::map<std::string, std::string>;

// A strict reader of the text format 0.0.4: whatever it does not know is a test failure, not a skipped line.
struct Scrape {
  std::map<std::string, std::string> types;                  // family -> counter, gauge, histogram
  std::set<std::string> helped;                              // families with HELP
  std::map<std::pair<std::string, Labels>, double> samples;  // (series name, labels) -> value

  // The family of a series: its own name, or that of the histogram it is a part of.
  std::string family(const std::string& name) const {
    if (types.contains(name)) return name;
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      if (!name.ends_with(suffix)) continue;
      const std::string base = name.substr(0, name.size() - std::string_view(suffix).size());
      if (types.contains(base) && types.at(base) == "histogram") return base;
    }
    return {};
  }
  double at(const std::string& name, Labels labels = {}) const {
    labels.emplace("model_name", "glm");
    const auto it = samples.find({name, labels});
    if (it == samples.end()) ADD_FAILURE() << "no sample " << name << " with labels " << testing::PrintToString(labels);
    return it == samples.end() ? std::nan("") : it->second;
  }
};

Scrape parse(const std::string& text) {
  static const std::regex comment(R"(# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+))");
  static const std::regex sample(R"(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(.*)\})? ([^ ]+))");
  static const std::regex label(R"re(([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$))re");
  Scrape s;
  std::istringstream in(text);
  EXPECT_TRUE(text.ends_with('\n'));
  for (std::string line; std::getline(in, line);) {
    std::smatch m;
    if (line.starts_with('#')) {
      if (!std::regex_match(line, m, comment)) {
        ADD_FAILURE() << "bad comment: " << line;
      } else if (m[1] == "HELP") {
        EXPECT_TRUE(s.helped.insert(m[2]).second) << "two HELP: " << line;
      } else {
        EXPECT_TRUE(s.types.emplace(m[2], m[3]).second) << "two TYPE: " << line;
      }
      continue;
    }
    if (!std::regex_match(line, m, sample)) {
      ADD_FAILURE() << "bad sample: " << line;
      continue;
    }
    Labels labels;
    std::string rest = m[3];
    for (std::smatch l; std::regex_search(rest, l, label, std::regex_constants::match_continuous); rest = l.suffix()) labels[l[1]] = l[2];
    EXPECT_EQ(rest, "") << line;
    size_t used = 0;
    const double value = std::stod(m[4], &used);
    EXPECT_EQ(used, m[4].str().size()) << line;
    EXPECT_FALSE(s.family(m[1]).empty()) << "no TYPE before " << line;
    EXPECT_TRUE(s.helped.contains(s.family(m[1]))) << "no HELP before " << line;
    EXPECT_TRUE(s.samples.emplace(std::pair{m[1].str(), labels}, value).second) << "twice: " << line;
  }
  for (const auto& [family, type] : s.types) {
    EXPECT_THAT(type, testing::AnyOf("counter", "gauge", "histogram")) << family;
    EXPECT_EQ(type == "counter" || family == "vllm:iteration_tokens_total", family.ends_with("_total")) << family;
  }
  // Histograms: buckets grow with `le`, the last is +Inf and equals _count.
  std::map<std::pair<std::string, Labels>, std::map<double, double>> histograms;
  for (const auto& [key, value] : s.samples) {
    const auto& [name, labels] = key;
    EXPECT_TRUE(std::isfinite(value)) << name;
    if (s.types.contains(name) || !name.ends_with("_bucket")) continue;
    Labels rest = labels;
    const std::string le = rest.at("le");
    rest.erase("le");
    histograms[{s.family(name), rest}][le == "+Inf" ? std::numeric_limits<double>::infinity() : std::stod(le)] = value;
  }
  for (const auto& [key, buckets] : histograms) {
    double previous = 0;
    for (const auto& [le, value] : buckets) {
      EXPECT_GE(value, previous) << key.first << " le=" << le;
      previous = value;
    }
    EXPECT_TRUE(std::isinf(buckets.rbegin()->first)) << key.first;
    const auto count = s.samples.find({key.first + "_count", key.second});
    if (count == s.samples.end() || !s.samples.contains({key.first + "_sum", key.second})) {
      ADD_FAILURE() << key.first << " lacks _count or _sum";
    } else {
      EXPECT_EQ(count->second, previous) << key.first;
    }
  }
  return s;
}

MetricsCacheInfo cache_info() {
  return {.page_size = 64, .pages = 1000, .host_pages = 200, .max_context = 100000, .cache_dtype = "bf16", .draft_positions = 3};
}

constexpr int64_t kMs = 1'000'000;

RequestRecord finished_request() {
  RequestRecord r;
  r.id = 7;
  r.prompt_tokens = 812;
  r.cached_tokens = 768;
  r.completion_tokens = 101;
  r.max_tokens = 4096;
  r.submitted_ns = 1000 * kMs;
  r.scheduled_ns = 1500 * kMs;
  r.first_token_ns = 2500 * kMs;
  r.last_token_ns = 5500 * kMs;
  r.finished_ns = 5600 * kMs;
  r.finish = sched::FinishReason::stop_string;
  return r;
}

TEST(Metrics, EveryNameThatRoutersReadIsThereBeforeTheFirstRequest) {
  const Metrics metrics("glm", 2, cache_info());
  const Scrape s = parse(metrics.scrape());
  for (const char* engine : {"0", "1"}) {
    const Labels e{{"engine", engine}};
    for (const char* gauge : {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"}) {
      EXPECT_EQ(s.at(std::string("vllm:") + gauge, e), 0);
    }
    for (const char* counter : {"prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens", "generation_tokens",
                                "spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"}) {
      EXPECT_EQ(s.at(std::string("vllm:") + counter + "_total", e), 0);
    }
    for (const char* reason : {"stop", "length", "abort", "error"}) {
      EXPECT_EQ(s.at("vllm:request_success_total", {{"engine", engine}, {"finished_reason", reason}}), 0);
    }
    for (const char* histogram :
         {"iteration_tokens_total", "request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens",
          "time_to_first_token_seconds", "inter_token_latency_seconds", "time_per_output_token_seconds",
          "request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
          "request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds"}) {
      const std::string name = std::string("vllm:") + histogram;
      EXPECT_EQ(s.types.at(name), "histogram");
      EXPECT_EQ(s.at(name + "_count", e), 0);
    }
    EXPECT_EQ(s.at("vllm:cache_config_info", {{"engine", engine},
                                              {"block_size", "64"},
                                              {"num_gpu_blocks", "1000"},
                                              {"num_cpu_blocks", "200"},
                                              {"cache_dtype", "bf16"},
                                              {"enable_prefix_caching", "True"}}),
              1);
  }
  // The label values of `le` are what dashboards of vLLM select.
  EXPECT_EQ(s.at("vllm:time_to_first_token_seconds_bucket", {{"engine", "0"}, {"le", "0.08"}}), 0);
  EXPECT_EQ(s.at("vllm:time_to_first_token_seconds_bucket", {{"engine", "0"}, {"le", "2560"}}), 0);
  EXPECT_EQ(s.at("vllm:request_prompt_tokens_bucket", {{"engine", "0"}, {"le", "100000"}}), 0);
  EXPECT_FALSE(s.samples.contains({"vllm:request_prompt_tokens_bucket", {{"model_name", "glm"}, {"engine", "0"}, {"le", "200000"}}}));
}

TEST(Metrics, OneRequestGivesExactFigures) {
  Metrics metrics("glm", 2, cache_info());
  metrics.on_first_token(1, 1.5);
  metrics.on_tokens(1, 0.03, 1);
  metrics.on_tokens(1, 0.18, 3);  // three tokens of one step: 0.06 s each
  metrics.on_step({.replica = 1,
                   .step = 1,
                   .start_ns = 1,
                   .plan_ns = 20'000,
                   .run_ns = 30 * kMs,
                   .commit_ns = 2 * kMs,
                   .prefill_rows = 44,
                   .decode_rows = 3,
                   .pages_saved = 2,
                   .pages_loaded = 5});
  RequestRecord request = finished_request();
  request.replica = 1;
  metrics.on_finished(request);
  ReplicaState state;
  state.replica = 1;
  state.running = 3;
  state.waiting = 2;
  state.free_pages = 300;
  state.cached_pages = 450;
  state.total_pages = 1000;
  state.steps = 9;
  state.prompt_tokens = 812;
  state.completion_tokens = 101;
  state.cache_query_tokens = 812;
  state.cache_hit_tokens = 768;
  state.host_hit_tokens = 64;
  state.evicted_pages = 4;
  state.preemptions = 1;
  state.drafts = 10;
  state.draft_tokens = 30;
  state.accepted_tokens = 21;
  state.drafted_at = {10, 10, 10};
  state.accepted_at = {9, 7, 5};
  metrics.on_state(state);
  metrics.on_state(state);  // the same totals again add nothing

  const Scrape s = parse(metrics.scrape());
  const Labels e{{"engine", "1"}};
  const auto histogram = [&](const std::string& name, double count, double sum, const std::string& below, const std::string& le) {
    EXPECT_EQ(s.at(name + "_count", e), count) << name;
    EXPECT_NEAR(s.at(name + "_sum", e), sum, 1e-9) << name;
    EXPECT_EQ(s.at(name + "_bucket", {{"engine", "1"}, {"le", below}}), 0) << name;
    EXPECT_EQ(s.at(name + "_bucket", {{"engine", "1"}, {"le", le}}), count) << name;
  };
  histogram("vllm:time_to_first_token_seconds", 1, 1.5, "1", "2.5");
  histogram("vllm:e2e_request_latency_seconds", 1, 4.6, "2.5", "5");
  histogram("vllm:request_queue_time_seconds", 1, 0.5, "0.3", "0.5");  // a bound belongs to its bucket
  histogram("vllm:request_prefill_time_seconds", 1, 1.0, "0.8", "1");
  histogram("vllm:request_decode_time_seconds", 1, 3.0, "2.5", "5");
  histogram("vllm:request_inference_time_seconds", 1, 4.0, "2.5", "5");
  histogram("vllm:request_time_per_output_token_seconds", 1, 0.03, "0.025", "0.05");
  histogram("vllm:request_prompt_tokens", 1, 812, "500", "1000");
  histogram("vllm:request_generation_tokens", 1, 101, "100", "200");
  histogram("vllm:request_params_max_tokens", 1, 4096, "2000", "5000");
  histogram("vllm:iteration_tokens_total", 1, 47, "32", "64");
  for (const std::string name : {"vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"}) {
    histogram(name, 4, 0.21, "0.025", "0.075");
    EXPECT_EQ(s.at(name + "_bucket", {{"engine", "1"}, {"le", "0.05"}}), 1) << name;
  }
  EXPECT_EQ(s.at("vllm:num_requests_running", e), 3);
  EXPECT_EQ(s.at("vllm:num_requests_waiting", e), 2);
  EXPECT_DOUBLE_EQ(s.at("vllm:kv_cache_usage_perc", e), 0.25);
  EXPECT_EQ(s.at("vllm:prompt_tokens_total", e), 812);
  EXPECT_EQ(s.at("vllm:generation_tokens_total", e), 101);
  EXPECT_EQ(s.at("vllm:prefix_cache_queries_total", e), 812);
  EXPECT_EQ(s.at("vllm:prefix_cache_hits_total", e), 768);
  EXPECT_EQ(s.at("vllm:num_preemptions_total", e), 1);
  EXPECT_EQ(s.at("vllm:spec_decode_num_drafts_total", e), 10);
  EXPECT_EQ(s.at("vllm:spec_decode_num_draft_tokens_total", e), 30);
  EXPECT_EQ(s.at("vllm:spec_decode_num_accepted_tokens_total", e), 21);
  EXPECT_EQ(s.at("ingot:speculative_steps_total", e), 10);
  const std::array<double, 3> accepted{9, 7, 5};
  for (size_t p = 0; p < accepted.size(); ++p) {
    const Labels at{{"engine", "1"}, {"position", std::to_string(p)}};
    EXPECT_EQ(s.at("vllm:spec_decode_num_accepted_tokens_per_pos_total", at), accepted[p]);
    EXPECT_EQ(s.at("ingot:speculative_accepted_tokens_total", at), accepted[p]);
    EXPECT_EQ(s.at("ingot:speculative_drafted_tokens_total", at), 10);
  }
  EXPECT_FALSE(s.samples.contains(
      {"vllm:spec_decode_num_accepted_tokens_per_pos_total", {{"model_name", "glm"}, {"engine", "1"}, {"position", "3"}}}));
  EXPECT_DOUBLE_EQ(s.at("ingot:speculative_position0_acceptance", e), 0.9);
  EXPECT_EQ(s.at("ingot:forced_acceptance"), 0);
  EXPECT_EQ(s.at("vllm:request_success_total", {{"engine", "1"}, {"finished_reason", "stop"}}), 1);
  EXPECT_EQ(s.at("ingot:steps_total", e), 9);
  EXPECT_EQ(s.at("ingot:evicted_pages_total", e), 4);
  EXPECT_EQ(s.at("ingot:host_hit_tokens_total", e), 64);
  EXPECT_EQ(s.at("ingot:pages_saved_total", e), 2);
  EXPECT_EQ(s.at("ingot:pages_loaded_total", e), 5);
  EXPECT_EQ(s.at("ingot:pages", {{"engine", "1"}, {"state", "free"}}), 300);
  EXPECT_EQ(s.at("ingot:pages", {{"engine", "1"}, {"state", "cached"}}), 450);
  EXPECT_EQ(s.at("ingot:pages", {{"engine", "1"}, {"state", "private"}}), 250);
  EXPECT_EQ(s.at("ingot:step_rows_sum", {{"engine", "1"}, {"kind", "prefill"}}), 44);
  EXPECT_EQ(s.at("ingot:step_rows_sum", {{"engine", "1"}, {"kind", "decode"}}), 3);
  EXPECT_NEAR(s.at("ingot:step_phase_seconds_sum", {{"engine", "1"}, {"phase", "plan"}}), 2e-5, 1e-12);
  EXPECT_NEAR(s.at("ingot:step_phase_seconds_sum", {{"engine", "1"}, {"phase", "run"}}), 0.03, 1e-12);
  EXPECT_NEAR(s.at("ingot:step_phase_seconds_sum", {{"engine", "1"}, {"phase", "commit"}}), 0.002, 1e-12);
  // The other replica saw nothing of it.
  for (const auto& [key, value] : s.samples) {
    const bool of_other = key.second.contains("engine") && key.second.at("engine") == "0" && key.first != "vllm:cache_config_info";
    EXPECT_TRUE(!of_other || value == 0) << key.first;
  }
  for (const char* reason : {"bad_value", "total_shrank", "unknown_replica", "exception"}) {
    EXPECT_EQ(s.at("ingot:metrics_ignored_total", {{"reason", reason}}), 0);
  }
}

TEST(Metrics, EndsWithoutAnAnswerAreCountedByReasonAndStageAndKeptOutOfLatencies) {
  Metrics metrics("glm", 1, cache_info());
  using sched::FinishReason;
  const auto end = [&](FinishReason finish, int64_t scheduled, int64_t first) {
    RequestRecord r = finished_request();
    r.finish = finish;
    r.scheduled_ns = scheduled;
    r.first_token_ns = first;
    metrics.on_finished(r);
  };
  end(FinishReason::cancelled, 0, 0);
  end(FinishReason::cancelled, 1500 * kMs, 0);
  end(FinishReason::cancelled, 1500 * kMs, 2500 * kMs);
  end(FinishReason::queue_timeout, 0, 0);
  end(FinishReason::timeout, 1500 * kMs, 2500 * kMs);
  end(FinishReason::error, 1500 * kMs, 0);
  const Scrape s = parse(metrics.scrape());
  const auto finished = [&](const char* reason) {
    return s.at("vllm:request_success_total", {{"engine", "0"}, {"finished_reason", reason}});
  };
  EXPECT_EQ(finished("abort"), 5);
  EXPECT_EQ(finished("error"), 1);
  EXPECT_EQ(finished("stop"), 0);
  for (const char* stage : {"waiting", "prefill", "decode"}) {
    EXPECT_EQ(s.at("ingot:cancelled_requests_total", {{"engine", "0"}, {"stage", stage}}), 1);
    EXPECT_EQ(s.at("ingot:timed_out_requests_total", {{"engine", "0"}, {"stage", stage}}), std::string(stage) == "prefill" ? 0 : 1);
  }
  EXPECT_EQ(s.at("vllm:e2e_request_latency_seconds_count", {{"engine", "0"}}), 0);
  EXPECT_EQ(s.at("vllm:request_prompt_tokens_count", {{"engine", "0"}}), 0);
}

TEST(Metrics, RefusalsAndHttpAnswersAreCountedAndTheirLabelsAreBounded) {
  Metrics metrics("glm", 1, cache_info());
  metrics.on_refused("queue_full");
  metrics.on_refused("queue_full");
  metrics.on_refused("a reason from the future");
  metrics.on_http_request("/v1/chat/completions", 200);
  metrics.on_http_request("/v1/chat/completions", 400);
  metrics.on_http_request("/v1/chat/completions", 429);
  for (int i = 0; i < 1000; ++i) metrics.on_http_request("/scan/" + std::to_string(i), 404);
  const Scrape s = parse(metrics.scrape());
  EXPECT_EQ(s.at("ingot:refused_requests_total", {{"reason", "queue_full"}}), 2);
  EXPECT_EQ(s.at("ingot:refused_requests_total", {{"reason", "other"}}), 1);
  EXPECT_EQ(s.at("ingot:refused_requests_total", {{"reason", "stopping"}}), 0);
  EXPECT_EQ(s.at("ingot:rejected_requests_total"), 1001);
  EXPECT_EQ(s.at("ingot:http_requests_total", {{"route", "/v1/chat/completions"}, {"status", "200"}}), 1);
  EXPECT_EQ(s.at("ingot:http_requests_total", {{"route", "/v1/chat/completions"}, {"status", "429"}}), 1);
  EXPECT_EQ(s.at("ingot:http_requests_total", {{"route", "other"}, {"status", "other"}}), 1000 - (256 - 3));
}

// A negative increment once killed the output loop of another server (vllm#6642).
TEST(Metrics, ATotalThatShrinksAndANumberThatIsNoneChangeNothing) {
  Metrics metrics("glm", 1, cache_info());
  ReplicaState state;
  state.accepted_tokens = 10;
  metrics.on_state(state);
  state.accepted_tokens = 7;
  metrics.on_state(state);
  const Labels e{{"engine", "0"}};
  EXPECT_EQ(parse(metrics.scrape()).at("vllm:spec_decode_num_accepted_tokens_total", e), 10);
  state.accepted_tokens = 12;
  metrics.on_state(state);
  metrics.on_first_token(0, std::nan(""));
  metrics.on_first_token(0, std::numeric_limits<double>::infinity());
  metrics.on_first_token(0, -1.0);
  metrics.on_tokens(0, std::numeric_limits<double>::infinity(), 4);
  metrics.on_tokens(0, 1.0, 0);
  metrics.on_step({.replica = 0, .plan_ns = -5, .pages_saved = -3});
  metrics.on_first_token(1, 1.0);
  metrics.on_first_token(-1, 1.0);
  const Scrape s = parse(metrics.scrape());
  EXPECT_EQ(s.at("vllm:spec_decode_num_accepted_tokens_total", e), 12);
  EXPECT_EQ(s.at("vllm:time_to_first_token_seconds_count", e), 0);
  EXPECT_EQ(s.at("vllm:inter_token_latency_seconds_count", e), 0);
  EXPECT_EQ(s.at("ingot:pages_saved_total", e), 0);
  EXPECT_EQ(s.at("ingot:metrics_ignored_total", {{"reason", "total_shrank"}}), 1);
  EXPECT_EQ(s.at("ingot:metrics_ignored_total", {{"reason", "bad_value"}}), 6);
  EXPECT_EQ(s.at("ingot:metrics_ignored_total", {{"reason", "unknown_replica"}}), 2);
}

// What must not fall between two scrapes: counters and all parts of histograms.
std::map<std::pair<std::string, Labels>, double> growing(const Scrape& s) {
  std::map<std::pair<std::string, Labels>, double> out;
  for (const auto& [key, value] : s.samples) {
    if (s.types.at(s.family(key.first)) != "gauge") out[key] = value;
  }
  return out;
}

TEST(Metrics, CountersNeverFallWhileFourThreadsObserveAtRandom) {
  Metrics metrics("glm", 2, cache_info());
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  constexpr int kThreads = 4;
  constexpr int kRounds = 4000;  // a thread at least; and on until there were kScrapes scrapes beside them
  constexpr int kScrapes = 10;
  std::atomic<int> running{kThreads};
  std::atomic<int> scrapes{0};
  std::atomic<int> rounds{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 rng(seed + static_cast<unsigned>(t));
      const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(rng); };
      const int replica = t % 2;
      for (int i = 0; i < kRounds || scrapes < kScrapes; ++i, ++rounds) {
        ReplicaState state;
        state.replica = replica;
        for (auto field : {&ReplicaState::steps, &ReplicaState::prompt_tokens, &ReplicaState::drafts, &ReplicaState::accepted_tokens,
                           &ReplicaState::evicted_pages, &ReplicaState::free_pages, &ReplicaState::preemptions}) {
          state.*field = draw(-5, i * 2);
        }
        metrics.on_state(state);
        metrics.on_step({.replica = replica, .plan_ns = draw(-10, 1000000), .prefill_rows = draw(-3, 500), .pages_saved = draw(-2, 2)});
        metrics.on_first_token(replica, static_cast<double>(draw(-10, 1000)) * 0.01);
        metrics.on_tokens(replica, 0.02, draw(1, 4));
        RequestRecord request = finished_request();
        request.replica = replica;
        request.last_token_ns = draw(0, 6000 * kMs);
        request.finish = static_cast<sched::FinishReason>(draw(0, static_cast<int64_t>(sched::FinishReason::error)));
        metrics.on_finished(request);
        metrics.on_refused("queue_full");
        metrics.on_http_request("/v1/models", 200);
      }
      --running;
    });
  }
  auto before = growing(parse(metrics.scrape()));
  for (bool last = false; !last; ++scrapes) {
    last = running == 0;
    const auto now = growing(parse(metrics.scrape()));
    for (const auto& [key, value] : before) {
      const auto it = now.find(key);
      EXPECT_TRUE(it != now.end() && it->second >= value) << key.first << " fell or went away";
    }
    before = now;
  }
  for (auto& thread : threads) thread.join();
  const Scrape s = parse(metrics.scrape());
  EXPECT_EQ(s.at("ingot:refused_requests_total", {{"reason", "queue_full"}}), rounds);
  EXPECT_EQ(s.at("ingot:http_requests_total", {{"route", "/v1/models"}, {"status", "200"}}), rounds);
  EXPECT_EQ(s.at("ingot:metrics_ignored_total", {{"reason", "exception"}}), 0);
}

TEST(Metrics, AModelNameWithQuotesAndBackslashesStaysOneLabel) {
  const Metrics metrics("a\"b\\c\nd", 1, cache_info());
  const Scrape s = parse(metrics.scrape());
  EXPECT_TRUE(s.samples.contains({"vllm:num_requests_running", {{"model_name", R"(a\"b\\c\nd)"}, {"engine", "0"}}}));
}

// A panel on a name that nobody exports stays empty for ever, and nobody is told.
TEST(Metrics, TheGrafanaDashboardUsesExportedNamesAndLabelsOnly) {
  std::ifstream in(INGOT_SOURCE_DIR "/deploy/grafana-dashboard.json");
  ASSERT_TRUE(in);
  std::stringstream text;
  text << in.rdbuf();
  const Json dashboard = parse_json(text.str(), "dashboard").value();
  Metrics metrics("glm", 1, cache_info());
  metrics.on_http_request("/v1/models", 200);  // its labels are made when seen
  ReplicaState drafted;                        // as is a share of drafts
  drafted.drafted_at[0] = 1;
  metrics.on_state(drafted);
  const Scrape s = parse(metrics.scrape());
  std::map<std::string, std::set<std::string>> labels_of;  // of each series name
  for (const auto& [key, value] : s.samples) {
    for (const auto& [name, unused] : key.second) labels_of[key.first].insert(name);
  }

  std::vector<std::string> expressions;
  const auto collect = [&](const auto& self, const Json& at) -> void {
    if (at.is_object()) {
      for (const auto& [key, value] : at.items()) {
        const bool wanted = key == "expr" || key == "definition" || (key == "query" && value.is_string());
        if (wanted) expressions.push_back(value.template get<std::string>());
        self(self, value);
      }
    } else if (at.is_array()) {
      for (const Json& value : at) self(self, value);
    }
  };
  collect(collect, dashboard);
  static const std::regex name_and_labels(R"(((?:vllm|ingot):[a-zA-Z0-9_:]+)(?:\{([^}]*)\})?)");
  static const std::regex label(R"(([a-zA-Z_][a-zA-Z0-9_]*)\s*(?:=~|!~|!=|=))");
  static const std::regex grouping(R"(by \(([^)]*)\))");
  std::set<std::string> used;
  for (const std::string& expr : expressions) {
    std::set<std::string> labels;
    for (std::sregex_iterator m(expr.begin(), expr.end(), name_and_labels), end; m != end; ++m) {
      const std::string name = (*m)[1];
      used.insert(name);
      ASSERT_TRUE(labels_of.contains(name)) << name << " in " << expr;
      const std::string selectors = (*m)[2];
      for (std::sregex_iterator l(selectors.begin(), selectors.end(), label); l != end; ++l) {
        EXPECT_TRUE(labels_of.at(name).contains((*l)[1])) << (*l)[1] << " in " << expr;
      }
      labels.insert(labels_of.at(name).begin(), labels_of.at(name).end());
    }
    for (std::sregex_iterator g(expr.begin(), expr.end(), grouping), end; g != end; ++g) {
      std::istringstream names((*g)[1].str());
      for (std::string name; std::getline(names >> std::ws, name, ',');) EXPECT_TRUE(labels.contains(name)) << name << " in " << expr;
    }
  }
  EXPECT_GE(used.size(), 25u);
}

}  // namespace
}  // namespace ingot::serve
