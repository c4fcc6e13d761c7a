// One connection: reads requests, hands them to the handler, writes answers, and keeps every deadline. A slow, silent or malicious client
// costs its own connection and nothing else.
#include "serve/http_connection.h"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>

#include "base/log.h"
#include "serve/http_cors.h"

namespace ingot::serve {

namespace {
namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = 64 << 10;
// While an answer is being made, further (pipelined) bytes are read up to here, so that the end of the connection is noticed.
constexpr size_t kMaxPipelinedBytes = 64 << 10;
// An error is answered before the request was read to its end: the rest is thrown away for a while, since closing a socket
// with unread bytes resets it and the client would lose our answer.
constexpr milliseconds kLingerTimeout{10'000};
constexpr size_t kMaxRequestId = 128;

// One client. Everything here runs on the io thread.
class Connection final : public HttpConnection, public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<HttpServer::Impl> server, Socket socket)
      : server_(std::move(server)), client_(peer_name(socket)), transport_(std::move(socket), server_->tls.get()) {}
  ~Connection() override { server_->connections.erase(this); }

  void begin(bool overloaded) override {
    error_code ignored;
    transport_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);  // a unix socket has no such option, and needs none
    set_deadline(server_->options.header_timeout);
    if (!transport_.encrypted()) return begin_http(overloaded);
    state_ = State::handshaking;
    transport_.async_handshake([self = shared_from_this(), overloaded](error_code ec) {
      if (self->closed_) return;
      if (ec) {
        log_debug("{}: TLS handshake: {}", self->client_, ec.message());
        return self->close();
      }
      self->state_ = State::receiving;
      self->set_deadline(self->server_->options.header_timeout);
      self->begin_http(overloaded);
    });
  }

  void respond(uint64_t serial, HttpResponse response) {
    if (!current(serial) || headers_sent_) return;
    headers_sent_ = true;
    std::string head = status_line(response.status);
    head += common_headers_;
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
    std::string head = status_line(200) + common_headers_ +
                       "Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
    for (const auto& [key, value] : headers) head += fmt::format("{}: {}\r\n", key, value);
    if (chunked_) head += "Transfer-Encoding: chunked\r\n";
    head += connection_header();
    streaming_ = true;
    last_progress_ = -1;
    send(std::move(head));
    arm_comment();
  }

