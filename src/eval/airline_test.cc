// A reward that is wrong because the desk is: the state after the gold actions is the published one, for every task.
#include "eval/airline.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "base/file_map.h"

namespace ingot::eval {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::filesystem::path kData = std::filesystem::path(INGOT_SHARED_DIR) / "data/eval/tau2/domains/airline";
Json read_data(const std::string& name) {
  return parse_json(read_file(kData / name, size_t{1} << 26).value(), (kData / name).string()).value();
}

TEST(Airline, GoldActionsGiveTheGoldHashOfEveryTask) {
  if (!std::filesystem::exists(kData)) GTEST_SKIP() << "../shared/data is not there";
  const Json tasks = read_data("tasks.json"), gold = read_data("gold_hashes.json");
  const AirlineDesk desk = AirlineDesk::create(read_data("db_rebuilt.json")).value();
  const std::string before = desk.hash(Tau2Side::kAgent);
  EXPECT_EQ(before, gold["initial_db_hash"]);
  ASSERT_EQ(tasks.size(), 50u);
  int changed = 0;
  for (const Json& task : tasks) {
    AirlineDesk copy = desk;
    const Json& expected = gold["tasks"][task["id"].get<std::string>()];
    for (const Json& action : task["evaluation_criteria"]["actions"]) {
      const std::string result = copy.call(Tau2Side::kAgent, action["name"], action["arguments"]);
      EXPECT_FALSE(result.starts_with("Error: ")) << task["id"] << " " << action["name"] << ": " << result;
    }
    const std::string after = copy.hash(Tau2Side::kAgent);
    EXPECT_EQ(after, expected["gold_db_hash"]) << task["id"];
    changed += after != before;
  }
  EXPECT_GT(changed, 20) << "a desk that does nothing must not pass";
}

// One flight each way, and a third with a change on the way that lands after midnight.
Json small_db() {
  return Json::parse(R"({"flights": {
      "F1": {"flight_number": "F1", "origin": "SFO", "destination": "JFK", "scheduled_departure_time_est": "09:00:00", "scheduled_arrival_time_est": "15:00:00",
        "dates": {"2024-05-20": {"status": "available", "available_seats": {"basic_economy": 0, "economy": 3, "business": 1}, "prices": {"basic_economy": 50, "economy": 100, "business": 300}},
                  "2024-05-21": {"status": "cancelled"}}},
      "F2": {"flight_number": "F2", "origin": "JFK", "destination": "BOS", "scheduled_departure_time_est": "14:00:00", "scheduled_arrival_time_est": "16:00:00",
        "dates": {"2024-05-20": {"status": "available", "available_seats": {"economy": 9}, "prices": {"economy": 40}}}},
      "F3": {"flight_number": "F3", "origin": "JFK", "destination": "BOS", "scheduled_departure_time_est": "23:00:00", "scheduled_arrival_time_est": "01:00:00+1",
        "dates": {"2024-05-20": {"status": "available", "available_seats": {"economy": 9}, "prices": {"economy": 30}}}}},
    "users": {"u": {"user_id": "u", "payment_methods": {"gift": {"source": "gift_card", "id": "gift", "amount": 150}, "card": {"source": "credit_card", "id": "card"},
      "paper": {"source": "certificate", "id": "paper", "amount": 60}}, "reservations": ["R1"]}},
    "reservations": {"R1": {"reservation_id": "R1", "user_id": "u", "cabin": "economy", "flights": [{"flight_number": "F2", "origin": "JFK", "destination": "BOS", "date": "2024-05-20", "price": 45}],
      "passengers": [{"first_name": "Ann", "last_name": "Lee", "dob": "1990-01-01"}], "payment_history": [{"payment_id": "card", "amount": 45}], "total_baggages": 1, "nonfree_baggages": 0}}})");
}

