#include "apps/bench_serve_target.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace ingot::apps {

namespace {
Result<load::Target> target_of(const BenchTargetOptions& o) {
  load::Target t;
  t.url = o.url;
  t.api_key = o.api_key;
  t.model = o.served_model_name;
  t.endpoint = o.endpoint == "chat" ? load::Target::Endpoint::chat : load::Target::Endpoint::completions;
  using Count = load::Target::Count;
  t.count = o.count_tokens == "logprobs" ? Count::logprobs : o.count_tokens == "continuous-usage" ? Count::continuous_usage : Count::usage;
  t.temperature = o.temperature;
  t.ignore_eos = o.ignore_eos;
  if (!o.speculation.empty()) t.speculation = o.speculation == "on";
  t.timeout_s = o.timeout_s;
  if (!o.extra_body.empty()) {
    INGOT_ASSIGN(t.extra_body, parse_json(o.extra_body, "--extra-body"));
    if (!t.extra_body.is_object()) return fail("--extra-body is {}: expected a JSON object", o.extra_body);
  }
  return t;
}
}  // namespace

Result<> check_url_or_model(const std::string& url, const std::string& model, const std::vector<std::string>& server_flags) {
  if (url.empty() == model.empty()) return fail("give --url of a server, or --model to start one");
  if (model.empty() && !server_flags.empty()) return fail("--server-flag goes with --model");
  return {};
}

Result<std::unique_ptr<load::ServerProcess>> start_server(const ServeCommand& serve) {
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                      "serve",
                                      serve.model,
                                      "--host",
                                      "127.0.0.1",
                                      "--port",
                                      "0",
                                      "--request-log",
                                      "/dev/null"};
  if (!serve.api_key.empty()) command.insert(command.end(), {"--api-key", serve.api_key});
  command.insert(command.end(), serve.flags.begin(), serve.flags.end());
  return load::ServerProcess::start(command, serve.timeout_s);
}

Result<> check_target(const BenchTargetOptions& o) {
  INGOT_TRY(check_url_or_model(o.url, o.model, o.server_flags));
  if (o.model.empty() && o.tokenizer.empty())
    return fail_hint("--tokenizer FOLDER of the model that the server has", "prompts of exact token counts need the server's tokenizer");
  return {};
}

Result<OpenTarget> open_target(const BenchTargetOptions& o, bool recorded) {
  OpenTarget open;
  std::filesystem::path tokenizer_path = o.tokenizer.empty() ? o.model : o.tokenizer;
  if (std::filesystem::is_directory(tokenizer_path)) tokenizer_path /= "tokenizer.json";
  INGOT_ASSIGN(auto tokenizer, text::Tokenizer::load(tokenizer_path));
  INGOT_ASSIGN(auto prompts, load::PromptMaker::create(*tokenizer));
  open.prompts = std::make_shared<const load::PromptMaker>(std::move(prompts));
  INGOT_ASSIGN(load::Target target, target_of(o));
  if (!o.model.empty()) {
    INGOT_ASSIGN(open.server,
                 start_server({.model = o.model, .api_key = o.api_key, .flags = o.server_flags, .timeout_s = o.start_timeout_s}));
    target.url = open.server->url();
  }
  INGOT_ASSIGN(open.runner, load::LoadRunner::create(std::move(target), open.prompts));
  INGOT_TRY(open.runner->probe());
  const load::Target& t = open.runner->target();
  const auto overhead = open.runner->overhead();
  std::string flags;
  for (const std::string& flag : o.server_flags) flags += " " + flag;
  open.facts.emplace_back("server", o.model.empty() ? o.url : fmt::format("ingot serve {}{} (started for this)", o.model, flags));
  open.facts.emplace_back("requests",
                          fmt::format("{}, model {}, temperature {:g}, {}{}{}", o.endpoint, t.model, t.temperature,
                                      t.ignore_eos ? "ignore_eos (every answer has its full length)" : "answers end by themselves",
                                      t.speculation ? fmt::format(", speculation {}", *t.speculation ? "on" : "off") : "",
                                      o.extra_body.empty() ? "" : ", with " + o.extra_body));
  if (recorded) {
    open.facts.emplace_back("prompts", "the file's own, as they are");
  } else {
    open.facts.emplace_back(
        "prompts",
        fmt::format("{} different words of {}, drawn at random: drafts are accepted on them as on no real text; the "
                    "server puts {} tokens around them, which count",
                    open.prompts->num_words(), tokenizer_path.string(), overhead ? std::to_string(*overhead) : "an unknown number of"));
  }
  open.setup = {{"url", o.url},
                {"model", o.model},
                {"server_flags", o.server_flags},
                {"served_model_name", t.model},
                {"endpoint", o.endpoint},
                {"count_tokens", o.count_tokens},
                {"temperature", t.temperature},
                {"ignore_eos", t.ignore_eos},
                {"speculation", t.speculation ? Json(*t.speculation) : Json()},
                {"extra_body", t.extra_body},
                {"tokenizer", tokenizer_path.string()},
                {"prompt_overhead", overhead ? Json(*overhead) : Json()}};
  if (!overhead) open.warnings.emplace_back("the server tells no usage: prompt lengths and cache hits are not verified");
  return open;
}

Result<> write_report(const std::string& path, const std::string& text) {
  FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "w");
  if (file == nullptr) return fail("cannot write {}: {}", path, std::strerror(errno));
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = path == "-" ? std::fflush(file) == 0 : std::fclose(file) == 0;
  if (!written || !closed) return fail("cannot write {}: {}", path, std::strerror(errno));
  return {};
}

}  // namespace ingot::apps
