// Symptom: an exclude list means one thing to who writes it and another to who reads it, and modules are packed that must not be (A1, A3).
#include "spec/module_pattern.h"

#include <gtest/gtest.h>

namespace ingot::spec {
namespace {

bool matches(const std::string& pattern, const std::string& module) { return ModulePattern::parse(pattern).value().matches(module); }

TEST(ModulePattern, ANameCoversTheModuleAndWhatIsBelowIt) {
  EXPECT_TRUE(matches("model.layers.3.mlp", "model.layers.3.mlp"));
  EXPECT_TRUE(matches("model.layers.3.mlp", "model.layers.3.mlp.experts.0.up_proj"));
  EXPECT_FALSE(matches("model.layers.3.mlp", "model.layers.3.mlp2.up_proj"));
  EXPECT_FALSE(matches("model.layers.3", "model.layers.30.mlp"));
}

TEST(ModulePattern, AGlobIsOfTheWholeName) {
  EXPECT_TRUE(matches("*self_attn*", "model.layers.0.self_attn.q_a_proj"));
  EXPECT_TRUE(matches("*mlp.gate", "model.layers.3.mlp.gate"));
  EXPECT_FALSE(matches("*mlp.gate", "model.layers.3.mlp.gate_proj"));
  EXPECT_TRUE(matches("model.layers.[78].*", "model.layers.7.mlp.gate"));
}

TEST(ModulePattern, ARegularExpressionMatchesFromTheStart) {
  EXPECT_TRUE(matches("re:model\\.layers\\.78\\..*", "model.layers.78.eh_proj"));
  EXPECT_TRUE(matches("re:model", "model.layers.78.eh_proj"));
  EXPECT_FALSE(matches("re:layers", "model.layers.78.eh_proj"));
}

TEST(ModulePattern, WhatIsNoPatternIsRefused) {
  EXPECT_FALSE(ModulePattern::parse(""));
  const auto bad = ModulePattern::parse("re:(");
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("\"(\""), std::string::npos) << bad.error().message;
}

}  // namespace
}  // namespace ingot::spec
