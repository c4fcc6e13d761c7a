// How deep each decoding sequence drafts in a step: the policy of the operator, what a step costs, and what recent drafts of a sequence
// were worth. A draft costs a row and a pass, whether it holds or not; the depth never changes an answer.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sched/request.h"

namespace ingot::sched {

// Seconds by count, linear between the points, level before the first and going on behind the last as it came. No points: 0 everywhere.
struct CostCurve {
  struct Point {
    double count = 0;
    double seconds = 0;
  };
  std::vector<Point> points = {};  // counts ascend; seconds > 0

  double seconds(int64_t count) const;
};

// Measured by the runner at start.
struct StepCost {
  CostCurve step = {};  // of the main model, by rows: those of decodes, drafts included, and of prompts
  CostCurve pass = {};  // of one pass of the draft model, by sequences in it: drafts of depth k take k passes
};

// Set by the operator.
struct DraftPolicy {
  int32_t num_steps = 0;  // a sequence drafts at most so many tokens in a step, up to kMaxDraftTokens; 0: off
  bool adaptive = false;  // choose the depths that give the most tokens a second; needs cost.step
  StepCost cost = {};     // unused unless adaptive
};

// What the drafts of one sequence were worth: written by DraftPlanner.
struct Acceptance {
  bool tried = false;        // it had drafts; until then those of other sequences say what to expect
  float rate = 0.9f;         // that a draft holds when those before it did; optimistic, so that the first ones are tried
  float weight = 2;          // trials that `rate` stands for
  int32_t tokens_since = 0;  // drawn since the last draft
  int32_t probe_after = 16;  // so many tokens without drafts until a sequence that earns none is tried again
};

// A decoding sequence, and the depth it is given.
struct DraftCandidate {
  const Acceptance* acceptance = nullptr;
  int32_t limit = 0;  // most drafts that it may have, up to kMaxDraftTokens
  int32_t depth = 0;
};

// Chances that a draft at each position holds when those before it do, relative to the rate of its sequence.
using PositionFactors = std::array<float, kMaxDraftTokens>;

// Cuts depths so that their sum is at most `budget`: the deepest are cut first, and of equally deep ones those that are the least likely to
// hold (of equals, the last).
void cut_to_budget(std::span<DraftCandidate> candidates, int64_t budget);

// Sets the depths, each up to its limit, that give the most expected tokens per second. A sequence with depth k gives
// 1 + sum over i <= k of (product over j <= i of rate * factors[j]) tokens. They take cost.step(rows) + sum over i of cost.pass(sequences
// with depth >= i) seconds, where rows are one a candidate, the drafts, and `other_rows`, which are prompts'. What those add to a step
// without drafts is not counted: tokens must earn their own time, but a machine that prompts keep busy is not idle. Near the best, not
// exact: the drafts taken are those with a chance above one threshold of a grid, up to one depth. None are taken that promise less than
// `least_gain` more tokens per second than a step without.
void choose_depths(const StepCost& cost, const PositionFactors& factors, std::span<DraftCandidate> candidates, int64_t other_rows,
                   double least_gain = 0);

// The policy at work. One thread.
class DraftPlanner {
 public:
  explicit DraftPlanner(const DraftPolicy& policy);

  int32_t num_steps() const { return policy_.num_steps; }

  // Sets the depths; limits are already no more than num_steps. Their sum is at most `budget`. `other_rows` of the step are prompts'.
  void plan(std::span<DraftCandidate> candidates, int64_t other_rows, int64_t budget);

  // What came of it: num_tokens were drawn, of num_drafted drafts the first num_tokens - 1 held.
  void record(Acceptance& acceptance, int32_t num_tokens, int32_t num_drafted);

  const PositionFactors& factors() const { return factors_; }

 private:
  // The rate of a sequence that had no drafts.
  float rate_of_new() const;
  void probe(std::span<DraftCandidate> candidates, int64_t other_rows, int64_t budget);

  DraftPolicy policy_;
  // Of all sequences, lately: drafts at a position that held, and how many should have by the rates of their sequences.
  std::array<float, kMaxDraftTokens> held_{};
  std::array<float, kMaxDraftTokens> expected_{};
  PositionFactors factors_;
  float all_held_ = 0, all_tried_ = 0;       // of all positions together
  std::vector<Acceptance> expected_of_new_;  // of the candidates of this plan that had no drafts
  int64_t num_recorded_ = 0;                 // since the last plan
  bool drafting_ = false;                    // drafts paid in the last plan
  double probe_seconds_ = 0;                 // that probes may still take
};

}  // namespace ingot::sched
