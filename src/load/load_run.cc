#include "load/load_run.h"

#include <algorithm>
#include <cmath>

#include "load/answer.h"
#include "load/body_maker.h"

namespace ingot::load {

namespace {
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kProbeTokens = 48;

int64_t to_ns(double seconds) { return std::llround(seconds * 1e9); }

// What an error answer says, in its own words.
std::string message_of(const std::string& body) {
  const auto json = parse_json(body, "answer");
  return error_message(json ? *json : Json(), body);
}
}  // namespace

// One run: lives as long as run() does.
class Run {
 public:
  Run(LoadRunner& runner, const std::vector<plan::PlannedRequest>& plan, const RunOptions& options)
      : runner_(runner), loop_(*runner.loop_), plan_(plan), options_(options) {
    plan::PrefixOracle oracle;
    for (const auto& request : plan) expected_cached_.push_back(oracle.add(request));
    for (size_t i = 0; i < plan.size(); ++i)
      if (plan[i].turn == 0) starts_.push_back(i);
    samples_.reserve(plan.size());
  }

  RunResult run() {
    BodyMaker bodies(plan_.size(), starts_, [this](size_t i) { return runner_.body_of(plan_[i], {}); });
    bodies_ = &bodies;
    bodies.wait_until_ahead();
    loop_.forget_lags();
    const int64_t cpu = HttpLoop::thread_cpu_ns();
    start_ = HttpLoop::now_ns();
    if (options_.duration_s > 0) stop_sending_ = to_ns(options_.warmup_s + options_.duration_s);
    tick();
    if (options_.concurrency > 0) {
      // From inside the loop, so that what comes back at once is read in between.
      loop_.at(start_, [this] {
        for (int64_t i = 0; i < options_.concurrency; ++i) next_session();
        end_when_done();
      });
    } else {
      schedule_next();
    }
    loop_.run();
    RunResult result;
    result.facts.offered_rate = options_.concurrency > 0 ? 0 : options_.offered_rate;
    result.facts.lags_ns = loop_.lags();
    result.facts.cpu_share = static_cast<double>(HttpLoop::thread_cpu_ns() - cpu) / static_cast<double>(HttpLoop::now_ns() - start_);
    result.facts.stalls = stalls_;
    result.facts.goodput = options_.goodput;
    result.facts.ignore_eos = runner_.target_.ignore_eos;
    result.samples = std::move(samples_);
    return result;
  }

 private:
  // A session's answers so far.
  struct Session {
    std::vector<std::string> answers;
  };

  int64_t now() const { return HttpLoop::now_ns() - start_; }
  bool may_send(int64_t at) const { return stop_sending_ == 0 || at < stop_sending_; }

  void tick() {
    loop_.at(HttpLoop::now_ns() + kSecond, [this] {
      if (options_.progress) options_.progress(num_ended_, static_cast<int64_t>(plan_.size()));
      tick();
    });
  }

  void next_session() {
    if (next_start_ == starts_.size() || !may_send(now())) return;
    send(starts_[next_start_++], std::make_shared<Session>(), -1);
  }

  void schedule_next() {
    if (next_start_ == starts_.size()) return end_when_done();
    const size_t i = starts_[next_start_];
    const int64_t due = to_ns(plan_[i].arrival_s);
    if (!may_send(due)) {
      next_start_ = starts_.size();
      return end_when_done();
    }
    ++next_start_;
    ++num_pending_;
    loop_.at(start_ + due, [this, i, due] {
      --num_pending_;
      send(i, std::make_shared<Session>(), due);
      schedule_next();
    });
  }

