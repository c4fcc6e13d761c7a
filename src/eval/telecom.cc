#include "eval/telecom.h"

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>
#include <vector>

#include "eval/python_json.h"
#include "eval/task.h"

namespace ingot::eval {
namespace {

// Members come as the file has them, not sorted. Dates and times have no JSON: null; the data has them as text.
Json json_of(const toml::node& node) {
  if (const auto* table = node.as_table()) {
    std::vector<std::pair<std::string, const toml::node*>> members;
    for (const auto& [key, value] : *table) members.emplace_back(key.str(), &value);
    std::stable_sort(members.begin(), members.end(), [](const auto& a, const auto& b) {
      const auto left = a.second->source().begin, right = b.second->source().begin;
      return std::pair(left.line, left.column) < std::pair(right.line, right.column);
    });
    Json object = Json::object();
    for (const auto& [key, value] : members) object[key] = json_of(*value);
    return object;
  }
  if (const auto* list = node.as_array()) {
    Json array = Json::array();
    for (const toml::node& value : *list) array.push_back(json_of(value));
    return array;
  }
  if (const auto* value = node.as_string()) return value->get();
  if (const auto* value = node.as_integer()) return value->get();
  if (const auto* value = node.as_floating_point()) return value->get();
  if (const auto* value = node.as_boolean()) return value->get();
  return nullptr;
}

Result<Json> parse_toml(std::string_view text, const char* name) {
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) return fail("{}:{}: {}", name, parsed.error().source().begin.line, parsed.error().description());
  return json_of(parsed.table());
}

}  // namespace

Result<TelecomWorld> TelecomWorld::create(std::string_view db, std::string_view user_db) {
  INGOT_ASSIGN(Json agents, parse_toml(db, "db.toml"));
  INGOT_ASSIGN(Json users, parse_toml(user_db, "user_db.toml"));
  INGOT_ASSIGN(TelecomCarrier carrier, TelecomCarrier::create(std::move(agents)));
  INGOT_ASSIGN(TelecomPhone phone, TelecomPhone::create(std::move(users)));
  return TelecomWorld(std::move(carrier), std::move(phone));
}

std::string TelecomWorld::call(Tau2Side side, const std::string& tool, const Json& arguments) {
  const auto result = side == Tau2Side::kAgent ? carrier_.call(tool, arguments) : phone_.call(tool, arguments);
  if (!result) return tool_text(result);
  const auto synced = sync();
  return synced ? tool_text(result) : tool_text(forward_error(synced.error()));
}

std::string TelecomWorld::hash(Tau2Side side) const {
  return sha256_hex(python_dumps_sorted(side == Tau2Side::kAgent ? carrier_.db() : phone_.db()));
}

Result<Json> TelecomWorld::run(const Json& function) {
  for (const char* name : {"env_type", "func_name"})
    if (!function.contains(name) || !function[name].is_string()) return fail("no `{}` in {}", name, function.dump());
  const auto name = function["func_name"].get<std::string>();
  const Json arguments = function.contains("arguments") ? function["arguments"] : Json::object();
  INGOT_ASSIGN(Json result, function["env_type"] == "user" ? phone_.run(name, arguments) : carrier_.run(name, arguments));
  INGOT_TRY(sync());
  return result;
}

Result<> TelecomWorld::set_up(const Json& action) {
  return run(action).map([](const Json&) {});
}

Result<bool> TelecomWorld::holds(const Json& assertion) {
  INGOT_ASSIGN(const Json result, run(assertion));
  if (!result.is_boolean()) return fail("{} asserts nothing", assertion["func_name"].get<std::string>());
  const bool wanted = !assertion.contains("assert_value") || assertion["assert_value"] != false;
  return result.get<bool>() == wanted;
}

Result<> TelecomWorld::sync() {
  Json& place = phone_.surroundings();
  if (!place["phone_number"].is_string()) return {};  // before the task says whose phone it is
  const auto number = place["phone_number"].get<std::string>();
  INGOT_ASSIGN(const TelecomCarrier::LineState line, carrier_.line_state(number));
  place["line_active"] = line.is_active;
  place["roaming_allowed"] = line.is_roaming_allowed;
  place["mobile_data_usage_exceeded"] = line.is_usage_exceeded;
  Json& request = place["payment_request"];
  if (request.is_object() && request["paid"] == true) {
    INGOT_TRY(carrier_.set_paid(request["bill_id"].get<std::string>()));
    request = nullptr;
  }
  if (!request.is_null()) return {};
  INGOT_ASSIGN(const Json* bill, carrier_.bill_awaiting_payment(number));
  if (bill != nullptr) request = {{"bill_id", (*bill)["bill_id"]}, {"amount_due", (*bill)["total_due"]}, {"paid", false}};
  return {};
}

}  // namespace ingot::eval
