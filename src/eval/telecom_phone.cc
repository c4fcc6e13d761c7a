#include "eval/telecom_phone.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "eval/python_json.h"
#include "text/jinja_text.h"

namespace ingot::eval {
namespace {

const Json& defaults() {
  static const Json kDefaults = Json::parse(R"({
    "device": {
      "sim_card_status": "active", "sim_card_missing": false, "airplane_mode": false, "network_signal_strength": "good",
      "network_technology_connected": "5G", "network_connection_status": "connected", "battery_level": 80, "data_enabled": true,
      "roaming_enabled": false, "network_mode_preference": "4g_5g_preferred",
      "active_apn_settings": {"apn_name": "internet", "reset_at_reboot": false, "mms_apn": "mms",
                              "mmsc_url": "http://mms.carrier.com/mms/wapenc", "mms_proxy": null, "mms_port": null},
      "wifi_enabled": false, "wifi_connected": false, "wifi_ssid": null, "wifi_signal_strength": "none", "wifi_calling_enabled": false,
      "wifi_calling_mms_over_wifi": false, "data_saver_mode": false, "vpn_enabled_setting": false, "vpn_connected": false,
      "vpn_details": null, "app_statuses": {}},
    "surroundings": {
      "name": null, "phone_number": null, "is_abroad": false, "roaming_allowed": false,
      "signal_strength": {"2G": "poor", "3G": "fair", "4G": "good", "5G": "excellent"},
      "mobile_data_usage_exceeded": false, "line_active": true, "payment_request": null}})");
  return kDefaults;
}
const Json& default_apn() { return defaults()["device"]["active_apn_settings"]; }
constexpr const char* kPermissions[] = {"sms", "storage", "phone", "network"};

struct NetworkMode {
  const char *name, *technology;
};
constexpr NetworkMode kModes[] = {{"4g_5g_preferred", "5G"}, {"4g_only", "4G"}, {"3g_only", "3G"}, {"2g_only", "2G"}};

struct Technology {
  const char* name;
  double slowest, fastest;  // megabit a second
};
constexpr Technology kTechnologies[] = {{"2G", 0.1, 0.4}, {"3G", 1.0, 5.0}, {"4G", 10.0, 100.0}, {"5G", 50.0, 500.0}};

struct Signal {
  const char *name, *shown;
  double share;  // of a technology's speed
};
constexpr Signal kSignals[] = {{"none", "📵 No Signal", 0.0},
                               {"poor", "📶¹ Poor", 0.2},
                               {"fair", "📶² Fair", 0.5},
                               {"good", "📶³ Good", 0.8},
                               {"excellent", "📶⁴ Excellent", 1.0}};

struct SpeedWord {
  double below;  // megabit a second
  const char *word, *advice;
};
constexpr SpeedWord kSpeedWords[] = {{1, "Very Poor", "Connection is very slow. Basic web browsing might be difficult."},
                                     {5, "Poor", "Connection is slow. Web browsing may be sluggish, streaming difficult."},
                                     {25, "Fair", "Connection is okay for web browsing and some standard definition streaming."},
                                     {100, "Good", "Connection is good for most activities, including HD streaming."},
                                     {INFINITY, "Excellent", "Connection is very fast."}};

template <class Row, size_t N>
const Row* row(const Row (&table)[N], const Json& name) {
  const auto* found = std::find_if(table, table + N, [&](const Row& one) { return name == one.name; });
  return found == table + N ? nullptr : found;
}

const char* on_off(bool is_on) { return is_on ? "ON" : "OFF"; }
const char* yes_no(bool is_so) { return is_so ? "Yes" : "No"; }

void fill(Json& object, const Json& from) {
  for (const auto& [name, value] : from.items()) {
    if (!object.contains(name))
      object[name] = value;
    else if (value.is_object() && object[name].is_object())
      fill(object[name], value);
  }
}

std::vector<std::string> granted(const Json& permissions) {
  std::vector<std::string> names;
  for (const char* name : kPermissions)
    if (permissions[name] == true) names.emplace_back(name);
  return names;
}

}  // namespace