  void send(size_t i, const std::shared_ptr<Session>& session, int64_t due) {
    const plan::PlannedRequest& request = plan_[i];
    const bool goes_on = i + 1 < plan_.size() && plan_[i + 1].session == request.session;
    HttpCall call;
    call.target = runner_.target_.endpoint == Target::Endpoint::chat ? "/v1/chat/completions" : "/v1/completions";
    call.timeout_ns = to_ns(runner_.target_.timeout_s);
    call.body = request.turn == 0 ? bodies_->take(i, stalls_) : runner_.body_of(request, session->answers);
    const size_t at = samples_.size();
    Sample& s = samples_.emplace_back();
    s.index = request.index;
    s.session = request.session;
    s.turn = request.turn;
    s.planned_input = request.input_tokens();
    s.has_exact_input = request.turn == 0 && request.recorded.is_null();
    s.planned_output = request.output_tokens;
    s.expected_cached = expected_cached_[i];
    s.due_ns = due;
    s.sent_ns = now();
    s.is_warmup = static_cast<int64_t>(at) < options_.warmup_requests || s.sent_ns < to_ns(options_.warmup_s);
    s.arrived.reserve(static_cast<size_t>(request.output_tokens));
    ++num_open_;
    auto answer = std::make_shared<std::string>();
    call.on_event = [this, at, goes_on, answer](std::string_view data, int64_t time) {
      StreamEvent event = parse_stream_event(data, goes_on);
      if (goes_on) *answer += event.content;
      take_event(samples_[at], event, time - start_);
    };
    call.on_end = [this, at, i, goes_on, session, answer](const HttpEnd& end) {
      finish(samples_[at], end);
      --num_open_;
      ++num_ended_;
      if (goes_on && samples_[at].ok() && may_send(now())) {
        session->answers.push_back(std::move(*answer));
        const int64_t due_next = HttpLoop::now_ns() + to_ns(plan_[i + 1].think_s);
        ++num_pending_;
        loop_.at(due_next, [this, i, session] {
          --num_pending_;
          if (!may_send(now())) return end_when_done();  // the time ended in the pause
          send(i + 1, session, -1);
        });
      } else if (options_.concurrency > 0) {
        next_session();
      }
      end_when_done();
    };
    loop_.call(std::move(call));
  }

  void end_when_done() {
    if (num_open_ == 0 && num_pending_ == 0 && (next_start_ == starts_.size() || options_.concurrency > 0)) loop_.stop();
  }

  static void take_event(Sample& s, const StreamEvent& event, int64_t at) {
    if (event.is_done) {
      s.is_done = true;
      return;
    }
    if (!event.error.empty() && s.error.empty()) s.error = "error event", s.detail = event.error;
    if (!event.finish_reason.empty()) s.finish_reason = event.finish_reason;
    int64_t tokens = event.logprob_tokens;
    if (event.usage) {
      // Usage that goes along with text counts the tokens up to it.
      if (event.has_token() && event.usage->completion_tokens >= 0)
        tokens = event.usage->completion_tokens - std::max<int64_t>(0, s.usage.completion_tokens);
      s.usage = *event.usage;
    }
    if (!event.has_token()) {
      // Tokens without text (an end, half a character) belong to the event that follows; at the end nothing does.
      if (tokens > 0) s.textless_tokens += tokens;
      return;
    }
    if (s.first_token_ns < 0) s.first_token_ns = at;
    if (s.first_content_ns < 0 && (event.has_content || event.has_tool_call)) s.first_content_ns = at;
    if (tokens >= 0) tokens += std::exchange(s.textless_tokens, 0);
    s.arrived.push_back({at, tokens});
  }

  void finish(Sample& s, const HttpEnd& end) {
    s.end_ns = end.now_ns - start_;
    if (!s.error.empty()) return;
    if (!end.problem.empty()) {
      s.error = end.problem, s.detail = end.detail;
    } else if (end.status != 200) {
      s.error = fmt::format("http {}", end.status), s.detail = message_of(end.body);
    } else if (!s.is_done && s.finish_reason.empty()) {
      s.error = "cut short", s.detail = fmt::format("the stream ended after {} events without a finish reason", s.arrived.size());
    } else if (s.arrived.empty()) {
      s.error = "no text", s.detail = fmt::format("{} tokens, none of which has a text", s.usage.completion_tokens);
    }
  }

