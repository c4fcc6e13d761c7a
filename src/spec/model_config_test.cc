#include "spec/model_config.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <fstream>
#include <functional>

#include "support/glm_configs.h"

namespace ingot::spec {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig parse(const Json& json) {
  auto config = parse_model_config(json);
  EXPECT_TRUE(config.has_value()) << config.error().text();
  return config.value_or(ModelConfig{});
}

std::vector<int64_t> full_layers(const ModelConfig& c) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    if (c.has_indexer(i)) out.push_back(i);
  }
  return out;
}

const std::vector<int64_t> kFull52 = {0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66, 70, 74};

TEST(ModelConfig, ReadsGlm52AsPublished) {
  const ModelConfig c = parse(test_support::glm_52_config());
  EXPECT_EQ(c.hidden_size, 6144);
  EXPECT_EQ(c.num_hidden_layers, 78);
  EXPECT_EQ(c.total_layers(), 79);
  EXPECT_EQ(c.intermediate_size, 12288);
  EXPECT_EQ(c.moe_intermediate_size, 2048);
  EXPECT_EQ(c.n_routed_experts, 256);
  EXPECT_EQ(c.n_shared_experts, 1);
  EXPECT_EQ(c.num_experts_per_tok, 8);
  EXPECT_EQ(c.routed_scaling_factor, 2.5f);
  EXPECT_EQ(c.qk_head_dim(), 256);
  EXPECT_EQ(c.latent_dim(), 576);
  EXPECT_EQ(c.rope_theta, 8e6);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.max_position_embeddings, 1048576);
  EXPECT_TRUE(c.index_share_for_mtp_iteration);
  EXPECT_TRUE(c.indexer_rope_interleave);
  EXPECT_EQ(full_layers(c), kFull52);
  EXPECT_TRUE(c.has_indexer(78)) << "the MTP layer always owns an indexer";
  EXPECT_FALSE(c.is_moe(2));
  EXPECT_TRUE(c.is_moe(3));
  EXPECT_TRUE(c.is_moe(78));
  EXPECT_THAT(c.eos_token_ids, ElementsAre(154820, 154827, 154829));
  EXPECT_EQ(c.quant.method, QuantConfig::Method::none);
}

TEST(ModelConfig, ReadsGlm5AndGlm51WhichLackTheNewFields) {
  for (const char* version : {"5.0.2.dev0", "5.4.0"}) {
    Json json = test_support::glm_51_config();
    json["transformers_version"] = version;
    const ModelConfig c = parse(json);
    EXPECT_EQ(full_layers(c).size(), 78u) << "without any indexer field every layer is full";
    EXPECT_EQ(c.rope_theta, 1e6);
    EXPECT_EQ(c.qk_rope_head_dim, 64);
    EXPECT_FALSE(c.index_share_for_mtp_iteration);
    EXPECT_TRUE(c.indexer_rope_interleave);
    EXPECT_FALSE(c.is_moe(2));
    EXPECT_TRUE(c.is_moe(3));
  }
}

TEST(ModelConfig, ReadsTheDemoModel) {
  auto c = load_model_config(fs::path(INGOT_SOURCE_DIR) / "models/demo");
  ASSERT_TRUE(c.has_value()) << c.error().text();
  EXPECT_EQ(c->num_hidden_layers, 10);
  EXPECT_THAT(full_layers(*c), ElementsAre(0, 1, 2, 6));
  EXPECT_EQ(c->rope_theta, 100000.0);
  auto g = load_generation_config(fs::path(INGOT_SOURCE_DIR) / "models/demo");
  ASSERT_TRUE(g.has_value()) << g.error().text();
  EXPECT_EQ(g->temperature, 1.0f);
  EXPECT_EQ(g->top_p, 0.95f);
  EXPECT_EQ(g->top_k, std::nullopt);
  EXPECT_THAT(g->eos_token_ids, ElementsAre(6108, 6115, 6117));
}

// A14: rope_theta only in rope_parameters; the flat key must not win, and is used when it is alone.
TEST(ModelConfig, RopeThetaIsReadFromTheNestedObjectThenTheFlatKeyThenOneMillion) {
  Json json = test_support::glm_52_config();
  json["rope_theta"] = 5.0;
  EXPECT_EQ(parse(json).rope_theta, 8e6);
  json["rope_parameters"].erase("rope_theta");
  EXPECT_EQ(parse(json).rope_theta, 5.0);
  json.erase("rope_parameters");
  EXPECT_EQ(parse(json).rope_theta, 5.0);
  json.erase("rope_theta");
  EXPECT_EQ(parse(json).rope_theta, 1e6);
}

