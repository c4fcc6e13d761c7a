#include "serve/kv_events.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <zmq.hpp>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/json_fields.h"

namespace ingot::serve {

using sched::CacheEvent;

namespace {
constexpr const char* kFlag = "--kv-events-config";
// Of what is kept for replay, beside the number of batches: a snapshot of a large cache alone has megabytes.
constexpr size_t kMaxReplayBytes = size_t{256} << 20;
constexpr int kLingerMs = 500;  // for the last messages, when the server ends
constexpr size_t kSequenceBytes = 8;
constexpr int64_t kEndOfReplay = -1;

std::array<char, kSequenceBytes> big_endian(int64_t value) {
  std::array<char, kSequenceBytes> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(static_cast<uint64_t>(value) >> (8 * (bytes.size() - 1 - i)));
  return bytes;
}

int64_t from_big_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = (value << 8) | static_cast<unsigned char>(byte);
  return static_cast<int64_t>(value);
}

const char* medium_of(CacheEvent::Tier tier) { return tier == CacheEvent::Tier::device ? "GPU" : "CPU"; }

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

std::string_view view(const zmq::message_t& message) { return {message.data<char>(), message.size()}; }
}  // namespace

Result<KvEventsConfig> parse_kv_events_config(std::string_view json) {
  KvEventsConfig config;
  if (json.empty()) return config;
  INGOT_ASSIGN(const Json object, parse_json(json, kFlag));
  if (!object.is_object()) return fail(R"({}: expected an object like {{"publisher": "zmq", "endpoint": "tcp://*:5557"}})", kFlag);
  JsonFields fields(object);
  const bool enabled = fields.boolean("enable_kv_cache_events").value_or(true);
  const std::string publisher = fields.string("publisher").value_or("zmq");
  if (publisher != "zmq" && publisher != "null") fields.refuse("publisher", "expected \"zmq\" or \"null\", got \"" + publisher + "\"");
  config.enabled = enabled && publisher == "zmq";
  config.endpoint = fields.string("endpoint").value_or(config.endpoint);
  config.replay_endpoint = fields.string("replay_endpoint").value_or("");
  config.buffer_steps = fields.integer("buffer_steps", 0, INT_MAX / 2).value_or(config.buffer_steps);
  config.hwm = fields.integer("hwm", 0, INT_MAX).value_or(config.hwm);
  config.max_queue_size = fields.integer("max_queue_size", 1, INT_MAX).value_or(config.max_queue_size);
  config.topic = fields.string("topic").value_or("");
  if (const auto error = fields.error()) return fail("{}: {}", kFlag, error->message);
  return config;
}

std::string encode_kv_events(double timestamp, std::span<const CacheEvent> events, int64_t page_size, int rank) {
  Json list = Json::array();
  for (size_t begin = 0; begin < events.size();) {
    const CacheEvent& first = events[begin];
    size_t end = begin + 1;
    Json hashes = Json::array({first.key});
    Json tokens = first.tokens;
    const auto continues = [&] {
      const CacheEvent& next = events[end];
      if (next.kind != first.kind || next.tier != first.tier) return false;
      return first.kind == CacheEvent::Kind::removed || (first.kind == CacheEvent::Kind::stored && next.parent == events[end - 1].key);
    };
    for (; end < events.size() && continues(); ++end) {
      hashes.push_back(events[end].key);
      for (const int32_t token : events[end].tokens) tokens.push_back(token);
    }
    switch (first.kind) {
      case CacheEvent::Kind::stored:
        list.push_back(
            Json::array({"BlockStored", std::move(hashes), first.parent == sched::kRootPageKey ? Json(nullptr) : Json(first.parent),
                         std::move(tokens), page_size, nullptr, medium_of(first.tier)}));
        break;
      case CacheEvent::Kind::removed: list.push_back(Json::array({"BlockRemoved", std::move(hashes), medium_of(first.tier)})); break;
      case CacheEvent::Kind::cleared: list.push_back(Json::array({"AllBlocksCleared"})); break;
    }
    begin = end;
  }
  const std::vector<uint8_t> bytes = Json::to_msgpack(Json::array({timestamp, std::move(list), rank}));
  return {bytes.begin(), bytes.end()};
}

struct KvEventPublisher::Impl {
  struct Batch {
    int rank = 0;
    double timestamp = 0;
    std::vector<CacheEvent> events;
  };
  struct Sent {
    int64_t sequence = 0;
    zmq::message_t payload;  // shared with what is being sent
  };

  Impl(KvEventsConfig wanted, int64_t tokens) : config(std::move(wanted)), page_size(tokens) {
    wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    INGOT_CHECK(wake >= 0);
  }
  ~Impl() {
    if (thread.joinable()) {
      {
        const std::lock_guard lock(mutex);
        stopping = true;
      }
      wake_up();
      thread.join();
    }
    close(wake);
  }

  static Result<std::string> open(zmq::socket_t& socket, const std::string& endpoint, const char* field) {
    try {
      const bool binds = endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
                         endpoint.starts_with("ipc://") || endpoint.starts_with("inproc://");
      socket.set(zmq::sockopt::linger, kLingerMs);
      socket.set(zmq::sockopt::ipv6, endpoint.find('[') != std::string::npos);
      if (!binds) {
        socket.connect(endpoint);
        return endpoint;
      }
      socket.bind(endpoint);
      return socket.get(zmq::sockopt::last_endpoint);
    } catch (const zmq::error_t& error) {
      return fail_hint("expected something like tcp://*:5557 or ipc:///run/ingot/kv", "{}: {} \"{}\" cannot be used: {}", kFlag, field,
                       endpoint, error.what());
    }
  }

  Result<> start(std::string_view model) {
    topic = config.topic.empty() ? fmt::format("kv@{}@{}", host_name(), model) : config.topic;
    publisher.set(zmq::sockopt::sndhwm, static_cast<int>(config.hwm));
    INGOT_ASSIGN(endpoint, open(publisher, config.endpoint, "endpoint"));
    if (!config.replay_endpoint.empty()) {
      // A whole replay fits; what a client does not fetch is dropped, never waited for.
      replayer.set(zmq::sockopt::sndhwm, static_cast<int>(config.buffer_steps) + 1);
      INGOT_ASSIGN(replay_endpoint, open(replayer, config.replay_endpoint, "replay_endpoint"));
    }
    thread = std::thread([this] { main(); });
    return {};
  }

  void wake_up() const {
    const uint64_t one = 1;
    // Full means that the thread is awake anyway.
    [[maybe_unused]] const ssize_t written = write(wake, &one, sizeof one);
  }

  bool push(int rank, std::vector<CacheEvent>& events) {
    const auto now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    {
      const std::lock_guard lock(mutex);
      if (num_queued >= config.max_queue_size) {
        ++num_refused;
        return false;
      }
      if (events.empty()) return true;
      num_queued += static_cast<int64_t>(events.size());
      queue.push_back({rank, now, std::exchange(events, {})});
    }
    wake_up();
    return true;
  }

  // -- the publisher's thread

  void main() {
    bool goes_on = true;
    while (goes_on) {
      try {
        goes_on = serve();
      } catch (const zmq::error_t& error) {
        if (error.num() == EINTR) continue;  // the process was stopped and continued, or a debugger came
        log_error("KV events: the publisher has stopped: {}", error.what());
        return;
      }
    }
  }

  bool serve() {
    std::array<zmq::pollitem_t, 2> items{
        {{nullptr, wake, ZMQ_POLLIN, 0}, {replay_endpoint.empty() ? nullptr : replayer.handle(), -1, ZMQ_POLLIN, 0}}};
    zmq::poll(items.data(), replay_endpoint.empty() ? 1 : 2, std::chrono::milliseconds(-1));
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(wake, &count, sizeof count);
    std::deque<Batch> batches;
    int64_t refused = 0;
    bool last = false;
    {
      const std::lock_guard lock(mutex);
      batches.swap(queue);
      num_queued = 0;
      refused = std::exchange(num_refused, 0);
      last = stopping;
    }
    if (refused > 0) log_warn("KV events: the publisher fell behind; who listens gets a snapshot");
    for (const Batch& batch : batches) send(batch);
    if (!replay_endpoint.empty() && (items[1].revents & ZMQ_POLLIN) != 0) replay();
    return !last;
  }

  void send(const Batch& batch) {
    const std::string bytes = encode_kv_events(batch.timestamp, batch.events, page_size, batch.rank);
    Sent& entry = sent.emplace_back(Sent{next_sequence++, zmq::message_t(bytes.data(), bytes.size())});
    sent_bytes += bytes.size();
    const auto number = big_endian(entry.sequence);
    zmq::message_t payload;
    payload.copy(entry.payload);
    publisher.send(zmq::buffer(topic), zmq::send_flags::sndmore);
    publisher.send(zmq::buffer(number), zmq::send_flags::sndmore);
    publisher.send(payload, zmq::send_flags::none);
    const int64_t most = replay_endpoint.empty() ? 0 : config.buffer_steps;  // without that socket nobody can ask for them
    while (!sent.empty() && (static_cast<int64_t>(sent.size()) > most || sent_bytes > kMaxReplayBytes)) {
      sent_bytes -= sent.front().payload.size();
      sent.pop_front();
    }
  }

  // Answers what has arrived. A request is the client's id, an empty frame when it has a REQ socket, and the first number wanted.
  void replay() {
    while (true) {
      std::vector<zmq::message_t> frames;
      do {
        if (!replayer.recv(frames.emplace_back(), zmq::recv_flags::dontwait)) return;
      } while (frames.back().more());
      const std::string_view wanted = view(frames.back());
      const bool understood = frames.size() >= 2 && wanted.size() == kSequenceBytes;
      const int64_t start = understood ? from_big_endian(wanted) : next_sequence;
      const bool delimited = frames.size() > 2;
      for (Sent& entry : sent) {
        if (entry.sequence >= start) answer(frames[0], delimited, entry.sequence, entry.payload);
      }
      zmq::message_t nothing;
      answer(frames[0], delimited, kEndOfReplay, nothing);
    }
  }

  void answer(zmq::message_t& client, bool delimited, int64_t sequence, zmq::message_t& payload) {
    const auto number = big_endian(sequence);
    zmq::message_t id;
    zmq::message_t body;
    id.copy(client);
    body.copy(payload);
    replayer.send(id, zmq::send_flags::sndmore);
    if (delimited) replayer.send(zmq::message_t(), zmq::send_flags::sndmore);
    replayer.send(zmq::buffer(number), zmq::send_flags::sndmore);
    replayer.send(body, zmq::send_flags::none);
  }

  const KvEventsConfig config;
  const int64_t page_size;
  std::string topic;
  std::string endpoint;
  std::string replay_endpoint;
  int wake = -1;

  std::mutex mutex;
  std::deque<Batch> queue;
  int64_t num_queued = 0;  // events
  int64_t num_refused = 0;
  bool stopping = false;

  // Of the publisher's thread, once it runs.
  zmq::context_t context{1};
  zmq::socket_t publisher{context, zmq::socket_type::pub};
  zmq::socket_t replayer{context, zmq::socket_type::router};
  std::deque<Sent> sent;
  size_t sent_bytes = 0;
  int64_t next_sequence = 0;

  std::thread thread;
};

Result<std::unique_ptr<KvEventPublisher>> KvEventPublisher::start(const KvEventsConfig& config, std::string_view model, int64_t page_size) {
  auto impl = std::make_unique<Impl>(config, page_size);
  INGOT_TRY(impl->start(model));
  log_info("KV events: topic {} on {}{}{}", impl->topic, impl->endpoint, impl->replay_endpoint.empty() ? "" : ", replay on ",
           impl->replay_endpoint);
  return std::unique_ptr<KvEventPublisher>(new KvEventPublisher(std::move(impl)));
}

KvEventPublisher::KvEventPublisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvEventPublisher::~KvEventPublisher() = default;
bool KvEventPublisher::push(int rank, std::vector<CacheEvent>& events) { return impl_->push(rank, events); }
const std::string& KvEventPublisher::endpoint() const { return impl_->endpoint; }
const std::string& KvEventPublisher::replay_endpoint() const { return impl_->replay_endpoint; }
const std::string& KvEventPublisher::topic() const { return impl_->topic; }

}  // namespace ingot::serve
