#include "exec/page_store.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/file_io.h"
#include "base/file_map.h"
#include "base/log.h"
#include "tensor/checkpoint.h"

namespace ingot::exec {
namespace {

namespace fs = std::filesystem;
using sched::PageKey;

static_assert(std::endian::native == std::endian::little, "page files are little-endian and copied as they lie in memory");

// The head of a page file. page_size token ids (int32) and page_bytes bytes follow, and nothing else.
struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t page_size;
  uint64_t identity;
  uint64_t key;
  uint64_t parent;
  uint64_t page_bytes;
  uint64_t checksum;  // XXH3-64 of the whole file with this field as zero
};
static_assert(sizeof(FileHeader) == 56);

constexpr char kMagic[8] = {'I', 'N', 'G', 'O', 'T', 'P', 'G', '\0'};
constexpr std::string_view kPageSuffix = ".page";
constexpr std::string_view kTempSuffix = ".tmp";
constexpr size_t kKeyDigits = 16;
constexpr size_t kMaxConfigBytes = 16 << 20;
constexpr uint64_t kSampleBytes = 64;
constexpr size_t kMaxRefused = 1 << 16;  // half a megabyte; a prompt of a million tokens has a quarter of that
constexpr std::chrono::seconds kWarningInterval{10};

std::string errno_text() { return std::strerror(errno); }

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool valid() const { return fd_ >= 0; }
  int get() const { return fd_; }
  // A network file system may report a failed write only here.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

// The mtime is the age of a page after a restart. The time of day is given explicitly: what the kernel sets by itself moves in steps of
// milliseconds. Best effort: a file of another user keeps its age.
void touch(int fd) {
  timespec times[2] = {};
  times[0].tv_nsec = UTIME_OMIT;
  ::clock_gettime(CLOCK_REALTIME, &times[1]);
  ::futimens(fd, times);
}

uint64_t checksum_of(FileHeader header, std::span<const int32_t> tokens, std::span<const std::byte> bytes) {
  header.checksum = 0;
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, &header, sizeof(header));
  XXH3_64bits_update(&state, tokens.data(), tokens.size_bytes());
  XXH3_64bits_update(&state, bytes.data(), bytes.size());
  return XXH3_64bits_digest(&state);
}

// The number that `text` spells in exactly 16 lower-case hex digits.
std::optional<uint64_t> parse_hex16(std::string_view text) {
  if (text.size() != kKeyDigits) return std::nullopt;
  uint64_t value = 0;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) return std::nullopt;
    value = value << 4 | static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return value;
}

// Page files of one model: where they lie and what each must look like. Immutable, any thread.
class PageFiles {
 public:
  enum class State { good, missing, damaged, unavailable, other_tokens };

  struct Opened {
    State state = State::good;
    std::string reason;  // unless good or missing
    Fd fd;
    FileHeader header = {};
    timespec mtime = {};
  };

  struct Read {
    State state = State::good;
    std::string reason;
    std::shared_ptr<PageBytes> page;
  };

  explicit PageFiles(const PageStore::Options& options)
      : root_(options.dir / fmt::format("{:016x}", options.model_identity)),
        identity_(options.model_identity),
        page_size_(static_cast<size_t>(options.page_size)),
        page_bytes_(static_cast<size_t>(options.page_bytes)) {}

  const fs::path& root() const { return root_; }
  size_t file_bytes() const { return sizeof(FileHeader) + page_size_ * sizeof(int32_t) + page_bytes_; }
  fs::path path(PageKey key) const {
    const std::string name = fmt::format("{:016x}", key);
    return root_ / name.substr(0, 2) / (name + std::string(kPageSuffix));
  }

