// A reward that is wrong because the world is: the state after the gold actions is the published one, and what the task asserts then holds.
#include "eval/telecom.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "base/file_map.h"

namespace ingot::eval {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::filesystem::path kData = std::filesystem::path(INGOT_SHARED_DIR) / "data/eval/tau2/domains/telecom";
std::string text_of(const std::string& name) { return read_file(kData / name, size_t{1} << 26).value(); }
Json read_data(const std::string& name) { return parse_json(text_of(name), (kData / name).string()).value(); }

Tau2Side side_of(const Json& requestor) { return requestor == "user" ? Tau2Side::kUser : Tau2Side::kAgent; }
bool all_hold(TelecomWorld& world, const Json& task) {
  const Json& assertions = task["evaluation_criteria"]["env_assertions"];
  return std::all_of(assertions.begin(), assertions.end(), [&](const Json& assertion) { return world.holds(assertion).value(); });
}

TEST(Telecom, GoldActionsGiveTheGoldHashesAndWhatIsAsserted) {
  if (!std::filesystem::exists(kData)) GTEST_SKIP() << "../shared/data is not there";
  const Json tasks = read_data("tasks_base_regenerated.json"), gold = read_data("gold_hashes.json");
  const TelecomWorld world = TelecomWorld::create(text_of("db.toml"), text_of("user_db.toml")).value();
  EXPECT_EQ(world.hash(Tau2Side::kAgent), gold["initial_db_hash"]);
  EXPECT_EQ(world.hash(Tau2Side::kUser), gold["initial_user_db_hash"]);
  ASSERT_EQ(tasks.size(), 114u);
  for (const Json& task : tasks) {
    TelecomWorld copy = world;
    for (const Json& action : task["initial_state"]["initialization_actions"]) {
      const auto done = copy.set_up(action);
      EXPECT_TRUE(done) << task["id"] << " " << action << ": " << done.error().message;
    }
    // A phone that cannot be mended holds before and after: the agent's part is to hand over.
    const Json& basis = task["evaluation_criteria"]["reward_basis"];
    const bool is_hopeless = std::find(basis.begin(), basis.end(), "ACTION") != basis.end();
    EXPECT_EQ(all_hold(copy, task), is_hopeless) << task["id"] << ": a world that does nothing must not pass";
    for (const Json& action : task["evaluation_criteria"]["actions"]) {
      const std::string result = copy.call(side_of(action["requestor"]), action["name"], action["arguments"]);
      EXPECT_FALSE(result.starts_with("Error")) << task["id"] << " " << action["name"] << ": " << result;
    }
    const Json& expected = gold["tasks"][task["id"].get<std::string>()];
    EXPECT_EQ(copy.hash(Tau2Side::kAgent), expected["gold_db_hash"]) << task["id"];
    EXPECT_EQ(copy.hash(Tau2Side::kUser), expected["gold_user_db_hash"]) << task["id"];
    EXPECT_TRUE(all_hold(copy, task)) << task["id"];
  }
}

constexpr const char* kDb = R"(
[[plans]]
plan_id = "P1"
name = "Small"
data_limit_gb = 5.0
price_per_month = 40.0
data_refueling_price_per_gb = 2.5
[[devices]]
device_id = "D1"
device_type = "phone"
model = "X"
is_esim_capable = true
activation_date = "2025-01-20T14:30:00"
[[lines]]
line_id = "L1"
phone_number = "555-1"
status = "Active"
plan_id = "P1"
data_used_gb = 5.0
[[customers]]
customer_id = "C1"
full_name = "Ann Lee"
date_of_birth = "1990-01-01"
email = "a@x.com"
phone_number = "555-0"
line_ids = ["L1"]
bill_ids = ["B1", "B2"]
created_at = "2025-01-15T10:30:00"
[[bills]]
bill_id = "B1"
customer_id = "C1"
issue_date = "2025-01-05"
total_due = 40.0
status = "Paid"
[[bills]]
bill_id = "B2"
customer_id = "C1"
issue_date = "2025-02-05"
total_due = 41.5
status = "Issued"
)";
constexpr const char* kPhone = R"(
[device]
wifi_enabled = false
[device.app_statuses.messaging]
app_name = "messaging"
[device.app_statuses.messaging.permissions]
sms = true
storage = true
[device.app_statuses.browser]
app_name = "browser"
)";

