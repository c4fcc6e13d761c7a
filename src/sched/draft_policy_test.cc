// Which depth a sequence drafts in. Symptoms: speculation that makes a busy or an unpredictable server slower than none (D-rows on
// speculation), a sequence that stops drafting for ever after one dull paragraph, and drafts beyond what a client or the pool allows.
#include "sched/draft_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace ingot::sched {
namespace {

// A weight-bound machine: rows are nearly free. In steps of one row.
StepCost cheap_rows() {
  return {.step = {.points = {{1, 1.0}, {64, 1.3}, {1024, 6.0}}}, .pass = {.points = {{1, 0.05}, {64, 0.07}, {1024, 0.3}}}};
}
// A compute-bound one: each row costs as much as the first.
StepCost costly_rows() { return {.step = {.points = {{1, 1.0}, {2, 2.0}, {256, 256.0}}}, .pass = {.points = {{1, 0.1}, {256, 10.0}}}}; }
// A small CPU: a verify of six tokens takes two steps.
StepCost cpu() { return {.step = {.points = {{1, 1.0}, {6, 2.0}, {32, 6.0}, {256, 45.0}}}, .pass = {.points = {{1, 0.06}, {32, 0.4}}}}; }

PositionFactors even_factors() {
  PositionFactors factors;
  factors.fill(1);
  return factors;
}

// Depths of sequences with these rates.
std::vector<int32_t> depths(const StepCost& cost, const std::vector<float>& rates, int32_t limit, int64_t other_rows = 0) {
  std::vector<Acceptance> acceptances(rates.size());
  std::vector<DraftCandidate> candidates(rates.size());
  for (size_t i = 0; i < rates.size(); ++i) {
    acceptances[i].rate = rates[i];
    candidates[i] = {.acceptance = &acceptances[i], .limit = limit, .depth = 0};
  }
  choose_depths(cost, even_factors(), candidates, other_rows);
  std::vector<int32_t> result;
  for (const DraftCandidate& candidate : candidates) result.push_back(candidate.depth);
  return result;
}

double tokens_per_second(const StepCost& cost, const std::vector<float>& rates, const std::vector<int32_t>& depth) {
  double tokens = 0;
  auto rows = static_cast<int64_t>(rates.size());
  double seconds = 0;
  for (size_t i = 0; i < rates.size(); ++i) {
    for (int32_t k = 0; k <= depth[i]; ++k) tokens += std::pow(static_cast<double>(rates[i]), k);
    rows += depth[i];
  }
  for (int32_t k = 1; k <= kMaxDraftTokens; ++k) {
    const auto in_pass = std::count_if(depth.begin(), depth.end(), [k](int32_t d) { return d >= k; });
    if (in_pass > 0) seconds += cost.pass.seconds(in_pass);
  }
  return tokens / (seconds + cost.step.seconds(rows));
}

TEST(CostCurve, IsLinearBetweenItsPointsLevelBeforeAndGoesOnBehind) {
  const CostCurve curve{.points = {{2, 1.0}, {4, 2.0}, {8, 10.0}}};
  EXPECT_DOUBLE_EQ(curve.seconds(0), 1.0);
  EXPECT_DOUBLE_EQ(curve.seconds(2), 1.0);
  EXPECT_DOUBLE_EQ(curve.seconds(3), 1.5);
  EXPECT_DOUBLE_EQ(curve.seconds(4), 2.0);
  EXPECT_DOUBLE_EQ(curve.seconds(7), 8.0);
  EXPECT_DOUBLE_EQ(curve.seconds(10), 14.0);
  EXPECT_DOUBLE_EQ((CostCurve{.points = {{1, 3.0}}}).seconds(100), 3.0);
  EXPECT_DOUBLE_EQ((CostCurve{.points = {{1, 3.0}, {2, 2.0}}}).seconds(100), 2.0) << "jitter must not make rows free";
  EXPECT_DOUBLE_EQ(CostCurve{}.seconds(7), 0.0);
}

TEST(ChooseDepths, FollowsTheAcceptanceAtBatchOne) {
  EXPECT_EQ(depths(cheap_rows(), {0.95f}, 5), std::vector<int32_t>{5});
  EXPECT_EQ(depths(cheap_rows(), {0.95f}, 8), std::vector<int32_t>{8});
  EXPECT_EQ(depths(cpu(), {0.95f}, 5), std::vector<int32_t>{5});
  EXPECT_EQ(depths(cheap_rows(), {0.05f}, 5), std::vector<int32_t>{0});
  EXPECT_EQ(depths(cpu(), {0.05f}, 5), std::vector<int32_t>{0});
  EXPECT_EQ(depths(costly_rows(), {0.95f}, 5), std::vector<int32_t>{0});
}

TEST(ChooseDepths, IsShallowerWhenTheBatchFillsTheMachine) {
  const StepCost cost = {.step = {.points = {{1, 1.0}, {64, 1.2}, {128, 2.4}, {1024, 19.2}}},
                         .pass = {.points = {{1, 0.02}, {64, 0.03}, {1024, 0.4}}}};
  int32_t last = 8;
  for (const size_t batch : {1u, 8u, 16u, 32u, 64u, 256u}) {
    const auto result = depths(cost, std::vector<float>(batch, 0.8f), 8);
    const int32_t deepest = *std::max_element(result.begin(), result.end());
    EXPECT_LE(deepest, last) << batch;
    last = deepest;
  }
  EXPECT_GE(depths(cost, {0.8f}, 8)[0], 5);
  EXPECT_LE(last, 1);
  // Rows of prompts fill it just as well.
  EXPECT_EQ(depths(costly_rows(), {0.95f}, 8, 100), std::vector<int32_t>{0});
  EXPECT_GE(depths(cheap_rows(), {0.5f}, 8, 512)[0], 2) << "the time of the prompts is not the drafts'";
}

TEST(ChooseDepths, GrowsWithTheAcceptanceOfASequenceAndAmongNeighbours) {
  for (const StepCost& cost : {cheap_rows(), cpu(), costly_rows()}) {
    std::vector<float> rates;
    for (int i = 0; i <= 20; ++i) rates.push_back(static_cast<float>(i) / 20);
    int32_t last = 0;
    for (const float rate : rates) {
      const int32_t depth = depths(cost, {rate}, 8)[0];
      EXPECT_GE(depth, last) << rate;
      last = depth;
    }
    const auto together = depths(cost, rates, 8);
    EXPECT_TRUE(std::is_sorted(together.begin(), together.end()));
  }
}

TEST(ChooseDepths, IsNearTheBestOfAllDepths) {
  Rng rng(5);
  for (int trial = 0; trial < 300; ++trial) {
    const StepCost cost = trial % 3 == 0 ? cheap_rows() : trial % 3 == 1 ? cpu() : costly_rows();
    std::vector<float> rates(1 + rng.below(4));
    for (float& rate : rates) rate = static_cast<float>(rng.uniform());
    const auto chosen = depths(cost, rates, 4);
    double best = 0;
    std::vector<int32_t> depth(rates.size(), 0);
    for (bool more = true; more;) {  // all 5^n combinations
      best = std::max(best, tokens_per_second(cost, rates, depth));
      more = false;
      for (int32_t& d : depth) {
        if (++d <= 4) {
          more = true;
          break;
        }
        d = 0;
      }
    }
    EXPECT_GE(tokens_per_second(cost, rates, chosen), 0.98 * best) << "trial " << trial;
  }
}

TEST(CutToBudget, CutsTheDeepestFirstAndKeepsTheLikeliest) {
  std::vector<Acceptance> acceptances(4);
  const std::vector<float> rates = {0.5f, 0.9f, 0.5f, 0.7f};
  for (size_t i = 0; i < 4; ++i) acceptances[i].rate = rates[i];
  const auto cut = [&](std::vector<int32_t> depth, int64_t budget) {
    std::vector<DraftCandidate> candidates;
    for (size_t i = 0; i < 4; ++i) candidates.push_back({.acceptance = &acceptances[i], .limit = depth[i], .depth = depth[i]});
    cut_to_budget(candidates, budget);
    for (size_t i = 0; i < 4; ++i) depth[i] = candidates[i].depth;
    return depth;
  };
  using Depths = std::vector<int32_t>;
  EXPECT_EQ(cut({5, 5, 5, 5}, 20), (Depths{5, 5, 5, 5}));
  EXPECT_EQ(cut({5, 5, 5, 5}, 19), (Depths{5, 5, 4, 5})) << "of equals the last";
  EXPECT_EQ(cut({5, 5, 5, 5}, 10), (Depths{2, 3, 2, 3}));
  EXPECT_EQ(cut({8, 1, 2, 0}, 7), (Depths{4, 1, 2, 0}));
  EXPECT_EQ(cut({8, 1, 2, 0}, 4), (Depths{2, 1, 1, 0}));
  EXPECT_EQ(cut({5, 5, 5, 5}, 3), (Depths{1, 1, 0, 1}));
  EXPECT_EQ(cut({5, 5, 5, 5}, 0), (Depths{0, 0, 0, 0}));
}

TEST(DraftPlanner, NeverGoesOverALimit) {
  Rng rng(11);
  for (int trial = 0; trial < 2000; ++trial) {
    const StepCost cost = trial % 3 == 0 ? cheap_rows() : trial % 3 == 1 ? cpu() : costly_rows();
    DraftPlanner planner({.num_steps = 8, .adaptive = rng.below(2) == 0, .cost = cost});
    std::vector<Acceptance> acceptances(1 + rng.below(40));
    std::vector<DraftCandidate> candidates;
    for (Acceptance& acceptance : acceptances) {
      acceptance.rate = static_cast<float>(rng.uniform());
      acceptance.tried = rng.below(4) > 0;
      acceptance.tokens_since = static_cast<int32_t>(rng.below(300));
      candidates.push_back({.acceptance = &acceptance, .limit = static_cast<int32_t>(rng.below(9)), .depth = 0});
    }
    const auto budget = static_cast<int64_t>(rng.below(200));
    for (int step = 0; step < 20; ++step) {
      planner.plan(candidates, static_cast<int64_t>(rng.below(100)), budget);
      int64_t sum = 0;
      for (const DraftCandidate& candidate : candidates) {
        ASSERT_TRUE(candidate.depth >= 0 && candidate.depth <= candidate.limit);
        sum += candidate.depth;
      }
      ASSERT_LE(sum, budget);
    }
  }
}

TEST(DraftPlanner, GivesAllTheyMayHaveUnlessItIsAdaptive) {
  DraftPlanner planner({.num_steps = 5, .adaptive = false, .cost = {}});
  std::vector<Acceptance> acceptances(3);
  acceptances[1].rate = 0;
  std::vector<DraftCandidate> candidates;
  for (size_t i = 0; i < 3; ++i) candidates.push_back({.acceptance = &acceptances[i], .limit = i == 2 ? 2 : 5, .depth = 0});
  planner.plan(candidates, 1000, 12);
  EXPECT_EQ(candidates[0].depth, 5);
  EXPECT_EQ(candidates[1].depth, 5) << "a fixed depth is fixed";
  EXPECT_EQ(candidates[2].depth, 2);
}

// Sequences whose drafts hold with given chances, and the clock of the cost model. The draws do not depend on the depths.
class World {
 public:
  World(const DraftPolicy& policy, size_t count) : planner(policy), policy_(policy), acceptances(count), chances(count, 0.5) {}