  // Opens and checks all but tokens and checksum.
  Opened open(PageKey key) const {
    Opened opened;
    const auto refuse = [&](State state, std::string reason) {
      opened.state = state;
      opened.reason = std::move(reason);
      return std::move(opened);
    };
    // Not through a link, nor waiting for a pipe's other end: this folder holds plain files.
    opened.fd = Fd(::open(path(key).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!opened.fd.valid()) {
      if (errno == ENOENT) return refuse(State::missing, {});
      if (errno == ELOOP) return refuse(State::damaged, "it is a link");
      return refuse(State::unavailable, errno_text());
    }
    struct stat info = {};
    if (::fstat(opened.fd.get(), &info) != 0) return refuse(State::unavailable, errno_text());
    if (!S_ISREG(info.st_mode)) return refuse(State::damaged, "it is not a plain file");
    opened.mtime = info.st_mtim;
    if (static_cast<uint64_t>(info.st_size) != file_bytes())
      return refuse(State::damaged, fmt::format("it has {} bytes, expected {}", info.st_size, file_bytes()));

    FileHeader& header = opened.header;
    if (const int error = read_fully_at(opened.fd.get(), &header, sizeof(header), 0); error != 0)
      return refuse(State::damaged, cut_or_error(error));
    if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return refuse(State::damaged, "it does not begin as a page does");
    if (header.version != kPageFileVersion)
      return refuse(State::damaged, fmt::format("its version is {}, expected {}", header.version, kPageFileVersion));
    if (header.identity != identity_)
      return refuse(State::damaged, fmt::format("it belongs to model {:016x}, not to {:016x}", header.identity, identity_));
    if (header.key != key) return refuse(State::damaged, fmt::format("it holds page {:016x}", header.key));
    if (header.parent == key) return refuse(State::damaged, "it claims to follow itself");
    if (header.page_size != page_size_ || header.page_bytes != page_bytes_)
      return refuse(State::damaged, fmt::format("its page has {} tokens and {} bytes, expected {} and {}", header.page_size,
                                                header.page_bytes, page_size_, page_bytes_));
    return opened;
  }

  // Also makes the file the most recently used one on disk.
  Read read(PageKey key, std::span<const int32_t> tokens) const {
    const Opened opened = open(key);
    if (opened.state != State::good) return {opened.state, opened.reason, nullptr};
    touch(opened.fd.get());
    std::vector<int32_t> found(page_size_);
    auto page = std::make_shared<PageBytes>(page_bytes_);
    const size_t tokens_at = sizeof(FileHeader);
    const size_t page_at = tokens_at + page_size_ * sizeof(int32_t);
    int error = read_fully_at(opened.fd.get(), found.data(), page_size_ * sizeof(int32_t), tokens_at);
    if (error == 0) error = read_fully_at(opened.fd.get(), page->data(), page_bytes_, page_at);
    if (error != 0) return {State::damaged, cut_or_error(error), nullptr};
    if (checksum_of(opened.header, found, *page) != opened.header.checksum) return {State::damaged, "its checksum is wrong", nullptr};
    if (!std::equal(found.begin(), found.end(), tokens.begin(), tokens.end())) return {State::other_tokens, "it has other tokens", nullptr};
    return {State::good, {}, std::move(page)};
  }

  // Errors name the file.
  Result<> write(PageKey key, PageKey parent, std::span<const int32_t> tokens, std::span<const std::byte> page) const {
    FileHeader header = {};
    std::memcpy(header.magic, kMagic, sizeof(kMagic));
    header.version = kPageFileVersion;
    header.page_size = static_cast<uint32_t>(page_size_);
    header.identity = identity_;
    header.key = key;
    header.parent = parent;
    header.page_bytes = page_bytes_;
    header.checksum = checksum_of(header, tokens, page);

    const fs::path final_path = path(key);
    const std::string pattern = (final_path.parent_path() / fmt::format("{:016x}.XXXXXX{}", key, kTempSuffix)).string();
    std::string temp = pattern;
    Fd fd(::mkostemps(temp.data(), static_cast<int>(kTempSuffix.size()), O_CLOEXEC));
    if (!fd.valid() && errno == ENOENT) {
      std::error_code ec;
      fs::create_directories(final_path.parent_path(), ec);
      if (ec) return fail("cannot make folder {}: {}", final_path.parent_path().string(), ec.message());
      temp = pattern;
      fd = Fd(::mkostemps(temp.data(), static_cast<int>(kTempSuffix.size()), O_CLOEXEC));
    }
    if (!fd.valid()) return fail("cannot make a file in {}: {}", final_path.parent_path().string(), errno_text());
    // Tells other processes, which remove what a crash left, that this file is being written (see is_leftover). Where locks do not
    // exist they may take it away: then the rename fails and the page is lost, no more.
    ::flock(fd.get(), LOCK_EX | LOCK_NB);

    int error = write_fully(fd.get(), &header, sizeof(header));
    if (error == 0) error = write_fully(fd.get(), tokens.data(), tokens.size_bytes());
    if (error == 0) error = write_fully(fd.get(), page.data(), page.size());
    bool written = error == 0;
    errno = error;
    if (written) touch(fd.get());
    written = written && fd.close() && std::rename(temp.c_str(), final_path.c_str()) == 0;
    if (written) return {};
    const std::string reason = errno_text();
    ::unlink(temp.c_str());
    return fail("cannot write {}: {}", final_path.string(), reason);
  }

  // The key of a file named as a page, or nothing.
  static std::optional<PageKey> key_of(const fs::path& file) {
    const std::string name = file.filename().string();
    if (!name.ends_with(kPageSuffix)) return std::nullopt;
    return parse_hex16(std::string_view(name).substr(0, name.size() - kPageSuffix.size()));
  }

  // Is `file` named as write() names a temporary one, and does no process write it?
  static bool is_leftover(const fs::path& file) {
    const std::string name = file.filename().string();
    if (name.size() <= kKeyDigits || !name.ends_with(kTempSuffix) || name[kKeyDigits] != '.' || !parse_hex16(name.substr(0, kKeyDigits)))
      return false;
    const Fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    return fd.valid() && (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK);
  }

 private:
  static std::string cut_or_error(int error) {
    return error == kEndOfFile ? "it was cut while being read" : std::generic_category().message(error);
  }

  const fs::path root_;
  const uint64_t identity_;
  const size_t page_size_;
  const size_t page_bytes_;
};

// Which pages are stored, in what order they go. Not thread-safe. A page goes only when nothing follows it (stored or about to be) and no
// fetch waits for it. Whoever uses a page uses those before it: it keeps them, however old their own last use.
class PageIndex {
 public:
  bool stored(PageKey key) const {
    const auto it = nodes_.find(key);
    return it != nodes_.end() && it->second.stored;
  }
  int64_t pages() const { return pages_; }