const Tau2Tool<TelecomPhone> TelecomPhone::kTools[30] = {
    {"check_status_bar", "", &TelecomPhone::check_status_bar},
    {"check_network_status", "", &TelecomPhone::check_network},
    {"check_network_mode_preference", "", &TelecomPhone::check_network_mode},
    {"set_network_mode_preference", "mode", &TelecomPhone::set_network_mode},
    {"run_speed_test", "", &TelecomPhone::run_speed_test},
    {"toggle_airplane_mode", "", &TelecomPhone::toggle_airplane_mode},
    {"check_sim_status", "", &TelecomPhone::check_sim},
    {"reseat_sim_card", "", &TelecomPhone::reseat_sim},
    {"toggle_data", "", &TelecomPhone::toggle_data},
    {"toggle_roaming", "", &TelecomPhone::toggle_roaming},
    {"check_data_restriction_status", "", &TelecomPhone::check_data_restriction},
    {"toggle_data_saver_mode", "", &TelecomPhone::toggle_data_saver},
    {"check_apn_settings", "", &TelecomPhone::check_apn},
    {"set_apn_settings", "apn_settings", &TelecomPhone::set_apn},
    {"reset_apn_settings", "", &TelecomPhone::reset_apn},
    {"check_wifi_status", "", &TelecomPhone::check_wifi},
    {"toggle_wifi", "", &TelecomPhone::toggle_wifi},
    {"check_wifi_calling_status", "", &TelecomPhone::check_wifi_calling},
    {"toggle_wifi_calling", "", &TelecomPhone::toggle_wifi_calling},
    {"check_vpn_status", "", &TelecomPhone::check_vpn},
    {"connect_vpn", "", &TelecomPhone::connect_vpn},
    {"disconnect_vpn", "", &TelecomPhone::disconnect_vpn},
    {"check_installed_apps", "", &TelecomPhone::check_apps},
    {"check_app_status", "app_name", &TelecomPhone::check_app_status},
    {"check_app_permissions", "app_name", &TelecomPhone::check_app_permissions},
    {"grant_app_permission", "app_name permission", &TelecomPhone::grant_permission},
    {"can_send_mms", "", &TelecomPhone::check_mms},
    {"reboot_device", "", &TelecomPhone::reboot},
    {"check_payment_request", "", &TelecomPhone::check_payment_request},
    {"make_payment", "", &TelecomPhone::make_payment},
};

const Tau2Tool<TelecomPhone> TelecomPhone::kFunctions[19] = {
    {"set_user_info", "name phone_number", &TelecomPhone::set_user},
    {"set_user_location", "abroad", &TelecomPhone::set_location},
    {"simulate_network_search", "", &TelecomPhone::search},
    {"turn_airplane_mode_on", "", &TelecomPhone::turn_airplane_mode_on},
    {"turn_data_off", "", &TelecomPhone::turn_data_off},
    {"turn_data_saver_mode_on", "", &TelecomPhone::turn_data_saver_on},
    {"turn_roaming_off", "", &TelecomPhone::turn_roaming_off},
    {"turn_roaming_on", "", &TelecomPhone::turn_roaming_on},
    {"unseat_sim_card", "", &TelecomPhone::unseat_sim},
    {"lock_sim_card", "mode", &TelecomPhone::lock_sim},
    {"break_apn_settings", "", &TelecomPhone::break_apn},
    {"break_apn_mms_setting", "", &TelecomPhone::break_apn_mms},
    {"break_vpn", "", &TelecomPhone::break_vpn},
    {"set_wifi_calling", "enabled mms_over_wifi?", &TelecomPhone::set_wifi_calling},
    {"remove_app_permission", "app_name permission", &TelecomPhone::remove_permission},
    {"assert_service_status", "expected_status", &TelecomPhone::has_service},
    {"assert_mobile_data_status", "expected_status", &TelecomPhone::has_data},
    {"assert_internet_speed", "expected_speed expected_desc?", &TelecomPhone::has_speed},
    {"assert_can_send_mms", "expected_status", &TelecomPhone::has_mms},
};

