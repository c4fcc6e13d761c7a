// stream_load: keeps N event streams of an OpenAI server open at a time, counts along with every one of them, and measures what the server
// adds to a token's way. One thread, epoll. The server must answer by counting (tests/support/scripted_model.h says how): so each stream
// knows its next character, and a token that is lost, doubled, merged or sent to another stream shows at once. bench/README.md has the
// commands and what the figures mean.
#include <arpa/inet.h>
#include <fmt/core.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "figures.h"
#include "stream_check.h"

namespace ingot::bench {
namespace {

constexpr int64_t kSampleInterval = 10 * kSecond;  // of the server's memory
constexpr size_t kReadBytes = 64 << 10;
constexpr int64_t kMaxConnectFaults = 1000;
constexpr size_t kMaxDetails = 10;

// -- flags -----------------------------------------------------------------------------------------------------------------------------

enum class Api : uint8_t { completions, chat, both };

struct Options {
  std::string host = "127.0.0.1";
  int64_t port = 30000;
  std::string model;  // empty: the served one
  Api api = Api::both;
  int64_t streams = 200;
  int64_t min_tokens = 100;  // of an answer; drawn for each
  int64_t max_tokens = 100;
  int64_t rounds = 1;      // requests a stream slot makes, one after the other
  double seconds = 0;      // > 0: new requests are made for so long, whatever their number
  double disconnect = 0;   // probability that a request is hung up on
  int64_t padding = 0;     // words before the prompt
  double timeout = 60;     // seconds without a byte
  double interval_ms = 0;  // of the server's steps: gaps between tokens are compared with it; 0: unknown
  std::string step_log;
  int64_t pid = 0;     // of the server, on this machine; 0: its memory is not looked at
  int64_t drafts = 0;  // of the server: an event may hold so many tokens and one more
  uint64_t seed = 1;
  bool json = false;
};

constexpr const char* kHelp = R"(stream_load: load test of an OpenAI server that answers by counting (scripted_server)
  --host ADDRESS --port N   127.0.0.1 30000
  --api NAME                completions, chat or both (default: every second stream is a chat)
  --model NAME              default: whatever is served
  --streams N               200 at a time
  --tokens N | A:B          100 an answer, or drawn from A to B
  --rounds R                1 request after the other on each stream
  --seconds S               instead of --rounds: new requests for S seconds
  --disconnect P            probability that a request is hung up on: 0
  --padding N               0 words before each prompt
  --timeout S               60 seconds without a byte are a failure
  --step-log FILE           the server's: gives the latency that the server adds to each token
  --step-ms X               the server's: late tokens are counted by their gaps
  --drafts N                the server's --speculative-num-steps: an event may hold N + 1 tokens; not with --step-log
  --pid N                   the server's: its memory, processor time and descriptors
  --seed N                  1
  --json                    the report as one JSON object
)";

template <class T>
T parse_number(const char* flag, std::string_view text, T min, T max) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= min && value <= max))
    die(fmt::format("--{} {}: expected a number from {} to {}", flag, text, min, max));
  return value;
}

