#include "serve/response_store.h"

#include <sqlite3.h>
#include <algorithm>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"

namespace ingot::serve {

namespace {
// Marks our files, so that no other program's table is touched: "ingo".
constexpr int kApplicationId = 0x696e676f;
constexpr int kBusyMs = 5000;
// Of responses that wait to be written: more than a slow disk leaves behind is not kept.
constexpr size_t kMaxWaiting = 1024;

struct CloseDatabase {
  void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
};
struct Finalize {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;
using Statement = std::unique_ptr<sqlite3_stmt, Finalize>;

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string column(sqlite3_stmt* statement, int index) {
  const auto* bytes = static_cast<const char*>(sqlite3_column_blob(statement, index));
  return bytes == nullptr ? std::string() : std::string(bytes, static_cast<size_t>(sqlite3_column_bytes(statement, index)));
}
}  // namespace

struct ResponseStore::Impl {
  std::string name;  // for errors
  Limits limits;
  std::mutex database_mutex;  // before waiting_mutex, when both are held
  Database database;
  std::mutex waiting_mutex;
  std::condition_variable wake;
  // The first one is perhaps being written. Shared, so that no response is copied under the lock that put() needs.
  std::deque<std::shared_ptr<const StoredResponse>> waiting;
  bool stopping = false;
  bool told_full = false;
  std::thread writer;

  tl::unexpected<Error> failed(std::string_view what) const {
    return fail("--response-store {}: {}: {}", name, what, sqlite3_errmsg(database.get()));
  }

  Result<> run(const char* sql) {
    if (sqlite3_exec(database.get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK) return failed(sql);
    return {};
  }

  Result<Statement> prepare(const char* sql) {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(database.get(), sql, -1, &statement, nullptr) != SQLITE_OK) return failed(sql);
    return Statement(statement);
  }

