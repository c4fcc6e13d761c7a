#include "eval/items_file.h"

#include <cerrno>
#include <cstring>

#include "base/file_map.h"
#include "base/log.h"

namespace ingot::eval {
namespace {

constexpr size_t kMaxFile = size_t{1} << 32;

Result<> check_head(const Json& found, const Json& wanted, const std::string& path) {
  if (!found.is_object() || found.value("schema", Json()) != wanted["schema"])
    return fail_hint("give another --out", "{}: the first line is not the head of an items file ({})", path, wanted["schema"].dump());
  for (const auto& [name, value] : wanted.items())
    if (found.value(name, Json()) != value)
      return fail_hint("give another --out, or remove the file to begin anew", "{} is of another run: {} is {} there and {} here", path,
                       name, found.value(name, Json()).dump(), value.dump());
  return {};
}

}  // namespace

Result<ItemsFile> ItemsFile::open(const std::filesystem::path& path, const Json& head) {
  ItemsFile items;
  items.path_ = path;
  std::error_code error;
  const bool is_new = !std::filesystem::exists(path, error) || std::filesystem::file_size(path, error) == 0;
  if (!is_new) {
    INGOT_ASSIGN(std::string text, read_file(path, kMaxFile));
    const size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
    if (whole < text.size()) {
      log_warn("{}: the last line is cut and will be asked again", path.string());
      text.resize(whole);
      std::filesystem::resize_file(path, whole, error);
      if (error) return fail("{}: {}", path.string(), error.message());
    }
    bool first = true;
    const auto read = for_each_json_line(text, path.string(), [&](const Json& line, const std::string& where) -> Result<bool> {
      if (first) {
        first = false;
        INGOT_TRY(check_head(line, head, path.string()));
        return true;
      }
      auto item = parse_item(line);
      if (!item) return fail("{}: {}", where, item.error().text());
      std::string id = item->id;
      items.earlier_.insert_or_assign(std::move(id), std::move(*item));
      return true;
    });
    INGOT_TRY(read);
    if (first) return fail("{}: no head", path.string());
  }
  items.file_.reset(std::fopen(path.c_str(), "ab"));
  if (!items.file_) return fail("{}: {}", path.string(), std::strerror(errno));
  if (is_new) {
    std::fputs((head.dump() + "\n").c_str(), items.file_.get());
    if (std::fflush(items.file_.get()) != 0) return fail("{}: {}", path.string(), std::strerror(errno));
  }
  return items;
}

Result<> ItemsFile::append(const Item& item) {
  const std::string line = item_json(item).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() || std::fflush(file_.get()) != 0)
    return fail("{}: {}", path_.string(), std::strerror(errno));
  return {};
}

}  // namespace ingot::eval
