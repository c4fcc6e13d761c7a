// A reward that is wrong because the shop is: the state after the gold actions is the published one, for every task.
#include "eval/retail.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "base/file_map.h"
#include "eval/python_json.h"

namespace ingot::eval {
namespace {

using ::testing::HasSubstr;

Json read_data(const std::string& name) {
  const auto path = std::filesystem::path(INGOT_SHARED_DIR) / "data/eval/tau2/domains/retail" / name;
  return parse_json(read_file(path, size_t{1} << 26).value(), path.string()).value();
}
bool has_data() { return std::filesystem::exists(std::filesystem::path(INGOT_SHARED_DIR) / "data/eval/tau2/domains/retail"); }

TEST(Retail, GoldActionsGiveTheGoldHashOfEveryTask) {
  if (!has_data()) GTEST_SKIP() << "../shared/data is not there";
  const Json tasks = read_data("tasks.json"), gold = read_data("gold_hashes.json");
  const RetailShop shop = RetailShop::create(read_data("db.json")).value();
  const std::string before = shop.hash(Tau2Side::kAgent);
  EXPECT_EQ(before, gold["initial_db_hash"]);
  ASSERT_EQ(tasks.size(), 114u);
  int changed = 0;
  size_t errors = 0, errors_there = 0;
  for (const Json& task : tasks) {
    RetailShop copy = shop;
    const Json& expected = gold["tasks"][task["id"].get<std::string>()];
    for (const Json& action : task["evaluation_criteria"]["actions"])
      errors += copy.call(Tau2Side::kAgent, action["name"], action["arguments"]).starts_with("Error: ");
    errors_there += expected["gold_errors"].size();
    const std::string after = copy.hash(Tau2Side::kAgent);
    EXPECT_EQ(after, expected["gold_db_hash"]) << task["id"];
    changed += after != before;
  }
  EXPECT_GT(changed, 80) << "a shop that does nothing must not pass";
  EXPECT_EQ(errors, errors_there) << "calls that fail there fail here";
}

Json small_db() {
  return Json::parse(R"({"products": {"p": {"name": "Lamp", "product_id": "p", "variants": {
      "1": {"item_id": "1", "options": {"c": "red"}, "available": true, "price": 10.5}, "2": {"item_id": "2", "options": {"c": "blue"}, "available": true, "price": 12.25},
      "3": {"item_id": "3", "options": {}, "available": false, "price": 1.0}}}},
    "users": {"u": {"user_id": "u", "name": {"first_name": "Ann", "last_name": "Lee"}, "address": {"zip": "11111"}, "email": "Ann@x.com", "orders": ["#1", "#2"],
      "payment_methods": {"gift": {"source": "gift_card", "id": "gift", "balance": 1.0}, "card": {"source": "credit_card", "id": "card"}}}},
    "orders": {"#1": {"order_id": "#1", "user_id": "u", "address": {}, "items": [{"name": "Lamp", "product_id": "p", "item_id": "1", "price": 10.5, "options": {"c": "red"}}],
      "status": "pending", "payment_history": [{"transaction_type": "payment", "amount": 10.5, "payment_method_id": "gift"}]},
      "#2": {"order_id": "#2", "user_id": "u", "address": {}, "items": [{"name": "Lamp", "product_id": "p", "item_id": "1", "price": 10.5, "options": {"c": "red"}}],
      "status": "delivered", "payment_history": [{"transaction_type": "payment", "amount": 10.5, "payment_method_id": "card"}]}}})");
}