class SmallTelecom : public ::testing::Test {
 protected:
  void SetUp() override { set_up("user", "set_user_info", R"({"name": "Ann Lee", "phone_number": "555-1"})"); }
  std::string agent(const std::string& tool, const std::string& arguments) {
    return world_.call(Tau2Side::kAgent, tool, Json::parse(arguments));
  }
  std::string user(const std::string& tool, const std::string& arguments = "{}") {
    return world_.call(Tau2Side::kUser, tool, Json::parse(arguments));
  }
  void set_up(const char* side, const char* function, const std::string& arguments = "{}") {
    const auto done = world_.set_up({{"env_type", side}, {"func_name", function}, {"arguments", Json::parse(arguments)}});
    EXPECT_TRUE(done) << function << ": " << done.error().message;
  }
  bool holds(const char* side, const char* function, const std::string& arguments) {
    return world_.holds({{"env_type", side}, {"func_name", function}, {"arguments", Json::parse(arguments)}}).value();
  }
  Json line() { return Json::parse(agent("get_details_by_id", R"({"id": "L1"})")); }
  TelecomWorld world_ = TelecomWorld::create(kDb, kPhone).value();
};

constexpr const char* kLine = R"({"customer_id": "C1", "line_id": "L1"})";
constexpr const char* kBill = R"({"customer_id": "C1", "bill_id": "B2"})";

TEST_F(SmallTelecom, RefusalsChangeNothing) {
  const auto state = [&] { return world_.hash(Tau2Side::kAgent) + world_.hash(Tau2Side::kUser); };
  const std::string before = state();
  const auto refused = [&](const std::string& result, const std::string& words) {
    EXPECT_THAT(result, AllOf(StartsWith("Error: "), HasSubstr(words)));
    EXPECT_EQ(state(), before) << words;
  };
  refused(agent("resume_line", kLine), "Line must be suspended to resume");
  refused(agent("enable_roaming", R"({"customer_id": "C1", "line_id": "L2"})"), "Line L2 not found for customer C1");
  refused(agent("enable_roaming", R"({"customer_id": "C2", "line_id": "L1"})"), "Customer with ID C2 not found");
  refused(agent("refuel_data", R"({"customer_id": "C1", "line_id": "L1", "gb_amount": 0})"), "Refuel amount must be positive");
  refused(agent("refuel_data", R"({"customer_id": "C1", "line_id": "L1", "gb_amount": "two"})"), "gb_amount");
  refused(agent("send_payment_request", R"({"customer_id": "C1", "bill_id": "B3"})"), "Bill B3 not found for customer C1");
  refused(agent("get_details_by_id", R"({"id": "X1"})"), "Unknown ID format or type: X1");
  refused(agent("get_details_by_id", R"({"id": "B9"})"), "Bill with ID B9 not found");
  refused(agent("get_customer_by_phone", R"({"phone_number": "555-9"})"), "Customer with phone number 555-9 not found");
  refused(agent("toggle_data", "{}"), "Tool 'toggle_data' not found.");
  refused(agent("set_data_usage", R"({"customer_id": "C1", "line_id": "L1", "data_used_gb": 0})"), "not found");
  refused(user("turn_roaming_on"), "not found");
  refused(user("toggle_data", R"({"on": true})"), "unexpected argument 'on'");
  refused(user("set_apn_settings", R"({"apn_settings": {"apn_name": "internet", "speed": 3}})"), "speed");
  refused(user("set_apn_settings", R"({"apn_settings": {"apn_name": "other"}})"), "other");
}

