// Speculation as the server's users see it: the flags, what one request's drafts earned, and the alarm when they earn too little.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "exec/verify.h"
#include "sched/request.h"

namespace ingot::serve {

// The flags, named as SGLang's.
struct SpeculationOptions {
  std::string algorithm = "auto";           // NEXTN, none; auto: NEXTN when the checkpoint has an MTP layer
  std::optional<int64_t> num_steps;         // drafts in a row, 1 to 8; empty: one less than num_draft_tokens, else 5
  int64_t eagle_topk = 1;                   // drafts of one parent; the model runs chains alone so far
  std::optional<int64_t> num_draft_tokens;  // rows of a verification: of a chain num_steps + 1
  bool adaptive = false;                    // the depth follows each sequence's acceptance and the batch size
  bool use_rejection_sampling = false;      // drafts of sampled requests are drawn, and accepted with min(1, p / q)
  std::optional<double> force_acceptance;   // accept so many tokens a step whatever the model says; with benchmark_mode alone
  bool benchmark_mode = false;

  bool wanted() const { return algorithm != "none"; }
  // An error when the checkpoint cannot do it; with auto it is served without.
  bool required() const { return algorithm == "NEXTN" || force_acceptance.has_value(); }
  int32_t depth() const;  // num_steps as it was decided; 0 when it is not wanted
  exec::VerifyOptions verify_options() const;
  // Errors name the flag.
  Result<> check() const;
};

// What the drafts of one request came to, step by step.
class SpeculationCounts {
 public:
  // A step that put out `num_tokens`. Does nothing for a step without drafts.
  void add(int64_t num_tokens, int32_t num_drafted, int32_t num_accepted);
  void add(const SpeculationCounts& other);

  bool any() const { return steps_ > 0; }
  int64_t steps() const { return steps_; }  // verifications
  int64_t drafted() const { return drafted_; }
  int64_t accepted() const { return accepted_; }
  // Tokens that a verification put out in the mean, the one after the last accepted draft included; 0 without any.
  double mean_acceptance_length() const;
  // [i]: verifications that accepted draft i. As long as the longest draft.
  Json accepted_per_position() const;
  // The value of `usage.speculative`.
  Json json() const;
  // "mean acceptance length 4.52 over 31 steps, accepted per position 94 81 74 62 50 %"
  std::string text() const;

 private:
  int64_t steps_ = 0;
  int64_t tokens_ = 0;
  int64_t drafted_ = 0;
  int64_t accepted_ = 0;
  std::array<int64_t, sched::kMaxDraftTokens> drafted_at_{};
  std::array<int64_t, sched::kMaxDraftTokens> accepted_at_{};
};

// Share of first drafts that were accepted among the last 1,000 to 2,000, and whether that is an alarm: a draft layer that works is
// right in most of its first drafts, whatever the text; one that is wired wrongly is not, and no answer shows it.
class AcceptanceWindow {
 public:
  static constexpr int64_t kDrafts = 1000;
  static constexpr double kFloor = 0.6;

  // Totals since start. True when the share has just fallen below the floor: once, and again only after it was above.
  bool update(int64_t drafted, int64_t accepted);
  // Empty before the first draft.
  std::optional<double> share() const;

 private:
  struct Mark {
    int64_t drafted = 0;
    int64_t accepted = 0;
  };
  Mark start_;   // of the window
  Mark middle_;  // becomes the start
  Mark now_;
  bool low_ = false;
};

}  // namespace ingot::serve