Result<TelecomPhone> TelecomPhone::create(Json db) {
  if (!db.is_object()) return fail("the phone's state is no object");
  fill(db, defaults());
  for (const char* part : {"device", "surroundings"})
    for (const auto& [name, value] : defaults()[part].items())
      if (!value.is_null() && db[part][name].type_name() != std::string_view(value.type_name()))
        return fail("the phone's state: `{}.{}` is no {}", part, name, value.type_name());
  Json& around = db["surroundings"]["signal_strength"];
  for (const Json* signal : {&db["device"]["network_signal_strength"], &around["2G"], &around["3G"], &around["4G"], &around["5G"]})
    if (row(kSignals, *signal) == nullptr) return fail("the phone's state: there is no signal {}", signal->dump());
  if (const Json& mode = db["device"]["network_mode_preference"]; row(kModes, mode) == nullptr)
    return fail("the phone's state: there is no network mode {}", mode.dump());
  for (auto& [name, app] : db["device"]["app_statuses"].items()) {
    if (!app.is_object()) return fail("the phone's state: app `{}` is no object", name);
    for (const char* permission : kPermissions)
      if (!app["permissions"].contains(permission)) app["permissions"][permission] = false;
  }
  return TelecomPhone(std::move(db));
}

Result<Json> TelecomPhone::run(const std::string& function, const Json& arguments) {
  const bool is_tool = std::any_of(std::begin(kTools), std::end(kTools), [&](const auto& tool) { return tool.name == function; });
  return is_tool ? call(function, arguments) : run_tool(*this, kFunctions, function, arguments);
}

// Its state.

bool TelecomPhone::flip(const char* setting) {
  device()[setting] = !is_on(setting);
  return is_on(setting);
}

Json* TelecomPhone::permissions_of(const std::string& app) {
  Json& apps = device()["app_statuses"];
  return apps.contains(app) ? &apps[app]["permissions"] : nullptr;
}

std::string TelecomPhone::sim_status() { return is_on("sim_card_missing") ? "missing" : device()["sim_card_status"].get<std::string>(); }

std::string TelecomPhone::status_bar() {
  std::vector<std::string> shown;
  if (is_on("airplane_mode")) {
    shown.emplace_back("✈️ Airplane Mode");
  } else {
    shown.emplace_back(row(kSignals, device()["network_signal_strength"])->shown);
    const auto technology = device()["network_technology_connected"].get<std::string>();
    if (technology != "none") shown.push_back(technology);
    if (technology != "none" && is_on("data_enabled")) {
      shown.emplace_back("📱 Data Enabled");
      if (is_on("data_saver_mode")) shown.emplace_back("🔽 Data Saver");
    } else {
      shown.emplace_back("📵 Data Disabled");
    }
  }
  if (is_on("wifi_enabled") && is_on("wifi_connected")) {
    const Json& network = device()["wifi_ssid"];
    shown.push_back(network.is_string() ? "📡 Connected to " + network.get<std::string>() : "📡 Enabled");
  }
  if (is_on("vpn_connected")) shown.emplace_back("🔒 VPN Connected");
  shown.push_back(fmt::format("🔋 {}%", device()["battery_level"].get<int64_t>()));
  return fmt::format("{}", fmt::join(shown, " | "));
}

