#include "eval/telecom_carrier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "eval/python_json.h"
#include "text/jinja_text.h"

namespace ingot::eval {
namespace {

// The published world stands still at noon of 2025-02-25.
constexpr const char* kToday = "2025-02-25";
constexpr const char* kCycleEnd = "2025-02-28";
struct Period {
  const char *first, *last, *due;
};
constexpr Period kLastMonth = {"2025-01-01", "2025-01-31", "2025-01-15"}, kNextMonth = {"2025-03-01", "2025-03-31", "2025-03-15"};

struct Part {
  const char *name, *noun, *id;
};
constexpr Part kParts[] = {{"plans", "Plan", "plan_id"},
                           {"customers", "Customer", "customer_id"},
                           {"lines", "Line", "line_id"},
                           {"bills", "Bill", "bill_id"},
                           {"devices", "Device", "device_id"}};

// Members that an object of the part has where the file says nothing.
const Json& defaults() {
  static const Json kDefaults = Json::parse(R"({
    "plans": {},
    "customers": {"account_status": "Pending Verification", "payment_methods": [], "line_ids": [], "bill_ids": [],
                  "created_at": "2025-01-01", "last_extension_date": null, "goodwill_credit_used_this_year": 0.0},
    "lines": {"status": "Pending Activation", "device_id": null, "data_used_gb": 0.0, "data_refueling_gb": 0.0, "roaming_enabled": false,
              "contract_end_date": null, "last_plan_change_date": null, "last_sim_replacement_date": null, "suspension_start_date": null},
    "bills": {"line_items": [], "status": "Draft"},
    "devices": {"imei": null, "activated": false, "activation_date": null, "last_esim_transfer_date": null}})");
  return kDefaults;
}

std::string float_text(const Json& number) { return text::jinja::float_repr(number.get<double>()); }
bool is_active(const Json& line) { return line["status"] == "Active"; }

Json make_bill(const std::string& id, const Json& customer, const Period& period, const char* status) {
  return {{"bill_id", id},
          {"customer_id", customer["customer_id"]},
          {"period_start", period.first},
          {"period_end", period.last},
          {"issue_date", period.first},
          {"total_due", 0.0},
          {"due_date", period.due},
          {"line_items", Json::array()},
          {"status", status}};
}

void add_charge(Json& bill, double amount, const std::string& what) {
  bill["line_items"].push_back(
      {{"description", what}, {"amount", amount}, {"date", kToday}, {"item_type", amount < 0 ? "Credit" : "Charge"}});
  bill["total_due"] = bill["total_due"].get<double>() + amount;
}

}  // namespace

const Tau2Tool<TelecomCarrier> TelecomCarrier::kTools[13] = {
    {"get_customer_by_phone", "phone_number", &TelecomCarrier::customer_by_phone},
    {"get_customer_by_id", "customer_id", &TelecomCarrier::customer_by_id},
    {"get_customer_by_name", "full_name dob", &TelecomCarrier::customer_by_name},
    {"get_details_by_id", "id", &TelecomCarrier::details},
    {"suspend_line", "customer_id line_id reason", &TelecomCarrier::suspend_line},
    {"resume_line", "customer_id line_id", &TelecomCarrier::resume_line},
    {"get_bills_for_customer", "customer_id limit?", &TelecomCarrier::bills},
    {"send_payment_request", "customer_id bill_id", &TelecomCarrier::send_payment_request},
    {"get_data_usage", "customer_id line_id", &TelecomCarrier::data_usage},
    {"enable_roaming", "customer_id line_id", &TelecomCarrier::enable_roaming},
    {"disable_roaming", "customer_id line_id", &TelecomCarrier::disable_roaming},
    {"transfer_to_human_agents", "summary", &TelecomCarrier::transfer},
    {"refuel_data", "customer_id line_id gb_amount", &TelecomCarrier::refuel},
};

const Tau2Tool<TelecomCarrier> TelecomCarrier::kFunctions[4] = {
    {"set_data_usage", "customer_id line_id data_used_gb", &TelecomCarrier::set_data_usage},
    {"suspend_line_for_overdue_bill", "customer_id line_id new_bill_id contract_ended", &TelecomCarrier::suspend_for_bill},
    {"assert_data_refueling_amount", "customer_id line_id expected_amount", &TelecomCarrier::has_refueled},
    {"assert_no_overdue_bill", "overdue_bill_id", &TelecomCarrier::has_no_overdue_bill},
};

