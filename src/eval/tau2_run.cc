#include "eval/tau2_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "eval/items_file.h"

namespace ingot::eval {
namespace {

// A reply that ends all of the run.
struct Stop {
  std::mutex mutex;
  std::optional<Error> error;
  void set(Error e) {
    const std::lock_guard lock(mutex);
    if (!error) error = std::move(e);
  }
  bool is_set() {
    const std::lock_guard lock(mutex);
    return error.has_value();
  }
};

// Waits for the answer; the thread owns its client.
Tau2Chat chat_with(Asker& asker, Json body, Stop& stop) {
  return [&asker, body = std::move(body), &stop](const Json& messages) -> Result<Answer> {
    if (stop.is_set()) return fail("the run has ended");  // what is made of this conversation is kept nowhere
    Json request = body;
    request["messages"] = messages;
    Reply reply;
    asker.ask("/v1/chat/completions", request, [&](Reply r) {
      reply = std::move(r);
      asker.stop();
    });
    asker.run();
    if (reply.problem.empty()) return parse_answer(reply.body);
    if (is_fatal(reply)) stop.set({reply.problem, "run the same command again to go on"});
    return fail("{}", reply.problem);
  };
}

Item make_item(const Question& question, const Result<Tau2Outcome>& outcome) {
  Item item;
  item.id = question.id;
  item.cluster = question.cluster;
  if (!outcome) {
    item.finish_reason = "error";
    item.error = outcome.error().message;
    item.score.no_answer = true;
    return item;
  }
  item.score.ok = outcome->ok();
  item.score.marks = outcome->parts;
  item.score.extracted = outcome->ended;
  item.finish_reason = outcome->cut > 0 ? "length" : outcome->ended;
  item.prompt_tokens = outcome->prompt_tokens;
  item.cached_tokens = outcome->cached_tokens;
  item.completion_tokens = outcome->completion_tokens;
  item.conversation = outcome->messages;
  return item;
}

// "[mms_issue]..." is a task of that set.
std::vector<std::pair<std::string, std::string>> groups_of(const std::string& id) {
  const size_t end = id.find(']');
  if (!id.starts_with('[') || end == std::string::npos) return {};
  return {{"set", id.substr(1, end - 1)}};
}

}  // namespace

Result<Tau2Task> make_tau2(const Tau2Options& options) {
  if (options.trials < 1) return fail("--trials {} is out of range: expected 1 or more", options.trials);
  Tau2Task made;
  INGOT_ASSIGN(made.data, read_tau2(options.data, options.domain, options.split));
  Task& task = made.task;
  task.name = "tau2", task.rule = made.data.rule, task.first_mark = "reward";
  task.about = fmt::format("{}, split {}, half duplex, {} steps, customer: {} (figures with another are not comparable); reward = {}",
                           options.domain, options.split, options.limits.max_steps, options.user_name, made.data.reward);
  const auto num_judged = std::count_if(made.data.tasks.begin(), made.data.tasks.end(), [](const Json& one) {
    const Json& criteria = one["evaluation_criteria"];
    return tau2_counts(one, "NL_ASSERTION") && criteria.contains("nl_assertions") && !criteria["nl_assertions"].empty();
  });
  if (num_judged > 0)
    task.not_scored =
        fmt::format("NL_ASSERTION checks, which need an LLM judge ({} of the {} tasks have some)", num_judged, made.data.tasks.size());
  const std::string prompt = tau2_agent_prompt(made.data);
  for (int trial = 0; trial < options.trials; ++trial) {
    for (const Json& one : made.data.tasks) {
      Question q;
      q.cluster = options.domain + "-" + one["id"].get<std::string>();
      q.id = options.trials == 1 ? q.cluster : fmt::format("{}/{}", q.cluster, trial);
      q.path = "/v1/chat/completions";
      q.body = {{"messages", Json::array({{{"role", "system"}, {"content", prompt}}})},
                {"tools", made.data.tools},
                {"temperature", options.temperature},
                {"max_tokens", options.max_tokens},
                {"seed", 300 + trial}};
      q.key = one;
      q.groups = groups_of(one["id"].get<std::string>());
      task.questions.push_back(std::move(q));
    }
  }
  return made;
}

Result<RunResult> run_tau2(const Tau2Task& tau2, const Tau2Options& options, const RunOptions& run, const Tau2Endpoints& endpoints) {
  const Task& task = tau2.task;
  std::optional<ItemsFile> file;
  std::map<std::string, Item> answered;
  if (!run.items.empty()) {
    Json head = items_head(task, run.model);
    head["user"] = options.user_name;
    INGOT_ASSIGN(file, ItemsFile::open(run.items, head));
    answered = file->take_earlier();
  }
  RunResult result;
  result.resumed = static_cast<int64_t>(answered.size());
  std::vector<const Question*> waiting;
  for (const Question& q : task.questions)
    if (!answered.contains(q.id)) waiting.push_back(&q);

  Stop stop;
  std::mutex mutex;  // of `answered` and `file`
  std::atomic<size_t> next{0};
  const auto started = std::chrono::steady_clock::now();
  const auto work = [&] {
    auto agent = Asker::create(endpoints.agent), user = Asker::create(options.scripted_user ? endpoints.agent : endpoints.user);
    if (!agent || !user) return stop.set(agent ? user.error() : agent.error());
    for (size_t i = next++; i < waiting.size() && !stop.is_set(); i = next++) {
      const Question& q = *waiting[i];
      Json body = {{"model", run.model}};
      body.update(q.body);
      Json user_body = {{"model", endpoints.user_model}, {"temperature", 0}, {"max_tokens", options.max_tokens}, {"seed", q.body["seed"]}};
      if (!tau2.data.user_tools.is_null()) user_body["tools"] = tau2.data.user_tools;
      const Tau2Chat customer = options.scripted_user ? scripted_user(q.key) : chat_with(**user, std::move(user_body), stop);
      const auto outcome = converse(tau2.data, q.key, options.limits, chat_with(**agent, std::move(body), stop), customer);
      if (stop.is_set()) return;
      Item item = make_item(q, outcome);
      const std::lock_guard lock(mutex);
      if (file) {
        if (auto kept = file->append(item); !kept) return stop.set(kept.error());
      }
      if (run.progress)
        log_info("{} of {}: {} {} ({})", answered.size() + 1, task.questions.size(), q.id, item.score.ok ? "rewarded" : "not rewarded",
                 item.finish_reason);
      answered.insert_or_assign(q.id, std::move(item));
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min(static_cast<size_t>(run.concurrency), waiting.size()); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  if (stop.error) return forward_error(std::move(*stop.error));
  for (const Question& q : task.questions) result.items.push_back(std::move(answered.at(q.id)));
  return result;
}

}  // namespace ingot::eval
