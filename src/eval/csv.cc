#include "eval/csv.h"

#include <algorithm>

namespace ingot::eval {

Result<std::vector<std::vector<std::string>>> parse_csv(std::string_view text, std::string_view name) {
  std::vector<std::vector<std::string>> rows;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  size_t at = 0;
  while (at < text.size()) {
    std::vector<std::string> row;
    for (bool more = true; more;) {
      std::string field;
      if (at < text.size() && text[at] == '"') {
        for (++at;;) {
          const size_t quote = text.find('"', at);
          if (quote == std::string_view::npos) return fail("{}: row {}: a quoted field does not end", name, rows.size() + 1);
          field += text.substr(at, quote - at);
          at = quote + 1;
          if (at >= text.size() || text[at] != '"') break;
          field += text[at++];
        }
        if (at < text.size() && text[at] != ',' && text[at] != '\n' && text[at] != '\r')
          return fail("{}: row {}: text follows the closing quote of field {}", name, rows.size() + 1, row.size() + 1);
      } else {
        const size_t end = std::min(text.find_first_of(",\r\n", at), text.size());
        field = text.substr(at, end - at);
        at = end;
      }
      row.push_back(std::move(field));
      more = at < text.size() && text[at] == ',';
      if (more) ++at;
    }
    if (at < text.size() && text[at] == '\r') ++at;
    if (at < text.size() && text[at] == '\n') ++at;
    if (row.size() > 1 || !row.front().empty()) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace ingot::eval
