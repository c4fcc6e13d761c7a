#include "serve/http.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "base/json.h"
#include "base/log.h"

namespace ingot::serve {

namespace {
namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using tcp = asio::ip::tcp;
class Connection;

constexpr size_t kReadBytes = 64 << 10;
// While an answer is being made, further (pipelined) bytes are read up to here, so that the end of the connection is noticed.
constexpr size_t kMaxPipelinedBytes = 64 << 10;
// An error is answered before the request was read to its end: the rest is thrown away for a while, since closing a socket
// with unread bytes resets it and the client would lose our answer.
constexpr milliseconds kLingerTimeout{10'000};

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    if (lower(a[i]) != lower(b[i])) return false;
  }
  return true;
}
}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (equal_ignoring_case(key, name)) return value;
  }
  return {};
}

std::string error_body(std::string_view message, std::string_view type, std::string_view param, std::string_view code) {
  Json error{{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}};
  if (!param.empty()) error["param"] = param;
  if (!code.empty()) error["code"] = code;
  return Json{{"error", std::move(error)}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

struct HttpServer::Impl : std::enable_shared_from_this<HttpServer::Impl> {
  Impl(HttpOptions options_in, HttpHandler handler_in)
      : options(std::move(options_in)), handler(std::move(handler_in)), workers(static_cast<size_t>(options.worker_threads)) {}

  void accept();
  void count_busy(int change);
  // Any other thread: runs `task` on the io thread. A step of the engine has something for every stream: one wake-up does for all of it.
  void deliver(std::function<void()> task);
  void sweep();  // every sweep_interval: closes what is past its deadline, sends comments that are due

  const HttpOptions options;
  const HttpHandler handler;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  tcp::acceptor acceptor{io};
  asio::steady_timer accept_retry{io};
  asio::steady_timer sweep_timer{io};
  milliseconds sweep_interval{250};
  asio::thread_pool workers;
  std::thread thread;
  uint16_t bound_port = 0;
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections;  // io thread
  std::atomic<bool> closing{false};
  std::atomic<bool> refusing{false};
  std::atomic<bool> stopped{false};
  std::mutex mail_mutex;
  std::vector<std::function<void()>> mail;  // not yet on the io thread, guarded by mail_mutex; a run of it is on its way when not empty
  std::mutex mutex;
  std::condition_variable all_answered;
  int busy = 0;  // requests without their answer's end, guarded by mutex
};

namespace {
// One client. Everything here runs on the io thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<HttpServer::Impl> server, tcp::socket socket) : server_(std::move(server)), socket_(std::move(socket)) {}
  ~Connection() { server_->connections.erase(this); }

  void begin(bool overloaded) {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    if (overloaded) return refuse(503, "too many connections");
    set_deadline(server_->options.header_timeout);
    read();
  }

  void respond(uint64_t serial, HttpResponse response) {
    if (!current(serial) || headers_sent_) return;
    headers_sent_ = true;
    std::string head = status_line(response.status);
    constexpr int kNoContent = 204;  // has no body, and may not say that it has none
    if (response.status != kNoContent)
      head += fmt::format("Content-Type: {}\r\nContent-Length: {}\r\n", response.content_type, response.body.size());
    for (const auto& [key, value] : response.headers) head += fmt::format("{}: {}\r\n", key, value);
    head += connection_header();
    if (!head_only_) head += response.body;
    ended_ = true;
    send(std::move(head));
  }

  void start_events(uint64_t serial, const HttpHeaders& headers) {
    if (!current(serial) || headers_sent_) return;
    headers_sent_ = true;
    if (!chunked_) keep_alive_ = false;
    std::string head =
        status_line(200) + "Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
    for (const auto& [key, value] : headers) head += fmt::format("{}: {}\r\n", key, value);
    if (chunked_) head += "Transfer-Encoding: chunked\r\n";
    head += connection_header();
    streaming_ = true;
    last_progress_ = -1;
    send(std::move(head));
    arm_comment();
  }

  void event(uint64_t serial, std::string_view data) {
    if (current(serial) && streaming_ && !ended_) send_chunk(fmt::format("data: {}\n\n", data));
  }

  void end_events(uint64_t serial) {
    if (!current(serial) || !streaming_ || ended_) return;
    ended_ = true;
    send(chunked_ && !head_only_ ? "0\r\n\r\n" : "");
  }

  void on_gone(uint64_t serial, std::function<void()> callback) {
    if (serial != serial_ || (closed_ && !ended_)) return callback();
    if (current(serial) && !ended_) gone_ = std::move(callback);
  }

  void abandon(uint64_t serial) {
    if (!current(serial) || ended_) return;
    if (headers_sent_) return close();
    respond(serial, {500, error_body("the server dropped this request", "server_error"), "application/json", {}});
  }

  void sweep(Clock::time_point now) {
    if (closed_) return;
    if (now >= deadline_) {
      clear_deadline();
      return timed_out();
    }
    if (now < comment_due_ || !streaming_ || ended_) return;
    arm_comment();
    const auto& progress = server_->options.progress;
    const int64_t steps = progress ? progress() : last_progress_ + 1;
    if (std::exchange(last_progress_, steps) != steps) send_chunk(": still working\n\n");
  }

  void close() {
    if (closed_) return;
    closed_ = true;
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
    if (state_ == State::busy) {
      server_->count_busy(-1);
      if (auto gone = std::exchange(gone_, nullptr)) gone();
    }
  }

 private:
  // idle: between requests. busy: the handler has it. lingering: answered, throwing away what still comes.
  enum class State { idle, receiving, busy, refusing, lingering };

  bool current(uint64_t serial) const { return serial == serial_ && state_ == State::busy && !closed_; }

  std::string status_line(int status) const {
    const auto reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
    return fmt::format("HTTP/1.1 {} {}\r\n", status, std::string_view(reason.data(), reason.size()));
  }
  std::string connection_header() {
    if (server_->closing || server_->refusing) keep_alive_ = false;
    return keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  }

  // Deadlines are kept, not armed: a timer each for every event of every stream would cost more than the events.
  void set_deadline(milliseconds after) { deadline_ = Clock::now() + after; }
  void clear_deadline() { deadline_ = Clock::time_point::max(); }
  void timed_out() {
    if (state_ == State::receiving) return refuse(408, "the request did not arrive in time");
    close();
  }

  void read() {
    if (reading_ || closed_ || (state_ == State::busy && buffer_.size() >= kMaxPipelinedBytes)) return;
    reading_ = true;
    socket_.async_read_some(buffer_.prepare(kReadBytes),
                            [self = shared_from_this()](error_code ec, size_t count) { self->on_read(ec, count); });
  }

  void on_read(error_code ec, size_t count) {
    reading_ = false;
    if (closed_) return;
    if (ec) return close();
    if (state_ == State::lingering || state_ == State::refusing) return read();  // not committed: thrown away
    buffer_.commit(count);
    if (state_ != State::busy) parse();
    read();
  }

  // Goes as far as the bytes in the buffer reach.
  void parse() {
    if (!parser_) {
      if (buffer_.size() == 0) {
        state_ = State::idle;
        return set_deadline(server_->options.idle_timeout);
      }
      parser_.emplace();
      parser_->header_limit(static_cast<uint32_t>(server_->options.max_header_bytes));
      parser_->body_limit(server_->options.max_body_bytes);
      state_ = State::receiving;
      set_deadline(server_->options.header_timeout);  // from the first byte on, and not renewed by further ones
    }
    if (!parser_->is_header_done()) {
      if (!feed() || !parser_->is_header_done()) return;
      if (equal_ignoring_case(view(parser_->get()[http::field::expect]), "100-continue")) {
        send("HTTP/1.1 100 Continue\r\n\r\n");
      }
      set_deadline(server_->options.body_timeout);
      parser_->eager(true);
    }
    while (!parser_->is_done() && buffer_.size() > 0) {
      if (!feed()) return;
    }
    if (parser_->is_done()) dispatch();
  }

  // False when more bytes are needed or the request was refused.
  bool feed() {
    error_code ec;
    const size_t used = parser_->put(buffer_.data(), ec);
    buffer_.consume(used);
    if (!ec) return true;
    if (ec == http::error::need_more) {
      if (buffer_.size() > server_->options.max_header_bytes) refuse(431, "the request's headers are too large");
    } else if (ec == http::error::header_limit) {
      refuse(431, fmt::format("the request's headers are larger than {} bytes", server_->options.max_header_bytes));
    } else if (ec == http::error::body_limit) {
      refuse(413, fmt::format("the request's body is larger than {} bytes", server_->options.max_body_bytes));
    } else {
      refuse(400, fmt::format("malformed HTTP request: {}", ec.message()));
    }
    return false;
  }

  static std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

  void dispatch() {
    auto message = parser_->release();
    parser_.reset();
    clear_deadline();
    HttpRequest request;
    request.method = view(message.method_string());
    const std::string_view target = view(message.target());
    const size_t mark = target.find('?');
    request.path = target.substr(0, mark);
    if (mark != std::string_view::npos) request.query = target.substr(mark + 1);
    for (const auto& field : message) request.headers.emplace_back(view(field.name_string()), view(field.value()));
    request.body = std::move(message.body());
    if (message.version() >= 11 && request.header("host").empty()) return refuse(400, "the Host header is missing");

    state_ = State::busy;
    ++serial_;
    keep_alive_ = message.keep_alive();
    chunked_ = message.version() >= 11;
    head_only_ = message.method() == http::verb::head;
    headers_sent_ = streaming_ = ended_ = false;
    server_->count_busy(+1);
    if (server_->refusing) {
      return respond(
          serial_,
          {503, error_body("the server is stopping", "server_error", {}, "shutting_down"), "application/json", {{"Retry-After", "5"}}});
    }
    auto writer = make_writer();
    asio::post(server_->workers, [server = server_, request = std::move(request), writer = std::move(writer)]() mutable {
      server->handler(std::move(request), std::move(writer));
    });
  }

  std::shared_ptr<ResponseWriter> make_writer();

  // Answers a request that was not understood, then ends the connection: where the next one starts is unknown.
  void refuse(int status, const std::string& message) {
    state_ = State::refusing;
    parser_.reset();
    buffer_.clear();
    keep_alive_ = false;
    const std::string body = error_body(message, status >= 500 ? "server_error" : "invalid_request_error");
    send(status_line(status) + fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size()) + connection_header() +
         body);
    read();
  }

  void send_chunk(std::string text) {
    if (head_only_) return;  // a HEAD gets the headers alone
    send(chunked_ ? fmt::format("{:x}\r\n{}\r\n", text.size(), text) : std::move(text));
    if (!ended_) arm_comment();
  }

  void send(std::string bytes) {
    if (closed_) return;
    out_ += bytes;
    if (streaming_ && out_.size() > server_->options.max_unsent_bytes) {
      log_warn("a client reads too slowly: {} bytes unsent, connection closed", out_.size());
      return close();
    }
    pump();
  }

  void pump() {
    if (writing_ || closed_) return;
    if (out_.empty()) return sent_all();
    writing_ = true;
    in_write_ = std::move(out_);
    out_.clear();
    if (state_ != State::receiving) set_deadline(server_->options.write_timeout);
    asio::async_write(socket_, asio::buffer(in_write_), [self = shared_from_this()](error_code ec, size_t) {
      self->writing_ = false;
      if (self->closed_) return;
      if (ec) return self->close();
      self->pump();
    });
  }

  void sent_all() {
    if (state_ == State::refusing) return linger();
    if (state_ != State::busy) return;
    clear_deadline();
    if (!ended_) return;
    gone_ = nullptr;
    streaming_ = false;
    state_ = State::idle;
    server_->count_busy(-1);
    if (!keep_alive_) return linger();
    parse();
    read();
  }

  void linger() {
    state_ = State::lingering;
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    set_deadline(kLingerTimeout);
    read();
  }

  void arm_comment() { comment_due_ = Clock::now() + server_->options.comment_interval; }

  std::shared_ptr<HttpServer::Impl> server_;
  tcp::socket socket_;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point comment_due_ = Clock::time_point::max();  // of a stream that runs
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  State state_ = State::receiving;
  uint64_t serial_ = 0;  // of the request being answered
  bool reading_ = false;
  bool writing_ = false;
  bool closed_ = false;
  bool keep_alive_ = false;
  bool chunked_ = true;
  bool head_only_ = false;
  bool headers_sent_ = false;
  bool streaming_ = false;
  bool ended_ = false;
  int64_t last_progress_ = -1;
  std::string out_;
  std::string in_write_;
  std::function<void()> gone_;
};

class Writer final : public ResponseWriter {
 public:
  Writer(std::shared_ptr<HttpServer::Impl> server, std::shared_ptr<Connection> connection, uint64_t serial)
      : server_(std::move(server)), connection_(std::move(connection)), serial_(serial) {}
  ~Writer() override {
    run([c = connection_, s = serial_] { c->abandon(s); });
  }
  void respond(HttpResponse response) override {
    run([c = connection_, s = serial_, r = std::move(response)]() mutable { c->respond(s, std::move(r)); });
  }
  void start_events(HttpHeaders headers) override {
    run([c = connection_, s = serial_, h = std::move(headers)] { c->start_events(s, h); });
  }
  void event(std::string_view data) override {
    run([c = connection_, s = serial_, d = std::string(data)] { c->event(s, d); });
  }
  void end_events() override {
    run([c = connection_, s = serial_] { c->end_events(s); });
  }
  void post(std::function<void()> work) override { run(std::move(work)); }
  void on_gone(std::function<void()> callback) override {
    run([c = connection_, s = serial_, f = std::move(callback)]() mutable { c->on_gone(s, std::move(f)); });
  }

 private:
  template <class Work>
  void run(Work work) {
    if (server_->stopped) return;
    if (server_->io.get_executor().running_in_this_thread()) return work();
    server_->deliver(std::move(work));
  }

  std::shared_ptr<HttpServer::Impl> server_;
  std::shared_ptr<Connection> connection_;
  uint64_t serial_;
};

std::shared_ptr<ResponseWriter> Connection::make_writer() { return std::make_shared<Writer>(server_, shared_from_this(), serial_); }
}  // namespace

