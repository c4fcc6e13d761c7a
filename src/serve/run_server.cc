#include "serve/run_server.h"

#include <pthread.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "base/file_map.h"
#include "base/log.h"
#include "serve/background_writer.h"
#include "serve/http.h"
#include "serve/http_cors.h"
#include "serve/http_transport.h"
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

constexpr size_t kMaxKeyFile = 64 << 10;
constexpr size_t kMaxAccessLines = 65'536;  // that may wait for the log
constexpr std::string_view kUnixPrefix = "unix:";

Result<std::string> read_api_key(const ServerOptions& options) {
  if (options.api_key_file.empty()) return options.api_key;
  if (!options.api_key.empty()) return fail("--api-key and --api-key-file are both given: leave one out");
  auto text = read_file(options.api_key_file, kMaxKeyFile);
  if (!text) return fail("--api-key-file: {}", text.error().text());
  std::string key = text->substr(0, text->find_first_of("\r\n"));
  if (key.empty()) return fail("--api-key-file {}: its first line is empty, expected the key", options.api_key_file);
  return key;
}

HttpOptions::Tls tls_of(const ServerOptions& options) { return {options.ssl_certfile, options.ssl_keyfile, options.ssl_keyfile_password}; }

std::string unix_path(const ServerOptions& options) {
  if (!options.uds.empty()) return options.uds;
  if (!options.host.starts_with(kUnixPrefix)) return {};
  const std::string path = options.host.substr(kUnixPrefix.size());
  return path.starts_with("//") ? path.substr(2) : path;  // unix:///run/x is a form of it, too
}

// Where a client finds the server, as the log's line "ready: " has it: "http://127.0.0.1:30000/v1", or "unix:/run/ingot.sock".
std::string address_of(const ServerOptions& options, int port) {
  if (const std::string path = unix_path(options); !path.empty()) return fmt::format("{}{}", kUnixPrefix, path);
  const bool is_v6 = options.host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}/v1", options.ssl_certfile.empty() ? "http" : "https", is_v6 ? "[" : "", options.host, is_v6 ? "]" : "",
                     port);
}

void write_access(std::span<AccessRecord> records) {
  for (const AccessRecord& r : records) {
    log_info("access: {} {} {} {} bytes {:.1f} ms {} {}{}", r.method, r.path, r.status, r.bytes, r.seconds * 1e3, r.client, r.id,
             r.complete ? "" : " (the client went)");
  }
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

// Null: none is wanted.
Result<std::unique_ptr<ResponseStore>> open_response_store(const ServerOptions& options) {
  if (options.response_store == "none") return std::unique_ptr<ResponseStore>();
  ResponseStore::Limits limits;
  limits.max_responses = options.response_store_max;
  return ResponseStore::open(options.response_store == "memory" ? "" : options.response_store, limits);
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

Result<> check_server_options(const ServerOptions& options) {
  if (options.port < 0 || options.port > 65535) return fail("--port {} is out of range: expected 0 to 65535", options.port);
  if (!(options.drain_timeout >= 0)) return fail("--drain-timeout {} is out of range: expected 0 or more seconds", options.drain_timeout);
  if (options.max_connections < 1) return fail("--max-connections {} is out of range: expected 1 or more", options.max_connections);
  if (options.response_store_max < 1)
    return fail("--response-store-max {} is out of range: expected 1 or more", options.response_store_max);
  if (options.response_store.empty()) return fail("--response-store is empty: expected memory, none or a file");
  INGOT_TRY(read_api_key(options));
  INGOT_TRY(parse_cors_origins(options.cors_allow_origins));
  INGOT_TRY(make_tls_context(tls_of(options)));
  return {};
}

Result<> serve_until_signal(ModelService& service, const ServerOptions& options) {
  INGOT_TRY(check_server_options(options));
  raise_descriptor_limit(options.max_connections);
  Dispatcher& dispatcher = *service.dispatcher;
  WorkerApi worker(service.model, dispatcher, service.worker, service.store.get());
  INGOT_ASSIGN(const std::string api_key, read_api_key(options));
  INGOT_ASSIGN(const auto responses, open_response_store(options));
  OpenAiApi api(service.model, dispatcher, *service.metrics, {.api_key = api_key, .worker = &worker, .response_store = responses.get()});

  HttpOptions http;
  http.host = options.host;
  http.port = static_cast<uint16_t>(options.port);
  http.unix_socket = unix_path(options);
  http.tls = tls_of(options);
  INGOT_ASSIGN(http.cors_origins, parse_cors_origins(options.cors_allow_origins));
  std::optional<BackgroundWriter<AccessRecord>> access_log;
  if (options.access_log) {
    access_log.emplace("access log", kMaxAccessLines, write_access);
    http.access_log = [&access_log](AccessRecord record) { access_log->push(std::move(record)); };
  }
  http.max_connections = static_cast<size_t>(options.max_connections);
  http.progress = [&dispatcher] { return dispatcher.total().steps; };
  INGOT_ASSIGN(const auto server, HttpServer::start(std::move(http), [&api](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
                 api.handle(request, std::move(writer));
               }));
  log_info("ready: {} serves {}{}", address_of(options, server->port()), service.model->name, api_key.empty() ? "" : " (API key needed)");
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
