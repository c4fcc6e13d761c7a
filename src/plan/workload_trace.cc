#include "plan/workload_trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/file_map.h"
#include "base/rng.h"

namespace ingot::plan {

namespace {
constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr int64_t kMaxLength = int64_t{1} << 24;
constexpr double kMaxTimestampMs = 1e12;
constexpr uint64_t kBlockStream = 0xb10c;

Result<int64_t> whole_number(const Json& object, const char* name, int64_t least, const std::string& where) {
  const auto it = object.find(name);
  if (it == object.end()) return fail("{}: field {} is missing", where, name);
  if (!it->is_number_integer() || it->get<int64_t>() < least || it->get<int64_t>() > kMaxLength)
    return fail("{}: field {} is {}, not a whole number from {} to {}", where, name, it->dump(), least, kMaxLength);
  return it->get<int64_t>();
}

// Milliseconds since the first request.
Result<double> timestamp_ms(const Json& object, const std::string& where) {
  const auto it = object.find("timestamp");
  if (it == object.end()) return fail("{}: field timestamp is missing", where);
  if (!it->is_number() || !(it->get<double>() >= 0 && it->get<double>() <= kMaxTimestampMs))
    return fail("{}: field timestamp is {}, not a number of ms", where, it->dump());
  return it->get<double>();
}

Result<PlannedRequest> mooncake_request(const Json& line, const std::string& where, const Workload& w) {
  PlannedRequest r;
  INGOT_ASSIGN(const int64_t input, whole_number(line, "input_length", 1, where));
  INGOT_ASSIGN(const int64_t output, whole_number(line, "output_length", 0, where));
  INGOT_ASSIGN(const double ms, timestamp_ms(line, where));
  const auto ids = line.find("hash_ids");
  const auto num_blocks = static_cast<size_t>((input + kTraceBlockTokens - 1) / kTraceBlockTokens);
  if (ids == line.end() || !ids->is_array() || ids->size() != num_blocks)
    return fail("{}: field hash_ids is not an array of {} numbers, one for each {} tokens of input_length {}", where, num_blocks,
                kTraceBlockTokens, input);
  const int64_t block = scaled(kTraceBlockTokens, w.length_scale);
  int64_t left = scaled(input, w.length_scale);
  for (const Json& id : *ids) {
    if (!id.is_number_integer()) return fail("{}: field hash_ids has {}, not a whole number", where, id.dump());
    if (left <= 0) break;
    const int64_t tokens = std::min(block, left);
    r.prompt.push_back({random_bits(kBlockStream, id.get<uint64_t>()) >> 1, tokens, PromptPiece::Role::user});
    left -= tokens;
  }
  if (left > 0) r.prompt.back().num_tokens += left;  // what rounding of the blocks took
  r.output_tokens = scaled(std::max<int64_t>(output, 1), w.length_scale);
  r.arrival_s = ms / 1e3;
  return r;
}

Result<PlannedRequest> recorded_request(const Json& line, const std::string& where, const Workload& w, bool& has_time) {
  PlannedRequest r;
  const bool has_prompt = line.contains("prompt");
  if (has_prompt == line.contains("messages")) return fail("{}: expected one of the fields prompt and messages", where);
  r.recorded = line[has_prompt ? "prompt" : "messages"];
  if (has_prompt ? !r.recorded.is_string() || r.recorded.get_ref<const std::string&>().empty()
                 : !r.recorded.is_array() || r.recorded.empty())
    return fail("{}: field {} is {}", where, has_prompt ? "prompt" : "messages", has_prompt ? "no text" : "no list of messages");
  r.output_tokens = scaled(w.output_len, w.length_scale);
  for (const char* name : {"max_tokens", "output_tokens"}) {
    if (!line.contains(name)) continue;
    INGOT_ASSIGN(const int64_t tokens, whole_number(line, name, 1, where));
    r.output_tokens = scaled(tokens, w.length_scale);
  }
  has_time = line.contains("timestamp");
  if (has_time) {
    INGOT_ASSIGN(const double ms, timestamp_ms(line, where));
    r.arrival_s = ms / 1e3;
  }
  return r;
}

Result<RecordedLoad> read_json_lines(std::string_view text, const Workload& w, int64_t limit) {
  RecordedLoad load;
  bool all_have_times = true;
  INGOT_TRY(for_each_json_line(text, w.file, [&](Json line, const std::string& where) -> Result<bool> {
    if (!line.is_object()) return fail("{}: expected an object", where);
    bool has_time = true;
    auto request = w.kind == Workload::Kind::mooncake ? mooncake_request(line, where, w) : recorded_request(line, where, w, has_time);
    if (!request) return forward_error(std::move(request).error());
    all_have_times = all_have_times && has_time;
    if (has_time && all_have_times && !load.requests.empty() && request->arrival_s < load.requests.back().arrival_s)
      return fail("{}: field timestamp is before that of the line above", where);
    load.requests.push_back(std::move(*request));
    return static_cast<int64_t>(load.requests.size()) < limit;
  }));
  load.has_times = all_have_times;
  return load;
}

// "2023-11-16 18:17:03.9799600" as seconds since an arbitrary day.
std::optional<double> seconds_of(const std::string& text) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0;
  double second = 0;
  if (std::sscanf(text.c_str(), "%d-%d-%d %d:%d:%lf", &year, &month, &day, &hour, &minute, &second) != 6) return std::nullopt;
  if (year < 1970 || year > 9999 || month < 1 || month > 12 || day < 1 || day > 31) return std::nullopt;
  if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || !(second >= 0 && second < 61)) return std::nullopt;
  // Days by the civil calendar (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
  const int y = year - (month <= 2 ? 1 : 0);
  const int era = y / 400, in_era = y - era * 400;
  const int in_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  const int days = era * 146097 + in_era * 365 + in_era / 4 - in_era / 100 + in_year;
  return days * 86400.0 + hour * 3600.0 + minute * 60.0 + second;
}