  // A page that follows `parent` is stored or will be: `parent` must stay.
  void link(PageKey parent) {
    update(parent, [](Node& node) { ++node.children; });
  }
  void unlink(PageKey parent) {
    update(parent, [](Node& node) { --node.children; });
  }
  void pin(PageKey key) {
    update(key, [](Node& node) { ++node.pins; });
  }
  void unpin(PageKey key) {
    update(key, [](Node& node) { --node.pins; });
  }
  void use(PageKey key, int64_t now) {
    update(key, [&](Node& node) { node.last_use = now; });
  }

  // The page is on disk now; link(parent) was called before.
  void add(PageKey key, PageKey parent, int64_t now) {
    INGOT_CHECK(!stored(key), "page {:016x} is stored twice", key);
    update(key, [&](Node& node) {
      node.stored = true;
      node.parent = parent;
      node.last_use = now;
    });
    ++pages_;
  }
  void remove(PageKey key) {
    INGOT_CHECK(stored(key), "page {:016x} is not stored", key);
    const PageKey parent = nodes_.at(key).parent;
    update(key, [](Node& node) { node.stored = false; });
    unlink(parent);
    --pages_;
  }

  // The page to evict next; nothing when all must stay.
  std::optional<PageKey> oldest() const {
    if (evictable_.empty()) return std::nullopt;
    return evictable_.begin()->second;
  }

 private:
  // Also made for a key that is not stored, while something follows it or waits for it.
  struct Node {
    bool stored = false;
    PageKey parent = 0;  // while stored
    int64_t last_use = 0;
    int32_t children = 0;  // pages stored or queued that follow this one
    int32_t pins = 0;      // fetches that wait for it
    bool evictable() const { return stored && children == 0 && pins == 0; }
  };

  template <class Change>
  void update(PageKey key, Change change) {
    Node& node = nodes_[key];
    evictable_.erase({node.last_use, key});
    change(node);
    if (node.evictable()) evictable_.emplace(node.last_use, key);
    if (!node.stored && node.children == 0 && node.pins == 0) nodes_.erase(key);
  }

