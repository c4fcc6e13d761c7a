#include "eval/python_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "text/jinja_text.h"

namespace ingot::eval {
namespace {

void append(std::string& out, const Json& value) {
  if (value.is_object()) {
    std::vector<std::pair<std::string, const Json*>> members;
    for (const auto& [key, member] : value.items()) members.emplace_back(key, &member);
    // UTF-8 sorts as its code points do.
    std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    out += '{';
    for (size_t i = 0; i < members.size(); ++i) {
      out += (i > 0 ? ", " : "") + Json(members[i].first).dump(-1, ' ', true) + ": ";
      append(out, *members[i].second);
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out += ", ";
      append(out, value[i]);
    }
    out += ']';
  } else if (value.is_number_float()) {
    out += text::jinja::float_repr(value.get<double>());
  } else {
    out += value.dump(-1, ' ', true);
  }
}

}  // namespace

std::string python_dumps_sorted(const Json& value) {
  std::string out;
  append(out, value);
  return out;
}

double python_round2(double value) {
  // The C library prints the exact decimal expansion rounded correctly, as Python does.
  return std::strtod(fmt::format("{:.2f}", value).c_str(), nullptr);
}

}  // namespace ingot::eval
