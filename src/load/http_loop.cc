#include "load/http_loop.h"

#include <sys/resource.h>
#include <time.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <charconv>
#include <chrono>
#include <optional>
#include <unordered_set>

namespace ingot::load {

namespace {
namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kMaxBodyBytes = 16 << 20;  // of an answer that is no stream
constexpr size_t kMaxLineBytes = 16 << 20;  // of an event
constexpr milliseconds kLagInterval{10};
constexpr milliseconds kSweepInterval{200};  // of time limits

// Beast's parser fed by hand: bodies, chunked or not, end up in one sink.
class AnswerParser final : public http::basic_parser<false> {
 public:
  std::function<void(std::string_view)> sink;
  int status = 0;
  bool is_event_stream = false;

  AnswerParser() {
    eager(true);
    body_limit(boost::none);
  }

 private:
  using view = boost::beast::string_view;
  void on_request_impl(http::verb, view, view, int, error_code&) override {}
  void on_response_impl(int code, view, int, error_code&) override { status = code; }
  void on_field_impl(http::field name, view, view value, error_code&) override {
    if (name == http::field::content_type) is_event_stream = value.starts_with("text/event-stream");
  }
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(boost::optional<std::uint64_t> const&, error_code&) override {}
  std::size_t on_body_impl(view body, error_code&) override {
    sink({body.data(), body.size()});
    return body.size();
  }
  void on_chunk_header_impl(std::uint64_t, view, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, view body, error_code&) override {
    sink({body.data(), body.size()});
    return body.size();
  }
  void on_finish_impl(error_code&) override {}
};

class Loop;

// One connection and the call on it. Lives as long as an operation of it does, or the loop keeps it for the next call.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Loop& loop, asio::io_context& io) : loop_(loop), socket_(io) {}

  void start(HttpCall call);
  void expire(int64_t now);

 private:
  void connect();
  void shake_hands();
  void write();
  void read();
  void close();
  bool is_closed_early(const error_code& error) const { return error == asio::error::eof || error == asio::ssl::error::stream_truncated; }
  void on_read(const error_code& error, size_t bytes);
  void take_body(std::string_view bytes, int64_t now);
  void fail(std::string problem, std::string detail);
  void end();

  Loop& loop_;
  tcp::socket socket_;
  // Around socket_, of an https server. Shared with its operations: a new connection may be made while an old one's are being cancelled.
  std::shared_ptr<asio::ssl::stream<tcp::socket&>> tls_;
  std::optional<HttpCall> call_;
  int64_t deadline_ = 0;
  bool is_reused_ = false;  // an older call was answered on this connection
  bool is_writing_ = false;
  bool has_answer_ = false;  // a byte of this call's answer came
  uint64_t serial_ = 0;      // of the call: completions of an older one are ignored
  std::string request_;
  std::optional<AnswerParser> parser_;
  std::string unparsed_;  // bytes of head or chunk lines that are not complete
  std::string line_;      // of an event, not complete
  std::string body_;
  std::array<char, kReadBytes> buffer_{};
};

class Loop final : public HttpLoop {
 public:
  Loop(Options options, std::vector<tcp::endpoint> endpoints)
      : options_(std::move(options)), endpoints_(std::move(endpoints)), lag_timer_(io_), sweep_timer_(io_) {
    error_code ignored;  // without a store of authorities every handshake fails, and says why
    tls_.set_default_verify_paths(ignored);
    tls_.set_verify_mode(asio::ssl::verify_peer);
  }

  void call(HttpCall call) override {
    std::shared_ptr<Connection> connection;
    if (!idle_.empty()) {
      connection = std::move(idle_.back());
      idle_.pop_back();
    } else {
      connection = std::make_shared<Connection>(*this, io_);
    }
    busy_.insert(connection);
    connection->start(std::move(call));
  }

  void at(int64_t time_ns, std::function<void()> work) override {
    auto timer = std::make_shared<asio::steady_timer>(io_, std::chrono::steady_clock::time_point(nanoseconds(time_ns)));
    timer->async_wait([this, timer, run = run_, work = std::move(work)](const error_code& error) {
      if (!error && run == run_) work();
    });
  }

  void run() override {
    io_.restart();
    watch_lag(now_ns() + nanoseconds(kLagInterval).count());
    sweep();
    io_.run();
    lag_timer_.cancel();
    sweep_timer_.cancel();
  }
  void stop() override {
    ++run_;  // timers of this run may hold what is gone by the next
    io_.stop();
  }
  const std::vector<int64_t>& lags() const override { return lags_; }
  void forget_lags() override { lags_.clear(); }

  const Options& options() const { return options_; }
  const std::vector<tcp::endpoint>& endpoints() const { return endpoints_; }
  asio::ssl::context& tls() { return tls_; }

