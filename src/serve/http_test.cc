// The gate over real sockets: malformed, oversized, slow and pipelined requests, event streams, clients that hang up, a stop.
#include "serve/http.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

namespace ingot::serve {
namespace {
using std::chrono::milliseconds;

class Client {
 public:
  explicit Client(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval limit{10, 0};  // a test that waits for ever is a failure
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~Client() { hang_up(); }
  void hang_up() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  void send_text(const std::string& text) {
    EXPECT_EQ(send(fd_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // Reads until `mark` was seen `count` times, or the end.
  std::string read_until(const std::string& mark, int count = 1) {
    std::string all;
    char buffer[4096];
    while (true) {
      int seen = 0;
      for (size_t at = all.find(mark); at != std::string::npos && !mark.empty(); at = all.find(mark, at + 1)) ++seen;
      if (!mark.empty() && seen >= count) return all;
      const ssize_t got = recv(fd_, buffer, sizeof buffer, 0);
      if (got <= 0) return all;
      all.append(buffer, static_cast<size_t>(got));
    }
  }

 private:
  int fd_;
};

std::unique_ptr<HttpServer> start(HttpHandler handler, HttpOptions options = {}) {
  auto server = HttpServer::start(std::move(options), std::move(handler));
  EXPECT_TRUE(server.has_value()) << server.error().text();
  return std::move(*server);
}

void echo(const HttpRequest& request, const std::shared_ptr<ResponseWriter>& writer) {
  writer->respond({200, request.method + " " + request.path + " [" + request.body + "]", "text/plain", {}});
}

TEST(Http, PipelinedRequestsAreAnsweredInOrder) {
  auto server = start(echo);
  Client client(server->port());
  client.send_text("GET /a?x=1 HTTP/1.1\r\nHost: h\r\n\r\nPOST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi");
  const std::string all = client.read_until("]", 2);
  ASSERT_NE(all.find("POST /b [hi]"), std::string::npos) << all;
  EXPECT_LT(all.find("GET /a []"), all.find("POST /b [hi]"));
}

TEST(Http, MalformedAndOversizedRequestsGetAReason) {
  HttpOptions options;
  options.max_body_bytes = 100;
  options.max_header_bytes = 1000;
  auto server = start(echo, options);
  const std::pair<std::string, const char*> cases[] = {{"\x01\x02 nonsense\r\n\r\n", " 400 "},
                                                       {"GET / HTTP/1.1\r\n\r\n", " 400 "},
                                                       {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n", " 413 "},
                                                       {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n", " 400 "},
                                                       {"GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(2000, 'a') + "\r\n\r\n", " 431 "}};
  for (const auto& [request, status] : cases) {
    Client client(server->port());
    client.send_text(request);
    const std::string answer = client.read_until("}}");
    EXPECT_NE(answer.find(status), std::string::npos) << request.substr(0, 60) << "\n" << answer;
    EXPECT_NE(answer.find("\"error\""), std::string::npos);
  }
}

TEST(Http, SlowHeadersEndIn408) {
  HttpOptions options;
  options.header_timeout = milliseconds(100);
  auto server = start(echo, options);
  Client client(server->port());
  client.send_text("GET / HT");
  EXPECT_NE(client.read_until("}}").find(" 408 "), std::string::npos);
}

TEST(Http, EventsArriveChunkedAndEnd) {
  auto server = start([](HttpRequest, const std::shared_ptr<ResponseWriter>& writer) {
    writer->start_events({});
    writer->event("one");
    writer->event("[DONE]");
    writer->end_events();
  });
  Client client(server->port());
  client.send_text("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::string all = client.read_until("0\r\n\r\n");
  EXPECT_NE(all.find("text/event-stream"), std::string::npos);
  EXPECT_NE(all.find("b\r\ndata: one\n\n\r\n"), std::string::npos) << all;
  EXPECT_NE(all.find("data: [DONE]\n\n"), std::string::npos);
}

TEST(Http, AHeadGetsNoBodyEvenOfAStream) {  // found by fuzzing: the events would be read as the next answer
  auto server = start([](HttpRequest, const std::shared_ptr<ResponseWriter>& writer) {
    writer->start_events({{"X-Who", "me"}});
    writer->event("one");
    writer->end_events();
  });
  Client client(server->port());
  client.send_text("HEAD / HTTP/1.1\r\nHost: h\r\n\r\nHEAD / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  std::string all = client.read_until("Connection: close\r\n\r\n");
  EXPECT_NE(all.find("X-Who: me"), std::string::npos);
  EXPECT_EQ(all.find("data:"), std::string::npos) << all;
  const size_t second = all.find("\r\n\r\n") + 4;
  EXPECT_EQ(all.compare(second, 8, "HTTP/1.1"), 0) << all;
}

TEST(Http, AHangUpIsNoticedBeforeTheAnswer) {
  std::promise<void> gone;
  std::shared_ptr<ResponseWriter> kept;
  std::promise<void> arrived;
  auto server = start([&](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
    writer->on_gone([&] { gone.set_value(); });
    kept = std::move(writer);
    arrived.set_value();
  });
  Client client(server->port());
  client.send_text("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  arrived.get_future().wait();
  client.hang_up();
  EXPECT_EQ(gone.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
  kept.reset();
}

TEST(Http, ADroppedWriterAnswers500AndAStoppingServer503) {
  auto server = start([](HttpRequest, std::shared_ptr<ResponseWriter>) {});
  Client first(server->port());
  first.send_text("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_NE(first.read_until("}}").find(" 500 "), std::string::npos);
  server->refuse_new();
  first.send_text("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_NE(first.read_until("}}").find(" 503 "), std::string::npos);
}

}  // namespace
}  // namespace ingot::serve