void TelecomPhone::search_network() {
  Json& found = device();
  const bool has_network = sim_status() == "active" && !is_on("airplane_mode") && found["active_apn_settings"]["apn_name"] != "broken" &&
                           surroundings()["line_active"] == true;
  Json& signals = surroundings()["signal_strength"];
  const NetworkMode* mode = row(kModes, found["network_mode_preference"]);
  std::string technology = has_network ? mode->technology : "none";
  if (technology == "5G" && signals["5G"] == "none") technology = "4G";
  found["network_connection_status"] = has_network ? "connected" : "no_service";
  found["network_technology_connected"] = technology;
  found["network_signal_strength"] = has_network ? signals[technology] : Json("none");
}

void TelecomPhone::disconnect_wifi() {
  device()["wifi_connected"] = false;
  device()["wifi_ssid"] = nullptr;
  device()["wifi_signal_strength"] = "none";
}

bool TelecomPhone::drop_vpn() {
  if (!is_on("vpn_connected")) return false;
  device()["vpn_connected"] = false;
  device()["vpn_details"] = nullptr;
  return true;
}

bool TelecomPhone::flip_airplane_mode() {
  const bool is_now_on = flip("airplane_mode");
  if (is_now_on || is_on("wifi_enabled")) disconnect_wifi();
  if (is_now_on) drop_vpn();
  search_network();
  return is_now_on;
}

bool TelecomPhone::flip_and_search(const char* setting) {
  const bool is_now_on = flip(setting);
  search_network();
  return is_now_on;
}

bool TelecomPhone::has_mobile_data() {
  if (is_on("airplane_mode") || device()["network_signal_strength"] == "none") return false;
  if (device()["network_connection_status"] == "no_service" || !is_on("data_enabled")) return false;
  const Json& place = surroundings();
  if (place["is_abroad"] == true && !(is_on("roaming_enabled") && place["roaming_allowed"] == true)) return false;
  return place["mobile_data_usage_exceeded"] == false;
}

bool TelecomPhone::can_send_mms() {
  if (!has_mobile_data() || device()["network_technology_connected"] == "2G") return false;
  // The phone would send it over Wi-Fi, and the carrier takes none there.
  if (is_on("wifi_calling_enabled") && is_on("wifi_calling_mms_over_wifi")) return false;
  if (device()["active_apn_settings"]["mmsc_url"].is_null()) return false;
  const Json* permissions = permissions_of("messaging");
  return permissions != nullptr && (*permissions)["storage"] == true && (*permissions)["sms"] == true;
}

std::optional<TelecomPhone::Speed> TelecomPhone::speed() {
  if (!has_mobile_data()) return std::nullopt;
  const Json& vpn = device()["vpn_details"];
  double factor = is_on("vpn_connected") && vpn.is_object() && vpn["server_performance"] == "poor" ? 0.1 : 1.0;
  if (is_on("data_saver_mode")) factor *= 0.2;
  const Technology* technology = row(kTechnologies, device()["network_technology_connected"]);
  const double middle = technology == nullptr ? 0 : (technology->slowest + technology->fastest) / 2;
  const double mbps = python_round2(middle * row(kSignals, device()["network_signal_strength"])->share * factor);
  const auto* word = std::find_if(std::begin(kSpeedWords), std::end(kSpeedWords), [&](const SpeedWord& w) { return mbps < w.below; });
  return Speed{mbps, word->word, word->advice};
}

// What the user looks at.

Result<Json> TelecomPhone::check_status_bar(const Json&) { return Json("Status Bar: " + status_bar()); }

Result<Json> TelecomPhone::check_network(const Json&) {
  const auto text = [&](const char* name) { return device()[name].get<std::string>(); };
  std::string told = fmt::format(
      "Airplane Mode: {}\nSIM Card Status: {}\nCellular Connection: {}\nCellular Signal: {}\nCellular Network Type: {}\n"
      "Mobile Data Enabled: {}\nData Roaming Enabled: {}\nWi-Fi Radio: {}\nWi-Fi Connected: {}",
      on_off(is_on("airplane_mode")), sim_status(), text("network_connection_status"), text("network_signal_strength"),
      text("network_technology_connected"), yes_no(is_on("data_enabled")), yes_no(is_on("roaming_enabled")), on_off(is_on("wifi_enabled")),
      yes_no(is_on("wifi_connected")));
  if (is_on("wifi_connected"))
    told += "\nConnected Wi-Fi Network: " + (device()["wifi_ssid"].is_string() ? text("wifi_ssid") : std::string("None"));
  return Json(told);
}