  void is_done(const std::shared_ptr<Connection>& connection, bool keep) {
    busy_.erase(connection);
    if (keep) idle_.push_back(connection);
  }

 private:
  void watch_lag(int64_t due) {
    lag_timer_.expires_at(std::chrono::steady_clock::time_point(nanoseconds(due)));
    lag_timer_.async_wait([this, due](const error_code& error) {
      if (error) return;
      const int64_t now = now_ns();
      lags_.push_back(now - due);
      watch_lag(now + nanoseconds(kLagInterval).count());
    });
  }
  void sweep() {
    sweep_timer_.expires_after(kSweepInterval);
    sweep_timer_.async_wait([this](const error_code& error) {
      if (error) return;
      const int64_t now = now_ns();
      const std::vector<std::shared_ptr<Connection>> busy(busy_.begin(), busy_.end());  // the set changes as calls end
      for (const auto& connection : busy) connection->expire(now);
      sweep();
    });
  }

  const Options options_;
  const std::vector<tcp::endpoint> endpoints_;
  uint64_t run_ = 0;
  asio::io_context io_{1};
  asio::ssl::context tls_{asio::ssl::context::tls_client};
  asio::steady_timer lag_timer_, sweep_timer_;
  std::vector<int64_t> lags_;
  std::vector<std::shared_ptr<Connection>> idle_;
  std::unordered_set<std::shared_ptr<Connection>> busy_;
};

void Connection::start(HttpCall call) {
  call_ = std::move(call);
  ++serial_;
  deadline_ = HttpLoop::now_ns() + call_->timeout_ns;
  const auto& options = loop_.options();
  const std::string& name = options.url.host;
  const std::string host = name.find(':') == std::string::npos ? name : "[" + name + "]";  // an IPv6 address, as in the URL
  request_ = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nUser-Agent: ingot-bench\r\nAccept: text/event-stream, application/json\r\n",
                         call_->method, options.url.prefix, call_->target, host, options.url.port);
  if (!options.api_key.empty()) request_ += fmt::format("Authorization: Bearer {}\r\n", options.api_key);
  if (call_->method != "GET") request_ += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", call_->body.size());
  request_ += "\r\n";
  request_ += call_->body;
  call_->body = {};
  has_answer_ = false;
  if (socket_.is_open())
    write();
  else
    connect();
}

void Connection::connect() {
  is_reused_ = false;
  tls_.reset();
  asio::async_connect(socket_, loop_.endpoints(),
                      [self = shared_from_this(), serial = serial_](const error_code& error, const tcp::endpoint&) {
                        if (serial != self->serial_ || !self->call_) return;
                        if (error) return self->fail("connect", error.message());
                        error_code ignored;
                        self->socket_.set_option(tcp::no_delay(true), ignored);
                        if (self->loop_.options().url.is_tls) return self->shake_hands();
                        self->write();
                      });
}

void Connection::shake_hands() {
  const std::string& host = loop_.options().url.host;
  tls_ = std::make_shared<asio::ssl::stream<tcp::socket&>>(socket_, loop_.tls());
  SSL_set_tlsext_host_name(tls_->native_handle(), host.c_str());
  tls_->set_verify_callback(asio::ssl::host_name_verification(host));
  tls_->async_handshake(asio::ssl::stream_base::client, [self = shared_from_this(), tls = tls_, serial = serial_](const error_code& error) {
    if (serial != self->serial_ || !self->call_) return;
    if (error) return self->fail("tls", error.message());
    self->write();
  });
}

void Connection::close() {
  error_code ignored;
  socket_.close(ignored);
}

void Connection::write() {
  parser_.emplace();
  unparsed_.clear();
  line_.clear();
  body_.clear();
  is_writing_ = true;
  // A server that refuses may answer and close before it has read all: the reader tells what came of it.
  auto written = [self = shared_from_this(), tls = tls_, serial = serial_](const error_code& error, size_t) {
    if (serial == self->serial_ && !error) self->is_writing_ = false;
  };
  if (tls_)
    asio::async_write(*tls_, asio::buffer(request_), std::move(written));
  else
    asio::async_write(socket_, asio::buffer(request_), std::move(written));
  read();
}

void Connection::read() {
  auto came = [self = shared_from_this(), tls = tls_, serial = serial_](const error_code& error, size_t bytes) {
    if (serial == self->serial_ && self->call_) self->on_read(error, bytes);
  };
  if (tls_)
    tls_->async_read_some(asio::buffer(buffer_), std::move(came));
  else
    socket_.async_read_some(asio::buffer(buffer_), std::move(came));
}

