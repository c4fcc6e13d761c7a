// tau2-bench's retail shop: 16 tools over a JSON database (sierra-research/tau2-bench, MIT). A tool reads or changes the database as the
// published one does, its oddities included, so that the hash of the state after the same calls is the published one.
#pragma once

#include "eval/tau2_world.h"

namespace ingot::eval {

class RetailShop : public Tau2World {
 public:
  // `db`: products, users, orders, as in the data's db.json. Errors: a part that is missing.
  static Result<RetailShop> create(Json db);

  std::unique_ptr<Tau2World> copy() const override { return std::make_unique<RetailShop>(*this); }
  std::string call(Tau2Side side, const std::string& tool, const Json& arguments) override;
  std::string hash(Tau2Side side) const override;

 private:
  explicit RetailShop(Json db) : db_(std::move(db)) {}
  static const Tau2Tool<RetailShop> kTools[16];

  Result<Json*> order(const Json& arguments);
  Result<Json*> user(const std::string& id);
  Result<Json*> payment_method(const std::string& user_id, const std::string& id);
  Result<const Json*> variant(const std::string& product_id, const std::string& item_id) const;
  // What exchange and modification have in common: the items are in the order, the new ones of the same product and to be had.
  struct Swap {
    Json difference = 0;                 // of the prices, not rounded; an integer when nothing is swapped
    const Json* last_variant = nullptr;  // of the last pair
  };
  Result<Swap> check_swap(const Json& order, const Json& items, const Json& new_items, bool is_pending) const;
  Result<Json> find_user(const Json& arguments, bool by_email);

  Result<Json> calculate(const Json& arguments);
  Result<Json> cancel(const Json& arguments);
  Result<Json> exchange(const Json& arguments);
  Result<Json> find_user_by_email(const Json& arguments) { return find_user(arguments, true); }
  Result<Json> find_user_by_name(const Json& arguments) { return find_user(arguments, false); }
  Result<Json> item_details(const Json& arguments);
  Result<Json> list_products(const Json& arguments);
  Result<Json> modify_address(const Json& arguments);
  Result<Json> modify_items(const Json& arguments);
  Result<Json> modify_payment(const Json& arguments);
  Result<Json> modify_user_address(const Json& arguments);
  Result<Json> order_details(const Json& arguments);
  Result<Json> product_details(const Json& arguments);
  Result<Json> return_items(const Json& arguments);
  Result<Json> transfer(const Json&) { return Json("Transfer successful"); }
  Result<Json> user_details(const Json& arguments);

  Json db_;
};

}  // namespace ingot::eval
