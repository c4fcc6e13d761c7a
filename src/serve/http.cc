#include "serve/http.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <optional>
#include <random>

#include "base/json.h"
#include "base/log.h"
#include "serve/http_connection.h"

namespace ingot::serve {

namespace {
namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    if (lower(a[i]) != lower(b[i])) return false;
  }
  return true;
}

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
    std::vector<std::shared_ptr<HttpConnection>> open;
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
  listener.acceptor->async_accept([self = shared_from_this()](error_code ec, Socket socket) {
    if (self->stopped || !self->listener.acceptor->is_open()) return;
    if (ec) {
      // Out of file descriptors, mostly: try again when some client may have gone.
      self->accept_retry.expires_after(milliseconds(50));
      self->accept_retry.async_wait([self](error_code cancelled) {
        if (!cancelled) self->accept();
      });
      return;
    }
    auto connection = make_connection(self, std::move(socket));
    const bool overloaded = self->connections.size() >= self->options.max_connections;
    self->connections.emplace(connection.get(), connection);
    connection->begin(overloaded);
    self->accept();
  });
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpOptions options, HttpHandler handler) {
  auto impl = std::make_shared<Impl>(std::move(options), std::move(handler));
  INGOT_ASSIGN(impl->tls, make_tls_context(impl->options.tls));
  INGOT_ASSIGN(impl->listener, listen(impl->io, impl->options));
  std::random_device random;
  impl->id_prefix = fmt::format("req-{:08x}", random());
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
uint16_t HttpServer::port() const { return impl_->listener.port; }
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
    // While we listen nobody else takes the path: once we do not, the file may be the next server's.
    if (!impl->listener.path.empty()) ::unlink(impl->listener.path.c_str());
    impl->listener.acceptor->close(ignored);
    impl->accept_retry.cancel();
    impl->sweep_timer.cancel();
    std::vector<std::shared_ptr<HttpConnection>> open;
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
