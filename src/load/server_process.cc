#include "load/server_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace ingot::load {

namespace {
constexpr std::string_view kReady = "ready: http://";
constexpr int kStopSeconds = 15;
constexpr int kCannotStart = 127;  // as a shell has it

std::string last_lines(const std::string& log) { return log.size() > 1000 ? log.substr(log.size() - 1000) : log; }
}  // namespace

Result<std::unique_ptr<ServerProcess>> ServerProcess::start(const std::vector<std::string>& command, double timeout_s) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail("no pipe: {}", std::strerror(errno));
  std::vector<std::string> copies = command;
  std::vector<char*> arguments;
  for (std::string& one : copies) arguments.push_back(one.data());
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    // A client that is killed leaves no server behind. Between fork and exec only calls that are safe there.
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(kCannotStart);
    const int nothing = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    ::dup2(nothing, STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(kCannotStart);
  }
  ::close(ends[1]);
  if (pid < 0) {
    ::close(ends[0]);
    return fail("cannot start {}: {}", command[0], std::strerror(errno));
  }
  std::unique_ptr<ServerProcess> server(new ServerProcess(pid, ends[0]));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  std::string log;
  std::array<char, 4096> buffer{};
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return fail("the server was not ready after {} s; it said: {}", timeout_s, last_lines(log));
    pollfd wait{ends[0], POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(left)) <= 0) continue;
    const ssize_t bytes = ::read(ends[0], buffer.data(), buffer.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return fail("the server ended before it was ready; it said: {}", last_lines(log));
    log.append(buffer.data(), static_cast<size_t>(bytes));
    const size_t at = log.find(kReady);
    const size_t end = at == std::string::npos ? at : log.find_first_of("/ \n", at + kReady.size());
    if (end == std::string::npos) continue;
    server->url_ = log.substr(at + 7, end - at - 7);
    break;
  }
  server->reader_ = std::thread([fd = ends[0]] {
    std::array<char, 4096> sink{};
    while (true) {
      const ssize_t bytes = ::read(fd, sink.data(), sink.size());
      if (bytes == 0 || (bytes < 0 && errno != EINTR)) return;
    }
  });
  return server;
}

ServerProcess::~ServerProcess() {
  ::kill(pid_, SIGTERM);
  for (int i = 0; i < kStopSeconds * 100; ++i) {
    if (::waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = 0;
      break;
    }
    ::usleep(10'000);
  }
  if (pid_ != 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (reader_.joinable()) reader_.join();
  ::close(fd_);
}

}  // namespace ingot::load