TEST_F(SmallTelecom, TheLineReachesThePhone) {
  EXPECT_TRUE(holds("user", "assert_mobile_data_status", R"({"expected_status": false})")) << "all 5 GB are used";
  EXPECT_EQ(
      Json::parse(agent("refuel_data", R"({"customer_id": "C1", "line_id": "L1", "gb_amount": 2})")),
      Json::parse(
          R"({"message": "Successfully added 2 GB of data for line L1 for $5.00", "new_data_refueling_gb": "2.0", "charge": "5.0"})"));
  EXPECT_TRUE(holds("user", "assert_mobile_data_status", R"({"expected_status": true})"));
  EXPECT_TRUE(holds("assistant", "assert_data_refueling_amount", R"({"customer_id": "C1", "line_id": "L1", "expected_amount": 2.0})"));
  const Json draft = Json::parse(agent("get_bills_for_customer", R"({"customer_id": "C1", "limit": 1})"))[0];
  EXPECT_EQ(draft["period_end"], "2025-03-31");
  EXPECT_EQ(draft["line_items"][0]["description"], "Data refueling: 2 GB at $2.5/GB");
  EXPECT_EQ(draft["total_due"], 5.0);
  set_up("user", "set_user_location", R"({"abroad": true})");
  EXPECT_THAT(user("toggle_roaming"), StartsWith("Data Roaming is now ON.\nStatus Bar: "));
  EXPECT_TRUE(holds("user", "assert_mobile_data_status", R"({"expected_status": false})")) << "the carrier has to allow it, too";
  EXPECT_EQ(agent("enable_roaming", kLine), "Roaming enabled successfully");
  EXPECT_EQ(agent("enable_roaming", kLine), "Roaming was already enabled");
  EXPECT_TRUE(holds("user", "assert_mobile_data_status", R"({"expected_status": true})"));
  EXPECT_EQ(
      Json::parse(agent("suspend_line", R"({"customer_id": "C1", "line_id": "L1", "reason": "lost"})"))["line"]["suspension_start_date"],
      "2025-02-25");
  EXPECT_THAT(user("reboot_device"), HasSubstr("No Signal"));
  EXPECT_TRUE(holds("user", "assert_service_status", R"({"expected_status": "no_service"})"));
  agent("resume_line", kLine);
  EXPECT_TRUE(holds("user", "assert_service_status", R"({"expected_status": "no_service"})")) << "until it looks again";
  user("reboot_device");
  EXPECT_TRUE(holds("user", "assert_service_status", R"({"expected_status": "connected"})"));
}

TEST_F(SmallTelecom, ABillIsPaidOnceItWasAskedFor) {
  EXPECT_EQ(user("make_payment"), "You do not have a payment request.");
  EXPECT_FALSE(holds("assistant", "assert_no_overdue_bill", R"({"overdue_bill_id": "B2"})"));
  EXPECT_EQ(agent("send_payment_request", kBill), "Payment request sent to the customer for bill B2");
  EXPECT_EQ(agent("send_payment_request", kBill), "Error: A bill is already awaiting payment for this customer");
  EXPECT_EQ(user("check_payment_request"), "You have a payment request for bill B2 of 41.5 USD.");
  EXPECT_EQ(user("make_payment"), "Payment of 41.5 USD has been made for bill B2.");
  EXPECT_EQ(user("check_payment_request"), "No payment request has been made.");
  EXPECT_TRUE(holds("assistant", "assert_no_overdue_bill", R"({"overdue_bill_id": "B2"})"));
  EXPECT_EQ(Json::parse(agent("get_details_by_id", R"({"id": "B2"})"))["status"], "Paid");
}