  void step() {
    std::vector<DraftCandidate> candidates;
    for (const Acceptance& acceptance : acceptances) {
      candidates.push_back({.acceptance = &acceptance, .limit = policy_.num_steps, .depth = 0});
    }
    planner.plan(candidates, 0, 8192);
    auto rows = static_cast<int64_t>(candidates.size());
    std::vector<int64_t> in_pass(kMaxDraftTokens, 0);
    for (size_t i = 0; i < candidates.size(); ++i) {
      int32_t held = 0;
      for (bool holds = true; held < candidates[i].depth;) {
        holds = holds && rng_.uniform() < chances[i] * position_chance[static_cast<size_t>(held)];
        if (!holds) break;
        ++held;
      }
      for (int32_t k = 0; k < candidates[i].depth; ++k) ++in_pass[static_cast<size_t>(k)];
      rows += candidates[i].depth;
      planner.record(acceptances[i], 1 + held, candidates[i].depth);
      tokens += 1 + held;
    }
    for (const int64_t n : in_pass) seconds += n == 0 ? 0 : cost.pass.seconds(n);
    seconds += cost.step.seconds(rows);
    depth = candidates[0].depth;
  }
  void run(int64_t num_tokens) {  // for each sequence, in the mean
    for (const int64_t end = tokens + num_tokens * static_cast<int64_t>(acceptances.size()); tokens < end;) step();
  }

