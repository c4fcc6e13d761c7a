// ScriptedModel: a model without weights, for servers under test: what it answers to which prompt, and how long a step takes, is read from
// a file. PacedRunner runs it with an engine. One thread (the engine's) uses both.
//
// The script: JSON lines, each an object; empty lines are skipped. The first line whose `when` occurs in the prompt answers a request.
//   when                 text that occurs in the last 2,000 characters of the decoded prompt, special tokens shown; absent: always
//   say | tokens         the answer: texts, each tokenized on its own (special tokens in them become their ids), or token ids
//   finish               "stop" (default): the answer ends with an end-of-sequence token. "none": its last token is repeated for ever
//   first_token_seconds  the step that draws the first token lasts at least so long (0)
//   seconds_per_step     as do the steps that draw the others (0). A step lasts as long as its slowest request wishes
//
// A prompt that no line answers is answered by counting, without end: "0" to "9", "A" to "Z", "a" to "z", then "0" again, one character a
// token. It begins with the successor of the character behind the last "after " of the prompt ("Count after Q" -> "RSTU..."), else with
// "0". Each token is text on its own, and differs from its neighbours and from the same token of a stream that began elsewhere: a client
// that counts along sees a token that is lost, doubled, merged with the next one or sent to another stream.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "exec/runner.h"
#include "exec/verify.h"
#include "support/scripted_runner.h"
#include "text/tokenizer.h"

namespace ingot::testing {

// What a prompt's own tokens get when they are scored: each may come with the same likelihood, but the one just before is likelier, by e to
// this power.
inline constexpr float kRepeatLogit = 2.0f;
inline constexpr std::string_view kCountingAlphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

class ScriptedModel {
 public:
  // `script` may be empty: then all prompts are answered by counting. The first of `eos_token_ids` ends the answers.
  // Errors: file, line and field; a character of the counting alphabet that is no token.
  static Result<std::unique_ptr<ScriptedModel>> load(std::shared_ptr<const text::Tokenizer> tokenizer,
                                                     const std::vector<int32_t>& eos_token_ids, const std::filesystem::path& script);

  // Lifts the logit of the token that follows context.tokens; `logits` (vocab_size) come as zeros.
  void next(const ScriptedRunner::Context& context, std::span<float> logits);

  // How long the step is to last whose tokens were drawn since the last call.
  double take_step_seconds() { return std::exchange(step_seconds_, 0.0); }

 private:
  struct Line {
    std::string when;             // empty: always
    std::vector<int32_t> answer;  // with the end-of-sequence token; at least one
    double first_token_seconds = 0;
    double seconds_per_step = 0;
  };
  // What was decided for a request at its first token, since decoding a prompt is costly.
  struct Choice {
    const Line* line = nullptr;  // null: counting
    size_t first = 0;            // of counting: index of the first character
    uint64_t last_use = 0;       // a value of uses_
  };

  explicit ScriptedModel(std::shared_ptr<const text::Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}
  static Result<Line> read_line(const text::Tokenizer& tokenizer, const std::vector<int32_t>& eos_token_ids, std::string_view json,
                                const std::string& place);
  Choice choose(std::span<const int32_t> prompt) const;
  void forget_unused();

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::vector<Line> lines_;
  std::vector<int32_t> alphabet_;  // token ids of kCountingAlphabet
  std::unordered_map<sched::RequestId, Choice> choices_;
  uint64_t uses_ = 0;
  double step_seconds_ = 0;
};

// Runs a ScriptedModel. Steps end at multiples of the interval, however late they began, so that with work at hand every interval ends one
// step; a step that takes longer, or that the script wants longer, ends later and the next one is on the grid again.
class PacedRunner final : public exec::Runner {
 public:
  struct Options {
    int64_t num_pages = 0;  // as the scheduler's
    int64_t page_size = 0;
    int64_t vocab_size = 0;
    int64_t step_ns = 0;       // the interval; 0: no grid
    double drafts_truth = -1;  // drafts are each right with this probability; less than 0: there are none
    exec::VerifyOptions verify;
    std::filesystem::path
        step_log;  // gets the end of each step, int64 nanoseconds of CLOCK_MONOTONIC, before its tokens go out; may be empty
  };
  // Errors: the log cannot be made.
  static Result<std::unique_ptr<PacedRunner>> create(const Options& options, std::unique_ptr<ScriptedModel> model);
  ~PacedRunner() override;
  PacedRunner(const PacedRunner&) = delete;
  PacedRunner& operator=(const PacedRunner&) = delete;

  Result<sched::BatchResult> run(const sched::BatchPlan& plan) override;

 private:
  PacedRunner(const Options& options, std::unique_ptr<ScriptedModel> model, int log_fd);
  std::shared_ptr<exec::DraftSource> make_drafts(const Options& options);

  const int64_t step_ns_;
  const int log_fd_;  // -1: none
  std::unique_ptr<ScriptedModel> model_;
  ScriptedRunner runner_;
};

}  // namespace ingot::testing