TEST_F(SmallTelecom, TheCarrierTellsWhatItKnows) {
  EXPECT_EQ(Json::parse(agent("get_customer_by_phone", R"({"phone_number": "555-1"})"))["customer_id"], "C1") << "by a line's number";
  EXPECT_EQ(Json::parse(agent("get_customer_by_name", R"({"full_name": "ANN lee", "dob": "1990-01-01"})")).size(), 1u);
  EXPECT_EQ(agent("get_customer_by_name", R"({"full_name": "Ann Lee", "dob": "1990-01-02"})"), "[]");
  EXPECT_EQ(Json::parse(agent("get_details_by_id", R"({"id": "D1"})"))["activation_date"], "2025-01-20 14:30:00");
  EXPECT_EQ(Json::parse(agent("get_data_usage", kLine)), Json::parse(R"({"line_id": "L1", "data_used_gb": "5.0", "data_limit_gb": "5.0",
      "data_refueling_gb": "0.0", "cycle_end_date": "2025-02-28"})"));
  const Json bills = Json::parse(agent("get_bills_for_customer", R"({"customer_id": "C1"})"));
  ASSERT_EQ(bills.size(), 2u);
  EXPECT_EQ(bills[0]["bill_id"], "B2") << "the newest first";
  EXPECT_EQ(agent("transfer_to_human_agents", R"({"summary": "x"})"), "Transfer successful");
  set_up("assistant", "suspend_line_for_overdue_bill",
         R"({"customer_id": "C1", "line_id": "L1", "new_bill_id": "B7", "contract_ended": true})");
  EXPECT_EQ(line()["contract_end_date"], "2025-01-31");
  EXPECT_EQ(Json::parse(agent("get_details_by_id", R"({"id": "B7"})"))["total_due"], 40.0);
}

TEST_F(SmallTelecom, ThePhoneShowsItsState) {
  EXPECT_EQ(user("check_status_bar"), "Status Bar: 📶³ Good | 5G | 📱 Data Enabled | 🔋 80%");
  EXPECT_THAT(user("toggle_data"), AllOf(StartsWith("Mobile Data is now OFF.\n"), HasSubstr("📶⁴ Excellent | 5G | 📵 Data Disabled")));
  EXPECT_EQ(user("run_speed_test"), "Speed test failed: No Connection.");
  user("toggle_data");
  set_up("assistant", "set_data_usage", R"({"customer_id": "C1", "line_id": "L1", "data_used_gb": 1.0})");
  EXPECT_EQ(user("run_speed_test"), "Speed Test Result: 275.00 Mbps (Excellent). Connection is very fast.");
  user("toggle_data_saver_mode");
  set_up("user", "break_vpn");
  EXPECT_EQ(user("run_speed_test"),
            "Speed Test Result: 5.50 Mbps (Fair). Connection is okay for web browsing and some standard definition streaming.");
  EXPECT_EQ(user("check_vpn_status"),
            "VPN is ON and connected. Details: {'server_address': '192.168.1.1', 'protocol': 'OpenVPN', 'server_performance': "
            "<PerformanceLevel.POOR: 'poor'>}");
  EXPECT_THAT(user("disconnect_vpn"), StartsWith("VPN disconnected successfully."));
  EXPECT_THAT(user("disconnect_vpn"), StartsWith("No active VPN connection to disconnect."));
  EXPECT_TRUE(holds("user", "assert_internet_speed", R"({"expected_speed": 50, "expected_desc": "good"})"));
  EXPECT_FALSE(holds("user", "assert_internet_speed", R"({"expected_speed": 50, "expected_desc": "excellent"})"));
  EXPECT_THAT(user("set_network_mode_preference", R"({"mode": "6g"})"), HasSubstr("'6g' is not a valid option"));
  EXPECT_THAT(user("set_network_mode_preference", R"({"mode": "2g_only"})"), HasSubstr("📶¹ Poor | 2G"));
  EXPECT_EQ(user("check_network_mode_preference"), "Network Mode Preference: 2g_only");
  EXPECT_EQ(user("can_send_mms"), "Your messaging app cannot send MMS messages.");
  user("set_network_mode_preference", R"({"mode": "4g_only"})");
  EXPECT_EQ(user("can_send_mms"), "Your messaging app can send MMS messages.");
  EXPECT_THAT(user("toggle_wifi"), StartsWith("Wi-Fi is now ON."));
  EXPECT_EQ(user("check_wifi_status"), "Wi-Fi is ON but not connected to any network.");
  EXPECT_THAT(user("toggle_airplane_mode"), HasSubstr("Status Bar: ✈️ Airplane Mode | 🔋 80%"));
  EXPECT_THAT(user("toggle_wifi"), StartsWith("Cannot change Wi-Fi settings while Airplane Mode is ON."));
  EXPECT_THAT(user("check_network_status"),
              HasSubstr("Cellular Connection: no_service\nCellular Signal: none\nCellular Network Type: none"));
}

