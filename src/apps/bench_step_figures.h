// What the local benchmarks have in common as values: spreads of repeated runs, the machine and its roofs, and what keeps work from being
// faster. No device, no clock.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace ingot::apps {

struct Spread {
  double median = 0, least = 0, most = 0;
};
// Of at least one number.
Spread spread_of(std::vector<double> values);

// What a machine does at most, measured.
struct Roofs {
  std::string memory_how, flop_how;  // what was measured
  double bytes_per_second = 0;       // 0: not measured
  double flop_per_second = 0;
  double reference_flop_per_second = 0;  // of this GPU, measured earlier with the vendor's library; 0: none known
  double cache_bytes_per_second = 0;     // of data that the cores' own caches hold; 0: not measured
  int64_t cache_bytes = 0;               // of the last cache before the memory; 0: not known

  double flop_roof() const;  // the greater one
};

enum class Binds : uint8_t {
  nothing,  // no roof was measured
  bytes,
  flop,
  cache,  // faster than the memory is: its data came from a cache, whose roof it has then
};
std::string_view name_of(Binds binds);

struct Bound {
  double seconds = 0;  // the least that the roof allows; 0: not known
  Binds by = Binds::nothing;
};
// Of work that moved `bytes`, `bytes_at_once` of them at a time, and computed `flop` in `seconds`. What is at once larger than the last
// cache is never said to have come from it: a time below the memory's roof then means that something was counted wrong.
Bound bound_of(double bytes, double flop, double seconds, double bytes_at_once, const Roofs& roofs);
// "0.86 bytes", "0.41 in cache", "in cache" where that roof was not measured, "-".
std::string bound_text(const Bound& bound, double seconds);

// Where it ran.
struct Machine {
  std::string device;  // "cpu", or the GPU
  std::string processor;
  int processors = 0;       // that this process may use
  int threads = 0;          // of the kernels
  double load_average = 0;  // of the minute before it began: what others did

  std::string text() const;
};

// What was run. Reports that differ in these are not of the same thing.
struct BenchedModel {
  std::string name;     // the checkpoint's folder, or the spec
  std::string weights;  // "checkpoint", or the format of random experts
  std::string kv_cache_dtype, device_matmul;
  int64_t layers = 0, weight_bytes = 0;
};

Json to_json(const Spread& spread);
Json to_json(const Roofs& roofs);
Json to_json(const Machine& machine);
Json to_json(const BenchedModel& model);
// bound, bound_ms, of_roof (null: not known).
void add_bound(Json& json, const Bound& bound, double seconds);
// The same back. Throw what Json throws where something is missing.
Spread spread_of(const Json& json);
Roofs roofs_of(const Json& json);
Machine machine_of(const Json& json);
BenchedModel model_of(const Json& json);

std::string roofs_text(const Roofs& roofs);
std::string model_text(const BenchedModel& model);

// Reads a report of this schema and version. `what`: "`ingot bench step`". Errors: another schema or version, or what parse threw.
template <class Parse>
auto read_report(const Json& json, std::string_view schema, int version, std::string_view what, Parse parse)
    -> Result<decltype(parse(json))> {
  if (!json.is_object() || json.value("schema", Json()) != schema) return fail("no report of {}: schema is not {}", what, schema);
  if (const Json its = json.value("version", Json()); its != version)
    return fail_hint("run the benchmark again", "the report has version {}; this program reads version {}", its.dump(), version);
  try {
    return parse(json);
  } catch (const Json::exception& e) {
    return fail("a report of {} that is cut or was changed: {}", what, e.what());
  }
}

// Writes the report to the file `json`, or with "-" to standard output in place of the text. Returns the exit code; what cannot be written
// is told on standard error, with the command's name.
int put_report(std::string_view command, const Json& report, const std::string& text, const std::string& json);

}  // namespace ingot::apps
