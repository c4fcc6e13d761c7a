// What routers ask of a worker. Symptoms: a worker that no gateway takes in, loads that nobody can read, a flush that disturbs who runs or
// leaves a tier full, a health check that says yes for a dead engine.
#include "serve/worker_api.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "support/scripted_runner.h"
#include "support/source_dir.h"

namespace ingot::serve {
namespace {

using namespace std::chrono_literals;
using testing::ScriptedRunner;

class CapturingWriter final : public ResponseWriter {
 public:
  void respond(HttpResponse response) override {
    const std::lock_guard lock(mutex_);
    response_ = std::move(response);
    changed_.notify_all();
  }
  void start_events(HttpHeaders) override { FAIL(); }
  void event(std::string_view, std::string_view) override { FAIL(); }
  void end_events() override { FAIL(); }
  void post(std::function<void()> work) override { work(); }
  void on_gone(std::function<void()>) override {}
  HttpResponse wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return response_.has_value(); }));
    return response_.value_or(HttpResponse{});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<HttpResponse> response_;
};

// Two replicas whose steps wait while the gate is shut, and a disk tier.
class Worker {
 public:
  explicit Worker(std::filesystem::path dir = {}) {
    if (!dir.empty()) {
      auto opened = exec::PageStore::open({.dir = dir,
                                           .max_bytes = 1 << 20,
                                           .model_identity = 1,
                                           .page_size = kPageSize,
                                           .page_bytes = kPageSize * static_cast<int64_t>(sizeof(int32_t))});
      EXPECT_TRUE(opened.has_value());
      store = std::move(*opened);
    }
    std::vector<std::unique_ptr<Engine>> engines;
    for (int i = 0; i < 2; ++i) {
      Engine::Options options;
      options.scheduler = {
          .num_pages = 64, .page_size = kPageSize, .chunked_prefill_size = 64, .max_running_requests = 8, .context_length = 128};
      options.scheduler.host_pages = store ? 64 : 0;
      options.replica = i;
      options.store = store.get();
      engines.push_back(std::make_unique<Engine>(
          options, std::make_unique<ScriptedRunner>(ScriptedRunner::Options{64, kPageSize, 100, ScriptedRunner::says({5}),
                                                                            [this](const auto&) { return step(); }, nullptr})));
    }
    dispatcher = std::make_unique<Dispatcher>(std::move(engines), kPageSize, 64);
    auto model = std::make_shared<ServedModel>();
    model->name = "tiny";
    model->defaults.context_length = 128;
    WorkerInfo info;
    info.model_path = test_support::source_dir() / "models" / "demo";
    info.tokens = 64 * kPageSize;
    info.page_size = kPageSize;
    info.max_running_requests = 8;
    api = std::make_unique<WorkerApi>(std::move(model), *dispatcher, info, store.get());
  }
  ~Worker() {
    shut(false);
    dispatcher->drain(60s);
  }
  HttpResponse ask(const std::string& path) {
    EXPECT_TRUE(WorkerApi::serves(path));
    HttpRequest request;
    request.path = path;
    const auto writer = std::make_shared<CapturingWriter>();
    api->handle(request, writer);
    return writer->wait();
  }
  Json json(const std::string& path) {
    const HttpResponse response = ask(path);
    EXPECT_EQ(response.status, 200) << response.body;
    return Json::parse(response.body);
  }
  // Runs a prompt to its end; cached tokens.
  int64_t run(int32_t token) {
    submit(token);
    return wait();
  }
  void submit(int32_t token) {
    sched::Request request;
    request.prompt.assign(17, token);
    request.sampling.max_tokens = 2;
    request.sink = [this](const sched::TokenEvent& event) {
      if (event.finish == sched::FinishReason::none) return;
      const std::lock_guard lock(mutex_);
      cached_ = event.cached_tokens;
      ++ended_;
      finish_ = event.finish;
      changed_.notify_all();
    };
    ++submitted_;
    ASSERT_TRUE(dispatcher->submit(std::move(request)).has_value());
  }
  int64_t wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return ended_ == submitted_; }));
    EXPECT_EQ(finish_, sched::FinishReason::length);
    return cached_;
  }
  void shut(bool shut) {
    const std::lock_guard lock(mutex_);
    shut_ = shut;
    changed_.notify_all();
  }
  void fail_steps() {
    const std::lock_guard lock(mutex_);
    failing_ = true;
  }
  void wait_inside() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [&] { return inside_ > 0; }));
  }

  static constexpr int64_t kPageSize = 4;
  std::unique_ptr<exec::PageStore> store;
  std::unique_ptr<Dispatcher> dispatcher;
  std::unique_ptr<WorkerApi> api;

 private:
  Result<> step() {
    std::unique_lock lock(mutex_);
    if (failing_) return fail("the device is gone");
    ++inside_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !shut_; });
    --inside_;
    return {};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool shut_ = false;
  bool failing_ = false;
  int inside_ = 0;
  int submitted_ = 0;
  int ended_ = 0;
  int64_t cached_ = 0;
  sched::FinishReason finish_ = sched::FinishReason::none;
};