Result<Json> TelecomPhone::check_network_mode(const Json&) {
  return Json("Network Mode Preference: " + device()["network_mode_preference"].get<std::string>());
}

Result<Json> TelecomPhone::run_speed_test(const Json&) {
  const auto measured = speed();
  if (!measured) return Json("Speed test failed: No Connection.");
  return Json(fmt::format("Speed Test Result: {:.2f} Mbps ({}). {}", measured->mbps, measured->word, measured->advice));
}

Result<Json> TelecomPhone::check_sim(const Json&) {
  const std::string status = sim_status();
  if (status == "active") return Json("Your SIM card is active and working.");
  if (status == "missing") return Json("No SIM card detected in the phone.");
  return Json(fmt::format("The SIM card is locked with a {} code.", status == "locked_pin" ? "PIN" : "PUK"));
}

Result<Json> TelecomPhone::check_data_restriction(const Json&) {
  return Json(is_on("data_saver_mode") ? "Data Saver mode is ON (limits data usage)." : "Data Saver mode is OFF.");
}

Result<Json> TelecomPhone::check_apn(const Json&) {
  const Json& apn = device()["active_apn_settings"];
  const std::string url = apn["mmsc_url"].is_string() ? apn["mmsc_url"].get<std::string>() : "";
  return Json(
      fmt::format("Current APN Name: {}\nMMSC URL (for picture messages): {}\n(These are technical settings, usually best left unchanged.)",
                  apn["apn_name"].get<std::string>(), url.empty() ? "Not Set" : url));
}

Result<Json> TelecomPhone::check_wifi(const Json&) {
  if (!is_on("wifi_enabled")) return Json("Wi-Fi is turned OFF.");
  if (!is_on("wifi_connected")) return Json("Wi-Fi is ON but not connected to any network.");
  const Json& network = device()["wifi_ssid"];
  return Json(fmt::format("Wi-Fi is ON and connected to '{}'. Signal strength: {}.",
                          network.is_string() ? network.get<std::string>() : "None", device()["wifi_signal_strength"].get<std::string>()));
}

Result<Json> TelecomPhone::check_wifi_calling(const Json&) {
  return Json(fmt::format("Wi-Fi Calling is currently turned {}.", on_off(is_on("wifi_calling_enabled"))));
}

Result<Json> TelecomPhone::check_vpn(const Json&) {
  if (!is_on("vpn_connected"))
    return Json(is_on("vpn_enabled_setting") ? "VPN is turned ON in settings, but currently not connected." : "VPN is turned OFF.");
  const Json& details = device()["vpn_details"];
  if (!details.is_object()) return Json("VPN is ON and connected (no specific details available).");
  // The published phone shows the Python object.
  const auto performance = details["server_performance"].get<std::string>();
  return Json(fmt::format(
      "VPN is ON and connected. Details: {{'server_address': {}, 'protocol': {}, 'server_performance': <PerformanceLevel.{}: '{}'>}}",
      text::jinja::python_repr(details["server_address"].get<std::string>()),
      text::jinja::python_repr(details["protocol"].get<std::string>()), text::jinja::to_upper(performance), performance));
}

Result<Json> TelecomPhone::check_apps(const Json&) {
  std::vector<std::string> names;
  for (const auto& [name, app] : device()["app_statuses"].items()) names.push_back(name);
  return Json(fmt::format("The following apps are installed on the phone: {}", fmt::join(names, ", ")));
}

