#include "serve/json_fields.h"

#include <algorithm>

namespace ingot::serve {

namespace {
constexpr size_t kMaxShownName = 100;

// A value as it may be shown in an error: not a megabyte of it.
std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}
}  // namespace

ApiError bad(std::string at, std::string_view message) {
  std::string text = fmt::format("{}: {}", at, message);
  return ApiError{400, std::move(text), std::move(at), {}};
}

std::string shown_name(const std::string& name) {
  if (name.size() <= kMaxShownName) return name;
  size_t end = kMaxShownName;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0) == 0x80) --end;
  return name.substr(0, end) + "...";
}

ApiError unknown_field(const std::string& prefix, const std::string& name) {
  ApiError error = bad(prefix + shown_name(name), "this field is not known here");
  error.code = "unknown_field";
  return error;
}

std::string string_of(const Json& object, const char* name) {
  const auto value = object.find(name);
  return value != object.end() && value->is_string() ? value->get<std::string>() : std::string();
}

JsonFields::JsonFields(const Json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {}

void JsonFields::refuse(std::string_view name, const std::string& message) {
  if (!error_) error_ = bad(prefix_ + std::string(name), message);
}

bool JsonFields::take_error(const JsonFields& inner) {
  auto error = inner.error();
  if (!error) return false;
  if (!error_) error_ = std::move(error);
  return true;
}

const Json* JsonFields::get(std::string_view name) {
  known_.emplace_back(name);
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<bool> JsonFields::boolean(std::string_view name) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  refuse(name, fmt::format("expected true or false, got {}", shown(*value)));
  return std::nullopt;
}

std::optional<int64_t> JsonFields::integer(std::string_view name, int64_t min, int64_t max) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_integer() && !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
  if (fits && value->get<int64_t>() >= min && value->get<int64_t>() <= max) return value->get<int64_t>();
  const std::string range = max == INT64_MAX ? fmt::format("of at least {}", min) : fmt::format("from {} to {}", min, max);
  refuse(name, fmt::format("expected an integer {}, got {}", range, shown(*value)));
  return std::nullopt;
}

std::optional<double> JsonFields::number(std::string_view name, double min, double max) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number() && value->get<double>() >= min && value->get<double>() <= max) return value->get<double>();
  refuse(name, fmt::format("expected a number from {} to {}, got {}", min, max, shown(*value)));
  return std::nullopt;
}

std::optional<std::string> JsonFields::string(std::string_view name) {
  const Json* value = get(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  refuse(name, fmt::format("expected a string, got {}", shown(*value)));
  return std::nullopt;
}

std::vector<std::string> JsonFields::strings(std::string_view name, size_t max_count) {
  const Json* value = get(name);
  if (value == nullptr) return {};
  const Json list = value->is_string() ? Json::array({*value}) : *value;
  const auto good = [](const Json& item) { return item.is_string() && !item.get_ref<const std::string&>().empty(); };
  if (!list.is_array() || list.size() > max_count || !std::all_of(list.begin(), list.end(), good)) {
    refuse(name, fmt::format("expected a string or a list of up to {} strings, none empty, got {}", max_count, shown(*value)));
    return {};
  }
  return list.get<std::vector<std::string>>();
}

std::vector<int32_t> JsonFields::token_ids(std::string_view name, int64_t end, size_t max_count) {
  const Json* value = get(name);
  if (value == nullptr) return {};
  if (!value->is_array() || value->size() > max_count) {
    refuse(name, fmt::format("expected a list of up to {} token ids, got {}", max_count, shown(*value)));
    return {};
  }
  std::vector<int32_t> ids;
  ids.reserve(value->size());
  for (const Json& item : *value) {
    const bool good = item.is_number_unsigned() && item.get<uint64_t>() < static_cast<uint64_t>(end);
    if (!good) {
      refuse(name, fmt::format("expected token ids from 0 to {}, got {}", end - 1, shown(item)));
      return {};
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

void JsonFields::only(std::string_view name, const Json& neutral, std::string_view reason) {
  const Json* value = get(name);
  if (value != nullptr && *value != neutral)
    refuse(name, fmt::format("{}; only {} is accepted, got {}", reason, neutral.dump(), shown(*value)));
}

std::optional<ApiError> JsonFields::error() const {
  if (error_) return error_;
  for (const auto& [name, value] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), name) == known_.end()) return unknown_field(prefix_, name);
  }
  return std::nullopt;
}

}  // namespace ingot::serve