TEST_F(SmallTelecom, WhatTasksBreakTheUserMends) {
  set_up("assistant", "set_data_usage", R"({"customer_id": "C1", "line_id": "L1", "data_used_gb": 1.0})");
  const auto works = [&] { return user("can_send_mms") == "Your messaging app can send MMS messages."; };
  ASSERT_TRUE(works());
  const auto breaks = [&](const char* function, const std::string& arguments = "{}") {
    set_up("user", function, arguments);
    EXPECT_FALSE(works()) << function;
  };
  breaks("unseat_sim_card");
  EXPECT_EQ(user("check_sim_status"), "No SIM card detected in the phone.");
  user("reseat_sim_card");
  breaks("turn_airplane_mode_on");
  user("toggle_airplane_mode");
  breaks("turn_data_off");
  user("toggle_data");
  breaks("break_apn_settings");
  EXPECT_THAT(user("reset_apn_settings"), StartsWith("APN settings will reset at reboot."));
  EXPECT_FALSE(works()) << "at reboot, not before";
  EXPECT_THAT(user("reboot_device"), StartsWith("Resetting APN settings...\nRestarting network services..."));
  breaks("break_apn_mms_setting");
  EXPECT_THAT(user("check_apn_settings"), HasSubstr("(for picture messages): Not Set"));
  user("set_apn_settings", R"({"apn_settings": {}})");
  breaks("set_wifi_calling", R"({"enabled": true, "mms_over_wifi": true})");
  EXPECT_EQ(user("check_wifi_calling_status"), "Wi-Fi Calling is currently turned ON.");
  user("toggle_wifi_calling");
  breaks("remove_app_permission", R"({"app_name": "messaging", "permission": "storage"})");
  EXPECT_EQ(user("check_app_permissions", R"({"app_name": "messaging"})"), "App 'messaging' has permission for: sms.");
  EXPECT_THAT(
      user("grant_app_permission", R"({"app_name": "messaging", "permission": "camera"})"),
      StartsWith(
          "Error. Permission 'camera' not tracked for app 'messaging', available permissions: ['sms', 'storage', 'phone', 'network']"));
  user("grant_app_permission", R"({"app_name": "messaging", "permission": "Storage"})");
  EXPECT_EQ(user("check_app_status", R"({"app_name": "messaging"})"),
            "Status for App: messaging\n - Permissions Granted:\n   - sms\n   - storage");
  EXPECT_EQ(user("check_installed_apps"), "The following apps are installed on the phone: messaging, browser");
  EXPECT_TRUE(works());
  breaks("lock_sim_card", R"({"mode": "puk"})");
  EXPECT_EQ(user("check_sim_status"), "The SIM card is locked with a PUK code.");
}

TEST(TelecomFiles, AreRefusedByLineAndMember) {
  const auto error = [](std::string_view db, std::string_view phone) {
    const auto world = TelecomWorld::create(db, phone);
    return world ? "none" : world.error().message;
  };
  EXPECT_THAT(error("[[plans]]\nplan_id = \n", kPhone), StartsWith("db.toml:2: "));
  EXPECT_THAT(error("plans = []", kPhone), HasSubstr("`customers`"));
  EXPECT_THAT(error(kDb, "[device]\nairplane_mode = \"off\""), HasSubstr("`device.airplane_mode` is no boolean"));
  EXPECT_THAT(error(kDb, "[device]\nnetwork_signal_strength = \"so so\""), HasSubstr("so so"));
}

}  // namespace
}  // namespace ingot::eval
