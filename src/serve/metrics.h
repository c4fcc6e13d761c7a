// Prometheus figures of the server in two dialects: `vllm:` (names, labels and buckets as vLLM V1 has them, so that routers and dashboards
// made for it work) and `ingot:` (what only we have). Fed by engine threads and HTTP threads; read by scrape() on an HTTP thread.
// A scrape copies the numbers under short locks and formats the copy, so it never waits for a step. Nothing here throws into its caller.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "exec/page_store.h"
#include "serve/engine_events.h"

namespace ingot::serve {

// What does not change while the server runs.
struct MetricsCacheInfo {
  int64_t page_size = 0;          // tokens a page
  int64_t pages = 0;              // pages a replica, on the device
  int64_t host_pages = 0;         // pages a replica in the host tier; 0: there is none
  int64_t max_context = 1 << 20;  // tokens; the top of the token histograms
  std::string cache_dtype = "auto";
  bool prefix_caching = true;
  int32_t draft_positions = 0;   // most drafts in a row; 0: no speculation
  double forced_acceptance = 0;  // 0: none
};

class Metrics final : public EngineObserver {
 public:
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

  // `num_replicas` >= 1; label `engine` is 0 .. num_replicas - 1.
  Metrics(std::string model_name, int num_replicas, MetricsCacheInfo cache);
  ~Metrics() override;
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void on_step(const StepRecord& step) override;
  void on_state(const ReplicaState& state) override;
  void on_tokens(int replica, double seconds, int64_t count) override;
  void on_first_token(int replica, double seconds_since_submit) override;
  void on_finished(const RequestRecord& request) override;

  // A request that never reached an engine's queue, or left it unserved: queue_full, queue_timeout (on_finished() tells that one),
  // stopping, too_long, engine_failed. Any other reason is counted as "other".
  void on_refused(std::string_view reason);

  // Every HTTP answer. `route` is the matched route, not the raw path; after 256 pairs of route and status, new ones count as "other".
  void on_http_request(std::string_view route, int status);

  // Before the first scrape: where the figures of the disk tier come from. Called by scrape(), must be quick.
  void set_disk_tier(std::function<exec::PageStore::Stats()> source);

  // All series in the text format 0.0.4. Any thread.
  std::string scrape() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ingot::serve
