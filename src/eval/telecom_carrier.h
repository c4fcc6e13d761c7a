// The agent's half of tau2-bench's telecom domain: 13 tools over plans, customers, lines, bills and devices (sierra-research/tau2-bench,
// MIT), the functions by which tasks break a line, and what tasks assert of it. Used by telecom.h alone.
#pragma once

#include <optional>

#include "eval/tau2_world.h"

namespace ingot::eval {

class TelecomCarrier {
 public:
  // `db` as in the data's db.toml; what it leaves out gets the published default. Errors: a part that is missing.
  static Result<TelecomCarrier> create(Json db);

  Result<Json> call(const std::string& tool, const Json& arguments) { return run_tool(*this, kTools, tool, arguments); }
  // A tool, or a function that only tasks call.
  Result<Json> run(const std::string& function, const Json& arguments);
  const Json& db() const { return db_; }

  // What the phone with this number notices of its line.
  struct LineState {
    bool is_active = false, is_roaming_allowed = false, is_usage_exceeded = false;
  };
  Result<LineState> line_state(const std::string& phone_number);
  // The first bill that the number's owner was asked to pay; null: none.
  Result<const Json*> bill_awaiting_payment(const std::string& phone_number);
  Result<> set_paid(const std::string& bill_id);

 private:
  explicit TelecomCarrier(Json db) : db_(std::move(db)) {}
  static const Tau2Tool<TelecomCarrier> kTools[13];
  static const Tau2Tool<TelecomCarrier> kFunctions[4];

  // Errors: "Line with ID x not found".
  Result<Json*> by_id(const char* part, const std::string& id);
  Result<Json*> line_by_phone(const std::string& phone_number);
  Result<Json*> owner_of(const std::string& phone_number);
  Result<Json*> customer(const Json& arguments);
  Result<Json*> line_of_customer(const Json& arguments);  // customer_id, line_id
  Result<Json*> first_bill(const Json& customer, std::string_view status);
  Result<> charge(Json& customer, double amount, const std::string& what);

  Result<Json> bills(const Json& arguments);
  Result<Json> customer_by_id(const Json& arguments);
  Result<Json> customer_by_name(const Json& arguments);
  Result<Json> customer_by_phone(const Json& arguments);
  Result<Json> data_usage(const Json& arguments);
  Result<Json> details(const Json& arguments);
  Result<Json> disable_roaming(const Json& arguments);
  Result<Json> enable_roaming(const Json& arguments);
  Result<Json> refuel(const Json& arguments);
  Result<Json> resume_line(const Json& arguments);
  Result<Json> send_payment_request(const Json& arguments);
  Result<Json> suspend_line(const Json& arguments);
  Result<Json> transfer(const Json&) { return Json("Transfer successful"); }

  Result<Json> has_no_overdue_bill(const Json& arguments);
  Result<Json> has_refueled(const Json& arguments);
  Result<Json> set_data_usage(const Json& arguments);
  Result<Json> suspend_for_bill(const Json& arguments);

  Json db_;
};

}  // namespace ingot::eval
