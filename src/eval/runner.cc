#include "eval/runner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <unordered_map>

#include "base/log.h"
#include "eval/items_file.h"

namespace ingot::eval {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point from) { return std::chrono::duration<double>(Clock::now() - from).count(); }

// A bar on a terminal; a line now and then elsewhere.
class Progress {
 public:
  Progress(size_t done, size_t total, size_t right, bool show)
      : done_(done), begun_at_(done), total_(total), right_(right), show_(show), bar_(isatty(STDERR_FILENO) == 1) {}
  ~Progress() {
    if (show_ && bar_ && shown_) std::fputc('\n', stderr);
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(const Item& item) {
    ++done_, right_ += item.score.ok, tokens_ += item.completion_tokens;
    if (!show_) return;
    const auto now = Clock::now();
    if (done_ < total_ && now - told_ < std::chrono::milliseconds(bar_ ? 200 : 20'000)) return;
    told_ = now, shown_ = true;
    const double seconds = seconds_since(started_);
    const double left = seconds / static_cast<double>(done_ - begun_at_) * static_cast<double>(total_ - done_);
    const std::string figures =
        fmt::format("{} of {}, {:.1f} % right, {:.0f} tokens a second, {:.0f} s left", done_, total_,
                    100.0 * static_cast<double>(right_) / static_cast<double>(done_), static_cast<double>(tokens_) / seconds, left);
    if (!bar_) return log_info("{}", figures);
    const size_t filled = done_ * 30 / total_;
    std::fprintf(stderr, "\r[%s%s] %s  ", std::string(filled, '#').c_str(), std::string(30 - filled, ' ').c_str(), figures.c_str());
  }

 private:
  size_t done_, begun_at_, total_, right_;
  bool show_, bar_, shown_ = false;
  int64_t tokens_ = 0;
  Clock::time_point started_ = Clock::now(), told_ = started_;
};

Item make_item(const Task& task, const Question& question, const Reply& reply) {
  Item item;
  item.id = question.id;
  item.cluster = question.cluster;
  item.attempts = reply.attempts;
  item.seconds = reply.seconds;
  const Result<Answer> answer = reply.problem.empty() ? parse_answer(reply.body) : fail("{}", reply.problem);
  if (!answer) {
    item.finish_reason = "error";
    // What a server says of a secret question may quote it.
    item.error = task.secret ? fmt::format("HTTP {}", reply.status) : answer.error().message;
    item.score.no_answer = true;
    return item;
  }
  item.finish_reason = answer->finish_reason;
  item.prompt_tokens = answer->prompt_tokens;
  item.cached_tokens = answer->cached_tokens;
  item.completion_tokens = answer->completion_tokens;
  item.score = task.score(question, *answer);
  if (task.secret) {
    item.score.why.clear();
    return item;
  }
  item.output = answer->content;
  item.reasoning = answer->reasoning;
  for (const ToolCall& call : answer->calls) item.calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
  return item;
}

class Run {
 public:
  Run(const Task& task, const RunOptions& options, Asker& asker) : task_(task), options_(options), asker_(asker) {}

  Result<RunResult> all() {
    if (!options_.items.empty()) {
      INGOT_ASSIGN(file_, ItemsFile::open(options_.items, items_head(task_, options_.model)));
      answered_ = file_->take_earlier();
    }
    RunResult result;
    result.resumed = static_cast<int64_t>(answered_.size());
    for (size_t i = 0; i < task_.questions.size(); ++i)
      if (!answered_.contains(task_.questions[i].id)) waiting_.push_back(i);
    if (result.resumed > 0) log_info("{} of {} are answered in {}", result.resumed, task_.questions.size(), options_.items.string());
    const auto right = std::count_if(answered_.begin(), answered_.end(), [](const auto& i) { return i.second.score.ok; });
    Progress progress(answered_.size(), task_.questions.size(), static_cast<size_t>(right), options_.progress);
    progress_ = &progress;
    const auto started = Clock::now();
    if (!waiting_.empty()) {
      for (int i = 0; i < options_.concurrency && next_ < waiting_.size(); ++i) ask_next();
      asker_.run();
    }
    result.seconds = seconds_since(started);
    if (problem_) return forward_error(*problem_);
    for (const Question& q : task_.questions) result.items.push_back(std::move(answered_.at(q.id)));
    return result;
  }

 private:
  void ask_next() {
    const Question& question = task_.questions[waiting_[next_++]];
    Json body = {{"model", options_.model}};
    body.update(question.body);
    ++in_flight_;
    asker_.ask(question.path, body, [this, &question](Reply reply) { take(question, reply); });
  }

  void take(const Question& question, const Reply& reply) {
    --in_flight_;
    if (problem_) return;
    if (is_fatal(reply)) {
      const std::string said = task_.secret && reply.status != 0 ? fmt::format("HTTP {}", reply.status) : reply.problem;
      stop_with({fmt::format("{}: {} (attempt {}); {} of {} are answered", question.id, said, reply.attempts, answered_.size(),
                             task_.questions.size()),
                 options_.items.empty() ? "" : "run the same command again to go on"});
      return;
    }
    Item item = make_item(task_, question, reply);
    if (file_) {
      if (auto kept = file_->append(item); !kept) return stop_with(kept.error());
    }
    progress_->add(item);
    answered_.insert_or_assign(question.id, std::move(item));
    if (next_ < waiting_.size()) return ask_next();
    if (in_flight_ == 0) asker_.stop();
  }

  void stop_with(Error error) {
    problem_ = std::move(error);
    asker_.stop();
  }

  const Task& task_;
  const RunOptions& options_;
  Asker& asker_;
  std::optional<ItemsFile> file_;
  std::map<std::string, Item> answered_;
  std::vector<size_t> waiting_;  // numbers of questions, those from next_ on not yet asked
  size_t next_ = 0;
  int64_t in_flight_ = 0;
  std::optional<Error> problem_;
  Progress* progress_ = nullptr;
};

}  // namespace

Json items_head(const Task& task, const std::string& model) {
  return {{"schema", "ingot-eval-items/1"},
          {"task", task.name},
          {"rule", task.rule},
          {"model", model},
          {"prompts_sha256", prompts_sha256(task)}};
}

bool is_fatal(const Reply& reply) {
  return !reply.problem.empty() && (reply.status == 0 || reply.status == 401 || reply.status == 403 || reply.status == 404 ||
                                    reply.status == 405 || reply.status == 429 || reply.status >= 500);
}

Json item_json(const Item& item) {
  Json json = {{"id", item.id}, {"ok", item.score.ok}};
  if (!item.cluster.empty()) json["cluster"] = item.cluster;
  for (const auto& [name, right] : item.score.marks) json["marks"][name] = right;
  json["extracted"] = item.score.extracted;
  if (item.score.no_answer) json["no_answer"] = true;
  if (!item.score.why.empty()) json["why"] = item.score.why;
  json["finish_reason"] = item.finish_reason;
  if (!item.error.empty()) json["error"] = item.error;
  json["prompt_tokens"] = item.prompt_tokens;
  json["cached_tokens"] = item.cached_tokens;
  json["completion_tokens"] = item.completion_tokens;
  json["attempts"] = item.attempts;
  json["seconds"] = item.seconds;
  if (!item.output.empty()) json["output"] = item.output;
  if (!item.reasoning.empty()) json["reasoning"] = item.reasoning;
  if (!item.calls.is_null()) json["calls"] = item.calls;
  if (!item.conversation.is_null()) json["conversation"] = item.conversation;
  return json;
}

Result<Item> parse_item(const Json& json) {
  Item item;
  try {
    item.id = json.at("id").get<std::string>();
    item.score.ok = json.at("ok").get<bool>();
    item.cluster = json.value("cluster", "");
    if (json.contains("marks"))
      for (const auto& [name, right] : json["marks"].items()) item.score.marks.emplace_back(name, right.get<bool>());
    item.score.extracted = json.value("extracted", "");
    item.score.no_answer = json.value("no_answer", false);
    item.score.why = json.value("why", "");
    item.finish_reason = json.at("finish_reason").get<std::string>();
    item.error = json.value("error", "");
    item.prompt_tokens = json.value("prompt_tokens", int64_t{0});
    item.cached_tokens = json.value("cached_tokens", int64_t{0});
    item.completion_tokens = json.value("completion_tokens", int64_t{0});
    item.attempts = json.value("attempts", 1);
    item.seconds = json.value("seconds", 0.0);
    item.output = json.value("output", "");
    item.reasoning = json.value("reasoning", "");
    item.calls = json.value("calls", Json());
    item.conversation = json.value("conversation", Json());
  } catch (const Json::exception& error) {
    return fail("not an answer of `ingot eval`: {}", error.what());
  }
  return item;
}

Result<RunResult> run_task(const Task& task, const RunOptions& options, Asker& asker) {
  if (options.concurrency < 1) return fail("--concurrency {} is out of range: expected 1 or more", options.concurrency);
  return Run(task, options, asker).all();
}

}  // namespace ingot::eval
