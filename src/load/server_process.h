// A server of our own for a measurement: `ingot serve` on a free port, stopped when this ends.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"

namespace ingot::load {

class ServerProcess {
 public:
  // `command`: program and arguments; the server must print "ready: http://HOST:PORT/" to standard error. Errors: it ends before, or is not
  // ready after `timeout_s`, with the last lines it printed.
  static Result<std::unique_ptr<ServerProcess>> start(const std::vector<std::string>& command, double timeout_s);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& url() const { return url_; }

 private:
  ServerProcess(pid_t pid, int fd) : pid_(pid), fd_(fd) {}

  pid_t pid_;
  int fd_;  // its standard error
  std::string url_;
  std::thread reader_;  // keeps its pipe from filling up
};

}  // namespace ingot::load
