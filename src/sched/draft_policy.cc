#include "sched/draft_policy.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace ingot::sched {

namespace {
constexpr auto kPositions = static_cast<size_t>(kMaxDraftTokens);

// A rate is that of about so many trials: a text that changes is noticed within a few steps, and chance moves the rate by a tenth.
constexpr float kWindow = 16;

// Thresholds on the chance of a draft: 1 / kThresholds and multiples.
constexpr size_t kThresholds = 64;

constexpr int32_t kFirstProbe = 16;
constexpr int32_t kLastProbe = 256;
// Probes may take this part of the time, saved up over at most so many steps.
constexpr double kProbeShare = 0.01;
constexpr double kProbeSteps = 1024;

// The factors are of about so many steps of a sequence with drafts, and 1 to begin with, as if seen in so many.
constexpr float kFactorWindow = 4096;
constexpr float kFactorPrior = 32;

// What a new sequence's drafts are worth is that of about so many trials of all sequences before it, and of the rate it is given as if seen
// in so many.
constexpr float kAllWindow = 1024;
constexpr float kAllPrior = 8;

// Drafts must promise so much more before they begin: costs are measured once, within a few percent, and rates jitter. Once begun they go
// on while they promise anything.
constexpr double kGainToBegin = 0.04;

size_t threshold_of(float chance) { return std::min(static_cast<size_t>(chance * kThresholds), kThresholds - 1); }

// The chances of a candidate's drafts, one after the other.
class Chances {
 public:
  Chances(const Acceptance& acceptance, const PositionFactors& factors) : rate_(acceptance.rate), factors_(factors) {}
  float next() {
    chance_ *= std::min(rate_ * factors_[position_++], 1.0f);
    return chance_;
  }

 private:
  float rate_;
  const PositionFactors& factors_;
  float chance_ = 1;
  size_t position_ = 0;
};
}  // namespace

double CostCurve::seconds(int64_t count) const {
  if (points.empty()) return 0;
  const auto x = static_cast<double>(count);
  if (points.size() == 1 || x <= points.front().count) return points.front().seconds;
  size_t right = 1;
  while (right + 1 < points.size() && points[right].count < x) ++right;
  const Point &a = points[right - 1], &b = points[right];
  const double slope = (b.seconds - a.seconds) / (b.count - a.count);
  // Measurements jitter: a last slope that falls is not drawn out.
  return b.seconds + (x > b.count ? std::max(slope, 0.0) : slope) * (x - b.count);
}

void cut_to_budget(std::span<DraftCandidate> candidates, int64_t budget) {
  std::array<int64_t, kPositions + 1> deeper{};  // candidates with a depth above the index
  int64_t sum = 0;
  for (const DraftCandidate& candidate : candidates) {
    sum += candidate.depth;
    for (int32_t i = 0; i < candidate.depth; ++i) ++deeper[static_cast<size_t>(i)];
  }
  if (sum <= budget) return;
  int32_t level = 0;  // all may keep so many
  while (deeper[static_cast<size_t>(level)] <= budget) budget -= deeper[static_cast<size_t>(level++)];
  std::vector<uint32_t> order;  // of those with more, of whom `budget` keep one more
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].depth > level) order.push_back(static_cast<uint32_t>(i));
  }
  const auto keep = static_cast<std::ptrdiff_t>(std::max<int64_t>(budget, 0));
  std::nth_element(order.begin(), order.begin() + keep, order.end(), [&](uint32_t a, uint32_t b) {
    const float rate_a = candidates[a].acceptance->rate, rate_b = candidates[b].acceptance->rate;
    return rate_a != rate_b ? rate_a > rate_b : a < b;
  });
  for (size_t i = 0; i < order.size(); ++i) candidates[order[i]].depth = level + (static_cast<std::ptrdiff_t>(i) < keep ? 1 : 0);
}