Result<TelecomCarrier> TelecomCarrier::create(Json db) {
  for (const Part& part : kParts) {
    if (!db.is_object() || !db.contains(part.name) || !db[part.name].is_array())
      return fail("the telecom database has no list `{}`", part.name);
    for (Json& one : db[part.name]) {
      if (!one.is_object() || !one.contains(part.id)) return fail("the telecom database: one of `{}` has no `{}`", part.name, part.id);
      for (const auto& [name, value] : defaults()[part.name].items())
        if (!one.contains(name)) one[name] = value;
      // Moments are printed with a space between date and time.
      for (const char* name : {"activation_date", "last_esim_transfer_date", "created_at"}) {
        if (!one.contains(name) || !one[name].is_string()) continue;
        std::string& moment = one[name].get_ref<std::string&>();
        std::replace(moment.begin(), moment.end(), 'T', ' ');
      }
    }
  }
  return TelecomCarrier(std::move(db));
}

Result<Json> TelecomCarrier::run(const std::string& function, const Json& arguments) {
  const bool is_tool = std::any_of(std::begin(kTools), std::end(kTools), [&](const auto& tool) { return tool.name == function; });
  return is_tool ? call(function, arguments) : run_tool(*this, kFunctions, function, arguments);
}

Result<Json*> TelecomCarrier::by_id(const char* part, const std::string& id) {
  const auto* of = std::find_if(std::begin(kParts), std::end(kParts), [&](const Part& p) { return std::string_view(p.name) == part; });
  for (Json& one : db_[part])
    if (one[of->id] == id) return &one;
  return fail("{} with ID {} not found", of->noun, id);
}

Result<Json*> TelecomCarrier::line_by_phone(const std::string& phone_number) {
  for (Json& line : db_["lines"])
    if (line["phone_number"] == phone_number) return &line;
  return fail("Line with phone number {} not found", phone_number);
}

Result<Json*> TelecomCarrier::owner_of(const std::string& phone_number) {
  for (Json& one : db_["customers"]) {
    if (one["phone_number"] == phone_number) return &one;
    for (const Json& id : one["line_ids"]) {
      INGOT_ASSIGN(const Json* line, by_id("lines", id.get<std::string>()));
      if ((*line)["phone_number"] == phone_number) return &one;
    }
  }
  return fail("Customer with phone number {} not found", phone_number);
}

Result<Json*> TelecomCarrier::customer(const Json& arguments) {
  INGOT_ASSIGN(const std::string id, text_argument(arguments, "customer_id"));
  return by_id("customers", id);
}

Result<Json*> TelecomCarrier::line_of_customer(const Json& arguments) {
  INGOT_ASSIGN(const Json* owner, customer(arguments));
  INGOT_ASSIGN(const std::string id, text_argument(arguments, "line_id"));
  const Json& lines = (*owner)["line_ids"];
  if (std::find(lines.begin(), lines.end(), Json(id)) == lines.end())
    return fail("Line {} not found for customer {}", id, (*owner)["customer_id"].get<std::string>());
  return by_id("lines", id);
}

Result<Json*> TelecomCarrier::first_bill(const Json& customer, std::string_view status) {
  for (const Json& id : customer["bill_ids"]) {
    INGOT_ASSIGN(Json * bill, by_id("bills", id.get<std::string>()));
    if ((*bill)["status"] == status) return bill;
  }
  return nullptr;
}

Result<> TelecomCarrier::charge(Json& customer, double amount, const std::string& what) {
  INGOT_ASSIGN(Json * bill, first_bill(customer, "Draft"));
  if (bill == nullptr) {
    // The published id is random; no task's customer is without a draft.
    const std::string id = fmt::format("B{:08x}", db_["bills"].size());
    customer["bill_ids"].push_back(id);
    bill = &db_["bills"].emplace_back(make_bill(id, customer, kNextMonth, "Draft"));
  }
  add_charge(*bill, amount, what);
  return {};
}

Result<TelecomCarrier::LineState> TelecomCarrier::line_state(const std::string& phone_number) {
  INGOT_ASSIGN(const Json* line, line_by_phone(phone_number));
  INGOT_ASSIGN(const Json* plan, by_id("plans", (*line)["plan_id"].get<std::string>()));
  const double limit = (*plan)["data_limit_gb"].get<double>() + (*line)["data_refueling_gb"].get<double>();
  return LineState{is_active(*line), (*line)["roaming_enabled"].get<bool>(), (*line)["data_used_gb"].get<double>() >= limit};
}

Result<const Json*> TelecomCarrier::bill_awaiting_payment(const std::string& phone_number) {
  INGOT_ASSIGN(const Json* owner, owner_of(phone_number));
  return first_bill(*owner, "Awaiting Payment").map([](const Json* bill) { return bill; });
}

