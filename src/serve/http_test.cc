// The gate over real sockets, TCP and unix, plain and under TLS: malformed, oversized, slow and pipelined requests, event streams, clients
// that hang up or do not read, a stop; names of requests, the access log, pages of other origins.
#include "serve/http.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <thread>

#include "serve/http_cors.h"

namespace ingot::serve {
namespace {
using std::chrono::milliseconds;
namespace fs = std::filesystem;

enum class Way { tcp, unix_socket, tls };

// A folder with a key and a certificate that it signed itself, and a key of another.
class Files {
 public:
  Files() : dir_(fs::temp_directory_path() / fmt::format("ingot_http_{}", getpid())) {
    fs::create_directories(dir_);
    EVP_PKEY* key = EVP_EC_gen("P-256");
    write_key(key, "key.pem", nullptr);
    write_key(key, "locked.pem", "secret");
    EVP_PKEY* other = EVP_EC_gen("P-256");
    write_key(other, "other.pem", nullptr);
    X509* certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_NAME* name = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
    X509_set_issuer_name(certificate, name);
    X509_sign(certificate, key, EVP_sha256());
    FILE* file = std::fopen(path("cert.pem").c_str(), "w");
    PEM_write_X509(file, certificate);
    std::fclose(file);
    X509_free(certificate);
    EVP_PKEY_free(key);
    EVP_PKEY_free(other);
  }
  ~Files() { fs::remove_all(dir_); }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }

