#include "serve/speculation.h"

#include <gtest/gtest.h>

#include <functional>

namespace ingot::serve {
namespace {

using Change = std::function<void(SpeculationOptions&)>;

TEST(SpeculationOptions, DepthFollowsWhicheverFlagIsGiven) {
  SpeculationOptions o;
  EXPECT_EQ(o.depth(), 5);
  o.num_steps = 3;
  EXPECT_EQ(o.depth(), 3);
  o.num_draft_tokens = 4;
  EXPECT_TRUE(o.check());
  EXPECT_EQ(o.depth(), 3);
  o.num_steps.reset();
  o.num_draft_tokens = 9;
  EXPECT_EQ(o.depth(), 8);
  o.algorithm = "none";
  EXPECT_EQ(o.depth(), 0);
}

TEST(SpeculationOptions, ABadFlagIsRefusedByName) {
  const std::pair<const char*, Change> cases[] = {
      {"--speculative-algorithm EAGLE", [](auto& o) { o.algorithm = "EAGLE"; }},
      {"--speculative-num-steps 0", [](auto& o) { o.num_steps = 0; }},
      {"--speculative-num-steps 9", [](auto& o) { o.num_steps = 9; }},
      {"--speculative-eagle-topk 2", [](auto& o) { o.eagle_topk = 2; }},
      {"--speculative-num-draft-tokens 1", [](auto& o) { o.num_draft_tokens = 1; }},
      {"--speculative-num-draft-tokens 10", [](auto& o) { o.num_draft_tokens = 10; }},
      {"--speculative-num-draft-tokens 5", [](auto& o) { o.num_steps = 5, o.num_draft_tokens = 5; }},
      {"--speculative-algorithm none", [](auto& o) { o.algorithm = "none", o.adaptive = true; }},
      {"--speculative-algorithm none", [](auto& o) { o.algorithm = "none", o.num_steps = 3; }},
      {"--benchmark-mode", [](auto& o) { o.force_acceptance = 3; }},
      {"--speculative-force-acceptance 0.5", [](auto& o) { o.force_acceptance = 0.5, o.benchmark_mode = true; }},
      {"--speculative-force-acceptance 6.5", [](auto& o) { o.force_acceptance = 6.5, o.benchmark_mode = true; }},
      {"--speculative-force-acceptance 3.5", [](auto& o) { o.force_acceptance = 3.5, o.num_steps = 2, o.benchmark_mode = true; }}};
  for (const auto& [name, change] : cases) {
    SpeculationOptions o;
    change(o);
    const auto checked = o.check();
    ASSERT_FALSE(checked) << name;
    EXPECT_NE(checked.error().text().find(name), std::string::npos) << checked.error().text();
  }
}

TEST(SpeculationOptions, WhatIsAllowedReachesTheVerifier) {
  SpeculationOptions o;
  o.algorithm = "NEXTN";
  EXPECT_TRUE(o.required());
  o.force_acceptance = 6;  // of five drafts all, and the token after them
  o.benchmark_mode = true;
  o.use_rejection_sampling = true;
  EXPECT_TRUE(o.check());
  EXPECT_EQ(o.verify_options().forced_acceptance, 6);
  EXPECT_TRUE(o.verify_options().rejection_sampling);
  EXPECT_FALSE(SpeculationOptions{}.required());
}

TEST(SpeculationCounts, AddUpStepByStep) {
  SpeculationCounts counts;
  counts.add(1, 0, 0);  // no drafts: no verification
  EXPECT_FALSE(counts.any());
  EXPECT_EQ(counts.mean_acceptance_length(), 0);
  counts.add(6, 5, 5);
  counts.add(1, 5, 0);
  counts.add(3, 3, 2);
  counts.add(2, 4, 2);  // the answer ended within the accepted ones
  EXPECT_EQ(counts.steps(), 4);
  EXPECT_EQ(counts.mean_acceptance_length(), 3);
  EXPECT_EQ(counts.json(), Json::parse(R"({"drafted": 17, "accepted": 9, "accepted_per_position": [3, 3, 1, 1, 1],
                                           "mean_acceptance_length": 3.0})"));
  EXPECT_EQ(counts.text(), "mean acceptance length 3.00 over 4 steps, accepted per position 75 75 25 33 50 %");
  SpeculationCounts twice = counts;
  twice.add(counts);
  EXPECT_EQ(twice.drafted(), 34);
  EXPECT_EQ(twice.mean_acceptance_length(), 3);
  EXPECT_EQ(twice.accepted_per_position(), Json::parse("[6, 6, 2, 2, 2]"));
}

// Feeds `count` first drafts of which `share` hold, in steps of ten; says how often it was an alarm.
struct Feed {
  int alarms(int64_t count, double share) {
    int n = 0;
    for (int64_t i = 0; i < count; i += 10) {
      drafted += 10;
      exact += 10 * share;
      n += window.update(drafted, static_cast<int64_t>(exact + 0.5)) ? 1 : 0;
    }
    return n;
  }
  AcceptanceWindow window;
  int64_t drafted = 0;
  double exact = 0;
};

TEST(AcceptanceWindow, CriesOnceWhenFirstDraftsFailAndAgainOnlyAfterRecovery) {
  Feed feed;
  EXPECT_FALSE(feed.window.share().has_value());
  EXPECT_EQ(feed.alarms(990, 0.02), 0) << "too few to judge";
  EXPECT_EQ(feed.alarms(10, 0.02), 1);
  EXPECT_EQ(feed.alarms(20'000, 0.02), 0) << "said already";
  EXPECT_NEAR(*feed.window.share(), 0.02, 0.01);
  EXPECT_EQ(feed.alarms(5'000, 0.95), 0);
  EXPECT_NEAR(*feed.window.share(), 0.95, 0.01) << "old drafts have left the window";
  EXPECT_EQ(feed.alarms(5'000, 0.3), 1);
}

TEST(AcceptanceWindow, StaysSilentAboveTheFloorAndWhenTotalsShrink) {
  Feed feed;
  EXPECT_EQ(feed.alarms(50'000, 0.65), 0);
  EXPECT_FALSE(feed.window.update(10, 0));
  EXPECT_NEAR(*feed.window.share(), 0.65, 0.01);
}

}  // namespace
}  // namespace ingot::serve
