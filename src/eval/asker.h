// Requests to an OpenAI-compatible server, made again when it is busy or away. Everything happens on the thread that calls run().
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "load/http_loop.h"

namespace ingot::eval {

struct Reply {
  int status = 0;       // of HTTP; 0: no answer came
  Json body;            // null where the answer is no JSON
  std::string problem;  // why there is no body to use; empty: status is 200 and body a JSON document
  int attempts = 1;
  double seconds = 0;  // of the last attempt
};

class Asker {
 public:
  struct Options {
    std::string url;
    std::string api_key;        // empty: none
    int max_retries = 8;        // after 429, 5xx and broken connections, 0.5 s to 30 s apart
    double timeout_s = 3600;    // of an answer
    double first_wait_s = 0.5;  // before the first retry; doubles
  };
  static Result<std::unique_ptr<Asker>> create(Options options);

  // `done` is called once, from run().
  void ask(const std::string& path, const Json& body, std::function<void(Reply)> done);
  // Returns after stop().
  void run() { loop_->run(); }
  void stop() { loop_->stop(); }
  // The name of the first model that the server lists. Runs by itself. Errors: no server there, no model.
  Result<std::string> first_model();

 private:
  struct Call;
  explicit Asker(Options options, std::unique_ptr<load::HttpLoop> loop) : options_(std::move(options)), loop_(std::move(loop)) {}
  void start(const std::shared_ptr<Call>& call);
  void ended(const std::shared_ptr<Call>& call, load::HttpEnd end);

  Options options_;
  std::unique_ptr<load::HttpLoop> loop_;
};

}  // namespace ingot::eval