Result<Json> TelecomPhone::check_app_status(const Json& arguments) {
  INGOT_ASSIGN(const std::string app, text_argument(arguments, "app_name"));
  const Json* permissions = permissions_of(app);
  if (permissions == nullptr) return Json(fmt::format("App '{}' not found on this phone.", app));
  const auto names = granted(*permissions);
  if (names.empty()) return Json(fmt::format("Status for App: {}\n - Permissions: None granted.", app));
  return Json(fmt::format("Status for App: {}\n - Permissions Granted:\n   - {}", app, fmt::join(names, "\n   - ")));
}

Result<Json> TelecomPhone::check_app_permissions(const Json& arguments) {
  INGOT_ASSIGN(const std::string app, text_argument(arguments, "app_name"));
  const Json* permissions = permissions_of(app);
  if (permissions == nullptr) return Json(fmt::format("App '{}' not found on this phone.", app));
  const auto names = granted(*permissions);
  if (names.empty()) return Json(fmt::format("App '{}' currently has no permissions granted.", app));
  return Json(fmt::format("App '{}' has permission for: {}.", app, fmt::join(names, ", ")));
}

Result<Json> TelecomPhone::check_mms(const Json&) {
  return Json(fmt::format("Your messaging app {} send MMS messages.", can_send_mms() ? "can" : "cannot"));
}

Result<Json> TelecomPhone::check_payment_request(const Json&) {
  const Json& request = surroundings()["payment_request"];
  if (request.is_null()) return Json("No payment request has been made.");
  return Json(fmt::format("You have a payment request for bill {} of {} USD.", request["bill_id"].get<std::string>(),
                          text::jinja::float_repr(request["amount_due"].get<double>())));
}

// What the user changes.

Result<Json> TelecomPhone::set_network_mode(const Json& arguments) {
  INGOT_ASSIGN(const std::string mode, text_argument(arguments, "mode"));
  if (row(kModes, mode) == nullptr) {
    return with_status_bar(fmt::format(
        "Failed to set network mode: '{}' is not a valid option. Please use one of: 4g_5g_preferred, 4g_only, 3g_only, 2g_only", mode));
  }
  device()["network_mode_preference"] = mode;
  search_network();
  return with_status_bar("Preferred Network Mode set to: " + mode);
}

Result<Json> TelecomPhone::toggle_airplane_mode(const Json&) { return flipped("Airplane Mode", flip_airplane_mode()); }
Result<Json> TelecomPhone::toggle_data(const Json&) { return flipped("Mobile Data", flip_and_search("data_enabled")); }
Result<Json> TelecomPhone::toggle_roaming(const Json&) { return flipped("Data Roaming", flip_and_search("roaming_enabled")); }
Result<Json> TelecomPhone::toggle_data_saver(const Json&) { return flipped("Data Saver Mode", flip("data_saver_mode")); }
Result<Json> TelecomPhone::toggle_wifi_calling(const Json&) { return flipped("Wi-Fi Calling", flip("wifi_calling_enabled")); }

Result<Json> TelecomPhone::toggle_wifi(const Json&) {
  if (is_on("airplane_mode")) return with_status_bar("Cannot change Wi-Fi settings while Airplane Mode is ON.");
  const bool is_now_on = flip("wifi_enabled");
  if (!is_now_on) disconnect_wifi();
  return flipped("Wi-Fi", is_now_on);
}

Result<Json> TelecomPhone::reseat_sim(const Json&) {
  device()["sim_card_missing"] = false;
  search_network();
  return with_status_bar("SIM card re-seated successfully.");
}