TEST(ModelConfig, HeadDimIsNeverTheRopeWidth) {
  Json json = test_support::glm_52_config();
  json["head_dim"] = 1;
  EXPECT_EQ(parse(json).qk_rope_head_dim, 64);
}

TEST(ModelConfig, IndexerListBeatsPatternBeatsFrequency) {
  Json json = test_support::glm_52_config();
  json["index_topk_pattern"] = std::string(78, 'F');
  EXPECT_EQ(full_layers(parse(json)), kFull52);
  json.erase("indexer_types");
  EXPECT_EQ(full_layers(parse(json)).size(), 78u);
  json["index_topk_pattern"] = nullptr;
  EXPECT_EQ(full_layers(parse(json)), kFull52) << "frequency 4, offset 3 is the published list";
  json["index_skip_topk_offset"] = 2;
  EXPECT_THAT(full_layers(parse(json)), ::testing::Contains(5));
  json.erase("index_skip_topk_offset");
  EXPECT_THAT(full_layers(parse(json)), ::testing::Contains(5)) << "the default offset is 2";
}

TEST(ModelConfig, MlpTypesBeatFirstKDenseReplace) {
  Json json = test_support::glm_52_config();
  json["first_k_dense_replace"] = 7;
  EXPECT_TRUE(parse(json).is_moe(3));
  json.erase("mlp_layer_types");
  EXPECT_FALSE(parse(json).is_moe(6));
  EXPECT_TRUE(parse(json).is_moe(7));
}

TEST(ModelConfig, ReadsQuantisationOfBothKinds) {
  Json json = test_support::glm_52_config();
  json["quantization_config"] = test_support::quark_config({"lm_head", "re:.*gate$", "*self_attn*"});
  ModelConfig c = parse(json);
  EXPECT_EQ(c.quant.method, QuantConfig::Method::quark_mxfp4);
  EXPECT_EQ(c.quant.weight_block_cols, 32);
  EXPECT_THAT(c.quant.excludes, ElementsAre("lm_head", "re:.*gate$", "*self_attn*"));
  // Some checkpoints leave the global entry empty and specify by pattern.
  Json by_pattern = json;
  by_pattern["quantization_config"]["layer_quant_config"]["*mlp.experts*"] = by_pattern["quantization_config"]["global_quant_config"];
  by_pattern["quantization_config"]["global_quant_config"] = nullptr;
  EXPECT_EQ(parse(by_pattern).quant.method, QuantConfig::Method::quark_mxfp4);
  json["quantization_config"] = {{"quant_method", "fp8"},
                                 {"fmt", "e4m3"},
                                 {"activation_scheme", "dynamic"},
                                 {"weight_block_size", {128, 128}},
                                 {"modules_to_not_convert", {"lm_head", "model.norm"}}};
  c = parse(json);
  EXPECT_EQ(c.quant.method, QuantConfig::Method::fp8_block);
  EXPECT_EQ(c.quant.weight_block_rows, 128);
  EXPECT_THAT(c.quant.excludes, ElementsAre("lm_head", "model.norm"));
}

struct BadField {
  const char* symptom;
  std::function<void(Json&)> spoil;
  std::vector<const char*> said;  // all must be in the error
};