  static void bind(sqlite3_stmt* statement, int index, const std::string& value) {
    sqlite3_bind_text64(statement, index, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  }

  Result<int64_t> number(const char* sql) {
    INGOT_ASSIGN(const Statement statement, prepare(sql));
    if (sqlite3_step(statement.get()) != SQLITE_ROW) return failed(sql);
    return sqlite3_column_int64(statement.get(), 0);
  }

  Result<> open(const std::filesystem::path& path) {
    sqlite3* handle = nullptr;
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    const int status = sqlite3_open_v2(path.empty() ? ":memory:" : path.c_str(), &handle, flags, nullptr);
    database.reset(handle);
    if (status != SQLITE_OK) return failed("cannot be opened");
    sqlite3_busy_timeout(handle, kBusyMs);
    INGOT_ASSIGN(const int64_t id, number("PRAGMA application_id"));
    INGOT_ASSIGN(const int64_t tables, number("SELECT count(*) FROM sqlite_master"));
    if (tables > 0 && id != kApplicationId) return fail("--response-store {}: is a database of another program", name);
    INGOT_TRY(run("PRAGMA journal_mode = WAL"));
    INGOT_TRY(run("PRAGMA synchronous = NORMAL"));
    INGOT_TRY(run(fmt::format("PRAGMA application_id = {}", kApplicationId).c_str()));
    INGOT_TRY(run(
        "CREATE TABLE IF NOT EXISTS responses (id TEXT PRIMARY KEY, previous TEXT NOT NULL, used INTEGER NOT NULL, bytes INTEGER NOT NULL, "
        "response TEXT NOT NULL, input TEXT NOT NULL)"));
    return run("CREATE INDEX IF NOT EXISTS responses_by_use ON responses (used)");
  }

  Result<> write(const StoredResponse& stored) {
    const std::string response = text(stored.response);
    const std::string input = text(stored.input);
    if (std::cmp_greater(response.size() + input.size(), limits.max_bytes))
      return fail("it has {} bytes; --response-store {} holds {}", response.size() + input.size(), name, limits.max_bytes);
    INGOT_TRY(run("BEGIN IMMEDIATE"));
    const auto written = [&]() -> Result<> {
      INGOT_ASSIGN(const Statement insert, prepare("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?)"));
      bind(insert.get(), 1, stored.id);
      bind(insert.get(), 2, stored.previous);
      sqlite3_bind_int64(insert.get(), 3, now_us());
      sqlite3_bind_int64(insert.get(), 4, static_cast<int64_t>(response.size() + input.size()));
      bind(insert.get(), 5, response);
      bind(insert.get(), 6, input);
      if (sqlite3_step(insert.get()) != SQLITE_DONE) return failed("cannot write");
      return make_room();
    }();
    if (!written) {
      sqlite3_exec(database.get(), "ROLLBACK", nullptr, nullptr, nullptr);
      return written;
    }
    return run("COMMIT");
  }

  Result<> make_room() {
    INGOT_ASSIGN(int64_t count, number("SELECT count(*) FROM responses"));
    INGOT_ASSIGN(int64_t bytes, number("SELECT coalesce(sum(bytes), 0) FROM responses"));
    while (count > limits.max_responses || (bytes > limits.max_bytes && count > 0)) {
      INGOT_ASSIGN(const Statement oldest,
                   prepare("DELETE FROM responses WHERE id = (SELECT id FROM responses ORDER BY used, rowid LIMIT 1) "
                           "RETURNING bytes"));
      if (sqlite3_step(oldest.get()) != SQLITE_ROW) return failed("cannot make room");
      bytes -= sqlite3_column_int64(oldest.get(), 0);
      if (sqlite3_step(oldest.get()) != SQLITE_DONE) return failed("cannot make room");
      --count;
    }
    return {};
  }

  void write_waiting() {
    for (;;) {
      std::shared_ptr<const StoredResponse> next;
      {
        std::unique_lock lock(waiting_mutex);
        wake.wait(lock, [&] { return stopping || !waiting.empty(); });
        if (waiting.empty()) return;
      }
      const std::lock_guard database_lock(database_mutex);
      {
        // Only this thread and erase() take from the queue, both with the database's lock.
        const std::lock_guard lock(waiting_mutex);
        if (waiting.empty()) continue;
        next = waiting.front();
      }
      if (const auto written = write(*next); !written) log_warn("response {} is lost: {}", next->id, written.error().text());
      const std::lock_guard lock(waiting_mutex);
      waiting.pop_front();
      if (waiting.empty()) told_full = false;
    }
  }
};

ResponseStore::ResponseStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->writer = std::thread([this] { impl_->write_waiting(); });
}

ResponseStore::~ResponseStore() {
  {
    const std::lock_guard lock(impl_->waiting_mutex);
    impl_->stopping = true;
  }
  impl_->wake.notify_all();
  impl_->writer.join();
}

Result<std::unique_ptr<ResponseStore>> ResponseStore::open(const std::filesystem::path& path, Limits limits) {
  auto impl = std::make_unique<Impl>();
  impl->name = path.empty() ? "memory" : path.string();
  impl->limits = limits;
  INGOT_TRY(impl->open(path));
  return std::unique_ptr<ResponseStore>(new ResponseStore(std::move(impl)));
}

void ResponseStore::put(StoredResponse response) {
  auto kept = std::make_shared<const StoredResponse>(std::move(response));
  {
    const std::lock_guard lock(impl_->waiting_mutex);
    if (impl_->waiting.size() >= kMaxWaiting) {
      if (!std::exchange(impl_->told_full, true)) log_warn("--response-store {} is too slow: responses are not kept", impl_->name);
      return;
    }
    impl_->waiting.push_back(std::move(kept));
  }
  impl_->wake.notify_all();
}

Result<std::optional<StoredResponse>> ResponseStore::get(const std::string& id) {
  std::shared_ptr<const StoredResponse> waiting;
  {
    const std::lock_guard lock(impl_->waiting_mutex);
    const auto place = std::find_if(impl_->waiting.begin(), impl_->waiting.end(), [&](const auto& response) { return response->id == id; });
    if (place != impl_->waiting.end()) waiting = *place;
  }
  if (waiting) return std::optional(*waiting);
  StoredResponse found{id, {}, {}, {}};
  std::string response;
  std::string input;
  {
    const std::lock_guard lock(impl_->database_mutex);
    INGOT_ASSIGN(const Statement touch, impl_->prepare("UPDATE responses SET used = ? WHERE id = ? RETURNING previous, response, input"));
    sqlite3_bind_int64(touch.get(), 1, now_us());
    Impl::bind(touch.get(), 2, id);
    const int step = sqlite3_step(touch.get());
    if (step == SQLITE_DONE) return std::optional<StoredResponse>();
    if (step != SQLITE_ROW) return impl_->failed("cannot read");
    found.previous = column(touch.get(), 0);
    response = column(touch.get(), 1);
    input = column(touch.get(), 2);
    sqlite3_step(touch.get());  // to the end, so that the use is counted
  }
  INGOT_ASSIGN(found.response, parse_json(response, "a stored response"));
  INGOT_ASSIGN(found.input, parse_json(input, "a stored input"));
  return std::optional(std::move(found));
}

Result<bool> ResponseStore::erase(const std::string& id) {
  const std::lock_guard lock(impl_->database_mutex);
  bool waited = false;
  {
    const std::lock_guard waiting_lock(impl_->waiting_mutex);
    waited = std::erase_if(impl_->waiting, [&](const auto& response) { return response->id == id; }) > 0;
  }
  INGOT_ASSIGN(const Statement statement, impl_->prepare("DELETE FROM responses WHERE id = ?"));
  Impl::bind(statement.get(), 1, id);
  if (sqlite3_step(statement.get()) != SQLITE_DONE) return impl_->failed("cannot delete");
  return waited || sqlite3_changes(impl_->database.get()) > 0;
}

int64_t ResponseStore::count() {
  const std::lock_guard lock(impl_->database_mutex);
  const auto count = impl_->number("SELECT count(*) FROM responses");
  const std::lock_guard waiting_lock(impl_->waiting_mutex);
  return (count ? *count : 0) + static_cast<int64_t>(impl_->waiting.size());
}

}  // namespace ingot::serve
