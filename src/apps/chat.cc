#include "apps/chat.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>

#include "base/log.h"
#include "serve/local_answer.h"

namespace ingot::apps {

namespace {
int complain(const std::string& message) {
  std::fprintf(stderr, "ingot chat: %s\n", message.c_str());
  return 1;
}

// SIGINT is blocked in all threads and asked for, so that Ctrl-C never ends the program.
class Interrupts {
 public:
  Interrupts() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  bool take() const {
    const timespec now{0, 0};
    return sigtimedwait(&set_, nullptr, &now) == SIGINT;
  }

 private:
  sigset_t set_{};
};

class Conversation {
 public:
  Conversation(const ChatOptions& options, const serve::ModelService& service) : options_(options), service_(service) { reset(); }

  void reset() {
    messages_ = Json::array();
    if (!options_.system.empty()) messages_.push_back({{"role", "system"}, {"content", options_.system}});
  }

  // Answers `line` on standard output and remembers both. On an error nothing is remembered.
  Result<> say(const std::string& line, const Interrupts& interrupts, bool on_terminal) {
    Json body = options_.sampling.fields();
    body["messages"] = messages_;
    body["messages"].push_back({{"role", "user"}, {"content", line}});
    auto parsed = serve::parse_chat_request(body, service_.model->defaults);
    if (!parsed) return fail("{}", parsed.error().message);
    auto prompt = serve::make_chat_prompt(*service_.model, *parsed);
    if (!prompt) return fail("{}", prompt.error().message);
    text::OutputParserOptions parser;
    parser.starts_in_reasoning = prompt->starts_in_reasoning;

    std::string content;
    std::string reasoning;
    while (interrupts.take()) {  // pressed before the answer began
    }
    const auto figures = serve::answer_locally(
        *service_.model, *service_.dispatcher,
        {std::move(prompt->tokens), std::move(parsed->options.sampling), std::move(parsed->options.stop_strings), std::move(parser)},
        [&](const text::OutputDelta& delta) {
          if (on_terminal && !delta.reasoning.empty()) std::printf("%s%s", reasoning.empty() ? "\x1b[2m" : "", delta.reasoning.c_str());
          reasoning += delta.reasoning;
          if (!delta.content.empty()) {
            if (on_terminal && content.empty() && !reasoning.empty()) std::fputs("\x1b[0m\n", stdout);
            std::fwrite(delta.content.data(), 1, delta.content.size(), stdout);
            content += delta.content;
          }
          std::fflush(stdout);
        },
        [&] { return interrupts.take(); });
    std::printf("%s\n", on_terminal ? "\x1b[0m" : "");
    std::fflush(stdout);
    if (!figures) return forward_error(figures.error());
    if (on_terminal) std::fprintf(stderr, "\x1b[2m%s\x1b[0m\n", figures->text().c_str());
    Json answer{{"role", "assistant"}, {"content", content}};
    if (!reasoning.empty()) answer["reasoning_content"] = reasoning;
    messages_ = std::move(body["messages"]);
    messages_.push_back(std::move(answer));
    return {};
  }

 private:
  const ChatOptions& options_;
  const serve::ModelService& service_;
  Json messages_;
};
}  // namespace

int run_chat(const ChatOptions& options) {
  if (!init_log(options.log_level))
    return complain(fmt::format("--log-level {} is unknown: use trace, debug, info, warn, error or off", options.log_level));
  const Interrupts interrupts;
  auto loaded = serve::load_service(options.service);
  if (!loaded) return complain(loaded.error().text());
  if (!loaded->model->chat_template)
    return complain(fmt::format("{} has no chat template; use ingot generate --raw", options.service.model.string()));

  const bool on_terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  if (on_terminal) std::printf("%s. /reset forgets the conversation, /exit ends, Ctrl-C stops an answer.\n", loaded->model->name.c_str());
  Conversation conversation(options, *loaded);
  bool failed = false;
  std::string line;
  while (true) {
    if (on_terminal) {
      std::fputs("> ", stdout);
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line)) break;
    if (line == "/exit") break;
    if (line == "/reset") {
      conversation.reset();
      continue;
    }
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (const auto said = conversation.say(line, interrupts, on_terminal); !said) {
      failed = true;
      complain(said.error().text());
    }
  }
  // A person has seen the error and gone on; a script must learn of it.
  return failed && !on_terminal ? 1 : 0;
}

}  // namespace ingot::apps
