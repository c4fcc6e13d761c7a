// Reads the fields of a request body: typed, ranged, null as absent, and at the end everything that nobody asked for is refused by name.
// The first mistake is kept; later reads then give "absent".
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace ingot::serve {

// A refusal as the OpenAI API words it.
struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  // may be empty
  std::string code;   // may be empty
  std::string type = "invalid_request_error";
};

template <class T>
using ApiResult = tl::expected<T, ApiError>;

inline tl::unexpected<ApiError> bad_field(std::string param, std::string message) {
  return tl::unexpected<ApiError>(ApiError{400, std::move(message), std::move(param), {}});
}

// A refusal that names its field by path: "messages[0].role: expected a string".
ApiError bad(std::string at, std::string_view message);
// The same of a field that nobody asked for. `prefix`: the path before its name, with the point.
ApiError unknown_field(const std::string& prefix, const std::string& name);
// A client's own word as an error may show it: not a megabyte of it, and cut between characters.
std::string shown_name(const std::string& name);
// A member's text; empty when it is absent or no string.
std::string string_of(const Json& object, const char* name);

class JsonFields {
 public:
  // `object` must outlive the reader. `prefix` is put before names in errors: "stream_options."
  explicit JsonFields(const Json& object, std::string prefix = {});

  // The value, or null when the field is absent or null. Counts the field as known.
  const Json* get(std::string_view name);

  std::optional<bool> boolean(std::string_view name);
  std::optional<int64_t> integer(std::string_view name, int64_t min, int64_t max = std::numeric_limits<int64_t>::max());
  std::optional<double> number(std::string_view name, double min, double max);
  std::optional<std::string> string(std::string_view name);
  // A string or a list of them, none empty.
  std::vector<std::string> strings(std::string_view name, size_t max_count);
  // Ids in [0, end).
  std::vector<int32_t> token_ids(std::string_view name, int64_t end, size_t max_count);
  // Fields that do nothing here: the neutral value is accepted, any other refused.
  void only(std::string_view name, const Json& neutral, std::string_view reason);

  void refuse(std::string_view name, const std::string& message);
  // The mistake of an inner object's reader, its path and all, as this one's. False when there is none.
  bool take_error(const JsonFields& inner);
  bool failed() const { return error_.has_value(); }
  // The first mistake, or the first unknown field.
  std::optional<ApiError> error() const;

 private:
  const Json& object_;
  std::string prefix_;
  std::vector<std::string> known_;
  std::optional<ApiError> error_;
};

}  // namespace ingot::serve
