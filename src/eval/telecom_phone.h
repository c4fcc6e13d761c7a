// The user's half of tau2-bench's telecom domain: a phone with 30 tools that the user can reach for (sierra-research/tau2-bench, MIT), the
// functions by which tasks break it, and what tasks assert of it. Used by telecom.h alone.
#pragma once

#include <optional>

#include "eval/tau2_world.h"

namespace ingot::eval {

class TelecomPhone {
 public:
  // `db` as in the data's user_db.toml; what it leaves out, apps apart, gets the published default. Errors: a part
  // of another type, a signal or network mode that there is not.
  static Result<TelecomPhone> create(Json db);

  Result<Json> call(const std::string& tool, const Json& arguments) { return run_tool(*this, kTools, tool, arguments); }
  // A tool, or a function that only tasks call.
  Result<Json> run(const std::string& function, const Json& arguments);
  const Json& db() const { return db_; }
  // Where the phone is: what the carrier changes of it (telecom.h).
  Json& surroundings() { return db_["surroundings"]; }

 private:
  explicit TelecomPhone(Json db) : db_(std::move(db)) {}
  static const Tau2Tool<TelecomPhone> kTools[30];
  static const Tau2Tool<TelecomPhone> kFunctions[19];

  Json& device() { return db_["device"]; }
  bool is_on(const char* setting) { return device()[setting].get<bool>(); }
  bool flip(const char* setting);
  // The permissions of an app; null: there is no such app.
  Json* permissions_of(const std::string& app);

  // "told", and the status bar under it.
  Json with_status_bar(const std::string& told) { return told + "\nStatus Bar: " + status_bar(); }
  Json flipped(const char* name, bool is_on) { return with_status_bar(std::string(name) + " is now " + (is_on ? "ON." : "OFF.")); }
  std::string status_bar();
  std::string sim_status();

  // Looks for the network that settings, SIM card, line and place allow, as every change of one of them does.
  void search_network();
  void disconnect_wifi();
  bool drop_vpn();
  bool flip_airplane_mode();
  bool flip_and_search(const char* setting);
  bool has_mobile_data();
  bool can_send_mms();
  struct Speed {
    double mbps;
    const char *word, *advice;
  };
  std::optional<Speed> speed();  // none: no connection

  Result<Json> check_apn(const Json&);
  Result<Json> check_app_permissions(const Json& arguments);
  Result<Json> check_app_status(const Json& arguments);
  Result<Json> check_apps(const Json&);
  Result<Json> check_data_restriction(const Json&);
  Result<Json> check_mms(const Json&);
  Result<Json> check_network(const Json&);
  Result<Json> check_network_mode(const Json&);
  Result<Json> check_payment_request(const Json&);
  Result<Json> check_sim(const Json&);
  Result<Json> check_status_bar(const Json&);
  Result<Json> check_vpn(const Json&);
  Result<Json> check_wifi(const Json&);
  Result<Json> check_wifi_calling(const Json&);
  Result<Json> connect_vpn(const Json&);
  Result<Json> disconnect_vpn(const Json&);
  Result<Json> grant_permission(const Json& arguments);
  Result<Json> make_payment(const Json&);
  Result<Json> reboot(const Json&);
  Result<Json> reseat_sim(const Json&);
  Result<Json> reset_apn(const Json&);
  Result<Json> run_speed_test(const Json&);
  Result<Json> set_apn(const Json& arguments);
  Result<Json> set_network_mode(const Json& arguments);
  Result<Json> toggle_airplane_mode(const Json&);
  Result<Json> toggle_data(const Json&);
  Result<Json> toggle_data_saver(const Json&);
  Result<Json> toggle_roaming(const Json&);
  Result<Json> toggle_wifi(const Json&);
  Result<Json> toggle_wifi_calling(const Json&);

  Result<Json> break_apn(const Json&);
  Result<Json> break_apn_mms(const Json&);
  Result<Json> break_vpn(const Json&);
  Result<Json> has_data(const Json& arguments);
  Result<Json> has_mms(const Json& arguments);
  Result<Json> has_service(const Json& arguments);
  Result<Json> has_speed(const Json& arguments);
  Result<Json> lock_sim(const Json& arguments);
  Result<Json> remove_permission(const Json& arguments);
  Result<Json> search(const Json&);
  Result<Json> set_location(const Json& arguments);
  Result<Json> set_user(const Json& arguments);
  Result<Json> set_wifi_calling(const Json& arguments);
  Result<Json> turn_airplane_mode_on(const Json&);
  Result<Json> turn_data_off(const Json&);
  Result<Json> turn_data_saver_on(const Json&);
  Result<Json> turn_roaming_off(const Json&);
  Result<Json> turn_roaming_on(const Json&);
  Result<Json> unseat_sim(const Json&);

  Json db_;
  // Of the VPN that `connect_vpn` finds. Where a task has broken it, it stays broken when it is connected anew: in the published phone
  // both are one object.
  std::string vpn_performance_ = "excellent";
};

}  // namespace ingot::eval
