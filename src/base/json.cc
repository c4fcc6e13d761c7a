#include "base/json.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ingot {
namespace {

// Builds the document as the library's own builder does, but with limits, and finds a key of a large object in constant time: an ordered
// object of the library looks through all members for each new one.
class LimitedBuilder {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  LimitedBuilder(Json& root, const JsonLimits& limits) : root_(root), limits_(limits) {}

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(number_integer_t value) { return put(value); }
  bool number_unsigned(number_unsigned_t value) { return put(value); }
  bool number_float(number_float_t value, const string_t&) { return put(value); }
  bool string(string_t& value) { return put(std::move(value)); }
  bool binary(binary_t& value) { return put(std::move(value)); }
  bool start_object(size_t) { return enter(Json::value_t::object); }
  bool end_object() { return leave(); }
  bool start_array(size_t) { return enter(Json::value_t::array); }
  bool end_array() { return leave(); }
  bool key(string_t& key) {
    Level& level = levels_.back();
    Members& members = level.value->get_ref<Json::object_t&>();
    if (members.size() == kSearched) {
      for (size_t i = 0; i < members.size(); ++i) level.places.emplace(members[i].first, i);
    }
    size_t place = members.size();
    if (place < kSearched) {
      place = static_cast<size_t>(std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.first == key; }) -
                                  members.begin());
    } else {
      place = level.places.emplace(key, place).first->second;
    }
    if (place == members.size()) {
      members.emplace_back(std::move(key), nullptr);
    } else if (limits_.reject_duplicate_keys) {
      error_ = fmt::format("duplicate key \"{}\"", key);
      return false;
    }
    next_ = &members[place].second;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) {
    // nlohmann's text: "[json.exception.parse_error.101] parse error at line 1, column 3: syntax error ..."
    std::string_view text = e.what();
    const size_t bracket = text.find("] ");
    error_ = fmt::format("{} (byte {})", bracket == std::string_view::npos ? text : text.substr(bracket + 2), position);
    return false;
  }

  const std::string& error() const { return error_; }

 private:
  using Members = std::vector<Json::object_t::value_type>;  // what an ordered object is
  static constexpr size_t kSearched = 16;                   // members that are looked through one by one

  struct Level {
    Json* value;                                     // an object or an array
    std::unordered_map<std::string, size_t> places;  // of an object's members, once there are kSearched
  };

  // Where the next value goes.
  Json& place() {
    if (levels_.empty()) return root_;
    if (Json& in = *levels_.back().value; in.is_array()) return in.get_ref<Json::array_t&>().emplace_back();
    return *next_;
  }
  template <class Value>
  bool put(Value&& value) {
    place() = Json(std::forward<Value>(value));
    return true;
  }
  bool enter(Json::value_t type) {
    if (static_cast<int>(levels_.size()) == limits_.max_depth) {
      error_ = fmt::format("nested deeper than {} levels", limits_.max_depth);
      return false;
    }
    Json& value = place();
    value = Json(type);
    levels_.push_back({&value, {}});
    return true;
  }
  bool leave() {
    levels_.pop_back();
    return true;
  }

  Json& root_;
  const JsonLimits& limits_;
  std::vector<Level> levels_;  // outermost first; a level's value stays where it is while levels above it are there
  Json* next_ = nullptr;       // of the innermost level, an object: the member that was named last
  std::string error_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  // The lexer takes a zero byte for the end of the text, whatever follows; no JSON text has one.
  if (const size_t at = text.find('\0'); at != std::string_view::npos) return fail("{} is not valid JSON: a zero byte at {}", what, at);
  Json root;
  LimitedBuilder builder(root, limits);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) return fail("{} is not valid JSON: {}", what, builder.error());
  return root;
}

Result<> for_each_json_line(std::string_view text, std::string_view name,
                            const std::function<Result<bool>(Json line, const std::string& where)>& visit) {
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", name, number);
    INGOT_ASSIGN(Json json, parse_json(line, where));
    INGOT_ASSIGN(const bool goes_on, visit(std::move(json), where));
    if (!goes_on) return {};
  }
  return {};
}

}  // namespace ingot