Result<RecordedLoad> read_azure(std::string_view text, const Workload& w, int64_t limit, uint64_t seed) {
  RecordedLoad load;
  load.has_times = true;
  int64_t line_number = 0;
  while (!text.empty() && static_cast<int64_t>(load.requests.size()) < limit) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty()) continue;
    if (line_number == 1) {
      if (line != "TIMESTAMP,ContextTokens,GeneratedTokens")
        return fail("{}:1: expected the columns TIMESTAMP,ContextTokens,GeneratedTokens", w.file);
      continue;
    }
    const size_t first = line.find(','), second = line.rfind(',');
    const std::string where = fmt::format("{}:{}", w.file, line_number);
    const auto at = seconds_of(line.substr(0, first));
    int64_t input = 0, output = 0;
    const auto read = [](std::string_view field, int64_t& value) {
      const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), value);
      return error == std::errc() && stop == field.data() + field.size() && value >= 0 && value <= kMaxLength;
    };
    if (!at) return fail("{}: TIMESTAMP is no time like 2023-11-16 18:17:03.97", where);
    if (first == second || !read(std::string_view(line).substr(first + 1, second - first - 1), input))
      return fail("{}: ContextTokens is no whole number", where);
    if (!read(std::string_view(line).substr(second + 1), output)) return fail("{}: GeneratedTokens is no whole number", where);
    PlannedRequest r;
    r.arrival_s = *at;
    // Nothing is known of the words: every prompt is its own.
    r.prompt.push_back({random_bits(mix64(seed) + 7, load.requests.size()) >> 1, scaled(std::max<int64_t>(input, 1), w.length_scale)});
    r.output_tokens = scaled(std::max<int64_t>(output, 1), w.length_scale);
    if (!load.requests.empty() && r.arrival_s < load.requests.back().arrival_s)
      return fail("{}: TIMESTAMP is before the line above", where);
    load.requests.push_back(std::move(r));
  }
  return load;
}
}  // namespace

Result<RecordedLoad> read_recorded_load(const Workload& w, int64_t limit, uint64_t seed) {
  INGOT_ASSIGN(const FileMap file, FileMap::open(w.file));
  if (file.size() > kMaxBytes) return fail("{} has {} bytes, more than {}", w.file, file.size(), kMaxBytes);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.size());
  RecordedLoad load;
  if (w.kind == Workload::Kind::azure) {
    INGOT_ASSIGN(load, read_azure(text, w, limit, seed));
  } else {
    INGOT_ASSIGN(load, read_json_lines(text, w, limit));
  }
  if (load.requests.empty()) return fail("{} has no request", w.file);
  const double start = load.requests.front().arrival_s;
  for (size_t i = 0; i < load.requests.size(); ++i) {
    PlannedRequest& r = load.requests[i];
    r.session = static_cast<int64_t>(i);
    r.arrival_s = load.has_times ? (r.arrival_s - start) * w.time_scale : 0;
  }
  return load;
}

}  // namespace ingot::plan
