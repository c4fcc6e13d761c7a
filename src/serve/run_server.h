// The life of a server: listens, serves until SIGTERM or SIGINT, drains, leaves. `ingot serve` and the scripted server of the tests.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "base/result.h"
#include "serve/model_service.h"

namespace ingot::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 30000;          // 0: any free one
  std::string uds;           // a path: a unix socket instead of host and port; as does a host of "unix:PATH"
  std::string api_key;       // empty: open to all
  std::string api_key_file;  // a file whose first line is the key
  std::string ssl_certfile;  // PEM; empty: no TLS
  std::string ssl_keyfile;
  std::string ssl_keyfile_password;
  std::string cors_allow_origins;         // "*", or origins with commas between them; empty: browsers' pages may not ask
  std::string response_store = "memory";  // where /v1/responses are kept: memory, none, or a file that survives a restart
  int64_t response_store_max = 4096;      // responses there; those used least recently go first
  bool access_log = true;                 // a line a request
  int64_t max_connections = 16384;
  double drain_timeout = 20;  // seconds for answers in progress after SIGTERM; then their streams end with an error event
};

// SIGTERM and SIGINT are for serve_until_signal() alone: call it before any thread starts, so that all inherit it.
void block_signals();

// While it lives, a stop signal ends the process with status 0: there is nobody to be told while a model is being loaded.
class StopWhileLoading {
 public:
  StopWhileLoading();
  ~StopWhileLoading();
  StopWhileLoading(const StopWhileLoading&) = delete;
  StopWhileLoading& operator=(const StopWhileLoading&) = delete;

 private:
  std::atomic<bool> loaded_{false};
  std::thread thread_;
};

// What can be refused before a model is loaded, which takes minutes. Errors name the flag, and the file where there is one.
Result<> check_server_options(const ServerOptions& options);

// Says "ready: URL" in the log, returns after the drain. A second signal ends the process at once with status 1, as does an engine that
// is stuck when the drain is over. Errors: flags out of range, an address that cannot be listened on.
Result<> serve_until_signal(ModelService& service, const ServerOptions& options);

}  // namespace ingot::serve
