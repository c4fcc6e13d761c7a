// Bytes into the HTTP server over a real socket, cut where the input says: it answers or closes in bounded time, every answer is well
// formed, and it still serves others.
// Input: options (bit 0: end the write side at once; bit 1: no last request behind the bytes), choice of cuts, bytes.
#include "serve/http.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <optional>

#include "fuzz.h"

namespace ingot::serve {
namespace {
using Time = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The server's own limits are a few tens of milliseconds; this much is a hang, on a busy machine too.
constexpr milliseconds kHang{10'000};
constexpr size_t kMaxPieces = 16;
constexpr std::string_view kLastRequest = "GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

// Paths choose the kind of answer. Answers say when they are to a HEAD request, whose body the client must not expect.
void answer(const HttpRequest& request, const std::shared_ptr<ResponseWriter>& writer) {
  const std::string head = request.method == "HEAD" ? "HEAD" : "-";
  if (request.path.starts_with("/drop")) return;
  if (request.path.starts_with("/abandon") || request.path.starts_with("/events")) {
    writer->start_events({{"X-Method", head}});
    writer->event("first");
    for (const char c : request.body.substr(0, 20)) writer->event(std::to_string(c));
    if (request.path.starts_with("/events")) writer->end_events();
    return;
  }
  if (request.path.starts_with("/gone")) writer->on_gone([] {});
  std::string body = request.method + " " + request.path + " " + request.query + " " + request.body;
  writer->respond({200, std::move(body), "text/plain", {{"X-Method", head}, {"X-Fields", std::to_string(request.headers.size())}}});
}

HttpServer& server() {
  static const auto started = [] {
    signal(SIGPIPE, SIG_IGN);
    HttpOptions options;
    options.max_header_bytes = 2048;
    options.max_body_bytes = 4096;
    options.max_connections = 64;
    options.header_timeout = options.body_timeout = options.idle_timeout = milliseconds(25);
    options.write_timeout = milliseconds(2000);
    options.comment_interval = milliseconds(10);
    auto result = HttpServer::start(options, answer);
    INGOT_CHECK(result.has_value(), "{}", result.error().text());
    return std::move(*result);
  }();
  return *started;
}

class Client {
 public:
  Client() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), deadline_(Time::now() + kHang) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server().port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    INGOT_CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "connect: errno {}", errno);
    // A reset at the end leaves no port waiting: some hundred connections a second would use them up.
    const linger at_once{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  ~Client() { close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // False when the server has closed its side.
  bool write(std::string_view bytes) {
    while (!bytes.empty()) {
      read_what_is_there();
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (sent > 0) bytes.remove_prefix(static_cast<size_t>(sent));
      INGOT_CHECK(Time::now() < deadline_, "the server stopped reading");
    }
    return true;
  }
  void end_writing() { shutdown(fd_, SHUT_WR); }

  // Everything up to the end of the connection.
  std::string read_all() {
    while (!ended_) {
      pollfd wait{fd_, POLLIN, 0};
      const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - Time::now());
      INGOT_CHECK(left.count() > 0, "neither an answer's end nor a close after {} ms; so far: {}", kHang.count(), received_);
      if (poll(&wait, 1, static_cast<int>(left.count())) > 0) read_what_is_there();
    }
    return received_;
  }

 private:
  void read_what_is_there() {
    char buffer[16 << 10];
    while (!ended_) {
      const ssize_t got = recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (got <= 0) ended_ = true;
      if (got > 0) received_.append(buffer, static_cast<size_t>(got));
    }
  }

  int fd_;
  Time::time_point deadline_;
  std::string received_;
  bool ended_ = false;
};

// The lines up to `end`, without it; nullopt when it is not there.
std::optional<std::string_view> take_until(std::string_view& text, std::string_view end) {
  const size_t at = text.find(end);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at + end.size());
  return part;
}

template <class Number>
std::optional<Number> number(std::string_view text, int base = 10) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct Head {
  int status = 0;
  std::optional<size_t> content_length;
  bool chunked = false;
  bool close = false;
  bool to_head = false;
};

Head read_head(std::string_view text) {
  Head head;
  std::string_view rest = text;
  const std::string_view line = take_until(rest, "\r\n").value_or(text);
  if (line.data() + line.size() == text.data() + text.size()) rest = {};
  INGOT_CHECK(line.size() >= 13 && line.starts_with("HTTP/1.1 ") && line[12] == ' ', "status line: {}", line);
  head.status = number<int>(line.substr(9, 3)).value_or(0);
  INGOT_CHECK(head.status >= 100 && head.status <= 599, "status line: {}", line);
  while (!rest.empty()) {
    std::string_view field = rest.substr(0, rest.find("\r\n"));
    rest.remove_prefix(std::min(rest.size(), field.size() + 2));
    INGOT_CHECK(field.find_first_of("\r\n") == std::string_view::npos, "a bare line end in: {}", field);
    const auto name = take_until(field, ": ");
    INGOT_CHECK(name && !name->empty() && name->find(' ') == std::string_view::npos, "header line: {}", field);
    if (*name == "Content-Length") {
      INGOT_CHECK(!head.content_length, "two lengths");
      head.content_length = number<size_t>(field);
      INGOT_CHECK(head.content_length.has_value(), "Content-Length: {}", field);
    }
    if (*name == "Transfer-Encoding") head.chunked = field == "chunked";
    if (*name == "Connection") head.close = field == "close";
    if (*name == "X-Method") head.to_head = field == "HEAD";
  }
  INGOT_CHECK(!(head.content_length && head.chunked), "a length and chunks");
  return head;
}

// False when the text ends before the chunks do.
bool take_chunks(std::string_view& text, std::string& body) {
  while (true) {
    const auto line = take_until(text, "\r\n");
    if (!line) return false;
    const auto size = number<size_t>(*line, 16);
    INGOT_CHECK(size.has_value(), "chunk size: {}", *line);
    if (text.size() < *size + 2) return false;
    body += text.substr(0, *size);
    INGOT_CHECK(text.substr(*size, 2) == "\r\n", "a chunk of {} bytes does not end there", *size);
    text.remove_prefix(*size + 2);
    if (*size == 0) return true;
  }
}

void check_events(std::string_view body, bool whole) {
  while (!body.empty()) {
    const auto event = take_until(body, "\n\n");
    INGOT_CHECK(event || !whole, "an event does not end: {}", body);
    if (!event) return;
    INGOT_CHECK(event->starts_with("data: ") || event->starts_with(": "), "event: {}", *event);
  }
}

// `may_break`: the client has ended its side, or asked for an answer that breaks: what comes may stop anywhere.
void check_answers(std::string_view text, bool may_break) {
  bool closed = false;
  while (!text.empty()) {
    INGOT_CHECK(!closed, "something follows the answer that closes: {}", text);
    const auto head_text = take_until(text, "\r\n\r\n");
    INGOT_CHECK(head_text || may_break, "headers that do not end: {}", text);
    if (!head_text) return;
    const Head head = read_head(*head_text);
    if (head.status == 100) continue;
    closed = head.close;
    if (head.to_head) continue;  // its headers speak of a body that does not come
    if (head.chunked) {
      std::string body;
      const bool whole = take_chunks(text, body);
      check_events(body, whole);
      INGOT_CHECK(whole || may_break, "chunks that do not end");
      if (!whole) return;
    } else if (!head.content_length) {
      INGOT_CHECK(head.close, "no length, no chunks and no close");
      return check_events(text, !may_break);
    } else {
      INGOT_CHECK(text.size() >= *head.content_length || may_break, "{} bytes of {}", text.size(), *head.content_length);
      text.remove_prefix(std::min(text.size(), *head.content_length));
    }
  }
}

// On a busy machine the server's short limits may pass before the request is read: then the client asks again, as clients do.
void check_alive() {
  const auto deadline = Time::now() + kHang;
  while (true) {
    Client client;
    client.write(kLastRequest);
    const std::string all = client.read_all();
    if (all.starts_with("HTTP/1.1 200 ") && all.find("\r\n\r\nGET /last  ") != std::string::npos) return;
    INGOT_CHECK(all.empty() || all.starts_with("HTTP/1.1 408 "), "a plain request got: {}", all);
    INGOT_CHECK(Time::now() < deadline, "the server answers nobody any more");
  }
}

void run(fuzz::Input input) {
  const uint8_t flags = input.byte();
  const bool ends_at_once = (flags & 1) != 0;
  fuzz::Cuts cuts(input.byte());
  std::string text(input.rest());
  if ((flags & 2) == 0) text += kLastRequest;
  {
    Client client;
    std::string_view rest = text;
    for (size_t i = 1; !rest.empty(); ++i) {
      if (!client.write(i < kMaxPieces ? cuts.take(rest) : std::exchange(rest, {}))) break;
      sched_yield();  // lets the server see this piece alone, most times
    }
    if (ends_at_once) client.end_writing();
    const bool may_break = ends_at_once || text.find("/abandon") != std::string::npos;
    check_answers(client.read_all(), may_break);
  }
  static uint64_t count = 0;
  if (++count % 256 == 0) check_alive();
}

}  // namespace
}  // namespace ingot::serve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ingot::serve::run({data, size});
  return 0;
}