TEST(ModelConfig, RefusesByFieldNameWithTheValueFoundAndWhatIsRight) {
  const auto set = [](const char* name, Json value) { return [name, value](Json& c) { c[name] = value; }; };
  const auto drop = [](const char* name) { return [name](Json& c) { c.erase(name); }; };
  Json mtp_shared = test_support::glm_52_config()["indexer_types"];
  mtp_shared[0] = "shared";
  Json odd_type = test_support::glm_52_config()["indexer_types"];
  odd_type[5] = "half";
  Json short_mlp = test_support::glm_52_config()["mlp_layer_types"];
  short_mlp.erase(short_mlp.begin());
  Json short_index = test_support::glm_52_config()["indexer_types"];
  short_index.push_back("full");
  const std::vector<BadField> cases = {
      {"another architecture", set("architectures", {"DeepseekV32ForCausalLM"}), {"architectures", "DeepseekV32", "GlmMoeDsaForCausalLM"}},
      {"architecture absent", drop("architectures"), {"architectures", "absent", "GlmMoeDsaForCausalLM"}},
      {"architecture a string", set("architectures", "GlmMoeDsaForCausalLM"), {"architectures"}},
      {"another model type", set("model_type", "glm5_next"), {"model_type", "glm5_next", "glm_moe_dsa"}},
      {"yarn", [](Json& c) { c["rope_parameters"]["rope_type"] = "yarn"; }, {"rope_parameters.rope_type", "yarn", "default"}},
      {"old style yarn",
       [](Json& c) {
         c.erase("rope_parameters");
         c["rope_scaling"] = {{"type", "yarn"}};
       },
       {"rope_scaling.type", "yarn", "default"}},
      {"rope a number", set("rope_parameters", 3), {"rope_parameters", "3", "object"}},
      {"theta a string", [](Json& c) { c["rope_parameters"]["rope_theta"] = "8e6"; }, {"rope_theta", "8e6", "number"}},
      {"theta zero", [](Json& c) { c["rope_parameters"]["rope_theta"] = 0; }, {"rope_theta", "found 0"}},
      {"softmax router", set("scoring_func", "softmax"), {"scoring_func", "softmax", "sigmoid"}},
      {"greedy top-k", set("topk_method", "greedy"), {"topk_method", "greedy", "noaux_tc"}},
      {"gelu", set("hidden_act", "gelu"), {"hidden_act", "gelu", "silu"}},
      {"expert groups", set("n_group", 8), {"n_group", "8"}},
      {"attention bias", set("attention_bias", true), {"attention_bias", "true"}},
      {"size missing", drop("hidden_size"), {"hidden_size", "missing"}},
      {"size negative", set("kv_lora_rank", -512), {"kv_lora_rank", "-512"}},
      {"size zero", set("vocab_size", 0), {"vocab_size", "found 0"}},
      {"size absurd", set("hidden_size", int64_t{1} << 40), {"hidden_size", "1099511627776", "1048576"}},
      {"size beyond int64", set("moe_intermediate_size", uint64_t{1} << 63), {"moe_intermediate_size", "9223372036854775808"}},
      {"size a fraction", set("q_lora_rank", 2048.5), {"q_lora_rank", "2048.5", "integer"}},
      {"size a string", set("num_attention_heads", "64"), {"num_attention_heads", "\"64\"", "integer"}},
      {"layers absurd", set("num_hidden_layers", 1000000), {"num_hidden_layers", "1000000"}},
      {"two MTP layers", set("num_nextn_predict_layers", 2), {"num_nextn_predict_layers", "2"}},
      {"more experts a token than experts", set("n_routed_experts", 4), {"num_experts_per_tok", "8", "n_routed_experts", "4"}},
      {"odd rope width", [](Json& c) { c["qk_rope_head_dim"] = 63, c["qk_head_dim"] = 255; }, {"qk_rope_head_dim", "63", "even"}},
      {"head dims disagree", set("qk_head_dim", 192), {"qk_head_dim", "192", "256"}},
      {"index head narrower than rope", set("index_head_dim", 32), {"index_head_dim", "32", "64"}},
      {"indexer list too long", set("indexer_types", short_index), {"indexer_types", "79", "78"}},
      {"indexer list not a list", set("indexer_types", "full"), {"indexer_types", "\"full\"", "78"}},
      {"indexer entry unknown", set("indexer_types", odd_type), {"indexer_types[5]", "half", "shared"}},
      {"first layer shared", set("indexer_types", mtp_shared), {"indexer_types[0]", "full"}},
      {"pattern too short",
       [](Json& c) {
         c.erase("indexer_types");
         c["index_topk_pattern"] = "FFS";
       },
       {"index_topk_pattern", "FFS", "78"}},
      {"pattern letter",
       [](Json& c) {
         c.erase("indexer_types");
         c["index_topk_pattern"] = std::string(77, 'F') + "X";
       },
       {"index_topk_pattern"}},
      {"frequency zero",
       [](Json& c) {
         c.erase("indexer_types");
         c["index_topk_freq"] = 0;
       },
       {"index_topk_freq", "0"}},
      {"mlp list too short", set("mlp_layer_types", short_mlp), {"mlp_layer_types", "77", "78"}},
      {"moe every second layer", set("moe_layer_freq", 2), {"moe_layer_freq", "2"}},
      {"eps huge", set("rms_norm_eps", 100.0), {"rms_norm_eps", "100"}},
      {"eos beyond vocabulary", set("eos_token_id", 154880), {"eos_token_id", "154880", "154879"}},
      {"flag a number", set("norm_topk_prob", 1), {"norm_topk_prob", "1", "true or false"}},
      {"unknown quantisation",
       set("quantization_config", {{"quant_method", "modelopt"}}),
       {"quantization_config.quant_method", "modelopt", "quark"}},
      {"fp8 of another form", set("quantization_config", {{"quant_method", "fp8"}, {"fmt", "e5m2"}}), {"quantization_config.fmt", "e5m2"}},
      {"fp8 of other blocks",
       set("quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}}),
       {"weight_block_size", "[64,64]", "[128, 128]"}},
      {"quark of another group",
       [](Json& c) {
         c["quantization_config"] = test_support::quark_config({});
         c["quantization_config"]["global_quant_config"]["weight"]["group_size"] = 16;
       },
       {"global_quant_config.weight.group_size", "16", "32"}},
      {"quark int4",
       [](Json& c) {
         c["quantization_config"] = test_support::quark_config({});
         c["quantization_config"]["layer_quant_config"]["*experts*"] = {{"weight", {{"dtype", "int4"}}}};
       },
       {"layer_quant_config[\"*experts*\"].weight.dtype", "int4", "fp4"}},
      {"excludes not names",
       [](Json& c) {
         c["quantization_config"] = test_support::quark_config({});
         c["quantization_config"]["exclude"] = {1, 2};
       },
       {"quantization_config.exclude", "1"}},
  };
  for (const BadField& bad : cases) {
    SCOPED_TRACE(bad.symptom);
    Json json = test_support::glm_52_config();
    bad.spoil(json);
    const auto config = parse_model_config(json);
    if (config.has_value()) {
      ADD_FAILURE() << "was accepted";
      continue;
    }
    for (const char* text : bad.said) EXPECT_THAT(config.error().text(), HasSubstr(text));
  }
}

TEST(ModelConfig, NoFieldOfAnyTypeCrashesTheReader) {
  const std::vector<Json> odd = {
      nullptr, true, -1, 0, 3.5, 1e300, uint64_t{1} << 63, "x", Json::array(), Json::object(), Json::array({nullptr})};
  const Json published = test_support::glm_52_config();
  for (const auto& item : published.items()) {
    for (const Json& value : odd) {
      Json json = published;
      json[item.key()] = value;
      const auto config = parse_model_config(json);
      if (!config.has_value()) {
        EXPECT_THAT(config.error().text(), HasSubstr("config.json")) << item.key();
        continue;
      }
      EXPECT_EQ(config->indexer_types.size(), static_cast<size_t>(config->num_hidden_layers)) << item.key() << " = " << value.dump();
      EXPECT_EQ(config->mlp_layer_types.size(), static_cast<size_t>(config->num_hidden_layers)) << item.key() << " = " << value.dump();
    }
  }
}

class Folder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ingot_spec_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }
  fs::path dir_;
};