  LoadRunner& runner_;
  HttpLoop& loop_;
  const std::vector<plan::PlannedRequest>& plan_;
  const RunOptions& options_;
  std::vector<int64_t> expected_cached_;
  std::vector<size_t> starts_;  // of sessions
  size_t next_start_ = 0;
  BodyMaker* bodies_ = nullptr;
  int64_t start_ = 0;
  int64_t stop_sending_ = 0;  // 0: never
  int64_t num_open_ = 0, num_pending_ = 0, num_ended_ = 0, stalls_ = 0;
  std::vector<Sample> samples_;  // (plan size) reserved: its elements do not move
};

Result<std::unique_ptr<LoadRunner>> LoadRunner::create(Target target, std::shared_ptr<const PromptMaker> prompts) {
  HttpLoop::Options options;
  INGOT_ASSIGN(options.url, parse_url(target.url));
  options.api_key = target.api_key;
  INGOT_ASSIGN(auto loop, HttpLoop::create(std::move(options)));
  return std::unique_ptr<LoadRunner>(new LoadRunner(std::move(target), std::move(prompts), std::move(loop)));
}

std::string LoadRunner::body_of(const plan::PlannedRequest& request, const std::vector<std::string>& answers) const {
  const bool is_chat = target_.endpoint == Target::Endpoint::chat;
  Json body{{"model", target_.model}};
  if (is_chat)
    body["messages"] = prompts_->messages(request, overhead_.value_or(0), answers);
  else
    body["prompt"] = prompts_->text(request, overhead_.value_or(0), answers);
  body["max_tokens"] = request.output_tokens;
  body["temperature"] = target_.temperature;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  if (target_.count == Target::Count::continuous_usage) body["stream_options"]["continuous_usage_stats"] = true;
  if (target_.count == Target::Count::logprobs) body["logprobs"] = is_chat ? Json(true) : Json(0);
  if (target_.ignore_eos) body["ignore_eos"] = true;
  if (target_.speculation) body["speculative"] = {{"enabled", *target_.speculation}};
  body.update(target_.extra_body);
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<Json> LoadRunner::get(const std::string& target) {
  HttpEnd got;
  HttpCall call;
  call.method = "GET";
  call.target = target;
  call.timeout_ns = 30 * kSecond;
  call.on_end = [&](HttpEnd end) {
    got = std::move(end);
    loop_->stop();
  };
  loop_->call(std::move(call));
  loop_->run();
  if (!got.problem.empty()) return fail("{}{}: {}: {}", target_.url, target, got.problem, got.detail);
  if (got.status != 200) return fail("{}{}: HTTP {}: {}", target_.url, target, got.status, message_of(got.body));
  return parse_json(got.body, target_.url + target);
}

Result<> LoadRunner::probe() {
  if (target_.model.empty()) {
    INGOT_ASSIGN(const Json models, get("/v1/models"));
    target_.model = first_model(models);
    if (target_.model.empty()) return fail_hint("give --served-model-name", "{}/v1/models lists no model", target_.url);
  }
  plan::PlannedRequest request;
  request.prompt = {{static_cast<uint64_t>(HttpLoop::now_ns()) >> 1, kProbeTokens, plan::PromptPiece::Role::user}};
  request.output_tokens = 1;
  overhead_.reset();
  RunOptions options;
  options.concurrency = 1;
  const RunResult result = run({request}, options);
  const Sample& s = result.samples.front();
  if (!s.ok() && s.error != "no text") return fail("{}: the first request failed: {}: {}", target_.url, s.error, s.detail);
  if (s.usage.prompt_tokens >= 0) overhead_ = s.usage.prompt_tokens - kProbeTokens;
  return {};
}

RunResult LoadRunner::run(const std::vector<plan::PlannedRequest>& plan, const RunOptions& options) {
  return Run(*this, plan, options).run();
}

}  // namespace ingot::load