 private:
  void write_key(EVP_PKEY* key, const std::string& name, const char* password) const {
    FILE* file = std::fopen(path(name).c_str(), "w");
    PEM_write_PrivateKey(file, key, password == nullptr ? nullptr : EVP_aes_128_cbc(), reinterpret_cast<const unsigned char*>(password),
                         password == nullptr ? 0 : static_cast<int>(std::strlen(password)), nullptr, nullptr);
    std::fclose(file);
  }
  fs::path dir_;
};

const Files& files() {
  static const Files made;
  return made;
}

int connect_to(Way way, uint16_t port) {
  int fd = -1;
  if (way == Way::unix_socket) {
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, files().path("socket").c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  } else {
    fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  const timeval limit{10, 0};  // a test that waits for ever is a failure
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

class Client {
 public:
  Client(Way way, uint16_t port) : fd_(connect_to(way, port)) {
    if (way != Way::tls) return;
    context_ = SSL_CTX_new(TLS_client_method());
    EXPECT_EQ(SSL_CTX_load_verify_locations(context_, files().path("cert.pem").c_str(), nullptr), 1);
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, fd_);
    EXPECT_EQ(SSL_connect(ssl_), 1);
    EXPECT_GE(SSL_version(ssl_), TLS1_2_VERSION);
  }
  ~Client() {
    hang_up();
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  void hang_up() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  void send_text(const std::string& text) {
    const auto sent =
        ssl_ != nullptr ? SSL_write(ssl_, text.data(), static_cast<int>(text.size())) : send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
    EXPECT_EQ(sent, static_cast<ssize_t>(text.size()));
  }
  // Reads until `mark` was seen `count` times, or the end.
  std::string read_until(const std::string& mark, int count = 1) {
    std::string all;
    char buffer[4096];
    while (true) {
      int seen = 0;
      for (size_t at = all.find(mark); at != std::string::npos && !mark.empty(); at = all.find(mark, at + 1)) ++seen;
      if (!mark.empty() && seen >= count) return all;
      const ssize_t got = ssl_ != nullptr ? SSL_read(ssl_, buffer, sizeof buffer) : recv(fd_, buffer, sizeof buffer, 0);
      if (got <= 0) return all;
      all.append(buffer, static_cast<size_t>(got));
    }
  }
  // The last read ended because the server said so, not because the connection broke.
  bool was_told_the_end() const { return ssl_ == nullptr || (SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0; }

 private:
  int fd_;
  SSL_CTX* context_ = nullptr;
  SSL* ssl_ = nullptr;
};

HttpOptions by(Way way, HttpOptions options = {}) {
  if (way == Way::unix_socket) options.unix_socket = files().path("socket");
  if (way == Way::tls) options.tls = {files().path("cert.pem"), files().path("key.pem"), {}};
  return options;
}

std::unique_ptr<HttpServer> start(HttpHandler handler, HttpOptions options = {}) {
  auto server = HttpServer::start(std::move(options), std::move(handler));
  EXPECT_TRUE(server.has_value()) << server.error().text();
  return std::move(*server);
}

void echo(const HttpRequest& request, const std::shared_ptr<ResponseWriter>& writer) {
  writer->respond({200, request.method + " " + request.path + " [" + request.body + "]", "text/plain", {}});
}

class Http : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, Http, ::testing::Values(Way::tcp, Way::unix_socket, Way::tls), [](const auto& way) {
  return std::string(way.param == Way::tcp ? "Tcp" : way.param == Way::tls ? "Tls" : "UnixSocket");
});

TEST_P(Http, PipelinedRequestsAreAnsweredInOrder) {
  auto server = start(echo, by(GetParam()));
  Client client(GetParam(), server->port());
  client.send_text("GET /a?x=1 HTTP/1.1\r\nHost: h\r\n\r\nPOST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi");
  const std::string all = client.read_until("]", 2);
  ASSERT_NE(all.find("POST /b [hi]"), std::string::npos) << all;
  EXPECT_LT(all.find("GET /a []"), all.find("POST /b [hi]"));
}

TEST_P(Http, MalformedAndOversizedRequestsGetAReason) {
  HttpOptions options;
  options.max_body_bytes = 100;
  options.max_header_bytes = 1000;
  auto server = start(echo, by(GetParam(), options));
  const std::pair<std::string, const char*> cases[] = {{"\x01\x02 nonsense\r\n\r\n", " 400 "},
                                                       {"GET / HTTP/1.1\r\n\r\n", " 400 "},
                                                       {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n", " 413 "},
                                                       {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n", " 400 "},
                                                       {"GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(2000, 'a') + "\r\n\r\n", " 431 "}};
  for (const auto& [request, status] : cases) {
    Client client(GetParam(), server->port());
    client.send_text(request);
    const std::string answer = client.read_until("}}");
    EXPECT_NE(answer.find(status), std::string::npos) << request.substr(0, 60) << "\n" << answer;
    EXPECT_NE(answer.find("\"error\""), std::string::npos);
  }
}

TEST_P(Http, SlowHeadersEndIn408) {
  HttpOptions options;
  options.header_timeout = milliseconds(100);
  auto server = start(echo, by(GetParam(), options));
  Client client(GetParam(), server->port());
  client.send_text("GET / HT");
  EXPECT_NE(client.read_until("}}").find(" 408 "), std::string::npos);
}

TEST_P(Http, EventsArriveChunkedAndEnd) {
  auto server = start(
      [](HttpRequest, const std::shared_ptr<ResponseWriter>& writer) {
        writer->start_events({});
        writer->event("one");
        writer->event("[DONE]");
        writer->end_events();
      },
      by(GetParam()));
  Client client(GetParam(), server->port());
  client.send_text("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::string all = client.read_until("0\r\n\r\n");
  EXPECT_NE(all.find("text/event-stream"), std::string::npos);
  EXPECT_NE(all.find("b\r\ndata: one\n\n\r\n"), std::string::npos) << all;
  EXPECT_NE(all.find("data: [DONE]\n\n"), std::string::npos);
}

TEST_P(Http, AHeadGetsNoBodyEvenOfAStream) {  // found by fuzzing: the events would be read as the next answer
  auto server = start(
      [](HttpRequest, const std::shared_ptr<ResponseWriter>& writer) {
        writer->start_events({{"X-Who", "me"}});
        writer->event("one");
        writer->end_events();
      },
      by(GetParam()));
  Client client(GetParam(), server->port());
  client.send_text("HEAD / HTTP/1.1\r\nHost: h\r\n\r\nHEAD / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  std::string all = client.read_until("Connection: close\r\n\r\n");
  EXPECT_NE(all.find("X-Who: me"), std::string::npos);
  EXPECT_EQ(all.find("data:"), std::string::npos) << all;
  const size_t second = all.find("\r\n\r\n") + 4;
  EXPECT_EQ(all.compare(second, 8, "HTTP/1.1"), 0) << all;
}

TEST_P(Http, AHangUpIsNoticedBeforeTheAnswer) {
  std::promise<void> gone;
  std::shared_ptr<ResponseWriter> kept;
  std::promise<void> arrived;
  auto server = start(
      [&](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
        writer->on_gone([&] { gone.set_value(); });
        kept = std::move(writer);
        arrived.set_value();
      },
      by(GetParam()));
  Client client(GetParam(), server->port());
  client.send_text("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  arrived.get_future().wait();
  client.hang_up();
  EXPECT_EQ(gone.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
  kept.reset();
}

TEST_P(Http, ADroppedWriterAnswers500AndAStoppingServer503) {
  auto server = start([](HttpRequest, std::shared_ptr<ResponseWriter>) {}, by(GetParam()));
  Client first(GetParam(), server->port());
  first.send_text("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_NE(first.read_until("}}").find(" 500 "), std::string::npos);
  server->refuse_new();
  first.send_text("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_NE(first.read_until("}}").find(" 503 "), std::string::npos);
}

TEST_P(Http, AClientThatDoesNotReadIsDropped) {
  HttpOptions options;
  options.max_unsent_bytes = 1 << 20;
  std::promise<void> gone;
  auto server = start(
      [&](HttpRequest, const std::shared_ptr<ResponseWriter>& writer) {
        writer->on_gone([&] { gone.set_value(); });
        writer->start_events({});
        // More than the sockets' own buffers hold.
        for (int i = 0; i < 400; ++i) writer->event(std::string(64 << 10, 'x'));
      },
      by(GetParam(), options));
  Client client(GetParam(), server->port());
  client.send_text("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(gone.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST_P(Http, ALongAnswerArrivesWholeAndItsEndIsSaid) {
  const std::string body(3 << 20, 'y');
  auto server = start(
      [&](HttpRequest, const std::shared_ptr<ResponseWriter>& writer) {
        writer->respond({200, body, "text/plain", {}});
      },
      by(GetParam()));
  Client client(GetParam(), server->port());
  client.send_text("GET / HTTP/1.0\r\n\r\n");
  const std::string all = client.read_until("");
  EXPECT_TRUE(all.ends_with("\r\n\r\n" + body)) << all.size();
  EXPECT_TRUE(client.was_told_the_end()) << "else a cut answer looks like a whole one";
}

TEST_P(Http, ABodyThatIsTooLargeIsAnsweredAlthoughItIsStillBeingSent) {
  HttpOptions options;
  options.max_body_bytes = 1000;
  auto server = start(echo, by(GetParam(), options));
  Client client(GetParam(), server->port());
  client.send_text("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\n");
  client.send_text(std::string(200'000, 'z'));
  EXPECT_NE(client.read_until("}}").find(" 413 "), std::string::npos);
}

TEST_P(Http, EachRequestHasANameAndALine) {
  std::mutex mutex;
  std::vector<AccessRecord> records;
  HttpOptions options;
  options.access_log = [&](AccessRecord record) {
    const std::lock_guard lock(mutex);
    records.push_back(std::move(record));
  };
  std::string seen;
  {
    auto server = start(
        [&](const HttpRequest& request, const std::shared_ptr<ResponseWriter>& writer) {
          seen = request.id;
          echo(request, writer);
        },
        by(GetParam(), options));
    Client client(GetParam(), server->port());
    client.send_text("GET /a?secret=1 HTTP/1.1\r\nHost: h\r\nX-Request-Id: mine-1\r\n\r\n");
    EXPECT_NE(client.read_until("]").find("X-Request-Id: mine-1\r\n"), std::string::npos);
    EXPECT_EQ(seen, "mine-1");
    client.send_text("GET /b HTTP/1.1\r\nHost: h\r\n\r\n");
    const std::string second = client.read_until("]");
    EXPECT_NE(second.find("X-Request-Id: " + seen + "\r\n"), std::string::npos) << second;
    client.send_text("GET /c HTTP/1.1\r\nHost: h\r\nX-Request-Id: " + std::string(200, 'i') + "\r\n\r\n");
    EXPECT_EQ(client.read_until("]").find("iii"), std::string::npos) << "nobody fills our log with one header";
    client.send_text("nonsense\r\n\r\n");
    EXPECT_NE(client.read_until("}}").find("X-Request-Id: req-"), std::string::npos);
  }
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0].path, "/a") << "a query may hold what is nobody's business";
  EXPECT_EQ(records[0].id, "mine-1");
  EXPECT_EQ(records[0].method, "GET");
  EXPECT_EQ(records[0].status, 200);
  EXPECT_TRUE(records[0].complete);
  EXPECT_GT(records[0].bytes, 80);
  EXPECT_EQ(records[0].client.find("127.0.0.1:"), GetParam() == Way::unix_socket ? std::string::npos : 0u);
  EXPECT_EQ(records[3].status, 400);
}

TEST_P(Http, TheLogSaysWhenAClientWentBeforeTheEnd) {
  std::promise<AccessRecord> record;
  HttpOptions options;
  options.access_log = [&](AccessRecord r) { record.set_value(std::move(r)); };
  std::shared_ptr<ResponseWriter> kept;
  std::promise<void> arrived;
  auto server = start(
      [&](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
        writer->start_events({});
        kept = std::move(writer);
        arrived.set_value();
      },
      by(GetParam(), options));
  Client client(GetParam(), server->port());
  client.send_text("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  client.read_until("\r\n\r\n");
  arrived.get_future().wait();
  client.hang_up();
  EXPECT_FALSE(record.get_future().get().complete);
  kept.reset();
}

std::string ask(const HttpServer& server, const std::string& request) {
  Client client(Way::tcp, server.port());
  client.send_text(request);
  return client.read_until("");
}

TEST(HttpCors, IsOffUnlessAllowed) {
  auto server = start(echo);
  const std::string answer = ask(*server, "GET / HTTP/1.0\r\nOrigin: https://evil.example\r\n\r\n");
  EXPECT_EQ(answer.find("Access-Control"), std::string::npos) << answer;
}

TEST(HttpCors, APreflightIsAnsweredForThoseAllowedAndNoOthers) {
  HttpOptions options;
  options.cors_origins = {"https://chat.example"};
  auto server = start(
      [](HttpRequest, const std::shared_ptr<ResponseWriter>& writer) {
        writer->respond({401, "no key", "text/plain", {}});
      },
      options);
  const std::string preflight =
      "OPTIONS /v1/chat/completions HTTP/1.0\r\nOrigin: {}\r\nAccess-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization, content-type\r\n\r\n";
  const auto with = [&](const std::string& origin) {
    std::string text = preflight;
    return text.replace(text.find("{}"), 2, origin);
  };
  const std::string good = ask(*server, with("https://chat.example"));
  EXPECT_TRUE(good.starts_with("HTTP/1.1 204 ")) << "a preflight carries no key: " << good;
  for (const char* line :
       {"Access-Control-Allow-Origin: https://chat.example\r\n", "Access-Control-Allow-Headers: authorization, content-type\r\n",
        "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\n", "Vary: Origin\r\n"})
    EXPECT_NE(good.find(line), std::string::npos) << line << good;
  const std::string bad = ask(*server, with("https://evil.example"));
  EXPECT_TRUE(bad.starts_with("HTTP/1.1 403 ")) << bad;
  EXPECT_EQ(bad.find("Access-Control-Allow"), std::string::npos) << bad;
  // The answer itself, an error too, must be readable for the page.
  const std::string error = ask(*server, "GET / HTTP/1.0\r\nOrigin: https://chat.example\r\n\r\n");
  EXPECT_NE(error.find(" 401 "), std::string::npos);
  EXPECT_NE(error.find("Access-Control-Allow-Origin: https://chat.example\r\n"), std::string::npos) << error;
}

TEST(HttpCors, AllOriginsGetAStarAndNoVary) {
  HttpOptions options;
  options.cors_origins = {"*"};
  auto server = start(echo, options);
  const std::string answer = ask(*server, "GET / HTTP/1.0\r\nOrigin: https://any.example\r\n\r\n");
  EXPECT_NE(answer.find("Access-Control-Allow-Origin: *\r\n"), std::string::npos) << answer;
  EXPECT_EQ(answer.find("Vary"), std::string::npos);
}

TEST(HttpCors, TheFlagTakesAListInEitherFormAndNamesWhatIsNoOrigin) {
  const std::vector<std::string> two{"https://a.example", "http://localhost:3000"};
  EXPECT_EQ(parse_cors_origins("https://a.example,http://localhost:3000").value(), two);
  EXPECT_EQ(parse_cors_origins(R"(["https://a.example","http://localhost:3000"])").value(), two);
  EXPECT_EQ(parse_cors_origins(R"(["*"])").value(), std::vector<std::string>{"*"});
  EXPECT_TRUE(parse_cors_origins("").value().empty());
  for (const char* bad : {"example.com", "https://a.example/", "https://", "https://a, https://b", "[1]", "[", "https://*.example"}) {
    const auto refused = parse_cors_origins(bad);
    ASSERT_FALSE(refused.has_value()) << bad;
    EXPECT_NE(refused.error().text().find("--cors-allow-origins"), std::string::npos);
  }
}

TEST(HttpTls, ABadFileIsAClearErrorAtTheStart) {
  std::ofstream(files().path("junk.pem")) << "not a certificate\n";
  const std::string cert = files().path("cert.pem");
  const std::tuple<HttpOptions::Tls, const char*> cases[] = {
      {{files().path("none.pem"), files().path("key.pem"), {}}, "--ssl-certfile"},
      {{files().path("junk.pem"), files().path("key.pem"), {}}, "--ssl-certfile"},
      {{cert, files().path("none.pem"), {}}, "--ssl-keyfile"},
      {{cert, files().path("junk.pem"), {}}, "--ssl-keyfile"},
      {{cert, files().path("other.pem"), {}}, "--ssl-keyfile"},
      {{cert, {}, {}}, "--ssl-keyfile"},
      {{{}, files().path("key.pem"), {}}, "--ssl-certfile"},
      {{cert, files().path("locked.pem"), {}}, "there is no --ssl-keyfile-password"},
      {{cert, files().path("locked.pem"), "wrong"}, "--ssl-keyfile-password is wrong"}};
  for (const auto& [tls, says] : cases) {
    HttpOptions options;
    options.tls = tls;
    const auto server = HttpServer::start(options, echo);
    ASSERT_FALSE(server.has_value()) << says;
    EXPECT_NE(server.error().text().find(says), std::string::npos) << server.error().text();
  }
  HttpOptions options;
  options.tls = {cert, files().path("locked.pem"), "secret"};
  EXPECT_TRUE(HttpServer::start(options, echo).has_value());
}

TEST(HttpTls, APlainOrSilentClientCostsItsOwnConnectionAlone) {
  HttpOptions options = by(Way::tls);
  options.header_timeout = milliseconds(200);
  auto server = start(echo, options);
  Client plain(Way::tcp, server->port());
  plain.send_text("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(plain.read_until("").find("HTTP/1.1"), std::string::npos);
  Client silent(Way::tcp, server->port());
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(silent.read_until(""), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5)) << "a handshake that never comes has a deadline";
  Client good(Way::tls, server->port());
  good.send_text("GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_NE(good.read_until("]").find("GET /x []"), std::string::npos);
}

TEST(HttpTls, VersionsBefore12AreRefused) {
  auto server = start(echo, by(Way::tls));
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_security_level(context, 0);
  SSL_CTX_set_min_proto_version(context, TLS1_VERSION);
  SSL_CTX_set_max_proto_version(context, TLS1_1_VERSION);
  SSL* ssl = SSL_new(context);
  const int fd = connect_to(Way::tls, server->port());
  SSL_set_fd(ssl, fd);
  EXPECT_NE(SSL_connect(ssl), 1);
  close(fd);
  SSL_free(ssl);
  SSL_CTX_free(context);
}

TEST(HttpUnixSocket, AFileThatADeadServerLeftIsReplacedAndALivingOneIsNot) {
  HttpOptions options = by(Way::unix_socket);
  {
    // What a killed process leaves: a socket file that nobody listens at.
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, options.unix_socket.c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    close(fd);
  }
  {
    auto server = start(echo, options);
    const auto second = HttpServer::start(options, echo);
    ASSERT_FALSE(second.has_value());
    EXPECT_NE(second.error().text().find("another process listens"), std::string::npos) << second.error().text();
    Client client(Way::unix_socket, 0);
    client.send_text("GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
    EXPECT_NE(client.read_until("]").find("GET /x"), std::string::npos);
  }
  EXPECT_FALSE(fs::exists(options.unix_socket)) << "a server that ends leaves nothing";
  std::ofstream(options.unix_socket) << "precious";
  EXPECT_FALSE(HttpServer::start(options, echo).has_value());
  EXPECT_TRUE(fs::exists(options.unix_socket)) << "what is no socket is not ours";
  fs::remove(options.unix_socket);
  options.unix_socket = "/tmp/" + std::string(200, 'x');
  EXPECT_NE(HttpServer::start(options, echo).error().text().find("--uds"), std::string::npos);
}

}  // namespace
}  // namespace ingot::serve
