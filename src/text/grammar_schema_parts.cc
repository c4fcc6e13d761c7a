#include "text/grammar_schema_parts.h"

#include <fmt/format.h>

#include <cmath>
#include <map>

namespace ingot::text {
namespace {

const std::map<std::string_view, std::string>& formats() {
  static const std::map<std::string_view, std::string> kFormats = [] {
    // Dates that exist, from the year 1000 on.
    const std::string date =
        R"((([1-9]\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8])))|(([1-9]\d(0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-29)))";
    const std::string time = R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))";
    const std::string label = R"([a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?)";
    const std::string octet = R"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
    return std::map<std::string_view, std::string>{
        {"date", date},
        {"time", time},
        {"date-time", date + "T" + time},
        {"duration",
         R"(P(\d{1,9}W|(\d{1,9}Y)?(\d{1,9}M)?\d{1,9}D|(\d{1,9}Y)?\d{1,9}M|\d{1,9}Y|(\d{1,9}D)?T((\d{1,9}H)?(\d{1,9}M)?\d{1,9}S|(\d{1,9}H)?\d{1,9}M|\d{1,9}H)))"},
        {"uuid", R"([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})"},
        {"ipv4", octet + R"((\.)" + octet + "){3}"},
        {"ipv6", R"(([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4})"},
        {"hostname", label + R"((\.)" + label + "){0,3}"},
        {"email", R"([a-zA-Z0-9_%+-]+(\.[a-zA-Z0-9_%+-]+)*@)" + label + R"((\.)" + label + "){1,3}"},
        {"uri",
         R"([a-zA-Z][a-zA-Z0-9+.-]*://[a-zA-Z0-9._~-]+(:\d{1,5})?(/[a-zA-Z0-9._~!$&'()*+,;=:@-]*)*(\?[a-zA-Z0-9._~!$&'()*+,;=:@/?-]*)?(#[a-zA-Z0-9._~!$&'()*+,;=:@/?-]*)?)"}};
  }();
  return kFormats;
}

}  // namespace

std::string_view format_pattern(std::string_view format) {
  const auto at = formats().find(format);
  return at == formats().end() ? std::string_view() : std::string_view(at->second);
}

std::string supported_formats() {
  std::vector<std::string_view> names;
  for (const auto& [name, pattern] : formats()) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::optional<int> decimals_of(double step) {
  static constexpr double kSteps[] = {1, 0.1, 0.01, 0.001, 0.0001, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9};
  for (int i = 0; i <= kMaxDecimals; ++i) {
    if (step == kSteps[i]) return i;
  }
  return std::nullopt;
}

std::vector<std::string> multiples_between(double step, const std::optional<NumberBound>& low, const std::optional<NumberBound>& high) {
  std::vector<std::string> out;
  if (!low || !high || !(step >= 1) || std::abs(low->value) > 1e15 || std::abs(high->value) > 1e15) return out;
  double first = std::ceil(low->value / step) * step;
  if (first == low->value && low->exclusive) first += step;
  for (double value = first; value < high->value || (value == high->value && !high->exclusive); value += step) {
    if (out.size() == 1000) return {};
    out.push_back(GrammarRules::literal(fmt::format("{:.0f}", value == 0 ? 0.0 : value)));
  }
  return out;
}

std::string json_literal(const Json& value, Spelling spelling) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (in_tag(spelling)) {
    for (size_t at = text.find("</"); at != std::string::npos; at = text.find("</", at)) text.replace(at, 2, "<\\/");
  }
  return GrammarRules::literal(text);
}

std::string argument_pair(std::string_view key, std::string_view text) {
  return fmt::format(R"("<arg_key>" {} "</arg_key><arg_value>" {} "</arg_value>")", key, text);
}

}  // namespace ingot::text