Options parse_options(int argc, char** argv) {
  constexpr option kOptions[] = {{"help", no_argument, nullptr, 'h'},
                                 {"json", no_argument, nullptr, 'j'},
                                 {"host", required_argument, nullptr, 'H'},
                                 {"port", required_argument, nullptr, 'p'},
                                 {"api", required_argument, nullptr, 'a'},
                                 {"model", required_argument, nullptr, 'm'},
                                 {"streams", required_argument, nullptr, 's'},
                                 {"tokens", required_argument, nullptr, 't'},
                                 {"rounds", required_argument, nullptr, 'r'},
                                 {"seconds", required_argument, nullptr, 'S'},
                                 {"padding", required_argument, nullptr, 'w'},
                                 {"disconnect", required_argument, nullptr, 'd'},
                                 {"timeout", required_argument, nullptr, 'T'},
                                 {"step-log", required_argument, nullptr, 'l'},
                                 {"step-ms", required_argument, nullptr, 'i'},
                                 {"pid", required_argument, nullptr, 'P'},
                                 {"seed", required_argument, nullptr, 'e'},
                                 {"drafts", required_argument, nullptr, 'k'},
                                 {nullptr, 0, nullptr, 0}};
  Options o;
  int index = 0;
  for (int found = 0; (found = getopt_long(argc, argv, "", kOptions, &index)) != -1;) {
    if (found == '?') std::exit(2);  // getopt_long has said why
    const char* flag = kOptions[index].name;
    const std::string_view value = optarg == nullptr ? "" : optarg;
    switch (found) {
      case 'h': fmt::print("{}", kHelp); std::exit(0);
      case 'j': o.json = true; break;
      case 'H': o.host = value; break;
      case 'm': o.model = value; break;
      case 'l': o.step_log = value; break;
      case 'p': o.port = parse_number<int64_t>(flag, value, 1, 65535); break;
      case 's': o.streams = parse_number<int64_t>(flag, value, 1, 100'000); break;
      case 'r': o.rounds = parse_number<int64_t>(flag, value, 1, 1'000'000); break;
      case 'w': o.padding = parse_number<int64_t>(flag, value, 0, 1'000'000); break;
      case 'P': o.pid = parse_number<int64_t>(flag, value, 1, 1 << 30); break;
      case 'k': o.drafts = parse_number<int64_t>(flag, value, 0, 64); break;
      case 'e': o.seed = parse_number<uint64_t>(flag, value, 0, UINT64_MAX); break;
      case 'S': o.seconds = parse_number(flag, value, 0.0, 1e6); break;
      case 'd': o.disconnect = parse_number(flag, value, 0.0, 1.0); break;
      case 'T': o.timeout = parse_number(flag, value, 0.1, 1e6); break;
      case 'i': o.interval_ms = parse_number(flag, value, 0.0, 6e4); break;
      case 't': {
        const size_t colon = std::min(value.find(':'), value.size());
        o.min_tokens = o.max_tokens = parse_number<int64_t>(flag, value.substr(0, colon), 1, 1 << 20);
        if (colon < value.size()) o.max_tokens = parse_number<int64_t>(flag, value.substr(colon + 1), o.min_tokens, 1 << 20);
        break;
      }
      case 'a':
        if (value != "completions" && value != "chat" && value != "both")
          die(fmt::format("--api {}: expected completions, chat or both", value));
        o.api = value == "chat" ? Api::chat : value == "both" ? Api::both : Api::completions;
        break;
      default: break;
    }
  }
  if (optind < argc) die(fmt::format("unexpected argument {}", argv[optind]));
  if (o.drafts > 0 && !o.step_log.empty()) die("--step-log says nothing with --drafts: a step may give any number of tokens");
  return o;
}

// -- the load --------------------------------------------------------------------------------------------------------------------------

// When a request is hung up on.
enum class HangUp : uint8_t { never, in_request, before_headers, in_prefill, in_stream, at_finish };
constexpr std::array<const char*, 6> kHangUpNames{"never", "in_request", "before_headers", "in_prefill", "in_stream", "at_finish"};

// One of the N places: a connection and the request on it.
struct Slot {
  int fd = -1;
  bool connecting = false;
  bool want_write = false;
  int64_t rounds_left = 0;
  uint64_t serial = 0;  // of the request; a timer of an older one is ignored
  std::string out;      // unsent part of the request
  std::string in;       // read and not parsed yet
  int64_t in_time = 0;  // when that was read
  bool closed_by_server = false;
  bool busy = false;       // has a request
  bool streaming = false;  // and the head of its answer
  Expected expected;
  std::optional<AnswerReader> answer;
  std::optional<StreamChecker> checker;
  std::string body;  // events not complete yet
  int64_t sent_time = 0;
  int64_t last_time = 0;  // of the last byte
  HangUp hang_up = HangUp::never;
  int64_t hang_up_after = 0;      // tokens
  std::vector<int64_t> arrivals;  // of the tokens
};

class Load {
 public:
  explicit Load(const Options& options)
      : options_(options), steps_(options.step_log), random_(options.seed), slots_(static_cast<size_t>(options.streams)) {
    address_.sin_family = AF_INET;
    address_.sin_port = htons(static_cast<uint16_t>(options.port));
    if (inet_pton(AF_INET, options.host.c_str(), &address_.sin_addr) != 1) die(fmt::format("--host {} is no IPv4 address", options.host));
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    std::string words;
    for (int64_t i = 0; i < options.padding; ++i) words += "word ";
    prompt_ = words + "Count after ";
  }

  void run() {
    health_before_ = health();
    start_ = now_ns();
    end_ = options_.seconds > 0 ? start_ + static_cast<int64_t>(options_.seconds * 1e9) : INT64_MAX;
    take_sample();
    num_open_ = static_cast<int64_t>(slots_.size());
    for (Slot& slot : slots_) {
      slot.rounds_left = options_.seconds > 0 ? INT64_MAX : options_.rounds;
      next_request(slot);
    }
    int64_t next_sample = start_ + kSampleInterval;
    int64_t next_check = start_ + kSecond;
    while (num_open_ > 0) {
      poll_once();
      const int64_t now = now_ns();
      if (now >= next_sample) take_sample(), next_sample += kSampleInterval;
      if (now >= next_check) check_timeouts(now), next_check = now + kSecond;
    }
    seconds_ = static_cast<double>(now_ns() - start_) / 1e9;
    settle();
    take_sample();
  }

  bool failed() const { return !failures_.empty() || !settled_ || !pages_are_accounted(); }

  Json report() const {
    Json json{{"streams", options_.streams}, {"seconds", seconds_}, {"requests", num_requests_}, {"ok", num_ok_}};
    json["failed"] = Json::object();
    for (const auto& [kind, count] : failures_) json["failed"][kind] = count;
    json["failure_details"] = details_;
    json["hung_up"] = Json::object();
    for (size_t i = 1; i < hang_ups_.size(); ++i) json["hung_up"][kHangUpNames[i]] = hang_ups_[i];
    json["max_concurrent_streams"] = max_streaming_;
    json["events"] = num_events_;
    json["events_per_second"] = static_cast<double>(num_events_) / seconds_;
    json["comments"] = num_comments_;
    json["tokens"] = num_tokens_;
    json["tokens_per_second"] = static_cast<double>(num_tokens_) / seconds_;
    json["peak_tokens_per_second"] = peak_tokens_per_second();
    json["headers"] = headers_.report();
    json["ttft"] = ttft_.report();
    json["gap"] = gaps_.report();
    json["gaps_over_1.5_steps"] = options_.interval_ms > 0 ? Json(num_wide_gaps_) : Json();
    json["added_latency"] = added_.report();
    json["added_over_one_step"] = steps_.is_open() && options_.interval_ms > 0 ? Json(num_late_) : Json();
    json["client_pause_max_ms"] = static_cast<double>(max_pause_) / 1e6;
    json["health_before"] = health_before_;
    json["health_after"] = health_after_;
    json["settled"] = settled_;
    json["pages_in_use_equal_cached"] = pages_are_accounted();
    if (!samples_.empty()) {
      const auto slope = rss_slope(samples_);
      Json rss = Json::array();
      for (const ProcessSample& sample : samples_) rss.push_back({std::round(sample.seconds), sample.rss_kib});
      json["server"] = {{"rss_start_kib", samples_.front().rss_kib},
                        {"rss_end_kib", samples_.back().rss_kib},
                        {"rss_slope_kib_per_minute", slope ? Json(*slope) : Json()},
                        {"descriptors_start", samples_.front().descriptors},
                        {"descriptors_end", samples_.back().descriptors},
                        {"cpu_seconds", samples_.back().cpu_seconds - samples_.front().cpu_seconds},
                        {"rss_kib", std::move(rss)}};
    }
    return json;
  }

 private:
  int64_t draw(int64_t min, int64_t max) { return std::uniform_int_distribution<int64_t>(min, max)(random_); }

  // -- a request's life --

  // On the slot's connection when it has one, else on a new one. Closes the slot when its work is done.
  void next_request(Slot& slot) {
    if (slot.rounds_left == 0 || now_ns() >= end_) {
      disconnect(slot, false);
      --num_open_;
      return;
    }
    --slot.rounds_left;
    ++slot.serial;
    ++num_requests_;
    slot.busy = true;
    const bool is_odd = ((&slot - slots_.data()) & 1) != 0;
    const auto start = static_cast<size_t>(draw(0, static_cast<int64_t>(kAlphabet.size()) - 1));
    slot.expected = {.is_chat = options_.api == Api::chat || (options_.api == Api::both && is_odd),
                     .usage = draw(0, 1) == 1,
                     .first = start + 1,
                     .tokens = draw(options_.min_tokens, options_.max_tokens),
                     .tokens_per_event = options_.drafts + 1};
    slot.answer.emplace();
    slot.checker.emplace(slot.expected);
    slot.body.clear();
    slot.arrivals.clear();
    slot.hang_up = HangUp::never;
    slot.last_time = now_ns();
    slot.out = request_text(slot.expected, kAlphabet[start]);
    if (std::uniform_real_distribution<>(0, 1)(random_) < options_.disconnect) plan_hang_up(slot);
    if (slot.fd < 0) return connect(slot);
    write(slot);
  }

  std::string request_text(const Expected& expected, char after) const {
    Json body{{"stream", true}, {"temperature", 0}, {"max_tokens", expected.tokens}};
    if (!options_.model.empty()) body["model"] = options_.model;
    const std::string prompt = prompt_ + after;
    if (expected.is_chat) {
      body["messages"] = {{{"role", "user"}, {"content", prompt}}};
    } else {
      body["prompt"] = prompt;
    }
    if (expected.usage) body["stream_options"] = {{"include_usage", true}};
    const std::string text = body.dump();
    return fmt::format("POST /v1/{} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                       expected.is_chat ? "chat/completions" : "completions", options_.host, text.size(), text);
  }

  void plan_hang_up(Slot& slot) {
    slot.hang_up = static_cast<HangUp>(draw(1, static_cast<int64_t>(kHangUpNames.size()) - 1));
    if (slot.hang_up == HangUp::in_request) slot.out.resize(static_cast<size_t>(draw(0, static_cast<int64_t>(slot.out.size()) - 1)));
    slot.hang_up_after = draw(1, slot.expected.tokens);
  }

  void hang_up(Slot& slot) {
    ++hang_ups_[static_cast<size_t>(slot.hang_up)];
    disconnect(slot, draw(0, 1) == 1);
    end_request(slot);
  }

  // Within a random time that reaches from "at once" to well into the steps that follow.
  void hang_up_soon(Slot& slot) {
    const int64_t reach = std::max<int64_t>(static_cast<int64_t>(options_.interval_ms * 2e6), 10'000'000);
    timers_.push({now_ns() + draw(0, reach), static_cast<size_t>(&slot - slots_.data()), slot.serial});
  }

  void connect(Slot& slot) {
    slot.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (slot.fd < 0) die(fmt::format("no socket: {}; raise the limit of open files", std::strerror(errno)));
    const int on = 1;
    setsockopt(slot.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    epoll_event event{.events = EPOLLIN | EPOLLOUT, .data = {.u64 = static_cast<uint64_t>(&slot - slots_.data())}};
    epoll_ctl(epoll_, EPOLL_CTL_ADD, slot.fd, &event);
    slot.connecting = slot.want_write = true;
    if (::connect(slot.fd, reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)) != 0 && errno != EINPROGRESS)
      fault(slot, {"connect", std::strerror(errno)});
  }

  void disconnect(Slot& slot, bool reset) {
    if (slot.fd < 0) return;
    if (reset) {
      const linger now{.l_onoff = 1, .l_linger = 0};
      setsockopt(slot.fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    }
    close(slot.fd);  // epoll forgets it
    slot.fd = -1;
    slot.connecting = slot.want_write = slot.closed_by_server = false;
    slot.in.clear();
  }

  void fault(Slot& slot, const Fault& fault) {
    ++failures_[fault.kind];
    if (details_.size() < kMaxDetails) details_.push_back(fmt::format("{}: {}", fault.kind, fault.detail.substr(0, 400)));
    disconnect(slot, false);
    end_request(slot);
    if (fault.kind == "connect" && failures_[fault.kind] >= kMaxConnectFaults) die("the server cannot be reached: " + fault.detail);
  }

  // The slot's next request begins when the loop has handled what it woke up for.
  void end_request(Slot& slot) {
    slot.busy = false;
    if (std::exchange(slot.streaming, false)) --num_streaming_;
    ended_.push_back(static_cast<size_t>(&slot - slots_.data()));
  }

  void write(Slot& slot) {
    while (!slot.out.empty()) {
      const ssize_t count = send(slot.fd, slot.out.data(), slot.out.size(), MSG_NOSIGNAL);
      if (count < 0 && errno == EAGAIN) return watch(slot, true);
      if (count < 0) return fault(slot, {"send", std::strerror(errno)});
      slot.out.erase(0, static_cast<size_t>(count));
    }
    watch(slot, false);
    slot.sent_time = now_ns();
    if (slot.hang_up == HangUp::in_request || slot.hang_up == HangUp::before_headers) {
      // Some at once, some a moment later: the request may lie in the socket, with a worker, in the queue or in a step.
      if (draw(0, 1) == 0) return hang_up(slot);
      hang_up_soon(slot);
    }
  }

  void watch(Slot& slot, bool write) {
    if (slot.want_write == write) return;
    slot.want_write = write;
    epoll_event event{.events = static_cast<uint32_t>(EPOLLIN) | (write ? static_cast<uint32_t>(EPOLLOUT) : 0u),
                      .data = {.u64 = static_cast<uint64_t>(&slot - slots_.data())}};
    epoll_ctl(epoll_, EPOLL_CTL_MOD, slot.fd, &event);
  }

  // -- the loop --

  void poll_once() {
    std::array<epoll_event, 1024> events;
    const int64_t due = timers_.empty() ? INT64_MAX : timers_.top().time;
    const int wait_ms = static_cast<int>(std::clamp<int64_t>((due - now_ns()) / 1'000'000 + 1, 0, 100));
    const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), wait_ms);
    const int64_t woken = now_ns();
    // All sockets are read before anything is parsed: an event's time must not hold the client's own work on its neighbours.
    ready_.clear();
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      Slot& slot = slots_[event.data.u64];
      if ((event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) receive(slot);
      ready_.emplace_back(event.data.u64, (event.events & EPOLLOUT) != 0);
    }
    steps_.read_new();
    for (const auto& [index, is_writable] : ready_) {
      Slot& slot = slots_[index];
      if (is_writable && slot.busy) connected(slot);
      if (slot.busy && (!slot.in.empty() || slot.closed_by_server)) parse(slot);
    }
    while (!timers_.empty() && timers_.top().time <= now_ns()) {
      const Timer timer = timers_.top();
      timers_.pop();
      Slot& slot = slots_[timer.slot];
      if (slot.busy && slot.serial == timer.serial) hang_up(slot);
    }
    for (const size_t index : std::exchange(ended_, {})) next_request(slots_[index]);
    if (count > 0) max_pause_ = std::max(max_pause_, now_ns() - woken);
  }

  void receive(Slot& slot) {
    const ssize_t count = recv(slot.fd, read_buffer_.data(), read_buffer_.size(), 0);
    if (count > 0) slot.in.append(read_buffer_.data(), static_cast<size_t>(count));
    slot.in_time = now_ns();
    if (count == 0 || (count < 0 && errno != EAGAIN)) slot.closed_by_server = true;
  }

  void connected(Slot& slot) {
    if (slot.connecting) {
      int error = 0;
      socklen_t size = sizeof(error);
      getsockopt(slot.fd, SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) return fault(slot, {"connect", std::strerror(error)});
      slot.connecting = false;
    }
    write(slot);
  }

  void parse(Slot& slot) {
    const bool had_head = slot.answer->head_done();
    const std::string bytes = std::exchange(slot.in, {});
    slot.last_time = slot.in_time;
    if (auto error = slot.answer->feed(bytes, slot.body)) return fault(slot, {"bad_http", *error});
    if (!had_head && slot.answer->head_done()) {
      if (slot.answer->status() != 200) return fault(slot, {fmt::format("status_{}", slot.answer->status()), slot.answer->raw()});
      if (!slot.answer->is_event_stream()) return fault(slot, {"bad_http", "the answer is no event stream"});
      headers_.add(slot.in_time - slot.sent_time);
      slot.streaming = true;
      max_streaming_ = std::max(max_streaming_, ++num_streaming_);
      if (slot.hang_up == HangUp::in_prefill) hang_up_soon(slot);
    }
    read_events(slot);
    if (!slot.busy) return;
    if (slot.answer->ended()) return complete(slot);
    if (slot.closed_by_server)
      fault(slot, {"closed_early", fmt::format("after {} of {} tokens", slot.checker->tokens(), slot.expected.tokens)});
  }

  // Hands on every complete event. May end the request.
  void read_events(Slot& slot) {
    size_t at = 0;
    for (size_t end = 0; (end = slot.body.find("\n\n", at)) != std::string::npos; at = end + 2) {
      const std::string_view event = std::string_view(slot.body).substr(at, end - at);
      if (event.starts_with(":")) {
        ++num_comments_;
        continue;
      }
      if (!event.starts_with("data: ") || event.find('\n') != std::string_view::npos) return fault(slot, {"bad_sse", std::string(event)});
      ++num_events_;
      const int64_t tokens = slot.checker->tokens();
      if (auto found = slot.checker->event(event.substr(6))) return fault(slot, *found);
      if (slot.checker->tokens() > tokens) {
        arrived(slot, slot.checker->tokens() - tokens);
        if (slot.hang_up == HangUp::in_prefill) return hang_up(slot);  // the token was faster than the timer
        if (slot.hang_up == HangUp::in_stream && slot.checker->tokens() >= slot.hang_up_after) return hang_up(slot);
      }
      if (slot.hang_up == HangUp::at_finish && slot.checker->finished()) return hang_up(slot);
    }
    slot.body.erase(0, at);
  }

  // `count` tokens came in one event: they share the time since the one before.
  void arrived(Slot& slot, int64_t count) {
    num_tokens_ += count;
    const auto second = static_cast<size_t>(std::max<int64_t>(slot.in_time - start_, 0) / kSecond);
    if (second >= tokens_of_second_.size()) tokens_of_second_.resize(second + 1);
    tokens_of_second_[second] += count;
    const int64_t before = slot.arrivals.empty() ? slot.in_time : slot.arrivals.back();
    for (int64_t i = 1; i <= count; ++i) slot.arrivals.push_back(before + (slot.in_time - before) * i / count);
  }

  // Of the best second. What is left at the end belongs to the last whole one, so that no moment is taken for a second.
  double peak_tokens_per_second() const {
    const auto whole = std::max<size_t>(static_cast<size_t>(seconds_), 1);
    double best = 0;
    double sum = 0;
    for (size_t i = 0; i < std::max(whole, tokens_of_second_.size()); ++i) {
      sum += i < tokens_of_second_.size() ? static_cast<double>(tokens_of_second_[i]) : 0;
      if (i + 1 < whole) best = std::max(best, std::exchange(sum, 0));
    }
    return std::max(best, sum / (seconds_ - static_cast<double>(whole - 1)));
  }

  void complete(Slot& slot) {
    if (!slot.checker->done()) return fault(slot, {"no_done", fmt::format("the answer ended after {} tokens", slot.checker->tokens())});
    if (!slot.body.empty()) return fault(slot, {"bad_sse", "the last event is incomplete: " + slot.body});
    if (slot.expected.usage) {
      // A prompt has the same number of tokens whenever it is sent.
      const auto key = std::pair(slot.expected.is_chat, slot.expected.first);
      const auto known = prompt_tokens_.emplace(key, slot.checker->prompt_tokens()).first;
      if (known->second != slot.checker->prompt_tokens())
        return fault(slot, {"wrong_usage", fmt::format("{} prompt tokens, before {}", slot.checker->prompt_tokens(), known->second)});
    }
    ++num_ok_;
    measure(slot);
    if (slot.closed_by_server) disconnect(slot, false);
    end_request(slot);
  }

  // Token k of a stream comes from step s + k, since a running request gets one token a step. Any token's arrival gives an upper bound of
  // s: the last step that had ended by then, less k. The least of them is s as soon as one token came before the next step's end; then a
  // delay of any length is seen as it is, also one of several steps.
  void measure(const Slot& slot) {
    const auto& arrivals = slot.arrivals;
    ttft_.add(arrivals[0] - slot.sent_time);
    for (size_t k = 1; k < arrivals.size(); ++k) {
      const int64_t gap = arrivals[k] - arrivals[k - 1];
      gaps_.add(gap);
      if (static_cast<double>(gap) > options_.interval_ms * 1.5e6) ++num_wide_gaps_;
    }
    if (!steps_.is_open()) return;
    int64_t first = INT64_MAX;
    for (size_t k = 0; k < arrivals.size(); ++k) first = std::min(first, steps_.latest(arrivals[k]) - static_cast<int64_t>(k));
    if (first < 0) die("--step-log does not belong to this server: tokens came before its first step");
    for (size_t k = 0; k < arrivals.size(); ++k) {
      const int64_t added = arrivals[k] - steps_.ends()[static_cast<size_t>(first) + k];
      added_.add(added);
      if (static_cast<double>(added) > options_.interval_ms * 1e6) ++num_late_;
    }
  }

  void check_timeouts(int64_t now) {
    for (Slot& slot : slots_) {
      if (slot.busy && static_cast<double>(now - slot.last_time) > options_.timeout * 1e9)
        fault(slot, {"timeout", fmt::format("after {} of {} tokens", slot.checker->tokens(), slot.expected.tokens)});
    }
  }

  // -- around the load --

  void take_sample() {
    if (options_.pid > 0) samples_.push_back(sample_process(options_.pid, static_cast<double>(now_ns() - start_) / 1e9));
  }

  // GET /health on a connection of its own; null when there is no JSON to be had.
  Json health() const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval patience{.tv_sec = 10, .tv_usec = 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    const std::string request = fmt::format("GET /health HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", options_.host);
    std::string text;
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)) != 0) {
      close(fd);
      die(fmt::format("cannot connect to {}:{}: {}", options_.host, options_.port, std::strerror(errno)));
    }
    if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
      std::array<char, 4096> buffer{};
      for (ssize_t count = 0; (count = recv(fd, buffer.data(), buffer.size(), 0)) > 0;)
        text.append(buffer.data(), static_cast<size_t>(count));
    }
    close(fd);
    const size_t body = text.find("\r\n\r\n");
    if (body == std::string::npos) return nullptr;
    Json json = Json::parse(text.substr(body + 4), nullptr, false);
    return json.is_object() ? json : Json();
  }

  static int64_t count_of(const Json& health, const char* name) { return health.is_object() ? health.value(name, int64_t{0}) : 0; }

  // The last cancels may still be on their way: waits until nothing runs.
  void settle() {
    for (int tries = 0; tries < 100 && !settled_; ++tries) {
      if (tries > 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      health_after_ = health();
      settled_ = health_after_.is_object() && count_of(health_after_, "running") + count_of(health_after_, "waiting") == 0;
    }
  }

  // Whether every page that is not free is held by the prefix cache alone. A server that does not tell its pages has failed this.
  bool pages_are_accounted() const {
    const int64_t total = count_of(health_after_, "total_pages");
    return total > 0 && total == count_of(health_after_, "free_pages") + count_of(health_after_, "cached_pages");
  }

  struct Timer {
    int64_t time;
    size_t slot;
    uint64_t serial;
    bool operator<(const Timer& other) const { return time > other.time; }  // the earliest on top
  };

  const Options options_;
  StepLog steps_;
  std::mt19937_64 random_;
  std::vector<Slot> slots_;
  sockaddr_in address_{};
  int epoll_ = -1;
  std::string prompt_;
  std::vector<char> read_buffer_ = std::vector<char>(kReadBytes);
  std::vector<std::pair<size_t, bool>> ready_;  // slot; whether it can be written to
  std::vector<size_t> ended_;                   // slots without a request
  std::priority_queue<Timer> timers_;
  int64_t num_open_ = 0;  // slots with work left
  int64_t start_ = 0;
  int64_t end_ = 0;
  double seconds_ = 0;
  std::map<std::pair<bool, size_t>, int64_t> prompt_tokens_;  // by (chat, first character)

  int64_t num_requests_ = 0;
  int64_t num_ok_ = 0;
  int64_t num_events_ = 0;
  int64_t num_tokens_ = 0;
  std::vector<int64_t> tokens_of_second_;  // since start_
  int64_t num_comments_ = 0;
  int64_t num_wide_gaps_ = 0;
  int64_t num_late_ = 0;
  int64_t num_streaming_ = 0;
  int64_t max_streaming_ = 0;
  int64_t max_pause_ = 0;
  std::map<std::string, int64_t> failures_;
  std::vector<std::string> details_;
  std::array<int64_t, kHangUpNames.size()> hang_ups_{};
  Histogram headers_;
  Histogram ttft_;
  Histogram gaps_;
  Histogram added_;
  std::vector<ProcessSample> samples_;
  Json health_before_;
  Json health_after_;
  bool settled_ = false;
};

void print_report(const Json& report) {
  for (const auto& [name, value] : report.items()) {
    if (value.is_object() && value.contains("p50_ms")) {
      fmt::print("{:28} p50 {:.2f}  p90 {:.2f}  p99 {:.2f}  p99.9 {:.2f}  max {:.2f} ms  ({})\n", name, value["p50_ms"].get<double>(),
                 value["p90_ms"].get<double>(), value["p99_ms"].get<double>(), value["p99.9_ms"].get<double>(),
                 value["max_ms"].get<double>(), value["count"].get<int64_t>());
    } else {
      fmt::print("{:28} {}\n", name, value.dump());
    }
  }
}

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < static_cast<rlim_t>(options.streams) + 16)
    die(fmt::format("{} streams need more than the {} open files that are allowed", options.streams, limit.rlim_cur));
  Load load(options);
  load.run();
  const Json report = load.report();
  if (options.json) {
    fmt::print("{}\n", report.dump(2));
  } else {
    print_report(report);
  }
  return load.failed() ? 1 : 0;
}

}  // namespace
}  // namespace ingot::bench

int main(int argc, char** argv) { return ingot::bench::main(argc, argv); }
