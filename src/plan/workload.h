// Workloads as values: what requests arrive when, how long they are and which tokens they share. No tokenizer, no clock, no network: the
// load client makes text of them, the planner simulates them. Pure functions of (workload, seed); any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace ingot::plan {

// Part of a prompt. Token i of a piece is a function of (content, i) alone: pieces of one content begin alike, whatever their lengths.
struct PromptPiece {
  enum class Role : uint8_t { system, user, answer };
  uint64_t content = 0;  // role answer: of what the request with this answer_content() said, which only its server knows
  int64_t num_tokens = 0;
  Role role = Role::user;  // in a completion's prompt all are one text
};

struct PlannedRequest {
  int64_t index = 0;    // in the plan
  int64_t session = 0;  // requests of one session follow each other
  int64_t turn = 0;
  double arrival_s = 0;  // of turn 0, from the start; closed loops do not look at it
  double think_s = 0;    // of later turns: from the end of the answer before
  std::vector<PromptPiece> prompt;
  int64_t output_tokens = 1;
  // A recorded request (jsonl) has its own words in place of pieces: a text or a list of messages.
  Json recorded;

  int64_t input_tokens() const;  // 0 for a recorded one
  uint64_t answer_content() const { return uint64_t{1} << 63 | static_cast<uint64_t>(index); }
};

enum class Arrival : uint8_t { poisson, constant, trace };
std::string_view name_of(Arrival arrival);
Result<Arrival> arrival_named(std::string_view name);

struct Workload {
  // independent: unique prompts. shared_prefix: the first prefix_len tokens of input_len are those of the request's group. agent: sessions
  // that grow by an answer and a message a turn. The others are recorded.
  enum class Kind : uint8_t { independent, shared_prefix, agent, mooncake, azure, jsonl };
  std::string name;   // as given
  std::string about;  // what it is, in words
  Kind kind = Kind::independent;
  int64_t input_len = 1024, output_len = 1024;
  double range_ratio = 1;  // input and output are drawn uniformly from [ratio * len, len]
  int64_t prefix_len = 0;
  int64_t num_groups = 1;
  bool shuffled = false;       // requests of the groups in random order; else in turns
  int64_t num_requests = 100;  // sessions of an agent; recorded: 0, all
  Arrival arrival = Arrival::poisson;
  double rate = 0;          // a second; 0: not said
  int64_t concurrency = 0;  // > 0: meant as a closed loop
  // agent: system_len (tools and rules, the same for all), then turns: a message of input_len, or a tool's result of tool_len in every
  // turn but each `tool_turns`-th, and an answer of output_len.
  int64_t turns = 1, system_len = 0, tool_len = 0, tool_turns = 1;
  double think_s = 0, tool_s = 0;  // means of exponential pauses before a message and before a tool's result
  std::string file;                // recorded
  double time_scale = 1;           // recorded gaps are so many times as long
  double length_scale = 1;         // all lengths above are multiplied by it when requests are made
};

// article, aa-single, aa-short, shared-prefix, random-1k1k, random-8k1k, agent, mooncake:FILE, azure:FILE, jsonl:FILE.
// Errors: an unknown name, with those that exist; a kind of file without FILE.
Result<Workload> workload_named(std::string_view name);
std::vector<std::string> workload_names();

// A length at a scale: rounded, and at least 1 unless it is 0. Tokens.
int64_t scaled(int64_t tokens, double scale);

struct PlanOptions {
  uint64_t seed = 1;
  std::optional<double> rate = {};           // else the workload's
  std::optional<Arrival> arrival = {};       // else the workload's
  std::optional<int64_t> num_requests = {};  // else the workload's
  int64_t max_requests = 1'000'000;
};
// The requests in order of session start, each session's turns together. Equal seeds give equal plans. Errors: a file that cannot be read
// or has no request; trace arrivals of a workload without times.
Result<std::vector<PlannedRequest>> plan_requests(const Workload& workload, const PlanOptions& options);

// What a cache without limit would hold when requests are computed one after the other: the hit ratio that a workload asks for.
class PrefixOracle {
 public:
  // Tokens of the prompt that are there already (at most all but one); then the prompt and its answer are there, too.
  int64_t add(const PlannedRequest& request);

 private:
  std::unordered_map<uint64_t, std::unordered_map<uint64_t, int64_t>> seen_;  // chain of whole pieces before -> content -> tokens
};

}  // namespace ingot::plan
