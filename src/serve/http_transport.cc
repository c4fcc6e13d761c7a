#include "serve/http_transport.h"

#include <openssl/ssl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cerrno>
#include <cstring>

namespace ingot::serve {

namespace {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

Result<> check_readable(const char* flag, const std::string& file) {
  if (::access(file.c_str(), R_OK) == 0) return {};
  return fail("{} {}: {}", flag, file, std::generic_category().message(errno));
}

Result<Listener> listen_at(asio::io_context& io, const Acceptor::endpoint_type& endpoint, const std::string& shown) {
  Listener listener;
  Acceptor& acceptor = listener.acceptor.emplace(io);
  error_code ec;
  const auto step = [&](auto&& call) {
    if (!ec) call();
  };
  step([&] { acceptor.open(endpoint.protocol(), ec); });
  if (endpoint.protocol().family() != AF_UNIX) step([&] { acceptor.set_option(Acceptor::reuse_address(true), ec); });
  step([&] { acceptor.bind(endpoint, ec); });
  step([&] { acceptor.listen(asio::socket_base::max_listen_connections, ec); });
  if (ec) return fail("cannot listen on {}: {}", shown, ec.message());
  return listener;
}

// A socket file outlives its process: one that nobody answers at is in the way of the next.
Result<> clear_path(asio::io_context& io, const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return {};
  if (!S_ISSOCK(info.st_mode)) return fail("cannot listen on unix:{}: there is a file that is no socket", path);
  error_code ec;
  asio::local::stream_protocol::socket probe(io);
  probe.connect(asio::local::stream_protocol::endpoint(path), ec);
  if (!ec) return fail("cannot listen on unix:{}: another process listens there", path);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return fail("cannot listen on unix:{}: {}", path, std::generic_category().message(errno));
  return {};
}
}  // namespace

Result<std::shared_ptr<TlsContext>> make_tls_context(const HttpOptions::Tls& tls) {
  if (tls.certificate_file.empty() && tls.key_file.empty()) return std::shared_ptr<TlsContext>();
  if (tls.certificate_file.empty()) return fail("--ssl-keyfile needs --ssl-certfile");
  const std::string& key_file = tls.key_file.empty() ? tls.certificate_file : tls.key_file;  // both may be in one file
  INGOT_TRY(check_readable("--ssl-certfile", tls.certificate_file));
  INGOT_TRY(check_readable("--ssl-keyfile", key_file));
  auto context = std::make_shared<TlsContext>(TlsContext::tls_server);
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  SSL_CTX_set_options(context->native_handle(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  error_code ec;
  bool asked = false;
  // Without this, OpenSSL would ask at the terminal.
  context->set_password_callback(
      [password = tls.key_password, &asked](size_t, TlsContext::password_purpose) {
        asked = true;
        return password;
      },
      ec);
  context->use_certificate_chain_file(tls.certificate_file, ec);
  if (ec) return fail("--ssl-certfile {}: not a certificate in PEM: {}", tls.certificate_file, ec.message());
  context->use_private_key_file(key_file, TlsContext::pem, ec);
  if (ec && asked) {
    return fail("--ssl-keyfile {}: the key is encrypted, and {}: {}", key_file,
                tls.key_password.empty() ? "there is no --ssl-keyfile-password" : "--ssl-keyfile-password is wrong", ec.message());
  }
  // OpenSSL compares with the certificate while it reads the key.
  if (ec) return fail("--ssl-keyfile {}: not the private key of that certificate, in PEM: {}", key_file, ec.message());
  // The context outlives `asked`.
  context->set_password_callback([](size_t, TlsContext::password_purpose) { return std::string(); }, ec);
  return context;
}

Result<Listener> listen(asio::io_context& io, const HttpOptions& options) {
  if (!options.unix_socket.empty()) {
    const std::string& path = options.unix_socket;
    if (path.size() >= sizeof(sockaddr_un::sun_path)) {
      return fail("--uds {}: the path has {} characters, and {} are the most for a socket", path, path.size(),
                  sizeof(sockaddr_un::sun_path) - 1);
    }
    INGOT_TRY(clear_path(io, path));
    INGOT_ASSIGN(Listener listener, listen_at(io, asio::local::stream_protocol::endpoint(path), "unix:" + path));
    listener.path = path;
    return listener;
  }
  error_code ec;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, ec);
  if (ec || found.empty()) return fail("cannot listen on {}: {}", options.host, ec ? ec.message() : "no such address");
  const tcp::endpoint endpoint = *found.begin();
  INGOT_ASSIGN(Listener listener, listen_at(io, endpoint, fmt::format("{}:{}", options.host, options.port)));
  const auto bound = listener.acceptor->local_endpoint();
  tcp::endpoint local;
  std::memcpy(local.data(), bound.data(), std::min(bound.size(), local.capacity()));
  listener.port = local.port();
  return listener;
}

std::string peer_name(const Socket& socket) {
  error_code ec;
  const auto remote = socket.remote_endpoint(ec);
  if (ec || remote.protocol().family() == AF_UNIX) return ec ? "unknown" : "unix";
  tcp::endpoint peer;
  std::memcpy(peer.data(), remote.data(), std::min(remote.size(), peer.capacity()));
  const std::string address = peer.address().to_string(ec);
  return fmt::format("{}{}{}:{}", peer.address().is_v6() ? "[" : "", address, peer.address().is_v6() ? "]" : "", peer.port());
}

void Transport::end_sending(std::shared_ptr<void> keep) {
  if (std::exchange(ended_, true)) return;
  error_code ignored;
  if (!tls_) {
    socket().shutdown(Socket::shutdown_send, ignored);
    return;
  }
  tls_->async_shutdown([this, keep = std::move(keep)](error_code) {
    error_code also_ignored;
    socket().shutdown(Socket::shutdown_send, also_ignored);
  });
}

void Transport::close() {
  error_code ignored;
  socket().shutdown(Socket::shutdown_both, ignored);
  socket().close(ignored);
}

}  // namespace ingot::serve
