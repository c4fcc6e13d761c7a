#include "serve/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"

namespace ingot::serve {

namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using Buckets = std::vector<double>;

constexpr size_t kMaxRoutes = 256;

// Bucket bounds of the `vllm:` histograms are vLLM's, so that figures of both servers can be put side by side.
const Buckets kFirstTokenSeconds{.001, .005, .01, .02, .04, .06, .08, .1,  .25,  .5,   .75,
                                 1.0,  2.5,  5.0, 7.5, 10., 20., 40., 80., 160., 640., 2560.};
const Buckets kTokenSeconds{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1.0, 2.5, 5.0, 7.5, 10., 20., 40., 80.};
const Buckets kRequestSeconds{.3, .5, .8, 1.0, 1.5, 2.0, 2.5, 5.0, 10., 15., 20., 30., 40., 50., 60., 120., 240., 480., 960., 1920., 7680.};
const Buckets kIterationTokens{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
// Ours: a phase may be as short as a plan of one decode row or as long as a prefill chunk on a CPU.
const Buckets kPhaseSeconds{1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1.0, 2.5, 5.0, 10.};
// Bucket 0 counts the steps that had no row of the kind.
const Buckets kStepRows{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

// 1, 2, 5, 10, 20, 50 ... up to `max`.
Buckets token_count_buckets(int64_t max) {
  Buckets bounds;
  for (double power = 1;; power *= 10) {
    for (double digit : {1.0, 2.0, 5.0}) {
      if (digit * power > static_cast<double>(max)) return bounds;
      bounds.push_back(digit * power);
    }
  }
}

// Totals of ReplicaState and the counters that follow them.
struct TotalSpec {
  const char* name;
  const char* help;
  int64_t ReplicaState::*field;
};
constexpr std::array kTotals{
    TotalSpec{"vllm:prompt_tokens_total", "Prompt tokens of requests that got their first token.", &ReplicaState::prompt_tokens},
    TotalSpec{"vllm:generation_tokens_total", "Tokens generated.", &ReplicaState::completion_tokens},
    TotalSpec{"vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", &ReplicaState::cache_query_tokens},
    TotalSpec{"vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", &ReplicaState::cache_hit_tokens},
    TotalSpec{"vllm:num_preemptions_total", "Times a running request gave its pages back and went to wait.", &ReplicaState::preemptions},
    TotalSpec{"vllm:spec_decode_num_drafts_total", "Steps of a sequence that verified drafted tokens.", &ReplicaState::drafts},
    TotalSpec{"vllm:spec_decode_num_draft_tokens_total", "Tokens drafted.", &ReplicaState::draft_tokens},
    TotalSpec{"vllm:spec_decode_num_accepted_tokens_total", "Drafted tokens that were accepted.", &ReplicaState::accepted_tokens},
    TotalSpec{"ingot:speculative_steps_total",
              "The same as vllm:spec_decode_num_drafts_total: 1 + accepted tokens / these is the mean acceptance length.",
              &ReplicaState::drafts},
    TotalSpec{"ingot:steps_total", "Steps of the engine.", &ReplicaState::steps},
    TotalSpec{"ingot:evicted_pages_total", "Pages that the prefix cache gave up.", &ReplicaState::evicted_pages},
    TotalSpec{"ingot:host_hit_tokens_total", "Prompt tokens found in the prefix cache whose pages came from the host or disk tier.",
              &ReplicaState::host_hit_tokens},
};

// The same by position in the draft, with the label `position`, "0" first.
struct PositionTotalSpec {
  const char* name;
  const char* help;
  std::array<int64_t, sched::kMaxDraftTokens> ReplicaState::*field;
};
constexpr std::array kPositionTotals{
    PositionTotalSpec{"vllm:spec_decode_num_accepted_tokens_per_pos_total", "Drafted tokens that were accepted, by position in the draft.",
                      &ReplicaState::accepted_at},
    PositionTotalSpec{"ingot:speculative_accepted_tokens_total", "Drafted tokens that were accepted, by position in the draft.",
                      &ReplicaState::accepted_at},
    PositionTotalSpec{"ingot:speculative_drafted_tokens_total", "Tokens drafted, by position in the draft.", &ReplicaState::drafted_at},
};

struct Total {
  Counter* counter = nullptr;
  std::atomic<int64_t> last{0};
};

// Finish reasons as vLLM names them.
constexpr std::array<const char*, 4> kFinished{"stop", "length", "abort", "error"};
constexpr std::array<const char*, 3> kPhases{"plan", "run", "commit"};
constexpr std::array<const char*, 3> kPageStates{"free", "cached", "private"};
constexpr std::array<const char*, 3> kStages{"waiting", "prefill", "decode"};
constexpr std::array<const char*, 6> kRefusals{"queue_full", "queue_timeout", "stopping", "too_long", "engine_failed", "other"};

// Why something told to Metrics was not counted.
enum Ignored : size_t { bad_value, total_shrank, unknown_replica, exception, kNumIgnored };
constexpr std::array<const char*, kNumIgnored> kIgnoredNames{"bad_value", "total_shrank", "unknown_replica", "exception"};

// The series of one replica; the pointers belong to the registry.
struct ReplicaSeries {
  Gauge* running;
  Gauge* waiting;
  Gauge* cache_usage;
  std::array<Gauge*, kPageStates.size()> pages;
  std::array<Total, kTotals.size()> totals;
  std::array<std::array<Total, sched::kMaxDraftTokens>, kPositionTotals.size()> position_totals;
  std::mutex acceptance_mutex;      // of the two below; held by the replica's engine thread alone
  AcceptanceWindow acceptance;      // of first drafts
  Gauge* first_accepted = nullptr;  // its share; null before the first draft
  Counter* pages_saved;
  Counter* pages_loaded;
  std::array<Counter*, kFinished.size()> finished;
  std::array<Counter*, kStages.size()> cancelled;
  std::array<Counter*, kStages.size()> timed_out;
  Histogram* iteration_tokens;
  std::array<Histogram*, kPhases.size()> phase_seconds;
  Histogram* prefill_rows;
  Histogram* decode_rows;
  Histogram* first_token_seconds;
  Histogram* inter_token_seconds;
  Histogram* output_token_seconds;  // inter_token_seconds under its older name
  Histogram* request_output_token_seconds;
  Histogram* e2e_seconds;
  Histogram* queue_seconds;
  Histogram* prefill_seconds;
  Histogram* decode_seconds;
  Histogram* inference_seconds;
  Histogram* prompt_tokens;
  Histogram* generation_tokens;
  Histogram* max_tokens;
};

// Index in kStages: how far the request had come.
size_t stage_of(const RequestRecord& request) { return request.scheduled_ns == 0 ? 0 : request.first_token_ns == 0 ? 1 : 2; }

double seconds_between(int64_t from_ns, int64_t to_ns) { return static_cast<double>(to_ns - from_ns) * 1e-9; }

}  // namespace

struct Metrics::Impl {
  Impl(std::string model, int num_replicas, MetricsCacheInfo cache);

  // Runs `observe`; whatever it throws stays here.
  template <class F>
  void guarded(F&& observe) noexcept {
    try {
      observe();
    } catch (const std::exception& e) {
      ignore(exception, e.what());
    } catch (...) {
      ignore(exception, "unknown");
    }
  }

  // Counts it, and logs the first of its kind.
  void ignore(Ignored why, std::string_view detail) noexcept {
    try {
      ignored[why]->Increment();
      if (!ignored_logged[why].exchange(true)) log_warn("metrics: {} ({}); further ones are only counted", kIgnoredNames[why], detail);
    } catch (...) {
      return;  // the log itself failed: nothing is left to tell it with
    }
  }

  ReplicaSeries* replica(int number) {
    if (number >= 0 && number < static_cast<int>(replicas.size())) return &replicas[static_cast<size_t>(number)];
    ignore(unknown_replica, fmt::format("{} of {}", number, replicas.size()));
    return nullptr;
  }

  // A sum that a negative or infinite value went into could never be trusted again.
  bool usable(double value, const char* what) {
    if (std::isfinite(value) && value >= 0) return true;
    ignore(bad_value, fmt::format("{} = {}", what, value));
    return false;
  }
  void observe(Histogram& histogram, double value, const char* what) {
    if (usable(value, what)) histogram.Observe(value);
  }
  void add(Counter& counter, int64_t amount, const char* what) {
    if (usable(static_cast<double>(amount), what)) counter.Increment(static_cast<double>(amount));
  }

  void raise(Total& total, int64_t now, const char* name) {
    int64_t last = total.last.load(std::memory_order_relaxed);
    while (now > last) {
      if (!total.last.compare_exchange_weak(last, now, std::memory_order_relaxed)) continue;
      total.counter->Increment(static_cast<double>(now - last));
      return;
    }
    if (now < last) ignore(total_shrank, fmt::format("{} from {} to {}", name, last, now));
  }

  void watch_acceptance(ReplicaSeries& series, const ReplicaState& state);
  Counter& route_counter(std::string_view route, int status);

  const std::string model_name;
  const int32_t draft_positions;
  const bool forced_acceptance;
  prometheus::Registry registry;
  std::function<exec::PageStore::Stats()> disk;  // may be empty
  std::vector<ReplicaSeries> replicas;
  prometheus::Family<Gauge>* first_accepted = nullptr;
  std::array<Counter*, kNumIgnored> ignored{};
  std::array<std::atomic<bool>, kNumIgnored> ignored_logged{};
  std::array<Counter*, kRefusals.size()> refused{};
  Counter* rejected = nullptr;

  prometheus::Family<Counter>* http_requests = nullptr;
  std::mutex routes_mutex;  // HTTP threads only
  std::map<std::pair<std::string, int>, Counter*> routes;
};

Metrics::Impl::Impl(std::string model, int num_replicas, MetricsCacheInfo cache)
    : model_name(std::move(model)),
      draft_positions(std::clamp(cache.draft_positions, 0, sched::kMaxDraftTokens)),
      forced_acceptance(cache.forced_acceptance > 0),
      replicas(static_cast<size_t>(num_replicas)) {
  const Labels all{{"model_name", model_name}};
  const auto with = [](Labels labels, const std::string& key, const std::string& value) {
    labels[key] = value;
    return labels;
  };
  const auto engine_labels = [&](size_t r) { return with(all, "engine", std::to_string(r)); };
  const auto counters = [&](const char* name, const char* help) -> prometheus::Family<Counter>& {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  };
  const auto gauges = [&](const char* name, const char* help) -> prometheus::Family<Gauge>& {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  };
  const auto histograms = [&](const char* name, const char* help) -> prometheus::Family<Histogram>& {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
  };
  // One series a replica, stored in `member`.
  const auto each_gauge = [&](const char* name, const char* help, Gauge* ReplicaSeries::*member) {
    auto& family = gauges(name, help);
    for (size_t r = 0; r < replicas.size(); ++r) replicas[r].*member = &family.Add(engine_labels(r));
  };
  const auto each_counter = [&](const char* name, const char* help, Counter* ReplicaSeries::*member) {
    auto& family = counters(name, help);
    for (size_t r = 0; r < replicas.size(); ++r) replicas[r].*member = &family.Add(engine_labels(r));
  };
  const auto each_histogram = [&](const char* name, const char* help, Histogram* ReplicaSeries::*member, const Buckets& buckets) {
    auto& family = histograms(name, help);
    for (size_t r = 0; r < replicas.size(); ++r) replicas[r].*member = &family.Add(engine_labels(r), buckets);
  };
  // One series a replica and value of `label`: every value is there from the start, at zero, so that rates see the first increase.
  const auto each_labelled = [&](auto& family, const char* label, const auto& values, auto member) {
    for (size_t r = 0; r < replicas.size(); ++r) {
      for (size_t i = 0; i < values.size(); ++i) (replicas[r].*member)[i] = &family.Add(with(engine_labels(r), label, values[i]));
    }
  };
  using R = ReplicaSeries;

  each_gauge("vllm:num_requests_running", "Requests in the running batch.", &R::running);
  each_gauge("vllm:num_requests_waiting", "Requests that wait for room in the batch.", &R::waiting);
  each_gauge(
      "vllm:kv_cache_usage_perc",
      "Share of the KV pages, 0 to 1, that running requests use. Pages that only the prefix cache holds count as unused: they can be "
      "evicted at once.",
      &R::cache_usage);
  each_labelled(gauges("ingot:pages", "KV pages by state: free, cached (held by the prefix cache alone), private (used by requests)."),
                "state", kPageStates, &R::pages);

  for (size_t i = 0; i < kTotals.size(); ++i) {
    auto& family = counters(kTotals[i].name, kTotals[i].help);
    for (size_t r = 0; r < replicas.size(); ++r) replicas[r].totals[i].counter = &family.Add(engine_labels(r));
  }
  for (size_t i = 0; i < kPositionTotals.size() && draft_positions > 0; ++i) {
    auto& family = counters(kPositionTotals[i].name, kPositionTotals[i].help);
    for (size_t r = 0; r < replicas.size(); ++r) {
      for (size_t p = 0; p < static_cast<size_t>(draft_positions); ++p) {
        replicas[r].position_totals[i][p].counter = &family.Add(with(engine_labels(r), "position", std::to_string(p)));
      }
    }
  }
  first_accepted = &gauges("ingot:speculative_position0_acceptance",
                           "Share, 0 to 1, of first drafts that were accepted, of the last 1,000 to 2,000. Below 0.6 something is wrong "
                           "with the draft layer, or answers are sampled at a high temperature. Absent before the first draft.");
  gauges("ingot:forced_acceptance", "Tokens a step that a server for benchmarks accepts whatever the model says; 0: none.")
      .Add(all)
      .Set(cache.forced_acceptance);
  each_counter("ingot:pages_saved_total", "Pages copied to the host tier.", &R::pages_saved);
  each_counter("ingot:pages_loaded_total", "Pages copied back from the host tier.", &R::pages_loaded);
  each_labelled(counters("vllm:request_success_total", "Requests that ended, by reason; abort: cancelled, or out of time."),
                "finished_reason", kFinished, &R::finished);
  each_labelled(counters("ingot:cancelled_requests_total", "Requests whose client cancelled or went away, by how far they had come."),
                "stage", kStages, &R::cancelled);
  each_labelled(counters("ingot:timed_out_requests_total", "Requests that the server ended at their deadline, by how far they had come."),
                "stage", kStages, &R::timed_out);

  each_histogram("vllm:iteration_tokens_total", "Tokens (prefill and decode rows) computed in a step.", &R::iteration_tokens,
                 kIterationTokens);
  auto& phases = histograms("ingot:step_phase_seconds", "Time of a step's phase.");
  auto& rows = histograms("ingot:step_rows", "Rows of a step, by kind.");
  for (size_t r = 0; r < replicas.size(); ++r) {
    for (size_t i = 0; i < kPhases.size(); ++i) {
      replicas[r].phase_seconds[i] = &phases.Add(with(engine_labels(r), "phase", kPhases[i]), kPhaseSeconds);
    }
    replicas[r].prefill_rows = &rows.Add(with(engine_labels(r), "kind", "prefill"), kStepRows);
    replicas[r].decode_rows = &rows.Add(with(engine_labels(r), "kind", "decode"), kStepRows);
  }

  each_histogram("vllm:time_to_first_token_seconds", "Time from submit to the first token.", &R::first_token_seconds, kFirstTokenSeconds);
  each_histogram("vllm:inter_token_latency_seconds", "Time between tokens; tokens of one step share its time equally.",
                 &R::inter_token_seconds, kTokenSeconds);
  each_histogram("vllm:time_per_output_token_seconds", "The older name of vllm:inter_token_latency_seconds.", &R::output_token_seconds,
                 kTokenSeconds);
  each_histogram("vllm:request_time_per_output_token_seconds", "Mean time between tokens of a completed request with two tokens or more.",
                 &R::request_output_token_seconds, kTokenSeconds);
  each_histogram("vllm:e2e_request_latency_seconds", "Time from submit to the end of a completed request (stop or length).",
                 &R::e2e_seconds, kRequestSeconds);
  each_histogram("vllm:request_queue_time_seconds", "Time from submit to the first planned row, of completed requests.", &R::queue_seconds,
                 kRequestSeconds);
  each_histogram("vllm:request_prefill_time_seconds", "Time from the first planned row to the first token, of completed requests.",
                 &R::prefill_seconds, kRequestSeconds);
  each_histogram("vllm:request_decode_time_seconds", "Time from the first token to the last, of completed requests.", &R::decode_seconds,
                 kRequestSeconds);
  each_histogram("vllm:request_inference_time_seconds", "Time from the first planned row to the last token, of completed requests.",
                 &R::inference_seconds, kRequestSeconds);
  const Buckets counts = token_count_buckets(cache.max_context);
  each_histogram("vllm:request_prompt_tokens", "Prompt tokens of a completed request.", &R::prompt_tokens, counts);
  each_histogram("vllm:request_generation_tokens", "Tokens generated for a completed request.", &R::generation_tokens, counts);
  each_histogram("vllm:request_params_max_tokens", "The max_tokens of a completed request.", &R::max_tokens, counts);

  auto& cache_config = gauges("vllm:cache_config_info", "Sizes of the KV cache; always 1.");
  for (size_t r = 0; r < replicas.size(); ++r) {
    Labels labels = engine_labels(r);
    labels["block_size"] = std::to_string(cache.page_size);
    labels["num_gpu_blocks"] = std::to_string(cache.pages);
    labels["num_cpu_blocks"] = std::to_string(cache.host_pages);
    labels["cache_dtype"] = cache.cache_dtype;
    labels["enable_prefix_caching"] = cache.prefix_caching ? "True" : "False";  // as vLLM spells it
    cache_config.Add(labels).Set(1);
  }
  gauges("ingot:build_info", "The program that runs; always 1.").Add({{"version", INGOT_VERSION}, {"compiler", __VERSION__}}).Set(1);

  auto& refusals = counters("ingot:refused_requests_total", "Well-formed requests that were not served, by reason.");
  for (size_t i = 0; i < kRefusals.size(); ++i) refused[i] = &refusals.Add(with(all, "reason", kRefusals[i]));
  rejected = &counters("ingot:rejected_requests_total", "HTTP requests answered 4xx for what they asked; 429 is a refusal and not in here.")
                  .Add(all);
  http_requests = &counters("ingot:http_requests_total", "HTTP answers, by route and status.");
  auto& dropped = counters("ingot:metrics_ignored_total", "Reports to the metrics that were not counted, by reason; not zero: a bug.");
  for (size_t i = 0; i < kNumIgnored; ++i) ignored[i] = &dropped.Add(with(all, "reason", kIgnoredNames[i]));
}

// A draft layer that is wired wrongly changes no answer: only this shows it.
void Metrics::Impl::watch_acceptance(ReplicaSeries& series, const ReplicaState& state) {
  if (state.drafted_at[0] == 0) return;
  const std::lock_guard lock(series.acceptance_mutex);
  const bool fell = series.acceptance.update(state.drafted_at[0], state.accepted_at[0]);
  const auto share = series.acceptance.share();
  if (!share) return;
  if (series.first_accepted == nullptr) {
    series.first_accepted = &first_accepted->Add({{"model_name", model_name}, {"engine", std::to_string(state.replica)}});
  }
  series.first_accepted->Set(*share);
  if (fell && !forced_acceptance) {
    log_warn(
        "speculation of replica {}: only {:.1f} % of the last first drafts were accepted, less than {:.0f} %: the MTP layer does not fit "
        "the "
        "model, or answers are sampled at a high temperature",
        state.replica, 100 * *share, 100 * AcceptanceWindow::kFloor);
  }
}

Counter& Metrics::Impl::route_counter(std::string_view route, int status) {
  std::lock_guard lock(routes_mutex);
  std::pair<std::string, int> key(route, status);
  auto at = routes.find(key);
  if (at == routes.end() && routes.size() >= kMaxRoutes) {
    key = {"other", 0};
    at = routes.find(key);
  }
  if (at == routes.end()) {
    Counter& fresh = http_requests->Add(
        {{"model_name", model_name}, {"route", key.first}, {"status", key.second == 0 ? "other" : std::to_string(key.second)}});
    at = routes.emplace(std::move(key), &fresh).first;
  }
  return *at->second;
}

Metrics::Metrics(std::string model_name, int num_replicas, MetricsCacheInfo cache) {
  INGOT_CHECK(num_replicas >= 1, "metrics of {} replicas", num_replicas);
  impl_ = std::make_unique<Impl>(std::move(model_name), num_replicas, std::move(cache));
}
Metrics::~Metrics() = default;

void Metrics::on_step(const StepRecord& step) {
  impl_->guarded([&] {
    ReplicaSeries* r = impl_->replica(step.replica);
    if (r == nullptr) return;
    impl_->observe(*r->iteration_tokens, static_cast<double>(step.prefill_rows + step.decode_rows), "step rows");
    impl_->observe(*r->prefill_rows, static_cast<double>(step.prefill_rows), "prefill rows");
    impl_->observe(*r->decode_rows, static_cast<double>(step.decode_rows), "decode rows");
    const std::array<int64_t, kPhases.size()> phase_ns{step.plan_ns, step.run_ns, step.commit_ns};
    for (size_t i = 0; i < kPhases.size(); ++i) impl_->observe(*r->phase_seconds[i], static_cast<double>(phase_ns[i]) * 1e-9, kPhases[i]);
    impl_->add(*r->pages_saved, step.pages_saved, "pages saved");
    impl_->add(*r->pages_loaded, step.pages_loaded, "pages loaded");
  });
}

void Metrics::on_state(const ReplicaState& state) {
  impl_->guarded([&] {
    ReplicaSeries* r = impl_->replica(state.replica);
    if (r == nullptr) return;
    r->running->Set(static_cast<double>(state.running));
    r->waiting->Set(static_cast<double>(state.waiting));
    const int64_t used = state.total_pages - state.free_pages - state.cached_pages;
    r->cache_usage->Set(state.total_pages > 0 ? static_cast<double>(used) / static_cast<double>(state.total_pages) : 0.0);
    r->pages[0]->Set(static_cast<double>(state.free_pages));
    r->pages[1]->Set(static_cast<double>(state.cached_pages));
    r->pages[2]->Set(static_cast<double>(used));
    for (size_t i = 0; i < kTotals.size(); ++i) impl_->raise(r->totals[i], state.*kTotals[i].field, kTotals[i].name);
    for (size_t i = 0; i < kPositionTotals.size(); ++i) {
      for (size_t p = 0; p < static_cast<size_t>(impl_->draft_positions); ++p) {
        impl_->raise(r->position_totals[i][p], (state.*kPositionTotals[i].field)[p], kPositionTotals[i].name);
      }
    }
    impl_->watch_acceptance(*r, state);
  });
}

void Metrics::on_tokens(int replica, double seconds, int64_t count) {
  impl_->guarded([&] {
    ReplicaSeries* r = impl_->replica(replica);
    if (r == nullptr || count <= 0 || !impl_->usable(seconds, "inter-token seconds")) return;
    if (count == 1) {
      r->inter_token_seconds->Observe(seconds);
      r->output_token_seconds->Observe(seconds);
      return;
    }
    // One lock for all tokens of the step.
    std::vector<double> increments(kTokenSeconds.size() + 1, 0.0);
    const double each = seconds / static_cast<double>(count);
    const auto bucket = std::lower_bound(kTokenSeconds.begin(), kTokenSeconds.end(), each) - kTokenSeconds.begin();
    increments[static_cast<size_t>(bucket)] = static_cast<double>(count);
    r->inter_token_seconds->ObserveMultiple(increments, seconds);
    r->output_token_seconds->ObserveMultiple(increments, seconds);
  });
}

void Metrics::on_first_token(int replica, double seconds_since_submit) {
  impl_->guarded([&] {
    ReplicaSeries* r = impl_->replica(replica);
    if (r != nullptr) impl_->observe(*r->first_token_seconds, seconds_since_submit, "time to first token");
  });
}

void Metrics::on_finished(const RequestRecord& request) {
  impl_->guarded([&] {
    ReplicaSeries* r = impl_->replica(request.replica);
    if (r == nullptr) return;
    switch (request.finish) {
      case sched::FinishReason::none: impl_->ignore(bad_value, "a finished request without a reason"); return;
      case sched::FinishReason::stop_token:
      case sched::FinishReason::stop_string: r->finished[0]->Increment(); break;
      case sched::FinishReason::length: r->finished[1]->Increment(); break;
      case sched::FinishReason::cancelled:
        r->finished[2]->Increment();
        r->cancelled[stage_of(request)]->Increment();
        return;
      case sched::FinishReason::queue_timeout: on_refused("queue_timeout"); [[fallthrough]];
      case sched::FinishReason::timeout:
        r->finished[2]->Increment();
        r->timed_out[stage_of(request)]->Increment();
        return;
      case sched::FinishReason::error: r->finished[3]->Increment(); return;
    }
    // Completed ones alone from here: a client that hung up early is not a fast answer.
    impl_->observe(*r->prompt_tokens, static_cast<double>(request.prompt_tokens), "prompt tokens");
    impl_->observe(*r->generation_tokens, static_cast<double>(request.completion_tokens), "completion tokens");
    impl_->observe(*r->max_tokens, static_cast<double>(request.max_tokens), "max_tokens");
    impl_->observe(*r->e2e_seconds, seconds_between(request.submitted_ns, request.finished_ns), "e2e latency");
    if (request.scheduled_ns == 0 || request.first_token_ns == 0) return;
    impl_->observe(*r->queue_seconds, seconds_between(request.submitted_ns, request.scheduled_ns), "queue time");
    impl_->observe(*r->prefill_seconds, seconds_between(request.scheduled_ns, request.first_token_ns), "prefill time");
    impl_->observe(*r->inference_seconds, seconds_between(request.scheduled_ns, request.last_token_ns), "inference time");
    const double decode = seconds_between(request.first_token_ns, request.last_token_ns);
    impl_->observe(*r->decode_seconds, decode, "decode time");
    if (request.completion_tokens >= 2) {
      impl_->observe(*r->request_output_token_seconds, decode / static_cast<double>(request.completion_tokens - 1),
                     "time per output token");
    }
  });
}

void Metrics::on_refused(std::string_view reason) {
  impl_->guarded([&] {
    size_t i = 0;
    while (i + 1 < kRefusals.size() && reason != kRefusals[i]) ++i;
    impl_->refused[i]->Increment();
  });
}

void Metrics::on_http_request(std::string_view route, int status) {
  impl_->guarded([&] {
    impl_->route_counter(route, status).Increment();
    if (status >= 400 && status < 500 && status != 429) impl_->rejected->Increment();
  });
}

void Metrics::set_disk_tier(std::function<exec::PageStore::Stats()> source) { impl_->disk = std::move(source); }

namespace {
// Figures that the disk tier keeps itself: read when they are asked for.
void add_disk_tier(const exec::PageStore::Stats& stats, std::vector<prometheus::MetricFamily>& families) {
  const auto add = [&](const char* name, const char* help, prometheus::MetricType type, int64_t value) {
    prometheus::ClientMetric metric;
    (type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) = static_cast<double>(value);
    families.push_back({name, help, type, {std::move(metric)}});
  };
  constexpr auto kGauge = prometheus::MetricType::Gauge;
  constexpr auto kCounter = prometheus::MetricType::Counter;
  add("ingot:disk_tier_pages", "Pages on disk.", kGauge, stats.pages);
  add("ingot:disk_tier_bytes", "Bytes of page files.", kGauge, stats.bytes);
  add("ingot:disk_tier_pages_written_total", "Pages written.", kCounter, stats.pages_written);
  add("ingot:disk_tier_pages_read_total", "Pages read for a prompt.", kCounter, stats.pages_read);
  add("ingot:disk_tier_pages_evicted_total", "Pages deleted to make room.", kCounter, stats.pages_evicted);
  add("ingot:disk_tier_pages_damaged_total", "Damaged page files that were deleted.", kCounter, stats.pages_damaged);
  add("ingot:disk_tier_pages_dropped_total", "Pages not written: the disk was too slow or too small.", kCounter,
      stats.pages_dropped_queue_full + stats.pages_dropped_no_room);
  add("ingot:disk_tier_write_errors_total", "Page files that the disk refused.", kCounter, stats.write_errors);
}
}  // namespace

std::string Metrics::scrape() const {
  auto families = impl_->registry.Collect();
  if (impl_->disk) add_disk_tier(impl_->disk(), families);
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace ingot::serve
