#include "base/json.h"

#include <string>
#include <unordered_set>
#include <vector>

namespace ingot {
namespace {

// Builds the document with nlohmann's own DOM builder and refuses depth and duplicates on the way.
class LimitedBuilder {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  LimitedBuilder(Json& root, const JsonLimits& limits) : dom_(root, false), limits_(limits) {}

  bool null() { return dom_.null(); }
  bool boolean(bool value) { return dom_.boolean(value); }
  bool number_integer(number_integer_t value) { return dom_.number_integer(value); }
  bool number_unsigned(number_unsigned_t value) { return dom_.number_unsigned(value); }
  bool number_float(number_float_t value, const string_t& text) { return dom_.number_float(value, text); }
  bool string(string_t& value) { return dom_.string(value); }
  bool binary(binary_t& value) { return dom_.binary(value); }
  bool start_object(size_t size) { return enter() && (keys_.emplace_back(), dom_.start_object(size)); }
  bool end_object() {
    --depth_;
    keys_.pop_back();
    return dom_.end_object();
  }
  bool start_array(size_t size) { return enter() && dom_.start_array(size); }
  bool end_array() {
    --depth_;
    return dom_.end_array();
  }
  bool key(string_t& key) {
    if (limits_.reject_duplicate_keys && !keys_.back().insert(key).second) {
      error_ = fmt::format("duplicate key \"{}\"", key);
      return false;
    }
    return dom_.key(key);
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
  bool enter() {
    if (++depth_ <= limits_.max_depth) return true;
    error_ = fmt::format("nested deeper than {} levels", limits_.max_depth);
    return false;
  }

  nlohmann::detail::json_sax_dom_parser<Json> dom_;
  const JsonLimits& limits_;
  int depth_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;
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
