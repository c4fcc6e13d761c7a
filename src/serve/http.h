// The gate: bytes to HttpRequest and answers to bytes (HTTP/1.1, server-sent events), with every limit a public port needs, over TCP or a
// unix socket, plain or under TLS. One io thread owns all connections; handlers run on a few worker threads. http_connection.cc is the only
// file that includes Beast. It knows no route and no JSON beyond its own error objects.
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
  std::string id;  // the client's X-Request-Id when it sent one that can be echoed, else made here; every answer carries it

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
  // One line of text, without "data: "; `name`, when there is one, goes before it as the event's type.
  virtual void event(std::string_view data, std::string_view name = {}) = 0;
  virtual void end_events() = 0;
  // Runs `work` on the io thread, after everything this thread has asked for before.
  virtual void post(std::function<void()> work) = 0;
  // Called once on the io thread (or at once, when it has happened already) if the client goes before the answer's end.
  virtual void on_gone(std::function<void()> callback) = 0;
};

using HttpHandler = std::function<void(HttpRequest request, std::shared_ptr<ResponseWriter> writer)>;

// One request that has ended, for the access log. Without the query, which may hold what is nobody's business.
struct AccessRecord {
  std::string method;  // "-" when the request was not understood
  std::string path;
  int status = 0;         // 0: the client went before there was one
  int64_t bytes = 0;      // of the answer, as handed to the socket, headers included
  double seconds = 0;     // from the request's last byte until the answer's
  bool complete = false;  // else the client went, or was too slow
  std::string client;     // "127.0.0.1:5555", or "unix"
  std::string id;
};

struct HttpOptions {
  struct Tls {
    std::string certificate_file;  // PEM, the chain; empty: no TLS
    std::string key_file;          // PEM; empty: in the certificate's file
    std::string key_password;
  };
  std::string host = "127.0.0.1";
  uint16_t port = 0;        // 0: any free one
  std::string unix_socket;  // a path: listens there instead of host and port
  Tls tls;
  std::vector<std::string> cors_origins;         // pages of these may ask from a browser; "*": of all; empty: of none
  std::function<void(AccessRecord)> access_log;  // on the io thread, must be quick; null: none
  int worker_threads = 4;                        // a new grammar keeps one for up to seconds
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
  // Binds, listens and starts the threads. Errors: the address and the system's reason; the flag and file of TLS.
  static Result<std::unique_ptr<HttpServer>> start(HttpOptions options, HttpHandler handler);
  ~HttpServer();  // stop(0)
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;  // 0 of a unix socket
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
