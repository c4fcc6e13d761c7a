#include "apps/generate.h"

#include <unistd.h>

#include <cstdio>

#include "base/log.h"
#include "serve/local_answer.h"

namespace ingot::apps {

namespace {
int complain(const std::string& message) {
  std::fprintf(stderr, "ingot generate: %s\n", message.c_str());
  return 1;
}

serve::ApiResult<serve::LocalRequest> make_request(const GenerateOptions& options, const serve::ServedModel& model) {
  Json body = options.sampling.fields();
  if (options.raw) {
    for (const char* name : {"chat_template_kwargs", "reasoning_effort"}) {
      if (body.contains(name)) return serve::bad_field(name, "thinking can't be set with --raw: there is no chat template in play");
    }
    body["prompt"] = options.prompt;
    auto parsed = serve::parse_completion_request(body, model.defaults);
    if (!parsed) return tl::unexpected(std::move(parsed).error());
    if (!options.sampling.max_tokens) parsed->options.sampling.max_tokens = 0;
    auto ids = model.tokenizer->encode(options.prompt);
    if (!ids) return serve::bad_field("prompt", "--prompt: " + ids.error().text());
    return serve::LocalRequest{std::move(*ids), std::move(parsed->options.sampling), std::move(parsed->options.stop_strings), std::nullopt};
  }
  body["messages"] = Json::array({{{"role", "user"}, {"content", options.prompt}}});
  auto parsed = serve::parse_chat_request(body, model.defaults);
  if (!parsed) return tl::unexpected(std::move(parsed).error());
  auto prompt = serve::make_chat_prompt(model, *parsed);
  if (!prompt) return tl::unexpected(std::move(prompt).error());
  text::OutputParserOptions parser;
  parser.starts_in_reasoning = prompt->starts_in_reasoning;
  return serve::LocalRequest{std::move(prompt->tokens), std::move(parsed->options.sampling), std::move(parsed->options.stop_strings),
                             std::move(parser)};
}
}  // namespace

Json SamplingFlags::fields() const {
  Json body = Json::object();
  const auto set = [&](const char* name, const auto& value) {
    if (value) body[name] = *value;
  };
  set("max_tokens", max_tokens);
  set("temperature", temperature);
  set("top_p", top_p);
  set("min_p", min_p);
  set("top_k", top_k);
  set("seed", seed);
  if (!stop.empty()) body["stop"] = stop;
  if (enable_thinking) body["chat_template_kwargs"] = {{"enable_thinking", *enable_thinking}};
  set("reasoning_effort", reasoning_effort);
  return body;
}

int run_generate(const GenerateOptions& options) {
  if (!init_log(options.log_level))
    return complain(fmt::format("--log-level {} is unknown: use trace, debug, info, warn, error or off", options.log_level));
  auto loaded = serve::load_service(options.service);
  if (!loaded) return complain(loaded.error().text());
  auto request = make_request(options, *loaded->model);
  if (!request) return complain(request.error().message);

  const bool show_thoughts = isatty(STDERR_FILENO) != 0;
  bool thinking = false;
  const auto figures = serve::answer_locally(*loaded->model, *loaded->dispatcher, std::move(*request), [&](const text::OutputDelta& delta) {
    if (!delta.reasoning.empty() && show_thoughts) {
      std::fprintf(stderr, "%s%s", thinking ? "" : "\x1b[2m", delta.reasoning.c_str());
      thinking = true;
    }
    if (delta.content.empty()) return;
    if (std::exchange(thinking, false)) std::fputs("\x1b[0m\n", stderr);
    std::fwrite(delta.content.data(), 1, delta.content.size(), stdout);
    std::fflush(stdout);
  });
  if (thinking) std::fputs("\x1b[0m\n", stderr);
  if (!figures) return complain(figures.error().text());
  if (isatty(STDOUT_FILENO) != 0) std::fputc('\n', stdout);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return complain("cannot write to standard output");
  std::fprintf(stderr, "%s\n", figures->text().c_str());
  return 0;
}

}  // namespace ingot::apps