Result<Json> TelecomPhone::set_apn(const Json& arguments) {
  const Json& given = arguments["apn_settings"];
  if (!given.is_object()) return fail("argument 'apn_settings' is not an object");
  for (const auto& [name, value] : given.items()) {
    if (!default_apn().contains(name)) return fail("argument 'apn_settings' has no '{}'", name);
    const bool may_be_null = name.starts_with("mms");
    const bool fits = name == "reset_at_reboot" ? value.is_boolean() : name == "mms_port" ? value.is_number_integer() : value.is_string();
    if (!fits && !(may_be_null && value.is_null())) return fail("argument 'apn_settings': '{}' cannot be {}", name, value.dump());
  }
  Json settings = given;
  fill(settings, default_apn());
  if (settings["apn_name"] != "internet" && settings["apn_name"] != "broken")
    return fail("argument 'apn_settings': 'apn_name' cannot be {}", settings["apn_name"].dump());
  device()["active_apn_settings"] = settings;
  search_network();
  return with_status_bar("APN settings set to: " + settings["apn_name"].get<std::string>());
}

Result<Json> TelecomPhone::reset_apn(const Json&) {
  device()["active_apn_settings"]["reset_at_reboot"] = true;
  search_network();
  return with_status_bar("APN settings will reset at reboot.");
}

Result<Json> TelecomPhone::connect_vpn(const Json&) {
  if (is_on("vpn_connected")) return Json("VPN already connected.");
  device()["vpn_connected"] = true;
  device()["vpn_details"] = {{"server_address", "192.168.1.1"}, {"protocol", "OpenVPN"}, {"server_performance", vpn_performance_}};
  return with_status_bar("VPN connected successfully.");
}

Result<Json> TelecomPhone::disconnect_vpn(const Json&) {
  return with_status_bar(drop_vpn() ? "VPN disconnected successfully." : "No active VPN connection to disconnect.");
}

Result<Json> TelecomPhone::grant_permission(const Json& arguments) {
  INGOT_ASSIGN(const std::string app, text_argument(arguments, "app_name"));
  INGOT_ASSIGN(std::string permission, text_argument(arguments, "permission"));
  permission = text::jinja::to_lower(permission);
  Json* permissions = permissions_of(app);
  if (permissions == nullptr) return with_status_bar(fmt::format("Error. App '{}' not found. Cannot grant permission.", app));
  if (!permissions->contains(permission)) {
    return with_status_bar(fmt::format("Error. Permission '{}' not tracked for app '{}', available permissions: ['{}']", permission, app,
                                       fmt::join(kPermissions, "', '")));
  }
  (*permissions)[permission] = true;
  return with_status_bar(fmt::format("Success. Permission '{}' granted to app '{}'.", permission, app));
}

Result<Json> TelecomPhone::reboot(const Json&) {
  std::string told;
  if (device()["active_apn_settings"]["reset_at_reboot"] == true) {
    told = "Resetting APN settings...\n";
    device()["active_apn_settings"] = default_apn();
  }
  search_network();
  return with_status_bar(told + "Restarting network services...");
}

Result<Json> TelecomPhone::make_payment(const Json&) {
  Json& request = surroundings()["payment_request"];
  if (request.is_null()) return Json("You do not have a payment request.");
  request["paid"] = true;
  return Json(fmt::format("Payment of {} USD has been made for bill {}.", text::jinja::float_repr(request["amount_due"].get<double>()),
                          request["bill_id"].get<std::string>()));
}

// What tasks do to it, and ask of it.

Result<Json> TelecomPhone::set_user(const Json& arguments) {
  INGOT_ASSIGN(surroundings()["name"], text_argument(arguments, "name"));
  INGOT_ASSIGN(surroundings()["phone_number"], text_argument(arguments, "phone_number"));
  return Json();
}

Result<Json> TelecomPhone::set_location(const Json& arguments) {
  INGOT_ASSIGN(surroundings()["is_abroad"], bool_argument(arguments, "abroad"));
  return Json();
}

Result<Json> TelecomPhone::search(const Json&) {
  search_network();
  return Json();
}

Result<Json> TelecomPhone::turn_airplane_mode_on(const Json&) {
  if (!flip_airplane_mode()) flip_airplane_mode();
  return Json();
}