TEST(WorkerApi, AGatewayFindsNameModelAndSize) {
  Worker worker;
  for (const char* path : {"/server_info", "/get_server_info"}) {
    const Json info = worker.json(path);
    EXPECT_EQ(info["served_model_name"], "tiny");
    EXPECT_EQ(info["dp_size"], 2);
    EXPECT_EQ(info["max_total_tokens"], 256);
    EXPECT_EQ(info["internal_states"].size(), 2u);
    EXPECT_FALSE(info.contains("model_id") && info.contains("model")) << "two names of one field: the gateway refuses the whole answer";
  }
  for (const char* path : {"/model_info", "/get_model_info"}) {
    const Json info = worker.json(path);
    EXPECT_EQ(info["is_generation"], true);
    EXPECT_EQ(info["architectures"][0], "GlmMoeDsaForCausalLM");
    EXPECT_EQ(info["model_type"], "glm_moe_dsa");
  }
}

TEST(WorkerApi, LoadsAreThoseOfTheRequestsInTheHouse) {
  Worker worker;
  worker.shut(true);
  worker.submit(1);
  worker.wait_inside();
  const Json old = worker.json("/get_load");
  ASSERT_TRUE(old.is_array()) << "the gateway takes an array, one entry a rank";
  EXPECT_EQ(old[0]["num_reqs"].get<int64_t>() + old[1]["num_reqs"].get<int64_t>(), 1);
  EXPECT_EQ(old[0]["num_tokens"].get<int64_t>() + old[1]["num_tokens"].get<int64_t>(), 19);
  for (const char* path : {"/get_loads", "/v1/loads"}) {
    const Json loads = worker.json(path);
    EXPECT_EQ(loads["loads"].size(), 2u);
    EXPECT_EQ(loads["aggregate"]["total_reqs"], 1);
    EXPECT_EQ(loads["aggregate"]["total_tokens"], 19);
    EXPECT_GT(loads["loads"][0]["num_used_tokens"].get<int64_t>() + loads["loads"][1]["num_used_tokens"].get<int64_t>(), 0);
  }
  worker.shut(false);
  worker.wait();
  EXPECT_EQ(worker.json("/get_load")[0]["num_tokens"], 0);
}

TEST(WorkerApi, AFlushIsRefusedWhileARequestRunsAndDoesNotDisturbIt) {
  Worker worker;
  worker.shut(true);
  worker.submit(1);
  worker.wait_inside();
  const HttpResponse refused = worker.ask("/flush_cache");
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("1 requests run or wait"), std::string::npos) << refused.body;
  worker.shut(false);
  worker.wait();
  EXPECT_EQ(worker.run(1), 16) << "what was cached still is";
}

TEST(WorkerApi, AFlushEmptiesDeviceHostAndDisk) {
  const auto dir = std::filesystem::temp_directory_path() / fmt::format("ingot_flush_{}", getpid());
  {
    Worker worker(dir);
    EXPECT_EQ(worker.run(1), 0);
    EXPECT_EQ(worker.run(1), 16);
    for (int i = 0; i < 6000 && worker.store->stats().pages < 4; ++i) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(worker.store->stats().pages, 4);
    EXPECT_EQ(worker.ask("/flush_cache").status, 200);
    EXPECT_EQ(worker.store->stats().pages, 0);
    const ReplicaState state = worker.dispatcher->total();
    EXPECT_EQ(state.free_pages, 128);
    EXPECT_EQ(worker.run(1), 0) << "no tier has it any more";
    EXPECT_EQ(worker.run(1), 16) << "and it is cached anew";
  }
  std::filesystem::remove_all(dir);
}

TEST(WorkerApi, HealthIsAskedOfTheWholeEngine) {
  Worker worker;
  EXPECT_EQ(worker.ask("/health_generate").status, 200);
  worker.fail_steps();
  const HttpResponse failed = worker.ask("/health_generate");
  EXPECT_EQ(failed.status, 503);
  EXPECT_NE(failed.body.find("the device is gone"), std::string::npos) << failed.body;
  EXPECT_EQ(worker.ask("/health_generate").status, 503);
}

}  // namespace
}  // namespace ingot::serve