  std::unordered_map<PageKey, Node> nodes_;
  std::set<std::pair<int64_t, PageKey>> evictable_;  // (last use, key)
  int64_t pages_ = 0;
};

struct Put {
  PageKey parent = 0;
  std::vector<int32_t> tokens;
  std::shared_ptr<const PageBytes> page;
};

struct Fetch {
  std::vector<PageKey> keys;  // cut to the leading run that was there when fetch() was called; all pinned
  std::vector<int32_t> tokens;
  PageStore::Done done;
};

}  // namespace

struct PageStore::Impl {
  explicit Impl(const Options& o) : options(o), files(o), file_bytes(static_cast<int64_t>(files.file_bytes())) {}

  Result<> check_folder() const;
  Result<> scan();
  void start();
  void stop();
  void write_loop();
  void read_loop();
  bool make_room(std::unique_lock<std::mutex>& lock);
  std::shared_ptr<PageBytes> read_page(PageKey key, std::span<const int32_t> tokens, std::unique_lock<std::mutex>& lock);
  void drop_damaged(PageKey key, const std::string& reason);
  void warn_rarely(const std::string& what);
  bool present(PageKey key) const { return index.stored(key) || queued.contains(key); }

  const Options options;
  const PageFiles files;
  const int64_t file_bytes;

  mutable std::mutex mutex;  // guards all below but the threads; never held while a page is read or written
  std::condition_variable write_ready;
  std::condition_variable read_ready;
  std::condition_variable written;  // nothing is queued any more
  PageIndex index;
  int64_t now = 0;  // counts uses; a later use has a higher number
  std::deque<PageKey> write_order;
  std::unordered_map<PageKey, std::shared_ptr<const Put>> queued;  // from put() until it is on disk or given up
  std::deque<Fetch> fetches;
  std::unordered_set<PageKey> refused;  // had no room when last put, see write_loop
  bool stopping = false;
  Stats counters;  // bytes and pages are filled in by stats()
  std::optional<std::chrono::steady_clock::time_point> last_warning;

  std::thread writer;
  std::thread reader;
};

Result<> PageStore::Impl::check_folder() const {
  const std::string hint = "--hicache-dir must be a folder that this user may write";
  std::error_code ec;
  if (fs::exists(options.dir, ec) && !fs::is_directory(options.dir, ec))
    return fail_hint(hint, "--hicache-dir {} is not a folder", options.dir.string());
  fs::create_directories(files.root(), ec);
  if (ec) return fail_hint(hint, "--hicache-dir: cannot make folder {}: {}", files.root().string(), ec.message());
  std::string probe = (files.root() / fmt::format("{:016x}.XXXXXX{}", 0, kTempSuffix)).string();
  const Fd fd(::mkostemps(probe.data(), static_cast<int>(kTempSuffix.size()), O_CLOEXEC));
  if (!fd.valid()) return fail_hint(hint, "--hicache-dir: cannot write in {}: {}", files.root().string(), errno_text());
  ::unlink(probe.c_str());
  return {};
}

