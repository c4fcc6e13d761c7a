#include "serve/speculation.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace ingot::serve {

namespace {
constexpr int64_t kDefaultSteps = 5;

double share_of(int64_t part, int64_t all) { return all > 0 ? static_cast<double>(part) / static_cast<double>(all) : 0.0; }
}  // namespace

int32_t SpeculationOptions::depth() const {
  if (!wanted()) return 0;
  return static_cast<int32_t>(num_steps.value_or(num_draft_tokens ? *num_draft_tokens - 1 : kDefaultSteps));
}

exec::VerifyOptions SpeculationOptions::verify_options() const {
  return {.rejection_sampling = use_rejection_sampling, .forced_acceptance = force_acceptance.value_or(0)};
}

Result<> SpeculationOptions::check() const {
  if (algorithm != "auto" && algorithm != "NEXTN" && algorithm != "none")
    return fail_hint("use NEXTN or none, or leave it out", "--speculative-algorithm {} is unknown", algorithm);
  if (num_steps && (*num_steps < 1 || *num_steps > sched::kMaxDraftTokens))
    return fail("--speculative-num-steps {} is out of range: expected 1 to {}", *num_steps, sched::kMaxDraftTokens);
  if (eagle_topk != 1)
    return fail_hint("leave it at 1", "--speculative-eagle-topk {} is not supported yet: the model drafts chains, not trees", eagle_topk);
  if (num_draft_tokens && (*num_draft_tokens < 2 || *num_draft_tokens > sched::kMaxDraftTokens + 1))
    return fail("--speculative-num-draft-tokens {} is out of range: expected 2 to {}", *num_draft_tokens, sched::kMaxDraftTokens + 1);
  if (num_steps && num_draft_tokens && *num_draft_tokens != *num_steps + 1) {
    return fail_hint("leave one of them out", "--speculative-num-draft-tokens {} is not --speculative-num-steps {} + 1, as a chain needs",
                     *num_draft_tokens, *num_steps);
  }
  if (!wanted() && (num_steps || num_draft_tokens || adaptive || use_rejection_sampling || force_acceptance))
    return fail_hint("leave one of them out", "--speculative-algorithm none and other --speculative flags contradict each other");
  if (!force_acceptance) return {};
  if (!benchmark_mode)
    return fail_hint("add --benchmark-mode", "--speculative-force-acceptance makes every answer meaningless: it is for benchmarks alone");
  const double most = depth() + 1.0;
  if (!(*force_acceptance >= 1 && *force_acceptance <= most))
    return fail("--speculative-force-acceptance {} is out of range: expected 1 to {}, the tokens of a step", *force_acceptance, most);
  return {};
}

void SpeculationCounts::add(int64_t num_tokens, int32_t num_drafted, int32_t num_accepted) {
  if (num_drafted == 0) return;
  ++steps_;
  tokens_ += num_tokens;
  drafted_ += num_drafted;
  accepted_ += num_accepted;
  const auto count = [](auto& counts, int32_t positions) {
    const auto n = std::min(static_cast<size_t>(positions), counts.size());
    for (size_t i = 0; i < n; ++i) ++counts[i];
  };
  count(drafted_at_, num_drafted);
  count(accepted_at_, num_accepted);
}

void SpeculationCounts::add(const SpeculationCounts& other) {
  steps_ += other.steps_;
  tokens_ += other.tokens_;
  drafted_ += other.drafted_;
  accepted_ += other.accepted_;
  for (size_t i = 0; i < drafted_at_.size(); ++i) {
    drafted_at_[i] += other.drafted_at_[i];
    accepted_at_[i] += other.accepted_at_[i];
  }
}

double SpeculationCounts::mean_acceptance_length() const { return share_of(tokens_, steps_); }

Json SpeculationCounts::accepted_per_position() const {
  Json list = Json::array();
  for (size_t i = 0; i < drafted_at_.size() && drafted_at_[i] > 0; ++i) list.push_back(accepted_at_[i]);
  return list;
}

Json SpeculationCounts::json() const {
  return {{"drafted", drafted_},
          {"accepted", accepted_},
          {"accepted_per_position", accepted_per_position()},
          {"mean_acceptance_length", mean_acceptance_length()}};
}

std::string SpeculationCounts::text() const {
  std::string shares;
  for (size_t i = 0; i < drafted_at_.size() && drafted_at_[i] > 0; ++i)
    shares += fmt::format("{:.0f} ", 100 * share_of(accepted_at_[i], drafted_at_[i]));
  return fmt::format("mean acceptance length {:.2f} over {} steps, accepted per position {}%", mean_acceptance_length(), steps_, shares);
}

bool AcceptanceWindow::update(int64_t drafted, int64_t accepted) {
  if (drafted < now_.drafted || accepted < now_.accepted) return false;
  now_ = {drafted, accepted};
  const int64_t in_window = drafted - start_.drafted;
  const bool was_low = low_;
  if (in_window >= kDrafts) low_ = share_of(accepted - start_.accepted, in_window) < kFloor;
  if (drafted - middle_.drafted >= kDrafts) {
    start_ = middle_;
    middle_ = now_;
  }
  return low_ && !was_low;
}

std::optional<double> AcceptanceWindow::share() const {
  if (now_.drafted == start_.drafted) return std::nullopt;
  return share_of(now_.accepted - start_.accepted, now_.drafted - start_.drafted);
}

}  // namespace ingot::serve
