#include "eval/retail.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "eval/python_json.h"
#include "eval/task.h"
#include "text/jinja_text.h"

namespace ingot::eval {
namespace {

constexpr const char* kAddress[] = {"address1", "address2", "city", "state", "country", "zip"};
// Members that an order has from the beginning, without a value.
constexpr const char* kOrderDefaults[] = {
    "cancel_reason", "exchange_items",          "exchange_new_items", "exchange_payment_method_id", "exchange_price_difference",
    "return_items",  "return_payment_method_id"};

Result<Json> address_argument(const Json& arguments) {
  Json address;
  for (const char* name : kAddress) {
    INGOT_ASSIGN(address[name], text_argument(arguments, name));
  }
  return address;
}

std::string folded(const Json& text) { return text::jinja::to_lower(text.get_ref<const std::string&>()); }
bool is_gift_card(const Json& method) { return method["source"] == "gift_card"; }
bool is_pending(const Json& order) { return order["status"].get_ref<const std::string&>().find("pending") != std::string::npos; }
Json payment(const char* type, double amount, const Json& method) {
  return {{"transaction_type", type}, {"amount", amount}, {"payment_method_id", method}};
}
void add_to_balance(Json& gift_card, double amount) { gift_card["balance"] = python_round2(gift_card["balance"].get<double>() + amount); }

Json sorted(Json list) {
  std::sort(list.begin(), list.end());
  return list;
}

// Each id at least as often in the order as in the list; else that id.
const Json* first_missing(const Json& order, const Json& ids) {
  for (const Json& id : ids) {
    const auto in_order =
        std::count_if(order["items"].begin(), order["items"].end(), [&](const Json& item) { return item["item_id"] == id; });
    if (std::count(ids.begin(), ids.end(), id) > in_order) return &id;
  }
  return nullptr;
}

template <class Items>
auto* find_in_order(Items& items, const Json& id) {
  const auto found = std::find_if(items.begin(), items.end(), [&](const Json& item) { return item["item_id"] == id; });
  return found == items.end() ? nullptr : &*found;
}

}  // namespace

const Tau2Tool<RetailShop> RetailShop::kTools[16] = {
    {"calculate", "expression", &RetailShop::calculate},
    {"cancel_pending_order", "order_id reason", &RetailShop::cancel},
    {"exchange_delivered_order_items", "order_id item_ids new_item_ids payment_method_id", &RetailShop::exchange},
    {"find_user_id_by_email", "email", &RetailShop::find_user_by_email},
    {"find_user_id_by_name_zip", "first_name last_name zip", &RetailShop::find_user_by_name},
    {"get_item_details", "item_id", &RetailShop::item_details},
    {"get_order_details", "order_id", &RetailShop::order_details},
    {"get_product_details", "product_id", &RetailShop::product_details},
    {"get_user_details", "user_id", &RetailShop::user_details},
    {"list_all_product_types", "", &RetailShop::list_products},
    {"modify_pending_order_address", "order_id address1 address2 city state country zip", &RetailShop::modify_address},
    {"modify_pending_order_items", "order_id item_ids new_item_ids payment_method_id", &RetailShop::modify_items},
    {"modify_pending_order_payment", "order_id payment_method_id", &RetailShop::modify_payment},
    {"modify_user_address", "user_id address1 address2 city state country zip", &RetailShop::modify_user_address},
    {"return_delivered_order_items", "order_id item_ids payment_method_id", &RetailShop::return_items},
    {"transfer_to_human_agents", "summary", &RetailShop::transfer},
};

Result<RetailShop> RetailShop::create(Json db) {
  for (const char* part : {"products", "users", "orders"})
    if (!db.is_object() || !db.contains(part) || !db[part].is_object()) return fail("the retail database has no object `{}`", part);
  for (auto& [id, order] : db["orders"].items())
    for (const char* name : kOrderDefaults)
      if (!order.contains(name)) order[name] = nullptr;
  return RetailShop(std::move(db));
}

std::string RetailShop::hash(Tau2Side side) const { return side == Tau2Side::kAgent ? sha256_hex(python_dumps_sorted(db_)) : ""; }

std::string RetailShop::call(Tau2Side side, const std::string& tool, const Json& arguments) {
  return tool_text(side == Tau2Side::kAgent ? run_tool(*this, kTools, tool, arguments) : fail("Tool '{}' not found.", tool));
}

Result<Json*> RetailShop::order(const Json& arguments) {
  INGOT_ASSIGN(const std::string id, text_argument(arguments, "order_id"));
  const auto found = db_["orders"].find(id);
  if (found == db_["orders"].end()) return fail("Order not found");
  return &*found;
}

Result<Json*> RetailShop::user(const std::string& id) {
  const auto found = db_["users"].find(id);
  if (found == db_["users"].end()) return fail("User not found");
  return &*found;
}

Result<Json*> RetailShop::payment_method(const std::string& user_id, const std::string& id) {
  INGOT_ASSIGN(Json * owner, user(user_id));
  const auto found = (*owner)["payment_methods"].find(id);
  if (found == (*owner)["payment_methods"].end()) return fail("Payment method not found");
  return &*found;
}

Result<const Json*> RetailShop::variant(const std::string& product_id, const std::string& item_id) const {
  const auto product = db_["products"].find(product_id);
  if (product == db_["products"].end()) return fail("Product not found");
  const auto found = (*product)["variants"].find(item_id);
  if (found == (*product)["variants"].end()) return fail("Variant not found");
  return &*found;
}

Result<RetailShop::Swap> RetailShop::check_swap(const Json& order, const Json& items, const Json& new_items, bool is_pending) const {
  if (const Json* missing = first_missing(order, items); missing != nullptr) {
    const auto id = missing->get<std::string>();
    return is_pending ? fail("{} not found", id) : fail("Number of {} not found.", id);
  }
  if (items.size() != new_items.size()) return fail("The number of items to be exchanged should match{}", is_pending ? "" : ".");
  Swap swap;
  for (size_t i = 0; i < items.size(); ++i) {
    if (is_pending && items[i] == new_items[i]) return fail("The new item id should be different from the old item id");
    const Json* item = find_in_order(order["items"], items[i]);
    if (item == nullptr) return fail("Item {} not found", items[i].get<std::string>());
    const auto new_id = new_items[i].get<std::string>();
    INGOT_ASSIGN(swap.last_variant, variant((*item)["product_id"].get<std::string>(), new_id));
    if (!(*swap.last_variant)["available"].get<bool>()) return fail("New item {} not found or available", new_id);
    // In this order of operations: the hash knows every bit of the sum.
    swap.difference = swap.difference.get<double>() + ((*swap.last_variant)["price"].get<double>() - (*item)["price"].get<double>());
  }
  return swap;
}

Result<Json> RetailShop::cancel(const Json& arguments) {
  INGOT_ASSIGN(Json * order, this->order(arguments));
  if ((*order)["status"] != "pending") return fail("Non-pending order cannot be cancelled");
  INGOT_ASSIGN(const std::string reason, text_argument(arguments, "reason"));
  if (reason != "no longer needed" && reason != "ordered by mistake") return fail("Invalid reason");
  Json refunds = Json::array();
  for (const Json& paid : (*order)["payment_history"]) {
    const double amount = paid["amount"].get<double>();
    INGOT_ASSIGN(Json * method, payment_method((*order)["user_id"].get<std::string>(), paid["payment_method_id"].get<std::string>()));
    refunds.push_back(payment("refund", amount, paid["payment_method_id"]));
    if (is_gift_card(*method)) add_to_balance(*method, amount);
  }
  (*order)["status"] = "cancelled";
  (*order)["cancel_reason"] = reason;
  for (Json& refund : refunds) (*order)["payment_history"].push_back(std::move(refund));
  return *order;
}

Result<Json> RetailShop::exchange(const Json& arguments) {
  INGOT_ASSIGN(Json * order, this->order(arguments));
  if ((*order)["status"] != "delivered") return fail("Non-delivered order cannot be exchanged");
  INGOT_ASSIGN(const Json items, text_list_argument(arguments, "item_ids"));
  INGOT_ASSIGN(const Json new_items, text_list_argument(arguments, "new_item_ids"));
  INGOT_ASSIGN(Swap swap, check_swap(*order, items, new_items, false));
  if (swap.difference.is_number_float()) swap.difference = python_round2(swap.difference.get<double>());
  INGOT_ASSIGN(const std::string method_id, text_argument(arguments, "payment_method_id"));
  INGOT_ASSIGN(const Json* method, payment_method((*order)["user_id"].get<std::string>(), method_id));
  if (is_gift_card(*method) && (*method)["balance"].get<double>() < swap.difference.get<double>())
    return fail("Insufficient gift card balance to pay for the price difference");
  (*order)["status"] = "exchange requested";
  (*order)["exchange_items"] = sorted(items);
  (*order)["exchange_new_items"] = sorted(new_items);
  (*order)["exchange_payment_method_id"] = method_id;
  (*order)["exchange_price_difference"] = swap.difference;
  return *order;
}

Result<Json> RetailShop::modify_items(const Json& arguments) {
  INGOT_ASSIGN(Json * order, this->order(arguments));
  if ((*order)["status"] != "pending") return fail("Non-pending order cannot be modified");
  INGOT_ASSIGN(const Json items, text_list_argument(arguments, "item_ids"));
  INGOT_ASSIGN(const Json new_items, text_list_argument(arguments, "new_item_ids"));
  INGOT_ASSIGN(const Swap swap, check_swap(*order, items, new_items, true));
  INGOT_ASSIGN(const std::string method_id, text_argument(arguments, "payment_method_id"));
  INGOT_ASSIGN(Json * method, payment_method((*order)["user_id"].get<std::string>(), method_id));
  const double difference = swap.difference.get<double>();
  if (is_gift_card(*method) && (*method)["balance"].get<double>() < difference)
    return fail("Insufficient gift card balance to pay for the new item");
  (*order)["payment_history"].push_back(payment(difference > 0 ? "payment" : "refund", std::abs(difference), method_id));
  if (is_gift_card(*method)) add_to_balance(*method, -difference);
  for (size_t i = 0; i < items.size(); ++i) {
    Json* item = find_in_order((*order)["items"], items[i]);
    if (item == nullptr) return fail("Item {} not found", items[i].get<std::string>());
    (*item)["item_id"] = new_items[i];
    // Of the last new item for all of them: so the published tool has it.
    (*item)["price"] = (*swap.last_variant)["price"];
    (*item)["options"] = (*swap.last_variant)["options"];
  }
  (*order)["status"] = "pending (item modified)";
  return *order;
}

Result<Json> RetailShop::modify_payment(const Json& arguments) {
  INGOT_ASSIGN(Json * order, this->order(arguments));
  if (!is_pending(*order)) return fail("Non-pending order cannot be modified");
  INGOT_ASSIGN(const std::string method_id, text_argument(arguments, "payment_method_id"));
  const auto user_id = (*order)["user_id"].get<std::string>();
  INGOT_ASSIGN(Json * method, payment_method(user_id, method_id));
  Json& history = (*order)["payment_history"];
  if (history.size() != 1 || history[0]["transaction_type"] != "payment")
    return fail("There should be exactly one payment for a pending order");
  const auto old_id = history[0]["payment_method_id"].get<std::string>();
  if (old_id == method_id) return fail("The new payment method should be different from the current one");
  const double amount = history[0]["amount"].get<double>();
  if (is_gift_card(*method) && (*method)["balance"].get<double>() < amount)
    return fail("Insufficient gift card balance to pay for the order");
  INGOT_ASSIGN(Json * old_method, payment_method(user_id, old_id));
  history.push_back(payment("payment", amount, method_id));
  history.push_back(payment("refund", amount, old_id));
  if (is_gift_card(*method)) add_to_balance(*method, -amount);
  if (is_gift_card(*old_method)) add_to_balance(*old_method, amount);
  return *order;
}

Result<Json> RetailShop::return_items(const Json& arguments) {
  INGOT_ASSIGN(Json * order, this->order(arguments));
  if ((*order)["status"] != "delivered") return fail("Non-delivered order cannot be returned");
  INGOT_ASSIGN(const std::string method_id, text_argument(arguments, "payment_method_id"));
  INGOT_ASSIGN(const Json* method, payment_method((*order)["user_id"].get<std::string>(), method_id));
  if (!is_gift_card(*method) && (*order)["payment_history"][0]["payment_method_id"] != method_id)
    return fail("Payment method should be the original payment method");
  INGOT_ASSIGN(const Json items, text_list_argument(arguments, "item_ids"));
  if (first_missing(*order, items) != nullptr) return fail("Some item not found");
  (*order)["status"] = "return requested";
  (*order)["return_items"] = sorted(items);
  (*order)["return_payment_method_id"] = method_id;
  return *order;
}

Result<Json> RetailShop::find_user(const Json& arguments, bool by_email) {
  Json wanted;
  for (const char* name : {"email", "first_name", "last_name", "zip"}) {
    if ((std::string_view(name) == "email") != by_email) continue;
    INGOT_ASSIGN(wanted[name], text_argument(arguments, name));
  }
  for (const auto& [id, user] : db_["users"].items()) {
    const bool is_it = by_email ? folded(user["email"]) == folded(wanted["email"])
                                : folded(user["name"]["first_name"]) == folded(wanted["first_name"]) &&
                                      folded(user["name"]["last_name"]) == folded(wanted["last_name"]) &&
                                      user["address"]["zip"] == wanted["zip"];
    if (is_it) return Json(id);
  }
  return fail("User not found");
}

Result<Json> RetailShop::calculate(const Json& arguments) {
  INGOT_ASSIGN(const std::string expression, text_argument(arguments, "expression"));
  return tau2_calculate(expression).map([](std::string value) { return Json(std::move(value)); });
}

Result<Json> RetailShop::item_details(const Json& arguments) {
  INGOT_ASSIGN(const std::string id, text_argument(arguments, "item_id"));
  for (const auto& [product_id, product] : db_["products"].items())
    if (const auto found = product["variants"].find(id); found != product["variants"].end()) return *found;
  return fail("Item not found");
}

Result<Json> RetailShop::order_details(const Json& arguments) {
  INGOT_ASSIGN(const Json* found, order(arguments));
  return *found;
}

Result<Json> RetailShop::product_details(const Json& arguments) {
  INGOT_ASSIGN(const std::string id, text_argument(arguments, "product_id"));
  const auto found = db_["products"].find(id);
  if (found == db_["products"].end()) return fail("Product not found");
  return *found;
}

Result<Json> RetailShop::user_details(const Json& arguments) {
  INGOT_ASSIGN(const std::string id, text_argument(arguments, "user_id"));
  INGOT_ASSIGN(const Json* found, user(id));
  return *found;
}

Result<Json> RetailShop::list_products(const Json&) {
  Json names = Json::object();
  for (const auto& [id, product] : db_["products"].items()) names[product["name"].get<std::string>()] = product["product_id"];
  return Json(python_dumps_sorted(names));
}

Result<Json> RetailShop::modify_address(const Json& arguments) {
  INGOT_ASSIGN(Json * found, order(arguments));
  if (!is_pending(*found)) return fail("Non-pending order cannot be modified");
  INGOT_ASSIGN((*found)["address"], address_argument(arguments));
  return *found;
}

Result<Json> RetailShop::modify_user_address(const Json& arguments) {
  INGOT_ASSIGN(const std::string id, text_argument(arguments, "user_id"));
  INGOT_ASSIGN(Json * found, user(id));
  INGOT_ASSIGN((*found)["address"], address_argument(arguments));
  return *found;
}

}  // namespace ingot::eval