Result<> PageStore::Impl::scan() {
  struct Found {
    timespec mtime;
    PageKey key;
    PageKey parent;
  };
  std::vector<Found> found;
  int64_t unavailable = 0;
  std::string unavailable_reason;
  std::error_code ec;
  for (auto it = fs::recursive_directory_iterator(files.root(), ec); !ec && it != fs::recursive_directory_iterator(); it.increment(ec)) {
    const fs::path& path = it->path();
    if (PageFiles::is_leftover(path)) ::unlink(path.c_str());
    const auto key = PageFiles::key_of(path);
    if (!key) continue;
    const auto opened = files.open(*key);
    switch (opened.state) {
      case PageFiles::State::good: found.push_back({opened.mtime, *key, opened.header.parent}); break;
      case PageFiles::State::damaged: drop_damaged(*key, opened.reason); break;
      case PageFiles::State::unavailable:
        ++unavailable;
        unavailable_reason = opened.reason;
        break;
      case PageFiles::State::missing:
      case PageFiles::State::other_tokens: break;
    }
  }
  if (ec) return fail("--hicache-dir: cannot list {}: {}", files.root().string(), ec.message());
  if (unavailable > 0)
    log_warn("{}: {} pages cannot be opened and are left alone: {}", files.root().string(), unavailable, unavailable_reason);

  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::tie(a.mtime.tv_sec, a.mtime.tv_nsec, a.key) < std::tie(b.mtime.tv_sec, b.mtime.tv_nsec, b.key);
  });
  for (const Found& page : found) {
    // A name may come up twice: when another process writes to a folder while it is listed, or in a folder where no page belongs.
    if (index.stored(page.key)) continue;
    index.link(page.parent);
    index.add(page.key, page.parent, ++now);
  }
  while (index.pages() * file_bytes > options.max_bytes) {
    const auto oldest = index.oldest();
    if (!oldest) break;
    index.remove(*oldest);
    ++counters.pages_evicted;
    if (::unlink(files.path(*oldest).c_str()) != 0 && errno != ENOENT)
      return fail("--hicache-dir: cannot remove {}: {}", files.path(*oldest).string(), errno_text());
  }
  log_info("prefix cache on disk: {} pages, {} of {} bytes in {}", index.pages(), index.pages() * file_bytes, options.max_bytes,
           files.root().string());
  return {};
}

void PageStore::Impl::start() {
  writer = std::thread([this] { write_loop(); });
  reader = std::thread([this] { read_loop(); });
}

void PageStore::Impl::stop() {
  {
    std::lock_guard lock(mutex);
    stopping = true;
  }
  write_ready.notify_all();
  read_ready.notify_all();
  writer.join();
  reader.join();
}

// Deletes the file first: while the index has the page, put() does not write it anew, so what is deleted is the damaged file.
void PageStore::Impl::drop_damaged(PageKey key, const std::string& reason) {
  const std::string path = files.path(key).string();
  const bool gone = ::unlink(path.c_str()) == 0 || errno == ENOENT;
  const std::string left = gone ? "deleted" : "cannot be deleted: " + errno_text();
  log_warn("page file {} is damaged, {}: {}", path, left, reason);
  std::lock_guard lock(mutex);
  ++counters.pages_damaged;
  if (index.stored(key)) index.remove(key);
}

// Caller holds the lock. A full disk fails every page: one line now and then says as much as a thousand.
void PageStore::Impl::warn_rarely(const std::string& what) {
  const auto time = std::chrono::steady_clock::now();
  if (last_warning && time - *last_warning < kWarningInterval) return;
  last_warning = time;
  log_warn("prefix cache on disk: {}; serving goes on ({} write errors so far)", what, counters.write_errors);
}

// Evicts until one more page fits; false when that cannot be. The lock is released while files are removed. Writer thread only.
bool PageStore::Impl::make_room(std::unique_lock<std::mutex>& lock) {
  while ((index.pages() + 1) * file_bytes > options.max_bytes) {
    const auto oldest = index.oldest();
    if (!oldest) return false;
    index.remove(*oldest);
    ++counters.pages_evicted;
    const std::string path = files.path(*oldest).string();
    lock.unlock();
    const bool gone = ::unlink(path.c_str()) == 0 || errno == ENOENT;
    const std::string reason = gone ? std::string() : errno_text();
    lock.lock();
    if (gone) continue;
    ++counters.write_errors;
    warn_rarely(fmt::format("cannot remove {}: {}", path, reason));
  }
  return true;
}

void PageStore::Impl::write_loop() {
  std::unique_lock lock(mutex);
  while (true) {
    write_ready.wait(lock, [&] { return stopping || !write_order.empty(); });
    if (write_order.empty()) return;
    const PageKey key = write_order.front();
    write_order.pop_front();
    const std::shared_ptr<const Put> put = queued.at(key);
    bool stored = false;
    // A page that follows a refused one could not be reached. It must not take the place of the refused one's predecessors either, which
    // are not in its way any more as far as the index knows.
    if (refused.contains(put->parent) || !make_room(lock)) {
      ++counters.pages_dropped_no_room;
      if (refused.size() >= kMaxRefused) refused.clear();
      refused.insert(key);
    } else {
      lock.unlock();
      const Result<> result = files.write(key, put->parent, put->tokens, *put->page);
      lock.lock();
      stored = result.has_value();
      if (!stored) {
        ++counters.write_errors;
        warn_rarely(result.error().text());
      }
    }
    queued.erase(key);
    if (stored) {
      index.add(key, put->parent, ++now);
      ++counters.pages_written;
      refused.erase(key);
    } else {
      index.unlink(put->parent);
    }
    if (queued.empty()) written.notify_all();
  }
}