void choose_depths(const StepCost& cost, const PositionFactors& factors, std::span<DraftCandidate> candidates, int64_t other_rows,
                   double least_gain) {
  // By position and threshold: the drafts there, and their summed chances.
  struct Cell {
    int32_t count = 0;
    float chance = 0;
  };
  std::array<std::array<Cell, kPositions>, kThresholds> cells{};
  for (const DraftCandidate& candidate : candidates) {
    Chances chances(*candidate.acceptance, factors);
    for (int32_t i = 0; i < candidate.limit; ++i) {
      const float chance = chances.next();
      Cell& cell = cells[threshold_of(chance)][static_cast<size_t>(i)];
      ++cell.count;
      cell.chance += chance;
    }
  }

  const auto num_candidates = static_cast<int64_t>(candidates.size());
  const double prompt_seconds = cost.step.seconds(num_candidates + other_rows) - cost.step.seconds(num_candidates);
  double best = (1 + least_gain) * static_cast<double>(num_candidates) / cost.step.seconds(num_candidates);
  size_t best_threshold = kThresholds;  // none
  size_t best_depth = 0;
  std::array<Cell, kPositions> above{};  // by position: all drafts from the threshold up
  std::array<double, kPositions> pass_seconds{};
  for (size_t threshold = kThresholds - 1; threshold > 0; --threshold) {  // what is below the lowest one is never worth it
    bool changed = false;
    for (size_t i = 0; i < kPositions; ++i) {
      const Cell& cell = cells[threshold][i];
      if (cell.count == 0) continue;
      above[i].count += cell.count;
      above[i].chance += cell.chance;
      pass_seconds[i] = cost.pass.seconds(above[i].count);
      changed = true;
    }
    if (!changed) continue;
    int64_t rows = num_candidates + other_rows;
    auto tokens = static_cast<double>(num_candidates);
    double seconds = -prompt_seconds;
    for (size_t i = 0; i < kPositions && above[i].count > 0; ++i) {
      rows += above[i].count;
      tokens += above[i].chance;
      seconds += pass_seconds[i];
      const double value = tokens / (cost.step.seconds(rows) + seconds);
      if (value <= best) continue;
      best = value;
      best_threshold = threshold;
      best_depth = i + 1;
    }
  }

  for (DraftCandidate& candidate : candidates) {
    candidate.depth = 0;
    Chances chances(*candidate.acceptance, factors);
    const int32_t limit = std::min(candidate.limit, static_cast<int32_t>(best_depth));
    while (candidate.depth < limit && threshold_of(chances.next()) >= best_threshold) ++candidate.depth;
  }
}

DraftPlanner::DraftPlanner(const DraftPolicy& policy) : policy_(policy) {
  INGOT_CHECK(policy.num_steps >= 0 && policy.num_steps <= kMaxDraftTokens, "{} drafts a step; at most {}", policy.num_steps,
              kMaxDraftTokens);
  INGOT_CHECK(!policy.adaptive || !policy.cost.step.points.empty(), "adaptive drafts without the cost of a step");
  for (const CostCurve* curve : {&policy.cost.step, &policy.cost.pass}) {
    double last = -1;
    for (const CostCurve::Point& point : curve->points) {
      INGOT_CHECK(point.count > last && point.seconds > 0, "a cost of {} seconds for {}", point.seconds, point.count);
      last = point.count;
    }
  }
  factors_.fill(1);
}

void DraftPlanner::plan(std::span<DraftCandidate> candidates, int64_t other_rows, int64_t budget) {
  if (candidates.empty()) return;
  if (!policy_.adaptive) {
    for (DraftCandidate& candidate : candidates) candidate.depth = candidate.limit;
    cut_to_budget(candidates, budget);
    return;
  }
  // The older, the less it counts; also where nothing was tried: a position that was given up for its factor comes back in time.
  const float keep = std::max(1 - static_cast<float>(std::exchange(num_recorded_, 0)) / kFactorWindow, 0.0f);
  for (size_t i = 0; i < kPositions; ++i) {
    held_[i] *= keep;
    expected_[i] *= keep;
    factors_[i] = (held_[i] + kFactorPrior) / (expected_[i] + kFactorPrior);
  }
  expected_of_new_.clear();
  expected_of_new_.reserve(candidates.size());  // it must not move
  for (DraftCandidate& candidate : candidates) {
    if (candidate.acceptance->tried) continue;
    expected_of_new_.push_back(*candidate.acceptance);
    expected_of_new_.back().rate = rate_of_new();
    candidate.acceptance = &expected_of_new_.back();
  }
  choose_depths(policy_.cost, factors_, candidates, other_rows, drafting_ ? 0 : kGainToBegin);
  drafting_ = std::any_of(candidates.begin(), candidates.end(), [](const DraftCandidate& candidate) { return candidate.depth > 0; });
  cut_to_budget(candidates, budget);
  probe(candidates, other_rows, budget);
}

