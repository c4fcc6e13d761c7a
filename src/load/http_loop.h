// The client's thread: HTTP/1.1 requests with streamed answers, and timers, on one io context that the caller's thread runs. http_loop.cc
// is the only file here that includes Beast and Asio. Knows server-sent events, and nothing of what they say. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ingot::load {

struct Url {
  std::string host;
  uint16_t port = 80;
  bool is_tls = false;
  std::string prefix;  // path before "/v1/...", without a slash at its end
};
// "http://127.0.0.1:30000" or "https://...", with or without "/v1" at the end. Errors: what is not such a text.
Result<Url> parse_url(std::string_view text);

struct HttpEnd {
  int status = 0;       // 0: no head came
  std::string body;     // of an answer that is no event stream
  std::string problem;  // kind of failure of the connection: connect, tls, reset, closed_early, protocol, timeout; empty: a whole answer
  std::string detail;
  int64_t now_ns = 0;
};

struct HttpCall {
  std::string method = "POST";
  std::string target;  // "/v1/completions"; the prefix is put before it
  std::string body;
  int64_t timeout_ns = 600'000'000'000;                                 // of all of it
  std::function<void(std::string_view data, int64_t now_ns)> on_event;  // of a stream with status 200: a data line
  std::function<void(HttpEnd end)> on_end;                              // once, and last
};

class HttpLoop {
 public:
  struct Options {
    Url url;
    std::string api_key;  // sent as a bearer token; empty: none
  };
  // Resolves the host. A TLS server must have a certificate of its name by an authority that OpenSSL trusts (SSL_CERT_FILE names another).
  // Errors: the host has no address.
  static Result<std::unique_ptr<HttpLoop>> create(Options options);
  virtual ~HttpLoop() = default;

  // Nanoseconds of the steady clock.
  static int64_t now_ns();

  // May be called from callbacks. A connection left over from an earlier call is used when there is one.
  virtual void call(HttpCall call) = 0;
  // Runs `work` on this thread at that time, or as soon after as it can; never when stop() is called before.
  virtual void at(int64_t time_ns, std::function<void()> work) = 0;
  // Until stop() was called.
  virtual void run() = 0;
  virtual void stop() = 0;

  // How late a timer that is due every 10 ms was served, while run() ran: a thread that cannot keep up shows here. ns.
  virtual const std::vector<int64_t>& lags() const = 0;
  virtual void forget_lags() = 0;
  // Processor time of the calling thread so far, ns.
  static int64_t thread_cpu_ns();
};

}  // namespace ingot::load