class SmallAirline : public ::testing::Test {
 protected:
  std::string call(const std::string& tool, const std::string& arguments) {
    return desk_.call(Tau2Side::kAgent, tool, Json::parse(arguments));
  }
  Json object(const std::string& tool, const std::string& arguments) { return Json::parse(call(tool, arguments)); }
  Json methods() { return object("get_user_details", R"({"user_id": "u"})")["payment_methods"]; }
  std::string book(const std::string& cabin, const std::string& date, const std::string& payments, int passengers = 2) {
    Json people = Json::array();
    for (int i = 0; i < passengers; ++i) people.push_back({{"first_name", "P"}, {"last_name", "Q"}, {"dob", "2000-01-01"}, {"seat", "1A"}});
    Json arguments = {{"user_id", "u"}, {"origin", "SFO"}, {"destination", "JFK"}, {"flight_type", "one_way"}, {"cabin", cabin}};
    arguments["flights"] = Json::parse(R"([{"flight_number": "F1", "date": ")" + date + R"("}])");
    arguments["passengers"] = people;
    arguments["payment_methods"] = Json::parse(payments);
    arguments["total_baggages"] = 3, arguments["nonfree_baggages"] = 1, arguments["insurance"] = "yes";
    return desk_.call(Tau2Side::kAgent, "book_reservation", arguments);
  }
  AirlineDesk desk_ = AirlineDesk::create(small_db()).value();
};

TEST_F(SmallAirline, RefusalsChangeNothing) {
  const std::string before = desk_.hash(Tau2Side::kAgent);
  const auto refused = [&](const std::string& result, const std::string& words) {
    EXPECT_THAT(result, AllOf(StartsWith("Error: "), HasSubstr(words)));
    EXPECT_EQ(desk_.hash(Tau2Side::kAgent), before) << words;
  };
  // Two passengers: 200 for the flight, 60 of insurance, 50 for the bag.
  refused(book("economy", "2024-05-20", R"([{"payment_id": "card", "amount": 300}])"), "total price is 310, but paid 300");
  refused(book("economy", "2024-05-20", R"([{"payment_id": "gift", "amount": 310}])"), "Not enough balance in payment method gift");
  refused(book("economy", "2024-05-20", R"([{"payment_id": "lost", "amount": 310}])"), "Payment method lost not found");
  refused(book("business", "2024-05-20", R"([{"payment_id": "card", "amount": 710}])"), "Not enough seats on flight F1");
  refused(book("economy", "2024-05-21", R"([{"payment_id": "card", "amount": 310}])"), "Flight F1 not available on date 2024-05-21");
  refused(book("economy", "2024-05-22", R"([{"payment_id": "card", "amount": 310}])"), "Flight F1 not found on date 2024-05-22");
  refused(book("first", "2024-05-20", "[]"), "cabin");
  refused(book("economy", "2024-05-20", R"(["card"])"), "payment_methods");
  const std::string baggage = R"("reservation_id": "R1", "total_baggages": 9, "nonfree_baggages": )";
  refused(call("update_reservation_baggages", "{" + baggage + R"(4, "payment_id": "gift"})"), "Gift card balance is not enough");
  refused(call("update_reservation_baggages", "{" + baggage + R"(0, "payment_id": "paper"})"), "Certificate cannot be used");
  refused(call("update_reservation_baggages", "{" + baggage + R"(0.5, "payment_id": "card"})"), "nonfree_baggages");
  refused(call("update_reservation_passengers", R"({"reservation_id": "R1", "passengers": []})"), "Number of passengers");
  refused(
      call(
          "update_reservation_flights",
          R"({"reservation_id": "R1", "cabin": "first", "flights": [{"flight_number": "F2", "date": "2024-05-20"}], "payment_id": "card"})"),
      "'first'");
  refused(call("cancel_reservation", R"({"reservation_id": "R2"})"), "Reservation R2 not found");
  refused(call("cancel_reservation", R"({"reservation_id": "R1", "reason": "rain"})"), "reason");
  refused(call("get_user_details", R"({"user_id": "nobody"})"), "User nobody not found");
  refused(call("get_flight_status", R"({"flight_number": "F9", "date": "2024-05-20"})"), "Flight F9 not found");
  refused(call("fly", "{}"), "Tool 'fly' not found.");
}