// Enters and leaves with the lock held, which is released while a file is read. Null: the run ends before this page.
std::shared_ptr<PageBytes> PageStore::Impl::read_page(PageKey key, std::span<const int32_t> tokens, std::unique_lock<std::mutex>& lock) {
  if (const auto it = queued.find(key); it != queued.end()) {
    const std::shared_ptr<const Put> put = it->second;
    lock.unlock();
    std::shared_ptr<PageBytes> page;
    if (std::equal(tokens.begin(), tokens.end(), put->tokens.begin(), put->tokens.end())) page = std::make_shared<PageBytes>(*put->page);
    lock.lock();
    return page;
  }
  if (!index.stored(key)) return nullptr;
  lock.unlock();
  PageFiles::Read read = files.read(key, tokens);
  if (read.state == PageFiles::State::damaged) drop_damaged(key, read.reason);
  lock.lock();
  if (read.state == PageFiles::State::unavailable) warn_rarely(fmt::format("cannot open {}: {}", files.path(key).string(), read.reason));
  // Another process evicted it.
  if (read.state == PageFiles::State::missing && index.stored(key)) index.remove(key);
  return std::move(read.page);
}

void PageStore::Impl::read_loop() {
  const auto page_size = static_cast<size_t>(options.page_size);
  std::unique_lock lock(mutex);
  while (true) {
    read_ready.wait(lock, [&] { return stopping || !fetches.empty(); });
    if (fetches.empty()) return;
    Fetch fetch = std::move(fetches.front());
    fetches.pop_front();
    std::vector<std::shared_ptr<PageBytes>> pages;
    for (size_t i = 0; i < fetch.keys.size() && !stopping; ++i) {
      auto page = read_page(fetch.keys[i], std::span(fetch.tokens).subspan(i * page_size, page_size), lock);
      if (page == nullptr) break;
      ++counters.pages_read;
      pages.push_back(std::move(page));
    }
    for (const PageKey key : fetch.keys) index.unpin(key);
    lock.unlock();
    fetch.done(std::move(pages));
    fetch = {};  // whatever done() holds is freed without the lock
    lock.lock();
  }
}

PageStore::PageStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) { impl_->start(); }
PageStore::~PageStore() { impl_->stop(); }

Result<std::unique_ptr<PageStore>> PageStore::open(const Options& options) {
  INGOT_CHECK(options.page_size > 0 && options.page_bytes > 0, "a page of {} tokens and {} bytes", options.page_size, options.page_bytes);
  auto impl = std::make_unique<Impl>(options);
  if (options.max_bytes < impl->file_bytes) {
    return fail_hint("give it more room or leave it out", "--hicache-dir {}: {} bytes are allowed, but one page takes {}",
                     options.dir.string(), options.max_bytes, impl->file_bytes);
  }
  INGOT_TRY(impl->check_folder());
  INGOT_TRY(impl->scan());
  return std::unique_ptr<PageStore>(new PageStore(std::move(impl)));
}

void PageStore::put(PageKey key, PageKey parent, std::vector<int32_t> tokens, std::shared_ptr<const PageBytes> page) {
  Impl& impl = *impl_;
  INGOT_CHECK(std::ssize(tokens) == impl.options.page_size, "a page of {} tokens, expected {}", tokens.size(), impl.options.page_size);
  INGOT_CHECK(page != nullptr && std::ssize(*page) == impl.options.page_bytes, "a page must have {} bytes", impl.options.page_bytes);
  INGOT_CHECK(key != parent, "page {:016x} cannot follow itself", key);
  {
    std::lock_guard lock(impl.mutex);
    if (impl.index.stored(key)) impl.index.use(key, ++impl.now);
    if (impl.present(key)) return;
    if ((std::ssize(impl.queued) + 1) * impl.file_bytes > impl.options.max_queued_bytes) {
      ++impl.counters.pages_dropped_queue_full;
      return;
    }
    impl.queued.emplace(key, std::make_shared<const Put>(Put{parent, std::move(tokens), std::move(page)}));
    impl.write_order.push_back(key);
    impl.index.link(parent);
  }
  impl.write_ready.notify_one();
}

