// What carries a connection's bytes: a TCP or unix socket, plain or under TLS, behind one set of calls; and the listening socket that they
// come from. Everything runs on the io thread. Knows no HTTP.
#pragma once

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/socket_base.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "serve/http.h"

namespace ingot::serve {

using Socket = boost::asio::generic::stream_protocol::socket;
using Acceptor = boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol>;
using TlsContext = boost::asio::ssl::context;

// Null: no TLS. TLS 1.2 and later. Errors name the flag and the file.
Result<std::shared_ptr<TlsContext>> make_tls_context(const HttpOptions::Tls& tls);

// A listening socket of TCP or, with a path, a unix one. What a process that ended left at the path is replaced; what one that lives has is
// not. Errors: the address and the system's reason.
struct Listener {
  std::optional<Acceptor> acceptor;
  uint16_t port = 0;           // of TCP
  std::filesystem::path path;  // of a unix socket: to be removed at the end
};
Result<Listener> listen(boost::asio::io_context& io, const HttpOptions& options);

// "127.0.0.1:5555", "[::1]:5555", or "unix".
std::string peer_name(const Socket& socket);

class Transport {
 public:
  // `tls` may be null; it outlives the transport.
  Transport(Socket socket, TlsContext* tls) {
    if (tls == nullptr) {
      plain_.emplace(std::move(socket));
    } else {
      tls_.emplace(std::move(socket), *tls);
    }
  }

  bool encrypted() const { return tls_.has_value(); }

  // handler(error). Of an encrypted transport, before anything else.
  template <class Handler>
  void async_handshake(Handler handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::move(handler));
  }

  // handler(error, bytes). One at a time.
  template <class Handler>
  void async_read_some(boost::asio::mutable_buffer buffer, Handler handler) {
    if (tls_ && !raw_) return tls_->async_read_some(buffer, std::move(handler));
    socket().async_read_some(buffer, std::move(handler));
  }

  // handler(error, bytes), after all of it. One at a time.
  template <class Handler>
  void async_write(boost::asio::const_buffer buffer, Handler handler) {
    if (tls_) return boost::asio::async_write(*tls_, buffer, std::move(handler));
    boost::asio::async_write(socket(), buffer, std::move(handler));
  }

  // Nothing more will be written. The client is told the end: under TLS by a message of its own, so that it knows the answer is whole.
  // What is read from now on is bytes to throw away. `keep` lives until that has happened.
  void end_sending(std::shared_ptr<void> keep);
  // Of an encrypted transport that has ended sending: reading goes on below TLS, which may not be understood any more.
  bool read_raw() { return tls_ && ended_ && !std::exchange(raw_, true); }

  void close();

  Socket& socket() { return tls_ ? tls_->next_layer() : *plain_; }

 private:
  std::optional<Socket> plain_;
  std::optional<boost::asio::ssl::stream<Socket>> tls_;
  bool ended_ = false;
  bool raw_ = false;
};

}  // namespace ingot::serve