  DraftPlanner planner;

 private:
  DraftPolicy policy_;
  Rng rng_{3};

 public:
  StepCost cost = policy_.cost;
  std::vector<Acceptance> acceptances;
  std::vector<double> chances;
  std::array<double, kMaxDraftTokens> position_chance = {1, 1, 1, 1, 1, 1, 1, 1};
  int64_t tokens = 0;
  double seconds = 0;
  int32_t depth = 0;  // of the first sequence in the last step
};

TEST(DraftPlanner, IsNeverMuchSlowerThanNoDraftsAndNearTheBestFixedDepth) {
  for (const StepCost& cost : {cheap_rows(), cpu(), costly_rows()}) {
    for (const size_t batch : {1u, 8u, 32u, 256u}) {
      for (const double chance : {0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0}) {
        World adaptive({.num_steps = 5, .adaptive = true, .cost = cost}, batch);
        adaptive.chances.assign(batch, chance);
        const int64_t length = 2000;
        adaptive.run(length);
        const double speed = static_cast<double>(adaptive.tokens) / adaptive.seconds;
        double best = 0;
        const double off = static_cast<double>(batch) / cost.step.seconds(static_cast<int64_t>(batch));
        for (int32_t k = 0; k <= 5; ++k) {
          best = std::max(best,
                          tokens_per_second(cost, std::vector<float>(batch, static_cast<float>(chance)), std::vector<int32_t>(batch, k)));
        }
        EXPECT_GT(speed, 0.97 * off) << "batch " << batch << ", chance " << chance;
        EXPECT_GT(speed, 0.92 * best) << "batch " << batch << ", chance " << chance;
      }
    }
  }
}

TEST(DraftPlanner, ComesBackWhenTheTextBecomesPredictable) {
  for (const size_t batch : {1u, 8u}) {
    World world({.num_steps = 5, .adaptive = true, .cost = cpu()}, batch);
    for (int round = 0; round < 3; ++round) {
      world.chances.assign(batch, 0.02);
      world.run(1000);
      EXPECT_LE(world.depth, 1);
      double before = world.seconds;
      world.run(1000);
      EXPECT_LT(world.seconds - before, 1.02 * 1000 * world.cost.step.seconds(static_cast<int64_t>(batch))) << "what probes cost";
      world.chances.assign(batch, 0.98);
      world.run(500);
      before = world.seconds;
      const int64_t tokens = world.tokens;
      world.run(500);
      const std::vector<float> rates(batch, 0.98f);
      EXPECT_GT(static_cast<double>(world.tokens - tokens) / (world.seconds - before),
                0.9 * tokens_per_second(world.cost, rates, std::vector<int32_t>(batch, 5)))
          << "batch " << batch << ", round " << round;
    }
  }
}

TEST(DraftPlanner, ProbesTakeLessThanOnePercentWhateverTheyCost) {
  for (const double pass : {0.01, 0.3, 2.0}) {
    for (const size_t batch : {1u, 32u, 256u}) {
      StepCost cost = costly_rows();
      cost.pass.points = {{1, pass}, {256, 2 * pass}};
      World world({.num_steps = 5, .adaptive = true, .cost = cost}, batch);
      world.chances.assign(batch, 0.0);
      for (Acceptance& acceptance : world.acceptances) acceptance = {.tried = true, .rate = 0.01f};
      int64_t probes = 0;
      const int64_t steps = 10000;
      for (int64_t i = 0; i < steps; ++i) {
        world.step();
        for (const Acceptance& acceptance : world.acceptances) probes += acceptance.tokens_since == 0 ? 1 : 0;
      }
      const double off = cost.step.seconds(static_cast<int64_t>(batch)) * static_cast<double>(steps);
      EXPECT_LT(world.seconds, 1.01 * off) << "pass " << pass << ", batch " << batch;
      EXPECT_GE(probes, static_cast<int64_t>(batch) * steps / 1000) << "they do happen: pass " << pass << ", batch " << batch;
    }
  }
}

TEST(DraftPlanner, WaitsTwiceAsLongAfterEachProbeInVain) {
  DraftPlanner planner({.num_steps = 5, .adaptive = true, .cost = cheap_rows()});
  Acceptance acceptance{.tried = true, .rate = 0.01f, .weight = 16, .tokens_since = 0, .probe_after = 16};
  std::vector<DraftCandidate> candidates = {{.acceptance = &acceptance, .limit = 5, .depth = 0}};
  std::vector<int32_t> waits;
  for (int32_t since = 0; waits.size() < 7; ++since) {
    planner.plan(candidates, 0, 100);
    planner.record(acceptance, 1, candidates[0].depth);
    if (candidates[0].depth == 0) continue;
    EXPECT_EQ(candidates[0].depth, 1);
    waits.push_back(since);
    since = -1;
  }
  EXPECT_EQ(waits, (std::vector<int32_t>{16, 32, 64, 128, 256, 256, 256}));
}

TEST(DraftPlanner, AProbeThatHoldsCountsForMoreThanTheLongPastBeforeIt) {
  DraftPlanner planner({.num_steps = 5, .adaptive = true, .cost = cpu()});
  Acceptance acceptance{.tried = true, .rate = 0.02f, .weight = 16, .tokens_since = 256, .probe_after = 256};
  planner.record(acceptance, 2, 1);
  EXPECT_GT(acceptance.rate, 0.4f);
  EXPECT_EQ(acceptance.probe_after, 16);
  planner.record(acceptance, 1, 5);
  EXPECT_LT(acceptance.rate, 0.4f) << "a miss at once";
}

// Symptom: each of many short answers starts with the same guess, and ends before its own drafts have corrected it.
TEST(DraftPlanner, ANewSequenceBeginsWithWhatTheOthersFound) {
  for (const auto& [chance, least, most] : {std::tuple(0.98, 5, 5), std::tuple(0.05, 0, 0)}) {
    World world({.num_steps = 5, .adaptive = true, .cost = cpu()}, 1);
    world.chances = {chance};
    for (int sequence = 0; sequence < 40; ++sequence) {
      world.acceptances = {Acceptance{}};
      world.run(30);
    }
    world.acceptances = {Acceptance{}};
    world.step();
    EXPECT_GE(world.depth, least) << chance;
    EXPECT_LE(world.depth, most) << chance;
    // It is a beginning, no more.
    world.chances = {1.0 - chance};
    world.run(2000);
    EXPECT_EQ(world.depth > 2, chance < 0.5) << chance;
  }
}

TEST(DraftPlanner, ASmallGainIsNotWorthTheRisk) {
  // A draft that always holds makes two tokens of a step and a pass: 2 % more of them a second here, then 30 %.
  for (const auto& [step, depth] : {std::pair(1.95, 0), std::pair(1.53, 1)}) {
    World world({.num_steps = 1, .adaptive = true, .cost = {.step = {.points = {{1, 1.0}, {2, step}}}, .pass = {.points = {{1, 0.01}}}}},
                1);
    world.chances = {1.0};
    world.acceptances = {Acceptance{.tried = true, .rate = 1.0f, .weight = 16}};
    world.step();
    EXPECT_EQ(world.depth, depth) << step;
  }
}

TEST(DraftPlanner, LearnsHowMuchWorseLaterPositionsAre) {
  World world({.num_steps = 5, .adaptive = true, .cost = cheap_rows()}, 32);
  world.chances.assign(32, 0.95);
  world.position_chance = {1, 1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1};
  world.run(2000);
  EXPECT_LT(world.planner.factors()[2], 0.5f);
  EXPECT_GT(world.planner.factors()[0], 0.95f);
  int64_t deep = 0;
  for (int i = 0; i < 100; ++i) {
    world.step();
    deep += world.depth > 2 ? 1 : 0;
  }
  EXPECT_LT(deep, 20) << "the third draft never holds";
}

}  // namespace
}  // namespace ingot::sched
