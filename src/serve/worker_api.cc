#include "serve/worker_api.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/file_map.h"
#include "base/log.h"

namespace ingot::serve {

namespace {
constexpr std::chrono::milliseconds kFlushTimeout{30'000};
constexpr size_t kMaxConfigBytes = 1 << 20;

// Several names a thing: routers of different years ask for different ones.
constexpr std::array<std::string_view, 9> kPaths{"/server_info", "/get_server_info", "/model_info",  "/get_model_info", "/get_load",
                                                 "/get_loads",   "/v1/loads",        "/flush_cache", "/health_generate"};

HttpResponse ok(const Json& body) { return {200, dump_json(body), "application/json", {}}; }

double share(int64_t part, int64_t whole) { return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0; }

double now_seconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

Json read_architecture(const std::filesystem::path& model) {
  Json found = Json::object();
  const auto text = read_file(model / "config.json", kMaxConfigBytes);
  if (!text) return found;
  const auto config = parse_json(*text, "config.json");
  if (!config || !config->is_object()) return found;
  for (const char* name : {"model_type", "architectures"}) {
    if (config->contains(name)) found[name] = (*config)[name];
  }
  return found;
}

}  // namespace

WorkerApi::WorkerApi(std::shared_ptr<const ServedModel> model, Dispatcher& dispatcher, WorkerInfo info, exec::PageStore* store)
    : model_(std::move(model)),
      dispatcher_(dispatcher),
      info_(std::move(info)),
      store_(store),
      architecture_(read_architecture(info_.model_path)) {}

bool WorkerApi::serves(std::string_view path) { return std::find(kPaths.begin(), kPaths.end(), path) != kPaths.end(); }

void WorkerApi::handle(const HttpRequest& request, const std::shared_ptr<ResponseWriter>& writer) {
  const std::string_view path = request.path;
  if (path == "/flush_cache") return writer->respond(flush());
  if (path == "/health_generate") return generate_one(writer);
  if (path == "/get_load") return writer->respond(ok(load_by_rank()));
  if (path.ends_with("loads")) return writer->respond(ok(loads()));
  writer->respond(ok(path.ends_with("model_info") ? model_info() : server_info()));
}

Json WorkerApi::server_info() const {
  const int replicas = dispatcher_.num_replicas();
  Json states = Json::array();
  for (int i = 0; i < replicas; ++i) {
    const ReplicaState state = dispatcher_.state(i);
    states.push_back({{"dp_rank", i},
                      {"num_running_reqs", state.running},
                      {"num_waiting_reqs", state.waiting},
                      {"free_pages", state.free_pages},
                      {"cached_pages", state.cached_pages},
                      {"total_pages", state.total_pages},
                      {"steps", state.steps}});
  }
  // No "model_id" or "model": the gateway takes served_model_name, and two names for one field are an error to it.
  return {{"engine", "ingot"},
          {"version", INGOT_VERSION},
          {"model_path", info_.model_path.string()},
          {"tokenizer_path", info_.model_path.string()},
          {"served_model_name", model_->name},
          {"context_length", model_->defaults.context_length},
          {"dp_size", replicas},
          {"tp_size", 1},
          {"page_size", info_.page_size},
          {"max_total_tokens", info_.tokens},
          {"max_total_num_tokens", info_.tokens},
          {"host_cache_tokens", info_.host_tokens},
          {"max_prefill_tokens", info_.chunked_prefill_size},
          {"chunked_prefill_size", info_.chunked_prefill_size},
          {"max_running_requests", info_.max_running_requests},
          {"max_queued_requests", info_.max_queued_requests},
          {"kv_cache_dtype", info_.cache_dtype},
          {"device", info_.device},
          {"schedule_policy", info_.schedule_policy},
          {"disable_radix_cache", !info_.prefix_caching},
          {"speculative_algorithm", info_.draft_steps > 0 ? Json("NEXTN") : Json(nullptr)},
          {"speculative_num_steps", info_.draft_steps},
          {"disaggregation_mode", "null"},
          {"internal_states", std::move(states)}};
}

Json WorkerApi::model_info() const {
  Json info{{"model_path", info_.model_path.string()}, {"tokenizer_path", info_.model_path.string()},
            {"served_model_name", model_->name},       {"is_generation", true},
            {"preferred_sampling_params", nullptr},    {"weight_version", "default"},
            {"has_image_understanding", false},        {"has_audio_understanding", false}};
  info.update(architecture_);
  return info;
}

Json WorkerApi::load_by_rank() const {
  Json list = Json::array();
  for (int i = 0; i < dispatcher_.num_replicas(); ++i) {
    const ReplicaState state = dispatcher_.state(i);
    const Dispatcher::Load load = dispatcher_.load(i);
    list.push_back({{"dp_rank", i}, {"num_reqs", load.requests}, {"num_waiting_reqs", state.waiting}, {"num_tokens", load.tokens}});
  }
  return list;
}

Json WorkerApi::loads() const {
  Json list = Json::array();
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t tokens = 0;
  double usage = 0;
  const int replicas = dispatcher_.num_replicas();
  for (int i = 0; i < replicas; ++i) {
    const ReplicaState state = dispatcher_.state(i);
    const Dispatcher::Load load = dispatcher_.load(i);
    const int64_t used = (state.total_pages - state.free_pages - state.cached_pages) * info_.page_size;
    list.push_back({{"dp_rank", i},
                    {"num_running_reqs", state.running},
                    {"num_waiting_reqs", state.waiting},
                    {"num_total_reqs", state.running + state.waiting},
                    {"num_used_tokens", used},
                    {"num_total_tokens", load.tokens},
                    {"max_total_num_tokens", info_.tokens},
                    {"token_usage", share(used, info_.tokens)},
                    {"cache_hit_rate", share(state.cache_hit_tokens, state.cache_query_tokens)},
                    {"max_running_requests", info_.max_running_requests}});
    running += state.running;
    waiting += state.waiting;
    tokens += load.tokens;
    usage += share(used, info_.tokens);
  }
  return {{"timestamp", now_seconds()},
          {"version", INGOT_VERSION},
          {"dp_rank_count", replicas},
          {"loads", std::move(list)},
          {"aggregate",
           {{"total_running_reqs", running},
            {"total_waiting_reqs", waiting},
            {"total_reqs", running + waiting},
            {"total_tokens", tokens},
            {"avg_token_usage", usage / replicas}}}};
}

HttpResponse WorkerApi::flush() {
  const Result<> flushed = dispatcher_.flush_caches(kFlushTimeout);
  if (!flushed) {
    return error_response(
        {400, "the cache was not flushed: " + flushed.error().text() + "; try again when nothing runs", {}, "requests_in_progress"});
  }
  if (store_ != nullptr) store_->clear();
  return ok({{"success", true}, {"message", "Cache flushed."}});
}

// One token through every part of the engine.
void WorkerApi::generate_one(const std::shared_ptr<ResponseWriter>& writer) {
  std::string reason;
  if (!dispatcher_.healthy(&reason)) return writer->respond(error_response({503, reason, {}, "engine_unhealthy", "server_error"}));
  sched::Request request;
  request.prompt = {0};
  request.sampling.max_tokens = 1;
  request.sampling.temperature = 0;
  request.name = "health_generate";
  request.sink = [writer](const sched::TokenEvent& event) {
    if (event.finish == sched::FinishReason::none) return;
    const bool good = event.error.empty() && !event.token_ids.empty();
    writer->respond(
        good ? ok({{"status", "ok"}})
             : error_response({503, event.error.empty() ? "no token came" : event.error, {}, "engine_unhealthy", "server_error"}));
  };
  const auto ticket = dispatcher_.submit(std::move(request));
  if (!ticket) return writer->respond(error_response({503, ticket.error().message, {}, "engine_busy", "server_error"}));
  writer->on_gone([this, ticket = *ticket] { dispatcher_.cancel(ticket); });
}

}  // namespace ingot::serve