TEST(Retail, RefusalsChangeNothing) {
  RetailShop shop = RetailShop::create(small_db()).value();
  const std::string before = shop.hash(Tau2Side::kAgent);
  const auto refuses = [&](const std::string& tool, const std::string& arguments, const std::string& words) {
    EXPECT_THAT(shop.call(Tau2Side::kAgent, tool, Json::parse(arguments)), AllOf(::testing::StartsWith("Error: "), HasSubstr(words)));
    EXPECT_EQ(shop.hash(Tau2Side::kAgent), before) << tool;
  };
  refuses("cancel_pending_order", R"({"order_id": "#1", "reason": "bored"})", "Invalid reason");
  refuses("cancel_pending_order", R"({"order_id": "#2", "reason": "no longer needed"})", "Non-pending");
  refuses("cancel_pending_order", R"({"order_id": "1", "reason": "no longer needed"})", "Order not found");
  refuses("cancel_pending_order", R"({"reason": "no longer needed"})", "order_id");
  refuses("modify_pending_order_items", R"({"order_id": "#1", "item_ids": ["1"], "new_item_ids": ["2"], "payment_method_id": "gift"})",
          "Insufficient");
  refuses("modify_pending_order_items",
          R"({"order_id": "#1", "item_ids": ["1", "1"], "new_item_ids": ["2", "2"], "payment_method_id": "card"})", "not found");
  refuses("modify_pending_order_items", R"({"order_id": "#1", "item_ids": ["1"], "new_item_ids": ["3"], "payment_method_id": "card"})",
          "available");
  refuses("exchange_delivered_order_items", R"({"order_id": "#2", "item_ids": ["1"], "new_item_ids": [], "payment_method_id": "card"})",
          "match");
  refuses("return_delivered_order_items", R"({"order_id": "#2", "item_ids": "1", "payment_method_id": "card"})", "item_ids");
  refuses("modify_user_address", R"({"user_id": "u", "address1": "x"})", "address2");
  refuses("get_user_details", R"({"user_id": "nobody"})", "User not found");
  refuses("fly", "{}", "fly");
  refuses("get_user_details", R"({"user_id": "u", "with_orders": true})", "with_orders");
  EXPECT_THAT(shop.call(Tau2Side::kUser, "get_user_details", {{"user_id", "u"}}), HasSubstr("not found"));
  refuses("calculate", R"({"expression": "__import__"})", "Invalid characters");
}

TEST(Retail, MoneyGoesBackToTheGiftCardAndRounds) {
  RetailShop shop = RetailShop::create(small_db()).value();
  shop.call(Tau2Side::kAgent, "cancel_pending_order", {{"order_id", "#1"}, {"reason", "no longer needed"}});
  EXPECT_EQ(Json::parse(shop.call(Tau2Side::kAgent, "get_user_details", {{"user_id", "u"}}))["payment_methods"]["gift"]["balance"], 11.5);
  const Json order = Json::parse(shop.call(Tau2Side::kAgent, "get_order_details", {{"order_id", "#1"}}));
  EXPECT_EQ(order["status"], "cancelled");
  EXPECT_EQ(order["payment_history"][1]["transaction_type"], "refund");
  EXPECT_EQ(shop.call(Tau2Side::kAgent, "find_user_id_by_name_zip", {{"first_name", "ann"}, {"last_name", "LEE"}, {"zip", "11111"}}), "u");
  EXPECT_EQ(shop.call(Tau2Side::kAgent, "find_user_id_by_email", {{"email", "ann@X.com"}}), "u");
  EXPECT_EQ(shop.call(Tau2Side::kAgent, "list_all_product_types", Json::object()), R"({"Lamp": "p"})");
}

TEST(Retail, CalculatesAsPythonPrints) {
  EXPECT_EQ(tau2_calculate("2 + 3 * (4 - 1)").value(), "11.0");
  EXPECT_EQ(tau2_calculate("-(1.5 - 2) / 3").value(), "0.17");
  EXPECT_EQ(tau2_calculate("200000000000000000 * 10").value(), "2e+18");
  for (const char* bad : {"1 +", "(1", "1 2", "1..2", "1/0", "", "."}) EXPECT_FALSE(tau2_calculate(bad).has_value()) << bad;
}

TEST(PythonJson, PrintsAsPythonDoes) {
  EXPECT_EQ(python_dumps_sorted(Json::parse(R"({"b": [1, 1.0, true, null], "a": "é\"\n", "B": 1e16, "aa": {}})")),
            R"({"B": 1e+16, "a": "\u00e9\"\n", "aa": {}, "b": [1, 1.0, true, null]})");
  EXPECT_EQ(python_round2(2.675), 2.67) << "the double is below the half";
  EXPECT_EQ(python_round2(0.125), 0.12) << "to even";
  EXPECT_EQ(python_round2(-1.005), -1.0);
}

}  // namespace
}  // namespace ingot::eval
