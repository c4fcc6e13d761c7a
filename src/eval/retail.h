// tau2-bench's retail shop: 16 tools over a JSON database (sierra-research/tau2-bench, MIT). A tool reads or changes the database as the
// published one does, its oddities included, so that the hash of the state after the same calls is the published one.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace ingot::eval {

class RetailShop {
 public:
  // `db`: products, users, orders, as in the data's db.json. Errors: a part that is missing.
  static Result<RetailShop> create(Json db);

  // What a call gives: text or JSON for the agent; an error is "Error: ...", and has changed nothing.
  std::string call(const std::string& tool, const Json& arguments);
  // SHA-256 of the state.
  std::string hash() const;

 private:
  explicit RetailShop(Json db) : db_(std::move(db)) {}
  Result<Json> run(const std::string& tool, const Json& arguments);

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

  Result<Json> cancel(const Json& arguments);
  Result<Json> exchange(const Json& arguments);
  Result<Json> modify_items(const Json& arguments);
  Result<Json> modify_payment(const Json& arguments);
  Result<Json> return_items(const Json& arguments);
  Result<Json> find_user(const Json& arguments, bool by_email);
  Result<Json> find_item(const std::string& id) const;

  Json db_;
};

// The value of an expression of numbers, + - * / ( ) as the `calculate` tool prints it. Errors: other characters, syntax, division by 0.
Result<std::string> retail_calculate(std::string_view expression);

}  // namespace ingot::eval
