#include "support/scripted_model.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/file_map.h"
#include "base/json.h"

namespace ingot::testing {

namespace {
constexpr size_t kMaxScriptBytes = 64 << 20;
constexpr size_t kSeenCharacters = 2000;  // of a prompt, by `when`
constexpr size_t kMaxTokensOfCharacter = 4;
constexpr std::string_view kCountMark = "after ";
// A choice that was not used in the last so many draws belongs to a request that has ended, or is made anew.
constexpr uint64_t kUsesRemembered = 1 << 16;
constexpr double kMaxStepSeconds = 3600;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string_view last_characters(std::string_view text, size_t count) {
  size_t begin = text.size();
  while (begin > 0 && count > 0) {
    --begin;
    if ((static_cast<unsigned char>(text[begin]) & 0xc0) != 0x80) --count;
  }
  return text.substr(begin);
}

Result<double> read_seconds(const Json& line, const char* field, const std::string& place) {
  const auto found = line.find(field);
  if (found == line.end()) return 0.0;
  if (!found->is_number() || found->get<double>() < 0 || found->get<double>() > kMaxStepSeconds)
    return fail("{}: {} is {}: expected seconds, 0 to {}", place, field, found->dump(), kMaxStepSeconds);
  return found->get<double>();
}
}  // namespace

Result<std::unique_ptr<ScriptedModel>> ScriptedModel::load(std::shared_ptr<const text::Tokenizer> tokenizer,
                                                           const std::vector<int32_t>& eos_token_ids, const std::filesystem::path& script) {
  std::unique_ptr<ScriptedModel> model(new ScriptedModel(std::move(tokenizer)));
  for (const char& character : kCountingAlphabet) {
    INGOT_ASSIGN(const auto ids, model->tokenizer_->encode({&character, 1}));
    if (ids.size() != 1) return fail("the tokenizer has no token for \"{}\", which the counting answer needs", character);
    model->alphabet_.push_back(ids[0]);
  }
  if (script.empty()) return model;
  INGOT_ASSIGN(const std::string text, read_file(script, kMaxScriptBytes));
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view json = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (json.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    INGOT_ASSIGN(auto line, read_line(*model->tokenizer_, eos_token_ids, json, fmt::format("{}:{}", script.string(), number)));
    model->lines_.push_back(std::move(line));
  }
  return model;
}

Result<ScriptedModel::Line> ScriptedModel::read_line(const text::Tokenizer& tokenizer, const std::vector<int32_t>& eos_token_ids,
                                                     std::string_view json, const std::string& place) {
  INGOT_ASSIGN(const Json object, parse_json(json, place, {.reject_duplicate_keys = true}));
  if (!object.is_object()) return fail("{}: expected a JSON object", place);
  for (const auto& [name, value] : object.items()) {
    constexpr std::string_view kFields[] = {"when", "say", "tokens", "finish", "first_token_seconds", "seconds_per_step"};
    if (std::find(std::begin(kFields), std::end(kFields), name) == std::end(kFields)) return fail("{}: unknown field \"{}\"", place, name);
  }
  Line line;
  if (object.contains("when")) {
    if (!object["when"].is_string()) return fail("{}: when is not a text", place);
    line.when = object["when"].get<std::string>();
  }
  if (object.contains("say") == object.contains("tokens")) return fail("{}: expected one of say and tokens", place);
  const bool is_text = object.contains("say");
  const Json& answer = object[is_text ? "say" : "tokens"];
  if (!answer.is_array()) return fail("{}: {} is not a list", place, is_text ? "say" : "tokens");
  for (const Json& piece : answer) {
    if (is_text) {
      if (!piece.is_string()) return fail("{}: say holds {}, which is not a text", place, piece.dump());
      INGOT_ASSIGN(const auto ids, tokenizer.encode(piece.get<std::string>()));
      line.answer.insert(line.answer.end(), ids.begin(), ids.end());
    } else {
      if (!piece.is_number_integer() || piece < 0 || piece >= tokenizer.vocab_size())
        return fail("{}: tokens holds {}, which is no token id below {}", place, piece.dump(), tokenizer.vocab_size());
      line.answer.push_back(piece.get<int32_t>());
    }
  }
  const Json finish = object.value("finish", Json("stop"));
  if (finish != "stop" && finish != "none") return fail("{}: finish is {}: expected \"stop\" or \"none\"", place, finish.dump());
  if (finish == "stop") {
    if (eos_token_ids.empty()) return fail("{}: finish is \"stop\", but no end-of-sequence token is known", place);
    line.answer.push_back(eos_token_ids[0]);
  }
  if (line.answer.empty()) return fail("{}: an answer that does not stop needs a token to repeat", place);
  INGOT_ASSIGN(line.first_token_seconds, read_seconds(object, "first_token_seconds", place));
  INGOT_ASSIGN(line.seconds_per_step, read_seconds(object, "seconds_per_step", place));
  return line;
}

void ScriptedModel::next(const ScriptedRunner::Context& context, std::span<float> logits) {
  if (context.num_generated < 0) {
    logits[static_cast<size_t>(context.tokens.back())] = kRepeatLogit;
    return;
  }
  const auto generated = static_cast<size_t>(context.num_generated);
  auto found = choices_.find(context.request);
  if (found == choices_.end()) {
    found = choices_.emplace(context.request, choose(context.tokens.first(context.tokens.size() - generated))).first;
  }
  Choice& choice = found->second;
  choice.last_use = ++uses_;
  int32_t token = 0;
  if (choice.line != nullptr) {
    const Line& line = *choice.line;
    token = line.answer[std::min(generated, line.answer.size() - 1)];
    step_seconds_ = std::max(step_seconds_, generated == 0 ? line.first_token_seconds : line.seconds_per_step);
  } else {
    token = alphabet_[(choice.first + generated) % alphabet_.size()];
  }
  logits[static_cast<size_t>(token)] = 100.0f;
  if (uses_ % kUsesRemembered == 0) forget_unused();
}

ScriptedModel::Choice ScriptedModel::choose(std::span<const int32_t> prompt) const {
  const size_t num_tokens = std::min(prompt.size(), kSeenCharacters * kMaxTokensOfCharacter);
  const std::string decoded = tokenizer_->decode(prompt.last(num_tokens), false);
  const std::string_view seen = last_characters(decoded, kSeenCharacters);
  Choice choice;
  for (const Line& line : lines_) {
    if (seen.find(line.when) == std::string_view::npos) continue;
    choice.line = &line;
    return choice;
  }
  const size_t mark = seen.rfind(kCountMark);
  if (mark == std::string_view::npos || mark + kCountMark.size() == seen.size()) return choice;
  const size_t index = kCountingAlphabet.find(seen[mark + kCountMark.size()]);
  if (index != std::string_view::npos) choice.first = index + 1;
  return choice;
}

void ScriptedModel::forget_unused() {
  std::erase_if(choices_, [this](const auto& entry) { return entry.second.last_use + kUsesRemembered < uses_; });
}

Result<std::unique_ptr<PacedRunner>> PacedRunner::create(const Options& options, std::unique_ptr<ScriptedModel> model) {
  int fd = -1;
  if (!options.step_log.empty()) {
    fd = ::open(options.step_log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return fail("cannot write the step log {}: {}", options.step_log.string(), std::strerror(errno));
  }
  return std::unique_ptr<PacedRunner>(new PacedRunner(options, std::move(model), fd));
}

std::shared_ptr<exec::DraftSource> PacedRunner::make_drafts(const Options& options) {
  if (options.drafts_truth < 0) return nullptr;
  return std::make_shared<ScriptedDrafts>(
      [this](const ScriptedRunner::Context& context, std::span<float> logits) { model_->next(context, logits); }, options.vocab_size,
      options.drafts_truth);
}

PacedRunner::PacedRunner(const Options& options, std::unique_ptr<ScriptedModel> model, int log_fd)
    : step_ns_(options.step_ns),
      log_fd_(log_fd),
      model_(std::move(model)),
      runner_({.num_pages = options.num_pages,
               .page_size = options.page_size,
               .vocab_size = options.vocab_size,
               .script = [this](const ScriptedRunner::Context& context, std::span<float> logits) { model_->next(context, logits); },
               .before_step = {},
               .drafts = make_drafts(options),
               .verify = options.verify}) {}

PacedRunner::~PacedRunner() {
  if (log_fd_ >= 0) ::close(log_fd_);
}

Result<sched::BatchResult> PacedRunner::run(const sched::BatchPlan& plan) {
  const int64_t start = now_ns();
  INGOT_ASSIGN(auto result, runner_.run(plan));
  int64_t due = start + static_cast<int64_t>(model_->take_step_seconds() * 1e9);
  if (step_ns_ > 0) due = std::max(due, (start / step_ns_ + 1) * step_ns_);
  std::this_thread::sleep_until(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(due)));
  if (log_fd_ >= 0) {
    const int64_t end = now_ns();
    if (::write(log_fd_, &end, sizeof(end)) != static_cast<ssize_t>(sizeof(end)))
      return fail("cannot write the step log: {}", std::strerror(errno));
  }
  return result;
}

}  // namespace ingot::testing