void HttpServer::Impl::count_busy(int change) {
  std::lock_guard lock(mutex);
  busy += change;
  if (busy == 0) all_answered.notify_all();
}

void HttpServer::Impl::deliver(std::function<void()> task) {
  {
    const std::lock_guard lock(mail_mutex);
    mail.push_back(std::move(task));
    if (mail.size() > 1) return;
  }
  asio::post(io, [self = shared_from_this()] {
    std::vector<std::function<void()>> batch;
    {
      const std::lock_guard lock(self->mail_mutex);
      batch.swap(self->mail);
    }
    for (auto& item : batch) item();
  });
}

void HttpServer::Impl::sweep() {
  sweep_timer.expires_after(sweep_interval);
  sweep_timer.async_wait([self = shared_from_this()](error_code ec) {
    if (ec || self->stopped) return;
    std::vector<std::shared_ptr<Connection>> open;
    open.reserve(self->connections.size());
    for (auto& [raw, weak] : self->connections) {
      if (auto connection = weak.lock()) open.push_back(std::move(connection));
    }
    const auto now = Clock::now();
    for (auto& connection : open) connection->sweep(now);
    self->sweep();
  });
}

void HttpServer::Impl::accept() {
  acceptor.async_accept([self = shared_from_this()](error_code ec, tcp::socket socket) {
    if (self->stopped || !self->acceptor.is_open()) return;
    if (ec) {
      // Out of file descriptors, mostly: try again when some client may have gone.
      self->accept_retry.expires_after(milliseconds(50));
      self->accept_retry.async_wait([self](error_code cancelled) {
        if (!cancelled) self->accept();
      });
      return;
    }
    auto connection = std::make_shared<Connection>(self, std::move(socket));
    const bool overloaded = self->connections.size() >= self->options.max_connections;
    self->connections.emplace(connection.get(), connection);
    connection->begin(overloaded);
    self->accept();
  });
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpOptions options, HttpHandler handler) {
  auto impl = std::make_shared<Impl>(std::move(options), std::move(handler));
  const std::string& host = impl->options.host;
  error_code ec;
  tcp::resolver resolver(impl->io);
  const auto found = resolver.resolve(host, std::to_string(impl->options.port), tcp::resolver::passive, ec);
  if (ec || found.empty()) return fail("cannot listen on {}: {}", host, ec ? ec.message() : "no such address");
  const tcp::endpoint endpoint = *found.begin();
  const auto step = [&](auto&& call) {
    if (!ec) call();
  };
  step([&] { impl->acceptor.open(endpoint.protocol(), ec); });
  step([&] { impl->acceptor.set_option(tcp::acceptor::reuse_address(true), ec); });
  step([&] { impl->acceptor.bind(endpoint, ec); });
  step([&] { impl->acceptor.listen(asio::socket_base::max_listen_connections, ec); });
  if (ec) return fail("cannot listen on {}:{}: {}", host, impl->options.port, ec.message());
  impl->bound_port = impl->acceptor.local_endpoint().port();
  const HttpOptions& o = impl->options;
  const auto shortest = std::min({o.header_timeout, o.body_timeout, o.idle_timeout, o.write_timeout, o.comment_interval});
  impl->sweep_interval = std::clamp(shortest / 4, milliseconds(5), milliseconds(250));
  asio::post(impl->io, [impl] {
    impl->accept();
    impl->sweep();
  });
  impl->thread = std::thread([raw = impl.get()] { raw->io.run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { stop(milliseconds(0)); }
uint16_t HttpServer::port() const { return impl_->bound_port; }
void HttpServer::close_after_answers() { impl_->closing = true; }
void HttpServer::refuse_new() { impl_->refusing = true; }

void HttpServer::stop(milliseconds timeout) {
  if (!impl_->thread.joinable()) return;
  refuse_new();
  {
    std::unique_lock lock(impl_->mutex);
    impl_->all_answered.wait_for(lock, timeout, [&] { return impl_->busy == 0; });
  }
  impl_->workers.join();
  asio::post(impl_->io, [impl = impl_] {
    error_code ignored;
    impl->acceptor.close(ignored);
    impl->accept_retry.cancel();
    impl->sweep_timer.cancel();
    std::vector<std::shared_ptr<Connection>> open;
    for (auto& [raw, weak] : impl->connections) {
      if (auto connection = weak.lock()) open.push_back(std::move(connection));
    }
    for (auto& connection : open) connection->close();
    impl->stopped = true;
    impl->work.reset();
  });
  impl_->thread.join();
  // What came too late holds connections, which hold the server.
  std::vector<std::function<void()>> late;
  const std::lock_guard lock(impl_->mail_mutex);
  late.swap(impl_->mail);
}

}  // namespace ingot::serve