void Connection::on_read(const error_code& error, size_t bytes) {
  const int64_t now = HttpLoop::now_ns();
  if (error) {
    if (is_closed_early(error) && parser_->is_header_done() && !parser_->is_done() && !parser_->chunked() && !parser_->content_length()) {
      return end();  // the end of the connection is the end of the body
    }
    if (!has_answer_ && is_reused_) {
      // The server closed an idle connection as we wrote: it has not seen the request.
      close();
      return connect();
    }
    return fail(is_closed_early(error) ? "closed_early" : "reset", error.message());
  }
  has_answer_ = true;
  parser_->sink = [this, now](std::string_view part) { take_body(part, now); };
  unparsed_.append(buffer_.data(), bytes);
  const uint64_t serial = serial_;
  size_t used = 0;
  while (used < unparsed_.size() && !parser_->is_done()) {
    error_code parse_error;
    const size_t taken = parser_->put(asio::buffer(unparsed_.data() + used, unparsed_.size() - used), parse_error);
    if (serial != serial_ || !call_) return;  // an event's callback ended the call
    used += taken;
    if (parse_error == http::error::need_more) break;
    if (parse_error) return fail("protocol", parse_error.message());
    if (taken == 0) break;
  }
  unparsed_.erase(0, used);
  if (parser_->is_done()) return end();
  read();
}

void Connection::take_body(std::string_view bytes, int64_t now) {
  if (parser_->status != 200 || !parser_->is_event_stream) {
    if (body_.size() + bytes.size() <= kMaxBodyBytes) body_ += bytes;
    return;
  }
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    if (end == std::string_view::npos) {
      if (line_.size() + bytes.size() <= kMaxLineBytes) line_ += bytes;
      return;
    }
    std::string_view line = bytes.substr(0, end);
    if (!line_.empty()) {
      line_ += line;
      line = line_;
    }
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("data:")) {
      line.remove_prefix(line.starts_with("data: ") ? 6 : 5);
      if (call_ && call_->on_event) call_->on_event(line, now);
    }
    line_.clear();
    bytes.remove_prefix(end + 1);
  }
}

void Connection::expire(int64_t now) {
  if (call_ && now >= deadline_) fail("timeout", fmt::format("no whole answer in {:.1f} s", static_cast<double>(call_->timeout_ns) / 1e9));
}

void Connection::fail(std::string problem, std::string detail) {
  HttpEnd end;
  end.status = parser_ ? parser_->status : 0;
  end.problem = std::move(problem);
  end.detail = std::move(detail);
  end.now_ns = HttpLoop::now_ns();
  close();
  const auto self = shared_from_this();
  HttpCall call = std::move(*call_);
  call_.reset();
  loop_.is_done(self, false);
  if (call.on_end) call.on_end(std::move(end));
}

void Connection::end() {
  HttpEnd end;
  end.status = parser_->status;
  end.body = std::move(body_);
  end.now_ns = HttpLoop::now_ns();
  const bool keep = parser_->is_done() && parser_->keep_alive() && !is_writing_;
  is_reused_ = true;
  if (!keep) close();
  const auto self = shared_from_this();
  HttpCall call = std::move(*call_);
  call_.reset();
  loop_.is_done(self, keep);
  if (call.on_end) call.on_end(std::move(end));
}
}  // namespace

Result<Url> parse_url(std::string_view text) {
  constexpr const char* kHint = "expected http://HOST:PORT or https://HOST";
  std::string_view rest = text;
  Url url;
  url.is_tls = rest.starts_with("https://");
  if (!url.is_tls && !rest.starts_with("http://")) return fail_hint(kHint, "{} is no URL", text);
  rest.remove_prefix(url.is_tls ? 8 : 7);
  if (url.is_tls) url.port = 443;
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view host = rest.substr(0, slash);
  std::string_view path = rest.substr(slash);
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);
  url.prefix = path;
  const size_t bracket = host.rfind(']');
  const size_t colon = host.rfind(':');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
    const std::string_view port = host.substr(colon + 1);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
    if (error != std::errc() || end != port.data() + port.size() || url.port == 0) return fail_hint(kHint, "{}: {} is no port", text, port);
    host = host.substr(0, colon);
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.empty()) return fail_hint(kHint, "{} names no host", text);
  url.host = host;
  return url;
}

int64_t HttpLoop::now_ns() { return std::chrono::duration_cast<nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int64_t HttpLoop::thread_cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

Result<std::unique_ptr<HttpLoop>> HttpLoop::create(Options options) {
  // A connection a stream: the usual soft limit of 1,024 is no limit that anybody chose.
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  asio::io_context io;
  tcp::resolver resolver(io);
  error_code error;
  const auto found = resolver.resolve(options.url.host, std::to_string(options.url.port), error);
  if (error) return fail("{}: {}", options.url.host, error.message());
  std::vector<tcp::endpoint> endpoints;
  for (const auto& entry : found) endpoints.push_back(entry.endpoint());
  return std::make_unique<Loop>(std::move(options), std::move(endpoints));
}

}  // namespace ingot::load