TEST_F(SmallAirline, ABookingTakesSeatsAndMoneyAndTheWholeCertificate) {
  const Json booked = Json::parse(
      book("economy", "2024-05-20",
           R"([{"payment_id": "gift", "amount": 150}, {"payment_id": "paper", "amount": 10}, {"payment_id": "card", "amount": 150}])"));
  EXPECT_EQ(booked["reservation_id"], "HATHAT");
  EXPECT_EQ(booked["created_at"], "2024-05-15T15:00:00");
  EXPECT_EQ(booked["passengers"][1], Json::parse(R"({"first_name": "P", "last_name": "Q", "dob": "2000-01-01"})"))
      << "members unknown to it go";
  EXPECT_EQ(methods()["gift"]["amount"].dump(), "0.0");
  EXPECT_FALSE(methods().contains("paper"));
  EXPECT_EQ(object("get_user_details", R"({"user_id": "u"})")["reservations"], Json::parse(R"(["R1", "HATHAT"])"));
  const Json found = object("search_direct_flight", R"({"origin": "SFO", "destination": "JFK", "date": "2024-05-20"})");
  EXPECT_EQ(found[0]["available_seats"]["economy"], 1);
  // A cancellation gives the money of the history back, and no seat.
  const Json cancelled = object("cancel_reservation", R"({"reservation_id": "HATHAT"})");
  EXPECT_EQ(cancelled["status"], "cancelled");
  ASSERT_EQ(cancelled["payment_history"].size(), 6u);
  EXPECT_EQ(cancelled["payment_history"][3], Json::parse(R"({"payment_id": "gift", "amount": -150})"));
  EXPECT_EQ(object("search_direct_flight", R"({"origin": "SFO", "destination": "JFK", "date": "2024-05-20"})"), found);
}

TEST_F(SmallAirline, AKeptFlightKeepsItsPriceUnlessTheCabinChanges) {
  const std::string flights = R"("flights": [{"flight_number": "F2", "date": "2024-05-20"}], "payment_id": "gift"})";
  EXPECT_EQ(object("update_reservation_flights", R"({"reservation_id": "R1", "cabin": "economy", )" + flights)["payment_history"].size(),
            1u);
  EXPECT_EQ(
      object(
          "update_reservation_flights",
          R"({"reservation_id": "R1", "cabin": "economy", "flights": [{"flight_number": "F3", "date": "2024-05-20"}], "payment_id": "gift"})")
          ["payment_history"][1],
      Json::parse(R"({"payment_id": "gift", "amount": -15})"));
  EXPECT_EQ(methods()["gift"]["amount"], 165.0);
}

TEST_F(SmallAirline, FlightsAreFoundAndCertificatesSent) {
  const Json pairs = object("search_onestop_flight", R"({"origin": "SFO", "destination": "BOS", "date": "2024-05-20"})");
  ASSERT_EQ(pairs.size(), 1u) << "the 14:00 leaves before the first flight lands";
  EXPECT_EQ(pairs[0][0]["flight_number"], "F1");
  EXPECT_EQ(pairs[0][1]["flight_number"], "F3");
  EXPECT_EQ(pairs[0][1]["date"], "2024-05-20");
  EXPECT_EQ(call("get_flight_status", R"({"flight_number": "F1", "date": "2024-05-21"})"), "cancelled");
  EXPECT_EQ(object("list_all_airports", "{}").size(), 20u);
  EXPECT_EQ(call("send_certificate", R"({"user_id": "u", "amount": 100})"),
            "Certificate certificate_3221322 added to user u with amount 100.");
  EXPECT_EQ(methods()["certificate_3221322"]["amount"].dump(), "100.0");
  EXPECT_EQ(call("calculate", R"({"expression": "2 * 3"})"), "6.0");
}

}  // namespace
}  // namespace ingot::eval