TEST_F(Folder, ErrorsNameTheFile) {
  EXPECT_THAT(load_model_config(dir_ / "nowhere").error().text(), HasSubstr("nowhere"));
  EXPECT_THAT(load_model_config(dir_).error().text(), HasSubstr((dir_ / "config.json").string()));
  std::ofstream(dir_ / "config.json") << "{\"architectures\": [";
  EXPECT_THAT(load_model_config(dir_).error().text(), HasSubstr((dir_ / "config.json").string()));
  std::ofstream(dir_ / "config.json") << "[]";
  EXPECT_THAT(load_model_config(dir_).error().text(), HasSubstr(dir_.string()));
}

TEST_F(Folder, GenerationConfigIsOptionalButMustBeRight) {
  auto g = load_generation_config(dir_);
  ASSERT_TRUE(g.has_value());
  EXPECT_EQ(g->temperature, std::nullopt);
  EXPECT_TRUE(g->eos_token_ids.empty());
  std::ofstream(dir_ / "generation_config.json") << R"({"temperature": 0.6, "top_k": 40, "eos_token_id": 7})";
  g = load_generation_config(dir_);
  ASSERT_TRUE(g.has_value());
  EXPECT_EQ(g->temperature, 0.6f);
  EXPECT_EQ(g->top_k, 40);
  EXPECT_THAT(g->eos_token_ids, ElementsAre(7));
  std::ofstream(dir_ / "generation_config.json") << R"({"top_p": 1.5})";
  EXPECT_THAT(load_generation_config(dir_).error().text(),
              ::testing::AllOf(HasSubstr("generation_config.json"), HasSubstr("top_p"), HasSubstr("1.5")));
}

}  // namespace
}  // namespace ingot::spec
