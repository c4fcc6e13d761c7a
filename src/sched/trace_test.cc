// Symptom: a change of the scheduler silently changes who runs when. Each tests/traces/*.trace is a script of arrivals and the plans
// that must follow; its format is in tests/traces/README.md.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "sched/scheduler.h"

namespace ingot::sched {
namespace {

using Fields = std::map<std::string, int64_t>;

Fields read_fields(std::istringstream& words) {
  Fields fields;
  std::string word;
  while (words >> word && word != ":") {
    const size_t equals = word.find('=');
    EXPECT_NE(equals, std::string::npos) << word;
    if (equals != std::string::npos) fields[word.substr(0, equals)] = std::stoll(word.substr(equals + 1));
  }
  return fields;
}

int64_t get(const Fields& fields, const std::string& name, int64_t otherwise) {
  const auto it = fields.find(name);
  return it == fields.end() ? otherwise : it->second;
}

const char* finish_name(FinishReason finish) {
  static const char* const kNames[] = {"", ":stop_token", ":stop_string", ":length", ":cancelled", ":queue_timeout", ":timeout", ":error"};
  return kNames[static_cast<size_t>(finish)];
}

Request make_request(RequestId id, const Fields& fields) {
  Request request;
  request.id = id;
  // Prompts of one family begin alike; by default each request is its own.
  const int64_t family = get(fields, "family", static_cast<int64_t>(1000 + id));
  for (int64_t i = 0; i < fields.at("prompt"); ++i) request.prompt.push_back(static_cast<int32_t>(family * 1000 + i));
  request.priority = static_cast<int32_t>(get(fields, "priority", 0));
  request.queue_deadline_ns = get(fields, "queue_until", 0);
  request.deadline_ns = get(fields, "until", 0);
  request.sampling.max_tokens = static_cast<int32_t>(fields.at("max"));
  request.sampling.stop_token_ids = {0};
  request.sampling.prompt_logprobs = static_cast<int32_t>(get(fields, "scored", -1));
  request.max_draft_tokens = static_cast<int32_t>(get(fields, "drafts", request.max_draft_tokens));
  return request;
}

std::string show(const BatchPlan& plan) {
  std::string text;
  if (!plan.saves.empty()) text += fmt::format("save={} ", plan.saves.size());
  if (!plan.loads.empty()) text += fmt::format("load={} ", plan.loads.size());
  for (const BatchItem& item : plan.items) {
    text += fmt::format("{}[{},{}){}{}", item.request, item.start, item.start + static_cast<int32_t>(item.token_ids.size()),
                        item.sample ? "+" : "", item.num_draft > 0 ? std::to_string(item.num_draft) : "");
    const int32_t first = item.start + item.first_scored;
    if (item.num_scored > 0) text += fmt::format("?[{},{})", first, first + item.num_scored);
    text += ' ';
  }
  if (!text.empty()) text.pop_back();
  return text.empty() ? "idle" : text;
}

std::string rest_of(std::istringstream& words) {
  std::string rest;
  std::getline(words >> std::ws, rest);
  return rest;
}

class Trace {
 public:
  void run_line(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    if (!(words >> verb) || verb[0] == '#') return;
    if (verb == "options") {
      const Fields fields = read_fields(words);
      options_.num_pages = fields.at("pages");
      options_.page_size = fields.at("page_size");
      options_.chunked_prefill_size = fields.at("budget");
      options_.max_running_requests = fields.at("max_running");
      options_.context_length = fields.at("context");
      options_.policy = get(fields, "lpm", 0) != 0 ? Policy::lpm : Policy::fcfs;
      options_.max_overtaken = static_cast<int32_t>(get(fields, "max_overtaken", options_.max_overtaken));
      options_.host_pages = get(fields, "host", 0);
      options_.draft.num_steps = static_cast<int32_t>(get(fields, "drafts", 0));
      scheduler_ = std::make_unique<Scheduler>(options_);
      return;
    }
    ASSERT_NE(scheduler_, nullptr) << "options come first";
    if (verb == "submit") {
      RequestId id = 0;
      words >> id;
      Request request = make_request(id, read_fields(words));
      const auto checked = Scheduler::admissible(request, options_);
      ASSERT_TRUE(checked.has_value()) << checked.error().text();
      request.sink = [this, id](const TokenEvent& event) {
        events_ += fmt::format("{}{}", events_.empty() ? "" : " ", id);
        for (const int32_t token : event.token_ids) events_ += fmt::format("={}", token);
        if (!event.prompt_logprobs.empty()) events_ += fmt::format("?{}", event.prompt_logprobs.size());
        for (size_t i = 0; i < event.prompt_logprobs.size(); ++i) EXPECT_EQ(event.prompt_logprobs[i].logprob, -static_cast<float>(i + 1));
        events_ += finish_name(event.finish);
      };
      scheduler_->submit(std::move(request));
    } else if (verb == "refuse") {
      const auto checked = Scheduler::admissible(make_request(0, read_fields(words)), options_);
      ASSERT_FALSE(checked.has_value());
      EXPECT_NE(checked.error().text().find(rest_of(words)), std::string::npos) << checked.error().text();
    } else if (verb == "cancel") {
      RequestId id = 0;
      words >> id;
      events_.clear();
      scheduler_->cancel(id);
      EXPECT_EQ(events_.empty() ? "later" : "now", rest_of(words));
    } else if (verb == "time") {
      words >> now_;
    } else if (verb == "plan") {
      events_.clear();
      plan_ = scheduler_->plan(now_);
      EXPECT_EQ(show(plan_), rest_of(words));
    } else if (verb == "released") {
      std::string ids;
      for (const RequestId id : plan_.released) ids += fmt::format("{}{}", ids.empty() ? "" : " ", id);
      EXPECT_EQ(ids.empty() ? "none" : ids, rest_of(words));
    } else if (verb == "commit") {
      commit(words);
    } else if (verb == "events") {
      EXPECT_EQ(events_, rest_of(words));
    } else if (verb == "expect") {
      const SchedulerStats stats = scheduler_->stats();
      const Fields actual = {{"free", stats.free_pages},
                             {"available", stats.free_pages + stats.cached_pages},
                             {"running", stats.running},
                             {"waiting", stats.waiting},
                             {"preemptions", stats.preemptions},
                             {"cached", stats.cached_pages},
                             {"host", stats.host_pages},
                             {"hits", stats.cache_hit_tokens},
                             {"queries", stats.cache_query_tokens},
                             {"host_hits", stats.host_hit_tokens},
                             {"evicted", stats.evicted_pages},
                             {"drafted", stats.draft_tokens},
                             {"accepted", stats.accepted_tokens}};
      for (const auto& [name, value] : read_fields(words)) EXPECT_EQ(actual.at(name), value) << name;
    } else {
      FAIL() << "unknown verb " << verb;
    }
    scheduler_->verify();
  }

