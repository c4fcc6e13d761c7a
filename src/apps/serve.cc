#include "apps/serve.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>

#include "base/log.h"
#include "serve/http.h"

namespace ingot::apps {

namespace {
int complain(const std::string& message) {
  std::fprintf(stderr, "ingot serve: %s\n", message.c_str());
  return 1;
}
}  // namespace

int run_serve(const ServeOptions& options) {
  if (!init_log(options.log_level))
    return complain(fmt::format("--log-level {} is unknown: use trace, debug, info, warn, error or off", options.log_level));
  if (options.port < 0 || options.port > 65535)
    return complain(fmt::format("--port {} is out of range: expected 0 to 65535", options.port));
  if (options.drain_seconds < 0)
    return complain(fmt::format("--drain-seconds {} is out of range: expected 0 or more", options.drain_seconds));

  // Blocked before any thread starts, so that all inherit it and this thread alone hears signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  auto loaded = serve::load_service(options.service);
  if (!loaded) return complain(loaded.error().text());
  serve::Engine& engine = *loaded->engine;
  serve::OpenAiApi api(loaded->model, engine, {.api_key = options.api_key});

  serve::HttpOptions http;
  http.host = options.host;
  http.port = static_cast<uint16_t>(options.port);
  http.progress = [&engine] { return engine.stats().steps; };
  auto server = serve::HttpServer::start(
      std::move(http), [&api](serve::HttpRequest request, std::shared_ptr<serve::ResponseWriter> writer) { api.handle(request, writer); });
  if (!server) return complain(server.error().text());
  const bool is_v6 = options.host.find(':') != std::string::npos;
  log_info("ready: http://{}{}{}:{}/v1 serves {}{}", is_v6 ? "[" : "", options.host, is_v6 ? "]" : "", (*server)->port(),
           loaded->model->name, options.api_key.empty() ? "" : " (API key needed)");

  int signal = 0;
  sigwait(&signals, &signal);
  log_info("{}: no new requests; waiting up to {} s for {} in progress", signal == SIGTERM ? "SIGTERM" : "SIGINT", options.drain_seconds,
           engine.stats().running + engine.stats().waiting);
  (*server)->refuse_new();
  std::atomic<bool> drained{false};
  std::thread drainer([&] {
    engine.drain(std::chrono::seconds(options.drain_seconds));
    (*server)->stop(std::chrono::seconds(5));
    drained = true;
  });
  // A second signal means now.
  const timespec tick{0, 20'000'000};
  while (!drained) {
    if (sigtimedwait(&signals, nullptr, &tick) > 0) {
      log_warn("second signal: stopping at once");
      std::_Exit(1);
    }
  }
  drainer.join();
  log_info("stopped");
  return 0;
}

}  // namespace ingot::apps
