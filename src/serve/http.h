// The gate: bytes to HttpRequest and answers to bytes (HTTP/1.1, server-sent events), with every limit a public port needs.
// One io thread owns all connections; handlers run on a few worker threads. http.cc is the only file that includes Beast and Asio.
// It knows no route and no JSON beyond its own error objects.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ingot::serve {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;   // the target up to '?', as sent
  std::string query;  // behind '?', may be empty
  HttpHeaders headers;
  std::string body;

  // The first header of that name, whatever its case; empty when absent.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  HttpHeaders headers;
};

// The way back of one request. Every method may be called from any thread; calls of one thread keep their order. After the client has gone,
// or after the end, calls do nothing. A writer that is dropped without an answer sends 500, so that no client waits for ever.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  // The whole answer.
  virtual void respond(HttpResponse response) = 0;
  // Or a stream of server-sent events: headers now, then events, then the end.
  virtual void start_events(HttpHeaders headers) = 0;
  virtual void event(std::string_view data) = 0;  // one line of text, without "data: "
  virtual void end_events() = 0;
  // Runs `work` on the io thread, after everything this thread has asked for before.
  virtual void post(std::function<void()> work) = 0;
  // Called once on the io thread (or at once, when it has happened already) if the client goes before the answer's end.
  virtual void on_gone(std::function<void()> callback) = 0;
};

using HttpHandler = std::function<void(HttpRequest request, std::shared_ptr<ResponseWriter> writer)>;

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  int worker_threads = 2;
  size_t max_connections = 1024;
  size_t max_header_bytes = 64 << 10;
  size_t max_body_bytes = 32 << 20;
  size_t max_unsent_bytes = 16 << 20;  // a client that reads slower than we write is dropped here
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds idle_timeout{75'000};  // between requests of a kept connection
  std::chrono::milliseconds write_timeout{60'000};
  std::chrono::milliseconds comment_interval{10'000};  // an event stream that is silent this long gets a comment line
  // Comments are sent only while this number changes: a dead engine must not look alive. Null: always.
  std::function<int64_t()> progress;
};

class HttpServer {
 public:
  // Binds, listens and starts the threads. Errors: the address and the system's reason.
  static Result<std::unique_ptr<HttpServer>> start(HttpOptions options, HttpHandler handler);
  ~HttpServer();  // stop(0)
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  // From now on each connection is closed after its answer, so that clients leave; all requests are still answered.
  void close_after_answers();
  // From now on every new request gets 503; what runs goes on.
  void refuse_new();
  // Waits up to `timeout` for answers in progress, then closes everything and joins the threads.
  void stop(std::chrono::milliseconds timeout);

  struct Impl;

 private:
  explicit HttpServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// The body of an error answer in OpenAI's form. `param` and `code` may be empty: null.
std::string error_body(std::string_view message, std::string_view type, std::string_view param = {}, std::string_view code = {});

}  // namespace ingot::serve
