// tau2-bench's airline desk: 14 tools over a JSON database (sierra-research/tau2-bench, MIT). A tool reads or changes the database as the
// published one does, its oddities included: a cancellation gives no seat back, a change of flights takes none.
#pragma once

#include "eval/tau2_world.h"

namespace ingot::eval {

class AirlineDesk : public Tau2World {
 public:
  // `db`: flights, users, reservations, as in the data's db.json. Errors: a part that is missing.
  static Result<AirlineDesk> create(Json db);

  std::unique_ptr<Tau2World> copy() const override { return std::make_unique<AirlineDesk>(*this); }
  std::string call(Tau2Side side, const std::string& tool, const Json& arguments) override;
  std::string hash(Tau2Side side) const override;

 private:
  explicit AirlineDesk(Json db) : db_(std::move(db)) {}
  static const Tau2Tool<AirlineDesk> kTools[14];

  // Of a part of the database, by its id. Errors: "User x not found".
  Result<Json*> find(const char* part, const char* noun, const std::string& id);
  Result<Json*> reservation(const Json& arguments);
  // The flight on its day, where `num_seats` are left in `cabin`.
  Result<Json*> bookable(const Json& flight, const std::string& cabin, size_t num_seats);
  Result<Json> reserved_flight(const Json& flight, const std::string& cabin, const Json& day);
  // Takes `price` dollars (gives them, below 0) for a change; appends it to the reservation's payments. Errors leave both as they were.
  Result<> pay_for_change(Json& reservation, const std::string& payment_id, int64_t price);
  // Flights with seats to sell; an empty place or time is any.
  struct Search {
    std::string date, origin, destination, leave_after;
  };
  Json search(const Search& wanted) const;
  Result<Search> search_argument(const Json& arguments) const;

  Result<Json> book(const Json& arguments);
  Result<Json> calculate(const Json& arguments);
  Result<Json> cancel(const Json& arguments);
  Result<Json> flight_status(const Json& arguments);
  Result<Json> list_airports(const Json& arguments);
  Result<Json> reservation_details(const Json& arguments);
  Result<Json> search_direct(const Json& arguments);
  Result<Json> search_onestop(const Json& arguments);
  Result<Json> send_certificate(const Json& arguments);
  Result<Json> transfer(const Json&) { return Json("Transfer successful"); }
  Result<Json> update_baggages(const Json& arguments);
  Result<Json> update_flights(const Json& arguments);
  Result<Json> update_passengers(const Json& arguments);
  Result<Json> user_details(const Json& arguments);

  Json db_;
};

}  // namespace ingot::eval
