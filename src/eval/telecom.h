// tau2-bench's telecom domain: a carrier whose line and a phone whose settings have to be put right together, the line by the agent's tools
// and the phone by the user's. What one side does, the other notices.
#pragma once

#include "eval/telecom_carrier.h"
#include "eval/telecom_phone.h"

namespace ingot::eval {

class TelecomWorld : public Tau2World {
 public:
  // The TOML texts of the data's db.toml and user_db.toml. Errors: syntax, with its line; what the halves cannot begin with.
  static Result<TelecomWorld> create(std::string_view db, std::string_view user_db);

  std::unique_ptr<Tau2World> copy() const override { return std::make_unique<TelecomWorld>(*this); }
  std::string call(Tau2Side side, const std::string& tool, const Json& arguments) override;
  std::string hash(Tau2Side side) const override;
  Result<> set_up(const Json& action) override;
  Result<bool> holds(const Json& assertion) override;

 private:
  TelecomWorld(TelecomCarrier carrier, TelecomPhone phone) : carrier_(std::move(carrier)), phone_(std::move(phone)) {}
  // The result of an {env_type, func_name, arguments} of the data.
  Result<Json> run(const Json& function);
  // The phone sees its line and the bills to be paid; the carrier, what was paid. After every call, as published.
  Result<> sync();

  TelecomCarrier carrier_;
  TelecomPhone phone_;
};

}  // namespace ingot::eval