Result<> TelecomCarrier::set_paid(const std::string& bill_id) {
  INGOT_ASSIGN(Json * bill, by_id("bills", bill_id));
  (*bill)["status"] = "Paid";
  return {};
}

Result<Json> TelecomCarrier::customer_by_phone(const Json& arguments) {
  INGOT_ASSIGN(const std::string number, text_argument(arguments, "phone_number"));
  INGOT_ASSIGN(const Json* found, owner_of(number));
  return *found;
}

Result<Json> TelecomCarrier::customer_by_id(const Json& arguments) {
  INGOT_ASSIGN(const Json* found, customer(arguments));
  return *found;
}

Result<Json> TelecomCarrier::customer_by_name(const Json& arguments) {
  INGOT_ASSIGN(const std::string name, text_argument(arguments, "full_name"));
  INGOT_ASSIGN(const std::string birth, text_argument(arguments, "dob"));
  Json found = Json::array();
  for (const Json& one : db_["customers"]) {
    const bool is_it = text::jinja::to_lower(one["full_name"].get_ref<const std::string&>()) == text::jinja::to_lower(name);
    if (is_it && one["date_of_birth"] == birth) found.push_back(one);
  }
  return found;
}

Result<Json> TelecomCarrier::details(const Json& arguments) {
  INGOT_ASSIGN(const std::string id, text_argument(arguments, "id"));
  for (const Part& part : kParts) {
    if (id.empty() || id[0] != part.noun[0]) continue;  // L1001 is a line, D1001 a device
    INGOT_ASSIGN(const Json* found, by_id(part.name, id));
    return *found;
  }
  return fail("Unknown ID format or type: {}", id);
}

Result<Json> TelecomCarrier::suspend_line(const Json& arguments) {
  INGOT_ASSIGN(Json * line, line_of_customer(arguments));
  if (!is_active(*line)) return fail("Line must be active to suspend");
  (*line)["status"] = "Suspended";
  (*line)["suspension_start_date"] = kToday;
  return Json{{"message", "Line suspended successfully. $5/month holding fee will apply."}, {"line", *line}};
}

Result<Json> TelecomCarrier::resume_line(const Json& arguments) {
  INGOT_ASSIGN(Json * line, line_of_customer(arguments));
  if ((*line)["status"] != "Suspended" && (*line)["status"] != "Pending Activation") return fail("Line must be suspended to resume");
  (*line)["status"] = "Active";
  (*line)["suspension_start_date"] = nullptr;
  return Json{{"message", "Line resumed successfully"}, {"line", *line}};
}

Result<Json> TelecomCarrier::bills(const Json& arguments) {
  INGOT_ASSIGN(const Json* owner, customer(arguments));
  int64_t limit = 12;
  if (arguments.contains("limit")) {
    INGOT_ASSIGN(limit, integer_argument(arguments, "limit"));
  }
  std::vector<Json> found;
  for (const Json& id : (*owner)["bill_ids"]) {
    INGOT_ASSIGN(const Json* bill, by_id("bills", id.get<std::string>()));
    found.push_back(*bill);
  }
  std::stable_sort(found.begin(), found.end(), [](const Json& a, const Json& b) { return a["issue_date"] > b["issue_date"]; });
  const auto count = static_cast<int64_t>(found.size());
  // Below 0 it counts from the end, as a slice does.
  found.resize(static_cast<size_t>(std::clamp<int64_t>(limit < 0 ? count + limit : limit, 0, count)));
  return Json(found);
}

Result<Json> TelecomCarrier::send_payment_request(const Json& arguments) {
  INGOT_ASSIGN(const Json* owner, customer(arguments));
  INGOT_ASSIGN(const Json* awaiting, first_bill(*owner, "Awaiting Payment"));
  if (awaiting != nullptr) return fail("A bill is already awaiting payment for this customer");
  INGOT_ASSIGN(const std::string id, text_argument(arguments, "bill_id"));
  const Json& ids = (*owner)["bill_ids"];
  if (std::find(ids.begin(), ids.end(), Json(id)) == ids.end())
    return fail("Bill {} not found for customer {}", id, (*owner)["customer_id"].get<std::string>());
  INGOT_ASSIGN(Json * bill, by_id("bills", id));
  (*bill)["status"] = "Awaiting Payment";
  return Json(fmt::format("Payment request sent to the customer for bill {}", id));
}

Result<Json> TelecomCarrier::data_usage(const Json& arguments) {
  INGOT_ASSIGN(const Json* line, line_of_customer(arguments));
  INGOT_ASSIGN(const Json* plan, by_id("plans", (*line)["plan_id"].get<std::string>()));
  // Numbers are texts here: so the published tool gives them.
  return Json{{"line_id", (*line)["line_id"]},
              {"data_used_gb", float_text((*line)["data_used_gb"])},
              {"data_limit_gb", float_text((*plan)["data_limit_gb"])},
              {"data_refueling_gb", float_text((*line)["data_refueling_gb"])},
              {"cycle_end_date", kCycleEnd}};
}

