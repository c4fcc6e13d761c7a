// Inside the gate: what the server's threads share, and one connection of it. For http.cc and http_connection.cc alone.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "serve/http_transport.h"

namespace ingot::serve {

// Everything but the destructor runs on the io thread.
class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  virtual void begin(bool overloaded) = 0;
  virtual void sweep(std::chrono::steady_clock::time_point now) = 0;  // closes what is past its deadline, sends comments that are due
  virtual void close() = 0;
};

std::shared_ptr<HttpConnection> make_connection(std::shared_ptr<HttpServer::Impl> server, Socket socket);

// Compares header names.
bool equal_ignoring_case(std::string_view a, std::string_view b);

struct HttpServer::Impl : std::enable_shared_from_this<HttpServer::Impl> {
  Impl(HttpOptions options_in, HttpHandler handler_in)
      : options(std::move(options_in)), handler(std::move(handler_in)), workers(static_cast<size_t>(options.worker_threads)) {}

  void accept();
  void count_busy(int change);
  // Any other thread: runs `task` on the io thread. A step of the engine has something for every stream: one wake-up does for all of it.
  void deliver(std::function<void()> task);
  void sweep();  // every sweep_interval

  const HttpOptions options;
  const HttpHandler handler;
  std::shared_ptr<TlsContext> tls;  // null: plain
  std::string id_prefix;            // of the request ids made here
  uint64_t next_id = 0;             // io thread
  boost::asio::io_context io{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
  Listener listener;
  boost::asio::steady_timer accept_retry{io};
  boost::asio::steady_timer sweep_timer{io};
  std::chrono::milliseconds sweep_interval{250};
  boost::asio::thread_pool workers;
  std::thread thread;
  std::unordered_map<HttpConnection*, std::weak_ptr<HttpConnection>> connections;  // io thread
  std::atomic<bool> closing{false};
  std::atomic<bool> refusing{false};
  std::atomic<bool> stopped{false};
  std::mutex mail_mutex;
  std::vector<std::function<void()>> mail;  // not yet on the io thread, guarded by mail_mutex; a run of it is on its way when not empty
  std::mutex mutex;
  std::condition_variable all_answered;
  int busy = 0;  // requests without their answer's end, guarded by mutex
};

}  // namespace ingot::serve
