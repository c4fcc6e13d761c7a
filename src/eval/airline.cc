#include "eval/airline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "eval/python_json.h"
#include "eval/task.h"

namespace ingot::eval {
namespace {

// The published world's clock and the ids that it hands out, in order.
constexpr const char* kNow = "2024-05-15T15:00:00";
constexpr const char* kNewReservations[] = {"HATHAT", "HATHAU", "HATHAV"};
constexpr const char* kNewCertificates[] = {"certificate_3221322", "certificate_3221323", "certificate_3221324"};
constexpr int64_t kInsurancePrice = 30, kBaggagePrice = 50;  // dollars, of a passenger and of a bag
constexpr std::array<std::pair<const char*, const char*>, 20> kAirports = {
    {{"SFO", "San Francisco"}, {"JFK", "New York"},    {"LAX", "Los Angeles"}, {"ORD", "Chicago"},      {"DFW", "Dallas"},
     {"DEN", "Denver"},        {"SEA", "Seattle"},     {"ATL", "Atlanta"},     {"MIA", "Miami"},        {"BOS", "Boston"},
     {"PHX", "Phoenix"},       {"IAH", "Houston"},     {"LAS", "Las Vegas"},   {"MCO", "Orlando"},      {"EWR", "Newark"},
     {"CLT", "Charlotte"},     {"MSP", "Minneapolis"}, {"DTW", "Detroit"},     {"PHL", "Philadelphia"}, {"LGA", "LaGuardia"}}};

Result<std::string> one_of(const Json& arguments, const char* name, std::initializer_list<const char*> choices) {
  INGOT_ASSIGN(std::string value, text_argument(arguments, name));
  if (std::find(choices.begin(), choices.end(), value) == choices.end()) return fail("argument '{}' cannot be '{}'", name, value);
  return value;
}

// Objects of which only these members, all of them text, are kept; `amount`, a whole number, beside them when asked for.
Result<Json> objects_argument(const Json& arguments, const char* name, std::initializer_list<const char*> members, bool with_amount) {
  if (!arguments[name].is_array()) return fail("argument '{}' is not a list", name);
  Json kept = Json::array();
  for (const Json& one : arguments[name]) {
    if (!one.is_object()) return fail("argument '{}' is not a list of objects", name);
    Json& object = kept.emplace_back(Json::object());
    for (const char* member : members) {
      INGOT_ASSIGN(object[member], text_argument(one, member));
    }
    if (with_amount) {
      INGOT_ASSIGN(object["amount"], integer_argument(one, "amount"));
    }
  }
  return kept;
}
Result<Json> flights_argument(const Json& arguments) { return objects_argument(arguments, "flights", {"flight_number", "date"}, false); }
Result<Json> passengers_argument(const Json& arguments) {
  return objects_argument(arguments, "passengers", {"first_name", "last_name", "dob"}, false);
}

bool has_balance(const Json& method) { return method["source"] == "gift_card" || method["source"] == "certificate"; }
void take(Json& gift_card, int64_t amount) { gift_card["amount"] = gift_card["amount"].get<double>() - static_cast<double>(amount); }

}  // namespace

const Tau2Tool<AirlineDesk> AirlineDesk::kTools[14] = {
    {"book_reservation",
     "user_id origin destination flight_type cabin flights passengers payment_methods total_baggages nonfree_baggages insurance",
     &AirlineDesk::book},
    {"calculate", "expression", &AirlineDesk::calculate},
    {"cancel_reservation", "reservation_id", &AirlineDesk::cancel},
    {"get_flight_status", "flight_number date", &AirlineDesk::flight_status},
    {"get_reservation_details", "reservation_id", &AirlineDesk::reservation_details},
    {"get_user_details", "user_id", &AirlineDesk::user_details},
    {"list_all_airports", "", &AirlineDesk::list_airports},
    {"search_direct_flight", "origin destination date", &AirlineDesk::search_direct},
    {"search_onestop_flight", "origin destination date", &AirlineDesk::search_onestop},
    {"send_certificate", "user_id amount", &AirlineDesk::send_certificate},
    {"transfer_to_human_agents", "summary", &AirlineDesk::transfer},
    {"update_reservation_baggages", "reservation_id total_baggages nonfree_baggages payment_id", &AirlineDesk::update_baggages},
    {"update_reservation_flights", "reservation_id cabin flights payment_id", &AirlineDesk::update_flights},
    {"update_reservation_passengers", "reservation_id passengers", &AirlineDesk::update_passengers},
};

Result<AirlineDesk> AirlineDesk::create(Json db) {
  for (const char* part : {"flights", "users", "reservations"})
    if (!db.is_object() || !db.contains(part) || !db[part].is_object()) return fail("the airline database has no object `{}`", part);
  for (auto& [id, reservation] : db["reservations"].items())
    if (!reservation.contains("status")) reservation["status"] = nullptr;
  // Balances are floats in the published state, and written as whole numbers in its file.
  for (auto& [id, user] : db["users"].items())
    for (auto& [method_id, method] : user["payment_methods"].items())
      if (has_balance(method)) method["amount"] = method["amount"].get<double>();
  return AirlineDesk(std::move(db));
}

std::string AirlineDesk::hash(Tau2Side side) const { return side == Tau2Side::kAgent ? sha256_hex(python_dumps_sorted(db_)) : ""; }

std::string AirlineDesk::call(Tau2Side side, const std::string& tool, const Json& arguments) {
  return tool_text(side == Tau2Side::kAgent ? run_tool(*this, kTools, tool, arguments) : fail("Tool '{}' not found.", tool));
}

Result<Json*> AirlineDesk::find(const char* part, const char* noun, const std::string& id) {
  const auto found = db_[part].find(id);
  if (found == db_[part].end()) return fail("{} {} not found", noun, id);
  return &*found;
}

Result<Json*> AirlineDesk::reservation(const Json& arguments) {
  INGOT_ASSIGN(const std::string id, text_argument(arguments, "reservation_id"));
  return find("reservations", "Reservation", id);
}

Result<Json*> AirlineDesk::bookable(const Json& flight, const std::string& cabin, size_t num_seats) {
  const auto number = flight["flight_number"].get<std::string>(), date = flight["date"].get<std::string>();
  INGOT_ASSIGN(Json * found, find("flights", "Flight", number));
  const auto day = (*found)["dates"].find(date);
  if (day == (*found)["dates"].end()) return fail("Flight {} not found on date {}", number, date);
  if ((*day)["status"] != "available") return fail("Flight {} not available on date {}", number, date);
  if (!(*day)["available_seats"].contains(cabin)) return fail("'{}'", cabin);
  if ((*day)["available_seats"][cabin].get<int64_t>() < static_cast<int64_t>(num_seats))
    return fail("Not enough seats on flight {}", number);
  return &*day;
}

Result<Json> AirlineDesk::reserved_flight(const Json& flight, const std::string& cabin, const Json& day) {
  INGOT_ASSIGN(const Json* found, find("flights", "Flight", flight["flight_number"].get<std::string>()));
  return Json{{"flight_number", flight["flight_number"]},
              {"origin", (*found)["origin"]},
              {"destination", (*found)["destination"]},
              {"date", flight["date"]},
              {"price", day["prices"][cabin]}};
}

Result<> AirlineDesk::pay_for_change(Json& reservation, const std::string& payment_id, int64_t price) {
  INGOT_ASSIGN(Json * user, find("users", "User", reservation["user_id"].get<std::string>()));
  const auto method = (*user)["payment_methods"].find(payment_id);
  if (method == (*user)["payment_methods"].end()) return fail("Payment method not found");
  if ((*method)["source"] == "certificate") return fail("Certificate cannot be used to update reservation");
  if ((*method)["source"] == "gift_card") {
    if ((*method)["amount"].get<double>() < static_cast<double>(price)) return fail("Gift card balance is not enough");
    take(*method, price);
  }
  if (price != 0) reservation["payment_history"].push_back({{"payment_id", payment_id}, {"amount", price}});
  return {};
}

Json AirlineDesk::search(const Search& wanted) const {
  Json found = Json::array();
  for (const auto& [number, flight] : db_["flights"].items()) {
    const auto day = flight["dates"].find(wanted.date);
    const bool fits = (wanted.origin.empty() || flight["origin"] == wanted.origin) &&
                      (wanted.destination.empty() || flight["destination"] == wanted.destination) && day != flight["dates"].end() &&
                      (*day)["status"] == "available" &&
                      flight["scheduled_departure_time_est"].get_ref<const std::string&>() >= wanted.leave_after;
    if (!fits) continue;
    found.push_back({{"flight_number", number},
                     {"origin", flight["origin"]},
                     {"destination", flight["destination"]},
                     {"status", "available"},
                     {"scheduled_departure_time_est", flight["scheduled_departure_time_est"]},
                     {"scheduled_arrival_time_est", flight["scheduled_arrival_time_est"]},
                     {"date", nullptr},
                     {"available_seats", (*day)["available_seats"]},
                     {"prices", (*day)["prices"]}});
  }
  return found;
}

Result<AirlineDesk::Search> AirlineDesk::search_argument(const Json& arguments) const {
  Search wanted;
  INGOT_ASSIGN(wanted.date, text_argument(arguments, "date"));
  INGOT_ASSIGN(wanted.origin, text_argument(arguments, "origin"));
  INGOT_ASSIGN(wanted.destination, text_argument(arguments, "destination"));
  return wanted;
}

Result<Json> AirlineDesk::book(const Json& arguments) {
  INGOT_ASSIGN(const Json flights, flights_argument(arguments));
  INGOT_ASSIGN(const Json passengers, passengers_argument(arguments));
  INGOT_ASSIGN(const Json payments, objects_argument(arguments, "payment_methods", {"payment_id"}, true));
  INGOT_ASSIGN(const std::string user_id, text_argument(arguments, "user_id"));
  INGOT_ASSIGN(Json * user, find("users", "User", user_id));
  const auto id = std::find_if(std::begin(kNewReservations), std::end(kNewReservations),
                               [&](const char* one) { return !db_["reservations"].contains(one); });
  if (id == std::end(kNewReservations)) return fail("Too many reservations");
  Json reservation = {{"reservation_id", *id}, {"user_id", user_id}};
  INGOT_ASSIGN(reservation["origin"], text_argument(arguments, "origin"));
  INGOT_ASSIGN(reservation["destination"], text_argument(arguments, "destination"));
  INGOT_ASSIGN(reservation["flight_type"], one_of(arguments, "flight_type", {"round_trip", "one_way"}));
  INGOT_ASSIGN(const std::string cabin, one_of(arguments, "cabin", {"business", "economy", "basic_economy"}));
  reservation["cabin"] = cabin;
  reservation["flights"] = Json::array();
  reservation["passengers"] = passengers;
  reservation["payment_history"] = payments;
  reservation["created_at"] = kNow;
  INGOT_ASSIGN(reservation["total_baggages"], integer_argument(arguments, "total_baggages"));
  INGOT_ASSIGN(const int64_t num_paid_bags, integer_argument(arguments, "nonfree_baggages"));
  reservation["nonfree_baggages"] = num_paid_bags;
  INGOT_ASSIGN(reservation["insurance"], one_of(arguments, "insurance", {"yes", "no"}));
  reservation["status"] = nullptr;

  const auto num_passengers = static_cast<int64_t>(passengers.size());
  int64_t price = kBaggagePrice * num_paid_bags + (reservation["insurance"] == "yes" ? kInsurancePrice * num_passengers : 0);
  std::vector<Json*> days;
  for (const Json& flight : flights) {
    INGOT_ASSIGN(Json * day, bookable(flight, cabin, passengers.size()));
    INGOT_ASSIGN(Json reserved, reserved_flight(flight, cabin, *day));
    price += reserved["price"].get<int64_t>() * num_passengers;
    reservation["flights"].push_back(std::move(reserved));
    days.push_back(day);
  }
  Json& methods = (*user)["payment_methods"];
  int64_t paid = 0;
  for (const Json& payment : payments) {
    const auto payment_id = payment["payment_id"].get<std::string>();
    const auto amount = payment["amount"].get<int64_t>();
    if (!methods.contains(payment_id)) return fail("Payment method {} not found", payment_id);
    if (has_balance(methods[payment_id]) && methods[payment_id]["amount"].get<double>() < static_cast<double>(amount))
      return fail("Not enough balance in payment method {}", payment_id);
    paid += amount;
  }
  if (paid != price) return fail("Payment amount does not add up, total price is {}, but paid {}", price, paid);

  for (const Json& payment : payments) {
    const auto payment_id = payment["payment_id"].get<std::string>();
    if (!methods.contains(payment_id)) return fail("'{}'", payment_id);  // a certificate that is named twice is gone, there too
    if (methods[payment_id]["source"] == "gift_card") take(methods[payment_id], payment["amount"].get<int64_t>());
    if (methods[payment_id]["source"] == "certificate") methods.erase(payment_id);
  }
  for (Json* day : days) (*day)["available_seats"][cabin] = (*day)["available_seats"][cabin].get<int64_t>() - num_passengers;
  (*user)["reservations"].push_back(*id);
  db_["reservations"][*id] = reservation;
  return reservation;
}

Result<Json> AirlineDesk::calculate(const Json& arguments) {
  INGOT_ASSIGN(const std::string expression, text_argument(arguments, "expression"));
  return tau2_calculate(expression).map([](std::string value) { return Json(std::move(value)); });
}

Result<Json> AirlineDesk::cancel(const Json& arguments) {
  INGOT_ASSIGN(Json * found, reservation(arguments));
  Json refunds = Json::array();
  for (const Json& payment : (*found)["payment_history"])
    refunds.push_back({{"payment_id", payment["payment_id"]}, {"amount", -payment["amount"].get<int64_t>()}});
  for (Json& refund : refunds) (*found)["payment_history"].push_back(std::move(refund));
  (*found)["status"] = "cancelled";
  return *found;
}

Result<Json> AirlineDesk::flight_status(const Json& arguments) {
  INGOT_ASSIGN(const std::string number, text_argument(arguments, "flight_number"));
  INGOT_ASSIGN(const std::string date, text_argument(arguments, "date"));
  INGOT_ASSIGN(const Json* flight, find("flights", "Flight", number));
  const auto day = (*flight)["dates"].find(date);
  if (day == (*flight)["dates"].end()) return fail("Flight {} not found on date {}", number, date);
  return (*day)["status"];
}

Result<Json> AirlineDesk::list_airports(const Json&) {
  Json airports = Json::array();
  for (const auto& [code, city] : kAirports) airports.push_back({{"iata", code}, {"city", city}});
  return airports;
}

Result<Json> AirlineDesk::reservation_details(const Json& arguments) {
  INGOT_ASSIGN(const Json* found, reservation(arguments));
  return *found;
}

Result<Json> AirlineDesk::user_details(const Json& arguments) {
  INGOT_ASSIGN(const std::string id, text_argument(arguments, "user_id"));
  INGOT_ASSIGN(const Json* found, find("users", "User", id));
  return *found;
}

Result<Json> AirlineDesk::search_direct(const Json& arguments) {
  return search_argument(arguments).map([&](const Search& s) { return search(s); });
}

Result<Json> AirlineDesk::search_onestop(const Json& arguments) {
  INGOT_ASSIGN(const Search wanted, search_argument(arguments));
  Json pairs = Json::array();
  for (Json& first : search({wanted.date, wanted.origin, "", ""})) {
    const auto arrival = first["scheduled_arrival_time_est"].get<std::string>();
    std::string date = wanted.date;
    if (arrival.find("+1") != std::string::npos)  // every flight is in May, and the day after the 8th is the 9, without a zero
      date = fmt::format("2024-05-{}", std::atoi(date.substr(date.size() - std::min<size_t>(2, date.size())).c_str()) + 1);
    first["date"] = wanted.date;
    for (Json& second : search({date, first["destination"], wanted.destination, arrival})) {
      second["date"] = date;
      pairs.push_back({first, second});
    }
  }
  return pairs;
}

Result<Json> AirlineDesk::send_certificate(const Json& arguments) {
  INGOT_ASSIGN(const std::string user_id, text_argument(arguments, "user_id"));
  INGOT_ASSIGN(const Json amount, number_argument(arguments, "amount"));
  INGOT_ASSIGN(Json * user, find("users", "User", user_id));
  for (const char* id : kNewCertificates) {
    if ((*user)["payment_methods"].contains(id)) continue;
    (*user)["payment_methods"][id] = {{"source", "certificate"}, {"id", id}, {"amount", amount.get<double>()}};
    return Json(fmt::format("Certificate {} added to user {} with amount {}.", id, user_id, python_dumps_sorted(amount)));
  }
  return fail("Too many certificates");
}

Result<Json> AirlineDesk::update_baggages(const Json& arguments) {
  INGOT_ASSIGN(Json * found, reservation(arguments));
  INGOT_TRY(integer_argument(arguments, "total_baggages"));
  INGOT_ASSIGN(const int64_t paid, integer_argument(arguments, "nonfree_baggages"));
  INGOT_ASSIGN(const std::string payment_id, text_argument(arguments, "payment_id"));
  INGOT_TRY(pay_for_change(*found, payment_id, kBaggagePrice * std::max<int64_t>(0, paid - (*found)["nonfree_baggages"].get<int64_t>())));
  // As they were given: 3.0 is another state than 3.
  (*found)["total_baggages"] = arguments["total_baggages"];
  (*found)["nonfree_baggages"] = arguments["nonfree_baggages"];
  return *found;
}

Result<Json> AirlineDesk::update_flights(const Json& arguments) {
  INGOT_ASSIGN(const Json flights, flights_argument(arguments));
  INGOT_ASSIGN(Json * found, reservation(arguments));
  INGOT_ASSIGN(const std::string cabin, text_argument(arguments, "cabin"));
  INGOT_ASSIGN(const std::string payment_id, text_argument(arguments, "payment_id"));
  const Json& old_flights = (*found)["flights"];
  const size_t num_passengers = (*found)["passengers"].size();
  Json new_flights = Json::array();
  int64_t price = 0;  // of one passenger
  for (const Json& flight : flights) {
    // A flight that is kept, in the same cabin, keeps its price.
    const auto kept = std::find_if(old_flights.begin(), old_flights.end(), [&](const Json& old) {
      return old["flight_number"] == flight["flight_number"] && old["date"] == flight["date"] && cabin == (*found)["cabin"];
    });
    if (kept != old_flights.end()) {
      new_flights.push_back(*kept);
    } else {
      INGOT_ASSIGN(const Json* day, bookable(flight, cabin, num_passengers));
      INGOT_ASSIGN(Json reserved, reserved_flight(flight, cabin, *day));
      new_flights.push_back(std::move(reserved));
    }
    price += new_flights.back()["price"].get<int64_t>();
  }
  for (const Json& flight : old_flights) price -= flight["price"].get<int64_t>();
  INGOT_TRY(pay_for_change(*found, payment_id, price * static_cast<int64_t>(num_passengers)));
  (*found)["flights"] = std::move(new_flights);
  (*found)["cabin"] = cabin;
  return *found;
}

Result<Json> AirlineDesk::update_passengers(const Json& arguments) {
  INGOT_ASSIGN(Json passengers, passengers_argument(arguments));
  INGOT_ASSIGN(Json * found, reservation(arguments));
  if (passengers.size() != (*found)["passengers"].size()) return fail("Number of passengers does not match");
  (*found)["passengers"] = std::move(passengers);
  return *found;
}

}  // namespace ingot::eval