 private:
  // "1=5 2=6=0:stop_token": the tokens drawn, and how the requests must fare; "2:cancelled" for an event without a token. Behind a bar
  // what was drawn, where that is more than what the client may see.
  void commit(std::istringstream& words) {
    const std::string line = rest_of(words);
    const size_t bar = line.find(" | ");
    std::map<RequestId, std::vector<int32_t>> drawn;
    for (const std::string& text : {line.substr(0, bar), bar == std::string::npos ? std::string() : line.substr(bar + 3)}) {
      std::istringstream parts(text);
      std::string part;
      while (parts >> part) {
        std::istringstream numbers(part.substr(0, part.find_first_of(":?")));
        std::string number;
        std::getline(numbers, number, '=');
        auto& tokens = drawn[std::stoull(number)];
        tokens.clear();
        while (std::getline(numbers, number, '=')) tokens.push_back(std::stoi(number));
      }
    }
    BatchResult result;
    for (const BatchItem& item : plan_.items) {
      if (item.num_scored > 0) {  // the logprob of a token tells where it stands
        ScoredTokens& scored = result.scored.emplace_back(ScoredTokens{item.request, {}});
        for (int32_t i = 1; i <= item.num_scored; ++i)
          scored.logprobs.push_back({-static_cast<float>(item.start + item.first_scored + i), {}});
      }
      if (!item.sample) continue;
      auto tokens = drawn[item.request];
      if (tokens.empty()) tokens = {1};  // a cancelled sequence in flight was drawn for, too
      result.sampled.push_back({.request = item.request, .token_ids = tokens, .logprobs = {}, .num_drafted = item.num_draft});
    }
    events_.clear();
    scheduler_->commit(plan_, result);
    EXPECT_EQ(events_, line.substr(0, bar));
  }

  SchedulerOptions options_;
  std::unique_ptr<Scheduler> scheduler_;
  BatchPlan plan_;
  int64_t now_ = 1;
  std::string events_;  // what the sinks got since it was cleared
};

TEST(Trace, ScriptedArrivalsGiveTheWrittenPlans) {
  int num_traces = 0;
  for (const auto& entry : std::filesystem::directory_iterator(INGOT_SOURCE_DIR "/tests/traces")) {
    if (entry.path().extension() != ".trace") continue;
    ++num_traces;
    std::ifstream file(entry.path());
    Trace trace;
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      SCOPED_TRACE(fmt::format("{}:{}: {}", entry.path().filename().string(), number, line));
      trace.run_line(line);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  EXPECT_GE(num_traces, 12);
}

}  // namespace
}  // namespace ingot::sched