float DraftPlanner::rate_of_new() const { return (all_held_ + kAllPrior * Acceptance{}.rate) / (all_tried_ + kAllPrior); }

// Those that earn no drafts get one now and then, since only drafts show that their text has become predictable. Together, because the
// pass costs most; and out of savings, so that probes take no more than kProbeShare of the time whatever they cost.
void DraftPlanner::probe(std::span<DraftCandidate> candidates, int64_t other_rows, int64_t budget) {
  int64_t rows = static_cast<int64_t>(candidates.size()) + other_rows;
  int64_t drafting = 0;
  std::vector<DraftCandidate*> due;
  for (DraftCandidate& candidate : candidates) {
    rows += candidate.depth;
    budget -= candidate.depth;
    if (candidate.depth > 0) ++drafting;
    if (candidate.depth == 0 && candidate.limit > 0 && candidate.acceptance->tokens_since >= candidate.acceptance->probe_after) {
      due.push_back(&candidate);
    }
  }
  const double step_seconds = policy_.cost.step.seconds(rows);
  const double most = kProbeShare * kProbeSteps * step_seconds;
  probe_seconds_ = std::min(probe_seconds_ + kProbeShare * step_seconds, most);
  if (due.empty() || budget <= 0) return;
  const double pass_seconds = drafting == 0 ? 0 : policy_.cost.pass.seconds(drafting);
  const auto price = [&](int64_t count) {
    return policy_.cost.step.seconds(rows + count) - step_seconds + policy_.cost.pass.seconds(drafting + count) - pass_seconds;
  };
  auto count = std::min(static_cast<int64_t>(due.size()), budget);
  while (count > 1 && price(count) > most) count /= 2;
  if (price(count) > probe_seconds_) return;
  probe_seconds_ -= price(count);
  for (int64_t i = 0; i < count; ++i) due[static_cast<size_t>(i)]->depth = 1;
}

void DraftPlanner::record(Acceptance& acceptance, int32_t num_tokens, int32_t num_drafted) {
  if (num_drafted == 0) {
    acceptance.tokens_since = std::min(acceptance.tokens_since + num_tokens, kLastProbe);
    return;
  }
  const int32_t num_held = num_tokens - 1;
  if (!acceptance.tried) acceptance.rate = rate_of_new();
  acceptance.tried = true;
  const bool was_probe = acceptance.tokens_since >= kFirstProbe;
  if (was_probe) {
    acceptance.probe_after = num_held > 0 ? kFirstProbe : std::min(2 * acceptance.probe_after, kLastProbe);
    if (num_held > 0) acceptance.weight = 1;  // what the rate was before says little
  } else if (num_held > 0) {
    acceptance.probe_after = std::max(acceptance.probe_after / 2, kFirstProbe);
  }
  acceptance.tokens_since = 0;
  // Drafts behind the first that failed were not tried.
  const int32_t num_tried = std::min(num_held + 1, num_drafted);
  const float rate = acceptance.rate;
  for (int32_t i = 0; i < num_tried; ++i) {
    const float held = i < num_held ? 1.0f : 0.0f;
    acceptance.weight = std::min(acceptance.weight + 1, kWindow);
    acceptance.rate += (held - acceptance.rate) / acceptance.weight;
    held_[static_cast<size_t>(i)] += held;
    expected_[static_cast<size_t>(i)] += rate;
    const float keep = all_tried_ < kAllWindow ? 1.0f : 1 - 1 / kAllWindow;
    all_held_ = keep * all_held_ + held;
    all_tried_ = keep * all_tried_ + 1;
  }
  ++num_recorded_;
}

}  // namespace ingot::sched