void PageStore::fetch(std::vector<PageKey> keys, std::vector<int32_t> tokens, Done done) {
  Impl& impl = *impl_;
  INGOT_CHECK(std::ssize(tokens) == std::ssize(keys) * impl.options.page_size, "{} tokens for {} pages", tokens.size(), keys.size());
  {
    std::lock_guard lock(impl.mutex);
    const auto end = std::find_if(keys.begin(), keys.end(), [&](PageKey key) { return !impl.present(key); });
    keys.erase(end, keys.end());
    // One age for all: of pages of one age the later ones go first, since the others are followed by them.
    ++impl.now;
    for (const PageKey key : keys) {
      impl.index.pin(key);
      impl.index.use(key, impl.now);
    }
    impl.fetches.push_back({std::move(keys), std::move(tokens), std::move(done)});
  }
  impl.read_ready.notify_one();
}

bool PageStore::contains(PageKey key) const {
  std::lock_guard lock(impl_->mutex);
  return impl_->present(key);
}

void PageStore::flush() {
  std::unique_lock lock(impl_->mutex);
  impl_->written.wait(lock, [&] { return impl_->queued.empty(); });
}

void PageStore::clear() {
  flush();
  int64_t failed = 0;
  std::string reason;  // of the last that failed
  std::unique_lock lock(impl_->mutex);
  impl_->refused.clear();
  while (const auto key = impl_->index.oldest()) {
    impl_->index.remove(*key);
    // Under the lock, so that put() of the same page comes before or after, not between; released after each one.
    if (::unlink(impl_->files.path(*key).c_str()) != 0 && errno != ENOENT) {
      ++failed;
      reason = errno_text();
    }
    lock.unlock();
    lock.lock();
  }
  impl_->counters.write_errors += failed;
  if (failed > 0) impl_->warn_rarely(fmt::format("{} pages could not be removed: {}", failed, reason));
}

PageStore::Stats PageStore::stats() const {
  std::lock_guard lock(impl_->mutex);
  Stats stats = impl_->counters;
  stats.pages = impl_->index.pages();
  stats.bytes = stats.pages * impl_->file_bytes;
  return stats;
}

Result<uint64_t> model_identity(const fs::path& model_dir, std::string_view cache_dtype, int64_t page_size) {
  INGOT_ASSIGN(const std::string config, read_file(model_dir / "config.json", kMaxConfigBytes));
  INGOT_ASSIGN(const auto checkpoint, tensor::Checkpoint::open(model_dir));
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  const auto add_bytes = [&](const void* data, size_t bytes) { XXH3_64bits_update(&state, data, bytes); };
  const auto add_number = [&](uint64_t value) { add_bytes(&value, sizeof(value)); };
  // With its length, so that the end of one text is never the start of the next.
  const auto add_text = [&](std::string_view text) {
    add_number(text.size());
    add_bytes(text.data(), text.size());
  };
  add_number(kPageFileVersion);
  add_number(static_cast<uint64_t>(page_size));
  add_text(cache_dtype);
  add_text(config);
  for (const auto& tensor : checkpoint.tensors()) {
    add_text(tensor.name);
    add_text(tensor::dtype_name(tensor.dtype));
    add_number(tensor.shape.size());
    for (const int64_t dim : tensor.shape) add_number(static_cast<uint64_t>(dim));
    const auto data = checkpoint.data(tensor);
    const uint64_t sample = std::min(kSampleBytes, tensor.bytes);
    add_bytes(data.data() + (tensor.bytes - sample) / 2, sample);
  }
  return XXH3_64bits_digest(&state);
}

}  // namespace ingot::exec
