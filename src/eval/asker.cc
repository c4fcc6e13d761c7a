#include "eval/asker.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "load/answer.h"

namespace ingot::eval {
namespace {

// Busy or away for a moment: worth another try. A request that the server calls wrong is not.
bool is_passing(const load::HttpEnd& end) {
  if (end.problem == "timeout" || end.problem == "protocol") return false;
  return !end.problem.empty() || end.status == 429 || end.status >= 500;
}

std::string problem_of(const load::HttpEnd& end, const Json& body) {
  if (!end.problem.empty()) return fmt::format("{}: {}", end.problem, end.detail);
  if (end.status == 200) return body.is_null() ? "the answer is no JSON" : "";
  return fmt::format("HTTP {}: {}", end.status, load::error_message(body, end.body));
}

}  // namespace

struct Asker::Call {
  std::string method = "POST", path, body;
  std::function<void(Reply)> done;
  int attempts = 0;
  int64_t started_ns = 0;
};

Result<std::unique_ptr<Asker>> Asker::create(Options options) {
  load::HttpLoop::Options loop_options;
  INGOT_ASSIGN(loop_options.url, load::parse_url(options.url));
  loop_options.api_key = options.api_key;
  INGOT_ASSIGN(auto loop, load::HttpLoop::create(std::move(loop_options)));
  return std::unique_ptr<Asker>(new Asker(std::move(options), std::move(loop)));
}

void Asker::ask(const std::string& path, const Json& body, std::function<void(Reply)> done) {
  auto call = std::make_shared<Call>();
  call->path = path;
  if (body.is_null())
    call->method = "GET";
  else
    call->body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  call->done = std::move(done);
  start(call);
}

void Asker::start(const std::shared_ptr<Call>& call) {
  ++call->attempts;
  call->started_ns = load::HttpLoop::now_ns();
  load::HttpCall http;
  http.method = call->method;
  http.target = call->path;
  http.body = call->body;
  http.timeout_ns = static_cast<int64_t>(options_.timeout_s * 1e9);
  http.on_end = [this, call](load::HttpEnd end) { ended(call, std::move(end)); };
  loop_->call(std::move(http));
}

void Asker::ended(const std::shared_ptr<Call>& call, load::HttpEnd end) {
  Reply reply;
  reply.status = end.status;
  reply.attempts = call->attempts;
  reply.seconds = static_cast<double>(load::HttpLoop::now_ns() - call->started_ns) / 1e9;
  if (auto parsed = parse_json(end.body, "answer")) reply.body = std::move(*parsed);
  reply.problem = problem_of(end, reply.body);
  if (!is_passing(end) || call->attempts > options_.max_retries) return call->done(std::move(reply));
  const double wait = std::min(30.0, options_.first_wait_s * std::pow(2.0, call->attempts - 1));
  log_debug("{}: {}; again in {:.1f} s", call->path, reply.problem, wait);
  loop_->at(load::HttpLoop::now_ns() + static_cast<int64_t>(wait * 1e9), [this, call] { start(call); });
}

Result<std::string> Asker::first_model() {
  Reply reply;
  ask("/v1/models", nullptr, [&](Reply r) {
    reply = std::move(r);
    stop();
  });
  run();
  if (!reply.problem.empty()) return fail("{}/v1/models: {}", options_.url, reply.problem);
  std::string name = load::first_model(reply.body);
  if (name.empty())
    return fail_hint("give --served-model-name (of tau2's customer: --user-model-name)", "{}/v1/models lists no model", options_.url);
  return name;
}

}  // namespace ingot::eval
