#include "quant/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/file_io.h"
#include "base/file_map.h"
#include "quant/shard_writer.h"

namespace ingot::quant {
namespace {

// 60,000 modules take about 10 MB.
constexpr size_t kMaxJournalBytes = 1 << 30;
constexpr int kVersion = 1;

Json record_json(const ShardRecord& r) {
  Json modules = Json::array();
  for (const ModuleNumbers& m : r.modules) {
    const tensor::QuantError& e = m.error;
    modules.push_back({m.module, m.calibrated, e.signal, e.noise, e.max_error, e.elements, e.saturated, e.zeroed});
  }
  return {{"shard", r.file}, {"bytes", r.bytes}, {"digest", r.digest}, {"modules", modules}};
}

bool parse_record(const Json& line, ShardRecord& out) {
  const auto number = [&](const char* name) { return line.contains(name) && line[name].is_number_unsigned(); };
  if (!line.contains("shard") || !line["shard"].is_string() || !number("bytes") || !number("digest") || !line.contains("modules") ||
      !line["modules"].is_array())
    return false;
  out.file = line["shard"].get<std::string>();
  out.bytes = line["bytes"].get<uint64_t>();
  out.digest = line["digest"].get<uint64_t>();
  for (const Json& m : line["modules"]) {
    if (!m.is_array() || m.size() != 8 || !m[0].is_number_integer() || !m[1].is_boolean()) return false;
    for (size_t i = 2; i < 8; ++i) {
      if (!m[i].is_number()) return false;
    }
    ModuleNumbers n;
    n.module = m[0].get<int32_t>();
    n.calibrated = m[1].get<bool>();
    n.error = {m[2].get<double>(), m[3].get<double>(), m[4].get<float>(), m[5].get<int64_t>(), m[6].get<int64_t>(), m[7].get<int64_t>()};
    out.modules.push_back(n);
  }
  return true;
}

// The first difference, in words; empty when there is none.
std::string difference(const Json& before, const Json& now) {
  const Json& old_options = before["options"];
  for (const auto& [name, value] : now["options"].items()) {
    if (!old_options.contains(name)) return fmt::format("{} is new", name);
    if (old_options[name] != value) return fmt::format("{} was {}, now it is {}", name, old_options[name].dump(), value.dump());
  }
  const Json &a = before["source"], &b = now["source"];
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i >= a.size()) return fmt::format("source file {} is new", b[i]["file"].dump());
    if (i >= b.size() || a[i]["file"] != b[i]["file"]) return fmt::format("source file {} is gone", a[i]["file"].dump());
    for (const auto& [name, value] : b[i].items()) {
      if (!a[i].contains(name) || a[i][name] != value)
        return fmt::format("source file {} has changed ({})", b[i]["file"].dump(),
                           name == "bytes"    ? "size"
                           : name == "digest" ? "header"
                                              : "time of change");
    }
  }
  return {};
}

}  // namespace

Journal::Journal(Journal&& other) noexcept
    : folder_(std::move(other.folder_)),
      folder_fd_(std::exchange(other.folder_fd_, -1)),
      fd_(std::exchange(other.fd_, -1)),
      records_(std::move(other.records_)),
      finished_(other.finished_) {}

Journal::~Journal() {
  if (fd_ >= 0) ::close(fd_);
  if (folder_fd_ >= 0) ::close(folder_fd_);
}

Result<> Journal::lock() {
  folder_fd_ = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd_ < 0) return write_failure(folder_, "open", errno);
  if (::flock(folder_fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return fail_hint("wait for it or stop it", "another process is quantizing into {}", folder_.string());
    return write_failure(folder_, "lock", errno);
  }
  return {};
}

Result<> Journal::open_file(int extra_flags) {
  fd_ = ::open(path().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | extra_flags, 0644);
  if (fd_ < 0) return write_failure(path(), "create", errno);
  return {};
}

Result<> Journal::append_line(const Json& line) {
  const std::string text = line.dump() + "\n";
  struct stat before {};
  if (::fstat(fd_, &before) != 0) return write_failure(path(), "write", errno);
  if (const int error = write_fully(fd_, text.data(), text.size()); error != 0) {
    // A part of a line must not stand before the next one.
    if (::ftruncate(fd_, before.st_size) != 0) return write_failure(path(), "repair", errno);
    return write_failure(path(), "write", error);
  }
  if (::fsync(fd_) != 0) return write_failure(path(), "write", errno);
  return {};
}

Result<Journal> Journal::create(const std::filesystem::path& folder, const Json& identity) {
  Journal journal(folder);
  INGOT_TRY(journal.lock());
  INGOT_TRY(journal.open_file(O_EXCL));
  Json first = identity;
  first["version"] = kVersion;
  INGOT_TRY(journal.append_line(first));
  INGOT_TRY(sync_folder(folder));
  return journal;
}

Result<Journal> Journal::resume(const std::filesystem::path& folder, const Json& identity) {
  Journal journal(folder);
  INGOT_TRY(journal.lock());
  INGOT_ASSIGN(const std::string text, read_file(journal.path(), kMaxJournalBytes));
  const size_t complete = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  INGOT_TRY(journal.open_file(0));
  if (complete < text.size() && ::ftruncate(journal.fd_, static_cast<off_t>(complete)) != 0)
    return write_failure(journal.path(), "repair", errno);
  if (complete == 0) {
    Json first = identity;
    first["version"] = kVersion;
    INGOT_TRY(journal.append_line(first));
    return journal;
  }
  int64_t number = 0;
  for (size_t begin = 0; begin < complete;) {
    const size_t end = text.find('\n', begin);
    INGOT_ASSIGN(const Json line, parse_json(std::string_view(text).substr(begin, end - begin),
                                             fmt::format("{} line {}", journal.path().string(), number + 1)));
    begin = end + 1;
    if (number++ == 0) {
      if (!line.is_object() || !line.contains("version") || line["version"] != kVersion || !line.contains("options") ||
          !line["options"].is_object() || !line.contains("source") || !line["source"].is_array())
        return fail_hint("start anew in an empty folder", "{} is not a journal of this version", journal.path().string());
      if (const std::string what = difference(line, identity); !what.empty())
        return fail_hint("give the options and the source of the first run, or an empty target folder",
                         "--resume: {} was begun differently: {}", folder.string(), what);
    } else if (line.is_object() && line.contains("finished")) {
      journal.finished_ = true;
    } else if (ShardRecord record; line.is_object() && parse_record(line, record)) {
      journal.records_.push_back(std::move(record));
    } else {
      return fail_hint("start anew in an empty folder", "{} line {} is damaged", journal.path().string(), number);
    }
  }
  return journal;
}

Result<> Journal::append(const ShardRecord& record) {
  INGOT_TRY(append_line(record_json(record)));
  records_.push_back(record);
  return {};
}

Result<> Journal::finish() {
  if (finished_) return {};
  INGOT_TRY(append_line({{"finished", true}}));
  finished_ = true;
  return {};
}

void Journal::leave_if_empty() {
  if (records_.empty() && !finished_) ::unlink(path().c_str());
}

}  // namespace ingot::quant
