// What routers ask of a worker (SGLang's model gateway and its kin): what it is, how loaded it is, whether it can answer, and to forget its
// prefixes. Routes and forms: docs/scale_out.md. Runs on HTTP worker threads; the service's parts must outlive the HTTP server.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "exec/page_store.h"
#include "serve/desk.h"

namespace ingot::serve {

// What does not change while the server runs. Counts are of each replica.
struct WorkerInfo {
  std::filesystem::path model_path;
  int64_t tokens = 0;  // that the cache holds on the device
  int64_t page_size = 0;
  int64_t host_tokens = 0;  // and in host memory
  int64_t chunked_prefill_size = 0;
  int64_t max_running_requests = 0;
  int64_t max_queued_requests = 0;
  std::string cache_dtype;
  std::string device;
  std::string schedule_policy;
  int32_t draft_steps = 0;  // 0: no speculation
  bool prefix_caching = true;
};

class WorkerApi {
 public:
  // `store`: the disk tier, or null.
  WorkerApi(std::shared_ptr<const ServedModel> model, Dispatcher& dispatcher, WorkerInfo info, exec::PageStore* store);

  static bool serves(std::string_view path);
  // A path that is served here; the caller has checked the method.
  void handle(const HttpRequest& request, const std::shared_ptr<ResponseWriter>& writer);

 private:
  Json server_info() const;
  Json model_info() const;
  Json loads() const;         // of all replicas, with sums
  Json load_by_rank() const;  // the older form
  HttpResponse flush();
  void generate_one(const std::shared_ptr<ResponseWriter>& writer);

  std::shared_ptr<const ServedModel> model_;
  Dispatcher& dispatcher_;
  const WorkerInfo info_;
  exec::PageStore* const store_;
  Json architecture_;  // of config.json: model_type and architectures, as far as they are there
};

}  // namespace ingot::serve
