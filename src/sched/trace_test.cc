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

const char* finish_name(FinishReason finish) {
  static const char* const kNames[] = {"", ":stop_token", ":stop_string", ":length", ":cancelled", ":error"};
  return kNames[static_cast<size_t>(finish)];
}

Request make_request(RequestId id, const Fields& fields) {
  Request request;
  request.id = id;
  for (int32_t i = 0; i < fields.at("prompt"); ++i) request.prompt.push_back(i);
  request.sampling.max_tokens = static_cast<int32_t>(fields.at("max"));
  request.sampling.stop_token_ids = {0};
  return request;
}

std::string show(const BatchPlan& plan) {
  std::string text;
  for (const BatchItem& item : plan.items) {
    text += fmt::format("{}{}[{},{}){}", text.empty() ? "" : " ", item.request, item.start,
                        item.start + static_cast<int32_t>(item.token_ids.size()), item.sample ? "+" : "");
  }
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
    } else if (verb == "plan") {
      plan_ = scheduler_->plan();
      EXPECT_EQ(show(plan_), rest_of(words));
    } else if (verb == "commit") {
      commit(words);
    } else if (verb == "expect") {
      const SchedulerStats stats = scheduler_->stats();
      const Fields actual = {
          {"free", stats.free_pages}, {"running", stats.running}, {"waiting", stats.waiting}, {"preemptions", stats.preemptions}};
      for (const auto& [name, value] : read_fields(words)) EXPECT_EQ(actual.at(name), value) << name;
    } else {
      FAIL() << "unknown verb " << verb;
    }
    scheduler_->verify();
  }

 private:
  // "1=5 2=0:stop_token": the tokens drawn, and how the requests must fare; "2:cancelled" for an event without a token.
  void commit(std::istringstream& words) {
    const std::string expected = rest_of(words);
    BatchResult result;
    std::istringstream parts(expected);
    std::string part;
    while (parts >> part) {
      const size_t equals = part.find('=');
      if (equals == std::string::npos) continue;
      result.sampled.push_back({std::stoull(part.substr(0, equals)), std::stoi(part.substr(equals + 1)), {}});
    }
    // A cancelled sequence in flight was drawn for, too.
    for (size_t i = 0, next = 0; i < plan_.items.size(); ++i) {
      if (!plan_.items[i].sample) continue;
      if (next >= result.sampled.size() || result.sampled[next].request != plan_.items[i].request)
        result.sampled.insert(result.sampled.begin() + static_cast<std::ptrdiff_t>(next), {plan_.items[i].request, 1, {}});
      ++next;
    }
    events_.clear();
    scheduler_->commit(plan_, result);
    EXPECT_EQ(events_, expected);
  }

  SchedulerOptions options_;
  std::unique_ptr<Scheduler> scheduler_;
  BatchPlan plan_;
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
  EXPECT_GE(num_traces, 5);
}

}  // namespace
}  // namespace ingot::sched
