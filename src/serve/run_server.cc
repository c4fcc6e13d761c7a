#include "serve/run_server.h"

#include <pthread.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "serve/http.h"
#include "serve/openai_api.h"

namespace ingot::serve {

namespace {
constexpr timespec kTick{0, 20'000'000};  // between looks at a signal and at something else

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

// A connection is a file descriptor; the limit of a shell is often 1,024.
void raise_descriptor_limit(int64_t connections) {
  constexpr int64_t kOthers = 256;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0 ||
      (limit.rlim_cur != RLIM_INFINITY && static_cast<int64_t>(limit.rlim_cur) < connections + kOthers))
    log_warn("{} connections are allowed, but only {} file descriptors (ulimit -n)", connections, limit.rlim_cur);
}
}  // namespace

void block_signals() {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

StopWhileLoading::StopWhileLoading() {
  thread_ = std::thread([this] {
    const sigset_t signals = stop_signals();
    while (!loaded_) {
      const int signal = sigtimedwait(&signals, nullptr, &kTick);
      if (signal <= 0) continue;
      log_info("{} while loading: stopped", signal == SIGTERM ? "SIGTERM" : "SIGINT");
      std::_Exit(0);
    }
  });
}

StopWhileLoading::~StopWhileLoading() {
  loaded_ = true;
  thread_.join();
}

Result<> serve_until_signal(ModelService& service, const ServerOptions& options) {
  if (options.port < 0 || options.port > 65535) return fail("--port {} is out of range: expected 0 to 65535", options.port);
  if (!(options.drain_timeout >= 0)) return fail("--drain-timeout {} is out of range: expected 0 or more seconds", options.drain_timeout);
  if (options.max_connections < 1) return fail("--max-connections {} is out of range: expected 1 or more", options.max_connections);
  raise_descriptor_limit(options.max_connections);
  Dispatcher& dispatcher = *service.dispatcher;
  OpenAiApi api(service.model, dispatcher, *service.metrics, {.api_key = options.api_key});

  HttpOptions http;
  http.host = options.host;
  http.port = static_cast<uint16_t>(options.port);
  http.max_connections = static_cast<size_t>(options.max_connections);
  http.progress = [&dispatcher] { return dispatcher.total().steps; };
  INGOT_ASSIGN(const auto server, HttpServer::start(std::move(http), [&api](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
                 api.handle(request, std::move(writer));
               }));
  const bool is_v6 = options.host.find(':') != std::string::npos;
  log_info("ready: http://{}{}{}:{}/v1 serves {}{}", is_v6 ? "[" : "", options.host, is_v6 ? "]" : "", server->port(), service.model->name,
           options.api_key.empty() ? "" : " (API key needed)");
  if (service.model->forced_acceptance > 0)
    log_warn("a server for benchmarks: --speculative-force-acceptance {} makes every answer meaningless", service.model->forced_acceptance);

  const sigset_t signals = stop_signals();
  int signal = 0;
  sigwait(&signals, &signal);
  const ReplicaState state = dispatcher.total();
  log_info("{}: no new requests; waiting up to {} s for {} in progress", signal == SIGTERM ? "SIGTERM" : "SIGINT", options.drain_timeout,
           state.running + state.waiting);
  api.set_draining();
  server->close_after_answers();
  std::atomic<bool> drained{false};
  std::atomic<bool> stuck{false};
  std::thread drainer([&] {
    stuck = !dispatcher.drain(std::chrono::milliseconds(static_cast<int64_t>(options.drain_timeout * 1000)));
    if (!stuck) server->stop(std::chrono::seconds(5));
    drained = true;
  });
  while (!drained) {
    if (sigtimedwait(&signals, nullptr, &kTick) > 0) {
      log_warn("second signal: stopping at once");
      std::_Exit(1);
    }
  }
  drainer.join();
  if (stuck) {
    std::string reason;
    dispatcher.healthy(&reason);
    log_error("an engine is stuck, its clients get no answer: {}", reason);
    std::_Exit(1);  // its thread can't be joined
  }
  if (service.store) service.store->flush();
  log_info("stopped");
  return {};
}

}  // namespace ingot::serve