Result<Json> TelecomPhone::turn_data_off(const Json&) {
  if (flip_and_search("data_enabled")) flip_and_search("data_enabled");
  return Json();
}

Result<Json> TelecomPhone::turn_roaming_off(const Json&) {
  if (flip_and_search("roaming_enabled")) flip_and_search("roaming_enabled");
  return Json();
}

Result<Json> TelecomPhone::turn_roaming_on(const Json&) {
  if (!flip_and_search("roaming_enabled")) flip_and_search("roaming_enabled");
  return Json();
}

Result<Json> TelecomPhone::turn_data_saver_on(const Json&) {
  device()["data_saver_mode"] = true;
  return Json();
}

Result<Json> TelecomPhone::unseat_sim(const Json&) {
  device()["sim_card_missing"] = true;
  search_network();
  return Json();
}

Result<Json> TelecomPhone::lock_sim(const Json& arguments) {
  INGOT_ASSIGN(const std::string mode, text_argument(arguments, "mode"));
  if (mode != "pin" && mode != "puk") return fail("argument 'mode' cannot be '{}'", mode);
  device()["sim_card_status"] = "locked_" + mode;
  search_network();
  return Json();
}

Result<Json> TelecomPhone::break_apn(const Json&) {
  device()["active_apn_settings"]["apn_name"] = "broken";
  search_network();
  return Json();
}

Result<Json> TelecomPhone::break_apn_mms(const Json&) {
  device()["active_apn_settings"]["mmsc_url"] = nullptr;
  return Json();
}

Result<Json> TelecomPhone::break_vpn(const Json& arguments) {
  vpn_performance_ = "poor";
  drop_vpn();
  return connect_vpn(arguments);
}

Result<Json> TelecomPhone::set_wifi_calling(const Json& arguments) {
  INGOT_ASSIGN(device()["wifi_calling_enabled"], bool_argument(arguments, "enabled"));
  if (arguments.contains("mms_over_wifi")) {
    INGOT_ASSIGN(device()["wifi_calling_mms_over_wifi"], bool_argument(arguments, "mms_over_wifi"));
  }
  return Json();
}

Result<Json> TelecomPhone::remove_permission(const Json& arguments) {
  INGOT_ASSIGN(const std::string app, text_argument(arguments, "app_name"));
  INGOT_ASSIGN(const std::string permission, text_argument(arguments, "permission"));
  Json* permissions = permissions_of(app);
  if (permissions == nullptr || !permissions->contains(permission)) return fail("no permission '{}' of an app '{}'", permission, app);
  (*permissions)[permission] = false;
  return Json();
}

Result<Json> TelecomPhone::has_service(const Json& arguments) {
  INGOT_ASSIGN(const std::string expected, text_argument(arguments, "expected_status"));
  return Json(device()["network_connection_status"] == expected);
}

Result<Json> TelecomPhone::has_data(const Json& arguments) {
  INGOT_ASSIGN(const bool expected, bool_argument(arguments, "expected_status"));
  return Json(has_mobile_data() == expected);
}

Result<Json> TelecomPhone::has_mms(const Json& arguments) {
  INGOT_ASSIGN(const bool expected, bool_argument(arguments, "expected_status"));
  return Json(can_send_mms() == expected);
}

Result<Json> TelecomPhone::has_speed(const Json& arguments) {
  INGOT_ASSIGN(const Json expected, number_argument(arguments, "expected_speed"));
  const Speed measured = speed().value_or(Speed{0, "No Connection", ""});
  if (measured.mbps < expected.get<double>()) return Json(false);
  if (!arguments.contains("expected_desc")) return Json(true);
  INGOT_ASSIGN(const std::string word, text_argument(arguments, "expected_desc"));
  return Json(text::jinja::to_lower(measured.word) == text::jinja::to_lower(word));
}

}  // namespace ingot::eval
