// Asks a task's questions, many at once, and keeps each answer in a file as soon as it is there, so that a run that was broken off goes on
// where it ended. One thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "eval/asker.h"
#include "eval/task.h"

namespace ingot::eval {

// One question answered and scored.
struct Item {
  std::string id;
  std::string cluster;
  Score score;
  std::string finish_reason;  // "error": the server refused the question; it counts as wrong
  std::string error;          // what it said
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  int attempts = 1;
  double seconds = 0;
  std::string output, reasoning;  // empty in a secret task
  Json calls;                     // null: none
  Json conversation;              // of a task with several turns; null: one answer
};

Json item_json(const Item& item);
// Errors name the field.
Result<Item> parse_item(const Json& json);

struct RunOptions {
  int concurrency = 32;
  std::string model;            // name in the requests
  std::filesystem::path items;  // one line an answer; empty: kept nowhere
  bool progress = true;         // to standard error
};

struct RunResult {
  std::vector<Item> items;  // in the task's order
  int64_t resumed = 0;      // answered by an earlier run
  double seconds = 0;       // of this run
};

// The head of a run's items file: what was asked of whom.
Json items_head(const Task& task, const std::string& model);
// The run goes on after a question that the server refuses, but not without a server, a key, or the endpoint.
bool is_fatal(const Reply& reply);

// Errors: the items file belongs to another task, model or setting, or can't be written; the server is away or does not know the endpoint
// (what was answered until then is kept).
Result<RunResult> run_task(const Task& task, const RunOptions& options, Asker& asker);

}  // namespace ingot::eval