  void event(uint64_t serial, std::string_view data, std::string_view name) {
    if (!current(serial) || !streaming_ || ended_) return;
    send_chunk(name.empty() ? fmt::format("data: {}\n\n", data) : fmt::format("event: {}\ndata: {}\n\n", name, data));
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

  void sweep(Clock::time_point now) override {
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

  void close() override {
    if (closed_) return;
    closed_ = true;
    transport_.close();
    // Each request has its line in the log, also one whose refusal is not known to have arrived.
    if (state_ == State::busy || state_ == State::refusing) log_access(false);
    if (state_ != State::busy) return;
    server_->count_busy(-1);
    if (auto gone = std::exchange(gone_, nullptr)) gone();
  }

 private:
  // idle: between requests. busy: the handler has it. lingering: answered, throwing away what still comes.
  enum class State { handshaking, idle, receiving, busy, refusing, lingering };

  void begin_http(bool overloaded) {
    if (overloaded) return refuse(503, "too many connections");
    read();
  }

  bool current(uint64_t serial) const { return serial == serial_ && state_ == State::busy && !closed_; }

  std::string status_line(int status) {
    status_ = status;
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
    transport_.async_read_some(buffer_.prepare(kReadBytes),
                               [self = shared_from_this()](error_code ec, size_t count) { self->on_read(ec, count); });
  }

  void on_read(error_code ec, size_t count) {
    reading_ = false;
    if (closed_) return;
    if (ec && state_ == State::lingering && transport_.read_raw()) return read();
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
    start_record(request);
    if (message.version() >= 11 && request.header("host").empty()) return refuse(400, "the Host header is missing");

    state_ = State::busy;
    ++serial_;
    keep_alive_ = message.keep_alive();
    chunked_ = message.version() >= 11;
    head_only_ = message.method() == http::verb::head;
    headers_sent_ = streaming_ = ended_ = false;
    server_->count_busy(+1);
    if (auto answer = answer_preflight(request, server_->options.cors_origins)) return respond(serial_, std::move(*answer));
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

  // What every answer to this request says, and what the access log will say of it.
  void start_record(HttpRequest& request) {
    const std::string_view given = request.header("x-request-id");
    const bool echoed = !given.empty() && given.size() <= kMaxRequestId &&
                        std::all_of(given.begin(), given.end(), [](char c) { return c > ' ' && c < 0x7f; });
    begin_record(request.method, request.path, echoed ? std::string(given) : make_id());
    request.id = id_;
    for (const auto& [key, value] : cors_headers(request, server_->options.cors_origins))
      common_headers_ += fmt::format("{}: {}\r\n", key, value);
  }

  void begin_record(std::string method, std::string path, std::string id) {
    method_ = std::move(method);
    path_ = std::move(path);
    id_ = std::move(id);
    started_ = Clock::now();
    status_ = 0;
    bytes_ = 0;
    common_headers_ = fmt::format("X-Request-Id: {}\r\n", id_);
  }

  std::string make_id() { return fmt::format("{}{:08x}", server_->id_prefix, ++server_->next_id); }

  void log_access(bool complete) {
    if (!server_->options.access_log) return;
    server_->options.access_log({.method = method_,
                                 .path = path_,
                                 .status = status_,
                                 .bytes = bytes_,
                                 .seconds = std::chrono::duration<double>(Clock::now() - started_).count(),
                                 .complete = complete,
                                 .client = client_,
                                 .id = id_});
  }

  // Answers a request that was not understood, then ends the connection: where the next one starts is unknown.
  void refuse(int status, const std::string& message) {
    state_ = State::refusing;
    begin_record("-", "-", make_id());
    parser_.reset();
    buffer_.clear();
    keep_alive_ = false;
    const char* type = status == 413 ? "request_too_large" : status >= 500 ? "server_error" : "invalid_request_error";
    // Whose dialect the path speaks is not known here: the body is an error to OpenAI's clients, and by its own type to Anthropic's.
    const std::string body = R"({"type":"error",)" + error_body(message, type).substr(1);
    send(status_line(status) + common_headers_ + fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size()) +
         connection_header() + body);
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
    bytes_ += static_cast<int64_t>(bytes.size());
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
    transport_.async_write(asio::buffer(in_write_), [self = shared_from_this()](error_code ec, size_t) {
      self->writing_ = false;
      if (self->closed_) return;
      if (ec) return self->close();
      self->pump();
    });
  }

  void sent_all() {
    if (state_ == State::refusing) {
      log_access(true);
      return linger();
    }
    if (state_ != State::busy) return;
    clear_deadline();
    if (!ended_) return;
    log_access(true);
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
    transport_.end_sending(shared_from_this());
    set_deadline(kLingerTimeout);
    read();
  }

  void arm_comment() { comment_due_ = Clock::now() + server_->options.comment_interval; }

  std::shared_ptr<HttpServer::Impl> server_;
  const std::string client_;
  Transport transport_;
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
  std::string common_headers_;  // this and what follows is of the request being answered
  std::string method_;
  std::string path_;
  std::string id_;
  Clock::time_point started_;
  int status_ = 0;
  int64_t bytes_ = 0;
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
  void event(std::string_view data, std::string_view name) override {
    run([c = connection_, s = serial_, d = std::string(data), n = std::string(name)] { c->event(s, d, n); });
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

std::shared_ptr<HttpConnection> make_connection(std::shared_ptr<HttpServer::Impl> server, Socket socket) {
  return std::make_shared<Connection>(std::move(server), std::move(socket));
}

}  // namespace ingot::serve