Result<Json> TelecomCarrier::enable_roaming(const Json& arguments) {
  INGOT_ASSIGN(Json * line, line_of_customer(arguments));
  if ((*line)["roaming_enabled"] == true) return Json("Roaming was already enabled");
  (*line)["roaming_enabled"] = true;
  return Json("Roaming enabled successfully");
}

Result<Json> TelecomCarrier::disable_roaming(const Json& arguments) {
  INGOT_ASSIGN(Json * line, line_of_customer(arguments));
  if ((*line)["roaming_enabled"] == false) return Json("Roaming was already disabled");
  (*line)["roaming_enabled"] = false;
  return Json("Roaming disabled successfully");
}

Result<Json> TelecomCarrier::refuel(const Json& arguments) {
  INGOT_ASSIGN(Json * line, line_of_customer(arguments));
  INGOT_ASSIGN(const Json gigabytes, number_argument(arguments, "gb_amount"));
  if (gigabytes.get<double>() <= 0) return fail("Refuel amount must be positive");
  INGOT_ASSIGN(const Json* plan, by_id("plans", (*line)["plan_id"].get<std::string>()));
  INGOT_ASSIGN(Json * owner, customer(arguments));
  const Json& price = (*plan)["data_refueling_price_per_gb"];
  const double cost = gigabytes.get<double>() * price.get<double>();
  const std::string amount = python_dumps_sorted(gigabytes);
  INGOT_TRY(charge(*owner, cost, fmt::format("Data refueling: {} GB at ${}/GB", amount, float_text(price))));
  (*line)["data_refueling_gb"] = (*line)["data_refueling_gb"].get<double>() + gigabytes.get<double>();
  return Json{{"message", fmt::format("Successfully added {} GB of data for line {} for ${:.2f}", amount,
                                      (*line)["line_id"].get<std::string>(), cost)},
              {"new_data_refueling_gb", float_text((*line)["data_refueling_gb"])},
              {"charge", float_text(cost)}};
}

Result<Json> TelecomCarrier::set_data_usage(const Json& arguments) {
  INGOT_ASSIGN(Json * line, line_of_customer(arguments));
  INGOT_ASSIGN((*line)["data_used_gb"], number_argument(arguments, "data_used_gb"));
  return Json();
}

Result<Json> TelecomCarrier::suspend_for_bill(const Json& arguments) {
  INGOT_ASSIGN(const std::string line_id, text_argument(arguments, "line_id"));
  INGOT_ASSIGN(Json * line, by_id("lines", line_id));
  if (!is_active(*line)) return fail("Line must be active to suspend for unpaid bill");
  INGOT_ASSIGN(const Json* plan, by_id("plans", (*line)["plan_id"].get<std::string>()));
  INGOT_ASSIGN(Json * owner, customer(arguments));
  INGOT_ASSIGN(const Json* overdue, first_bill(*owner, "Overdue"));
  if (overdue != nullptr) return fail("Customer already has an overdue bill");
  INGOT_ASSIGN(const std::string bill_id, text_argument(arguments, "new_bill_id"));
  INGOT_ASSIGN(const bool has_contract_ended, bool_argument(arguments, "contract_ended"));
  Json& bill = db_["bills"].emplace_back(make_bill(bill_id, *owner, kLastMonth, "Overdue"));
  add_charge(bill, (*plan)["price_per_month"].get<double>(), "Charge for line " + line_id);
  (*owner)["bill_ids"].push_back(bill_id);
  (*line)["status"] = "Suspended";
  (*line)["suspension_start_date"] = kToday;
  if (has_contract_ended) (*line)["contract_end_date"] = kLastMonth.last;
  return Json();
}

Result<Json> TelecomCarrier::has_refueled(const Json& arguments) {
  INGOT_ASSIGN(const Json* line, line_of_customer(arguments));
  INGOT_ASSIGN(const Json expected, number_argument(arguments, "expected_amount"));
  return Json(std::abs((*line)["data_refueling_gb"].get<double>() - expected.get<double>()) < 1e-6);
}

Result<Json> TelecomCarrier::has_no_overdue_bill(const Json& arguments) {
  INGOT_ASSIGN(const std::string id, text_argument(arguments, "overdue_bill_id"));
  const auto bill = by_id("bills", id);
  return Json(!bill || (**bill)["status"] == "Paid");
}

}  // namespace ingot::eval
