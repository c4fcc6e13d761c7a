#include "serve/field_names.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace ingot::serve {

namespace {
// Whether `path` is `prefix` or something below it.
bool is_below(std::string_view path, std::string_view prefix) {
  return path.starts_with(prefix) && (path.size() == prefix.size() || path[prefix.size()] == '.' || path[prefix.size()] == '[');
}
}  // namespace

ApiError FieldNames::rename(ApiError error) const {
  const std::pair<std::string, std::string>* best = nullptr;
  for (const auto& name : names_) {
    if (is_below(error.param, name.first) && (best == nullptr || name.first.size() > best->first.size())) best = &name;
  }
  if (best == nullptr) return error;
  const std::string own = best->second + error.param.substr(best->first.size());
  if (error.message.starts_with(error.param)) error.message.replace(0, error.param.size(), own);
  error.param = own;
  return error;
}

ApiResult<std::string> read_text_part(const Json& part, const std::string& at, const std::vector<std::string_view>& types) {
  if (!part.is_object()) return tl::unexpected(bad(at, fmt::format("expected an object, found {}", part.type_name())));
  const auto type = part.find("type");
  if (type == part.end() || !type->is_string()) return tl::unexpected(bad(at + ".type", "expected a string"));
  const auto& name = type->get_ref<const std::string&>();
  if (std::find(types.begin(), types.end(), name) == types.end())
    return tl::unexpected(bad(at + ".type", fmt::format("\"{}\" cannot be read here: this server reads text alone ({})", shown_name(name),
                                                        fmt::join(types, ", "))));
  const auto value = part.find("text");
  if (value == part.end() || !value->is_string()) return tl::unexpected(bad(at + ".text", "expected a string"));
  return value->get<std::string>();
}

ApiResult<std::string> join_text_parts(const Json& parts, const std::string& path, const std::vector<std::string_view>& types,
                                       std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto part = read_text_part(parts[i], fmt::format("{}[{}]", path, i), types);
    if (!part) return tl::unexpected(part.error());
    if (i > 0) text += separator;
    text += *part;
  }
  return text;
}

}  // namespace ingot::serve
