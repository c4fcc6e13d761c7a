// `ingot inspect` on checkpoints with true headers over holes: the full-size GLM-5.2 in bf16 and MXFP4, and what is wrong with small ones.
#include "apps/inspect.h"

#include <gmock/gmock.h>

#include <chrono>
#include <fstream>
#include <functional>

#include "support/checkpoint_writer.h"
#include "support/glm_configs.h"
#include "support/sanitizer.h"

namespace ingot::apps {
namespace {

namespace fs = std::filesystem;
using spec::ExpectedTensor;
using spec::TensorKind;
using tensor::DType;
using test_support::TempDir;
using test_support::TensorToWrite;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// A line of /proc/self/status in kB: "VmHWM" is the peak of resident memory, "VmRSS" what is resident now.
int64_t status_kb(const std::string& field) {
  std::ifstream in("/proc/self/status");
  std::string line;
  while (std::getline(in, line)) {
    if (line.starts_with(field + ":")) return std::atoll(line.c_str() + field.size() + 1);
  }
  return -1;
}

// What the writers below store a tensor as.
using Store = std::function<std::vector<TensorToWrite>(const ExpectedTensor&)>;

std::vector<TensorToWrite> as_bf16(const ExpectedTensor& t) {
  return {{t.name, t.kind == TensorKind::router_bias ? DType::f32 : DType::bf16, t.shape, {}}};
}

std::vector<TensorToWrite> as_mxfp4(const ExpectedTensor& t) {
  return {{t.name, DType::u8, {t.shape[0], t.shape[1] / 2}, {}},
          {std::string(t.module()) + ".weight_scale", DType::u8, {t.shape[0], t.shape[1] / 32}, {}}};
}

std::vector<TensorToWrite> as_fp8(const ExpectedTensor& t) {
  return {{t.name, DType::f8_e4m3, t.shape, {}},
          {std::string(t.module()) + ".weight_scale_inv", DType::f32, {(t.shape[0] + 127) / 128, (t.shape[1] + 127) / 128}, {}}};
}

void write_config(const fs::path& dir, const Json& config) { std::ofstream(dir / "config.json") << config.dump(); }

std::vector<TensorToWrite> tensors_of(const Json& config, const Store& store) {
  std::vector<TensorToWrite> out;
  for (const ExpectedTensor& t : spec::expected_tensors(spec::parse_model_config(config).value())) {
    if (t.optional) continue;
    for (auto& stored : store(t)) out.push_back(std::move(stored));
  }
  return out;
}

std::vector<std::string> names(const std::vector<NamedReason>& list) {
  std::vector<std::string> out;
  for (const auto& entry : list) out.push_back(entry.name);
  return out;
}

InspectReport inspect(const fs::path& dir) {
  auto report = inspect_checkpoint(dir.string());
  EXPECT_TRUE(report.has_value()) << report.error().text();
  return report.has_value() ? *std::move(report) : InspectReport{};
}

// The 1,319 modules that AMD's GLM-5.2 keeps out of quantisation: spec section 6.5, cross-check.
std::vector<std::string> amd_excludes(const Json& config) {
  std::vector<std::string> out;
  for (const ExpectedTensor& t : spec::expected_tensors(spec::parse_model_config(config).value())) {
    if (t.optional || !t.is_linear || t.kind == TensorKind::embedding) continue;
    const bool packed = t.layer < 78 && (t.kind == TensorKind::routed_expert || t.kind == TensorKind::shared_expert);
    if (!packed) out.emplace_back(t.module());
  }
  return out;
}

// Inspects, says what it took, and holds it to the memory a header-only reader needs.
InspectReport inspect_measured(const fs::path& dir, const char* what) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts from what is resident now
  const int64_t before = status_kb("VmHWM");
  const auto begin = std::chrono::steady_clock::now();
  InspectReport report = inspect(dir);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const int64_t after = status_kb("VmHWM");
  fmt::print("[          ] {}: {} shards, {} tensors, {} bytes in {:.2f} s; peak resident memory {} MB before, {} MB after\n", what,
             report.num_shards, report.num_tensors, report.file_bytes, took.count(), before / 1024, after / 1024);
  EXPECT_GT(after, 0);
  if (!test_support::kUnderSanitizer) {
    EXPECT_LT(after, 300 * 1024) << "headers only: no weight may be read";
  }
  return report;
}

constexpr int64_t kAll = 753'329'940'480, kMain = 743'377'019'904, kMtp = 9'952'920'576;
constexpr int64_t kRouted = 75 * int64_t{9'663'676'416}, kShared = 75 * int64_t{37'748'736};
constexpr int64_t kBiasExtra = 76 * 256 * 2;  // router biases are F32

TEST(InspectFullSize, glm_5_2_in_bf16_is_complete_to_the_last_byte) {
  TempDir dir;
  const Json config = test_support::glm_52_config();
  write_config(dir.path(), config);
  const auto tensors = tensors_of(config, as_bf16);
  const int shards = test_support::write_checkpoint(dir.path(), tensors, 5'370'000'000);
  const InspectReport r = inspect_measured(dir.path(), "GLM-5.2 bf16");
  EXPECT_EQ(shards, 282) << "as published";
  EXPECT_EQ(r.num_shards, shards);
  EXPECT_EQ(r.num_tensors, 59'585);
  EXPECT_EQ(r.elements, kAll);
  EXPECT_EQ(r.elements, kMain + kMtp);
  EXPECT_EQ(r.tensor_bytes, 2 * kAll + kBiasExtra);
  EXPECT_GT(r.file_bytes, r.tensor_bytes) << "headers";
  EXPECT_LT(r.file_bytes, r.tensor_bytes + 59'585 * 250);
  EXPECT_NEAR(static_cast<double>(r.active_parameters), 40.30e9, 0.005e9);
  EXPECT_THAT(r.missing, IsEmpty());
  EXPECT_THAT(r.unused, IsEmpty());
  EXPECT_THAT(r.faulty, IsEmpty());
  EXPECT_EQ(r.by_dtype.size(), 2u);
  EXPECT_EQ(r.by_dtype.at("F32").tensors, 76);
  EXPECT_EQ(r.by_dtype.at("BF16").tensors, 59'585 - 76);
  const TensorCount& routed = r.by_kind.at("routed experts").at("bf16");
  EXPECT_EQ(routed.tensors, 75 * 768);
  EXPECT_EQ(routed.elements, kRouted);
  EXPECT_EQ(routed.bytes, 2 * kRouted);
  EXPECT_EQ(r.by_kind.at("MTP: routed experts").at("bf16").tensors, 768);
  EXPECT_EQ(r.by_kind.at("indexer").at("bf16").tensors, 21 * 5);
  EXPECT_EQ(r.by_kind.at("MTP: indexer").at("bf16").tensors, 5);
  int64_t kinds_bytes = 0, kinds_tensors = 0;
  for (const auto& [kind, formats] : r.by_kind) {
    EXPECT_EQ(formats.size(), 1u) << kind;
    for (const auto& [format, n] : formats) kinds_bytes += n.bytes, kinds_tensors += n.tensors;
  }
  EXPECT_EQ(kinds_bytes, r.tensor_bytes);
  EXPECT_EQ(kinds_tensors, r.num_tensors);
  const Json json = report_json(r);
  EXPECT_EQ(json["layers"]["full"], 21);
  EXPECT_EQ(json["layers"]["shared"], 57);
  EXPECT_EQ(json["layers"]["dense"], 3);
  EXPECT_EQ(json["layers"]["moe"], 75);
  EXPECT_EQ(json["memory"]["cache_bytes_per_token"]["bf16"]["latents"], 79 * 576 * 2);
  EXPECT_EQ(json["memory"]["cache_bytes_per_token"]["bf16"]["index_keys"], 22 * 128 * 2);
  EXPECT_THAT(report_text(r), HasSubstr("753,329,940,480 parameters"));
}

TEST(InspectFullSize, amd_mxfp4_variant_is_explained_by_its_1319_excludes) {
  TempDir dir;
  Json config = test_support::glm_52_config();
  const auto excludes = amd_excludes(config);
  ASSERT_EQ(excludes.size(), 79u * 5 + 22 * 3 + 76 + 9 + 1 + 768 + 3 + 1);
  ASSERT_EQ(excludes.size(), 1319u);
  config["quantization_config"] = test_support::quark_config(excludes);
  write_config(dir.path(), config);
  const auto tensors = tensors_of(config, [](const ExpectedTensor& t) {
    const bool packed = t.layer < 78 && (t.kind == TensorKind::routed_expert || t.kind == TensorKind::shared_expert);
    return packed ? as_mxfp4(t) : as_bf16(t);
  });
  const int shards = test_support::write_checkpoint(dir.path(), tensors, 5'370'000'000);
  const InspectReport r = inspect_measured(dir.path(), "GLM-5.2 MXFP4");
  const int64_t packed = kRouted + kShared;
  EXPECT_EQ(packed, 727'606'886'400);
  EXPECT_EQ(r.num_shards, shards);
  EXPECT_EQ(r.num_tensors, 59'585 + 75 * 771);
  EXPECT_EQ(r.elements, kAll) << "of the unquantised model";
  EXPECT_EQ(r.tensor_bytes, packed / 32 * 17 + (kAll - packed) * 2 + kBiasExtra);
  EXPECT_EQ(r.tensor_bytes, 437'987'305'472);
  EXPECT_THAT(r.missing, IsEmpty());
  EXPECT_THAT(r.unused, IsEmpty());
  EXPECT_THAT(r.faulty, IsEmpty());
  EXPECT_EQ(r.num_excludes, 1319);
  EXPECT_EQ(r.excluded_modules, 1319);
  EXPECT_EQ(r.excludes_by_form, (std::map<std::string, int64_t>{{"exact", 1319}}));
  EXPECT_THAT(r.excludes_without_match, IsEmpty());
  EXPECT_THAT(r.exclude_conflicts, IsEmpty());
  const TensorCount& routed = r.by_kind.at("routed experts").at("mxfp4");
  EXPECT_EQ(routed.tensors, 75 * 768 * 2);
  EXPECT_EQ(routed.elements, kRouted);
  EXPECT_EQ(routed.bytes, kRouted / 32 * 17);
  EXPECT_EQ(r.by_kind.at("shared experts").at("mxfp4").elements, kShared);
  EXPECT_EQ(r.by_kind.at("routed experts").size(), 1u);
  EXPECT_EQ(r.by_kind.at("MTP: routed experts").at("bf16").tensors, 768);
  EXPECT_EQ(r.by_kind.at("MTP: shared experts").at("bf16").tensors, 3);
  EXPECT_EQ(r.by_kind.at("attention").at("bf16").tensors, 78 * 5);
}

// A small model with every kind of layer: the demo's config over holes.
class InspectSmall : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream in(fs::path(INGOT_SOURCE_DIR) / "models/demo/config.json");
    config_ = Json::parse(in);
    tensors_ = tensors_of(config_, as_bf16);
  }

  InspectReport report() {
    write();
    return inspect(dir_.path());
  }
  int exit_status(bool json = false) {
    write();
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int status = run_inspect({dir_.path().string(), json});
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return status;
  }
  void drop(const std::string& prefix) {
    const size_t before = tensors_.size();
    std::erase_if(tensors_, [&](const TensorToWrite& t) { return t.name.starts_with(prefix); });
    ASSERT_LT(tensors_.size(), before) << prefix;
  }
  void store_as(const std::string& name, const std::vector<TensorToWrite>& stored) {
    drop(name);
    tensors_.insert(tensors_.end(), stored.begin(), stored.end());
  }
  ExpectedTensor expected(const std::string& name) {
    for (auto& t : spec::expected_tensors(spec::parse_model_config(config_).value())) {
      if (t.name == name) return t;
    }
    ADD_FAILURE() << "no tensor " << name;
    return {};
  }

  Json config_;
  std::vector<TensorToWrite> tensors_;
  TempDir dir_;
  std::string out_, err_;

 private:
  void write() {
    write_config(dir_.path(), config_);
    test_support::write_checkpoint(dir_.path(), tensors_, 1 << 20);
  }
};

TEST_F(InspectSmall, complete_checkpoint_exits_with_zero_and_says_so) {
  EXPECT_EQ(exit_status(), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("missing: none"));
  EXPECT_THAT(out_, HasSubstr("unused: none"));
  EXPECT_THAT(out_, HasSubstr("faulty: none"));
  EXPECT_EQ(exit_status(true), 0);
  const Json json = Json::parse(out_);
  EXPECT_EQ(json["tensors"]["count"], tensors_.size());
  EXPECT_EQ(json["missing"].size(), 0u);
}

TEST_F(InspectSmall, demo_model_is_complete) {
  const InspectReport r = inspect(fs::path(INGOT_SOURCE_DIR) / "models/demo");
  EXPECT_THAT(r.missing, IsEmpty());
  EXPECT_THAT(r.unused, IsEmpty());
  EXPECT_THAT(r.faulty, IsEmpty());
  EXPECT_EQ(r.num_shards, 4);
}

// A8: an indexer in a layer that reuses a list is a note, not a failure.
TEST_F(InspectSmall, indexer_in_a_shared_layer_is_listed_as_unused_with_its_reason) {
  std::vector<std::string> added;
  for (const auto& t : std::vector<TensorToWrite>(tensors_)) {
    const std::string prefix = "model.layers.2.self_attn.indexer.";
    if (!t.name.starts_with(prefix)) continue;
    TensorToWrite copy = t;
    copy.name = "model.layers.3.self_attn.indexer." + t.name.substr(prefix.size());
    added.push_back(copy.name);
    tensors_.push_back(copy);
  }
  ASSERT_EQ(added.size(), 5u);
  const InspectReport r = report();
  EXPECT_THAT(names(r.unused), ::testing::UnorderedElementsAreArray(added));
  for (const auto& entry : r.unused) EXPECT_THAT(entry.reason, HasSubstr("shared")) << entry.name;
  EXPECT_THAT(r.missing, IsEmpty());
  EXPECT_EQ(exit_status(), 0);
  EXPECT_THAT(out_, HasSubstr("model.layers.3.self_attn.indexer.wk.weight"));
}

TEST_F(InspectSmall, missing_tensor_is_named_with_its_shape_and_fails) {
  const std::string name = "model.layers.4.mlp.experts.7.down_proj.weight";
  drop(name);
  const InspectReport r = report();
  ASSERT_THAT(names(r.missing), ElementsAre(name));
  EXPECT_THAT(r.missing[0].reason, HasSubstr(tensor::shape_text(expected(name).shape)));
  EXPECT_EQ(exit_status(), 1);
  EXPECT_THAT(out_, HasSubstr(name)) << "the report is printed in full";
  EXPECT_THAT(err_, HasSubstr("1 tensors are missing"));
}

TEST_F(InspectSmall, layer_that_is_not_there_at_all_is_said_to_be_so) {
  drop("model.layers.9.");
  const InspectReport r = report();
  ASSERT_FALSE(r.missing.empty());
  for (const auto& entry : r.missing) {
    EXPECT_TRUE(entry.name.starts_with("model.layers.9.")) << entry.name;
    EXPECT_THAT(entry.reason, HasSubstr("no tensor of layer 9 at all"));
  }
}

TEST_F(InspectSmall, mtp_layer_is_unused_when_the_config_has_none) {
  config_["num_nextn_predict_layers"] = 0;
  const InspectReport r = report();
  EXPECT_THAT(r.missing, IsEmpty());
  ASSERT_FALSE(r.unused.empty());
  for (const auto& entry : r.unused) {
    EXPECT_TRUE(entry.name.starts_with("model.layers.10.")) << entry.name;
    EXPECT_THAT(entry.reason, HasSubstr("num_nextn_predict_layers is 0"));
  }
}

TEST_F(InspectSmall, aliases_of_embedding_and_head_in_the_mtp_layer_are_accepted) {
  for (const char* name : {"model.layers.10.embed_tokens.weight", "model.layers.10.shared_head.head.weight"})
    tensors_.push_back({name, DType::bf16, expected(name).shape, {}});
  const InspectReport r = report();
  EXPECT_THAT(r.unused, IsEmpty());
  EXPECT_THAT(r.faulty, IsEmpty());
}

TEST_F(InspectSmall, excludes_that_match_nothing_are_reported) {
  config_["quantization_config"] = test_support::quark_config({"lm_head", "model.layers.3.mlp.shared_expert.gate_proj", "*self_attn*",
                                                               "*no_such_module*", "re:.*mlp\\.gate$", "re:^visual", "re:("});
  const InspectReport r = report();
  EXPECT_THAT(r.excludes_without_match,
              UnorderedElementsAre("model.layers.3.mlp.shared_expert.gate_proj", "*no_such_module*", "re:^visual", "re:("));
  EXPECT_EQ(r.num_excludes, 7);
  EXPECT_EQ(r.excludes_by_form, (std::map<std::string, int64_t>{{"exact", 2}, {"glob", 2}, {"regex", 3}}));
  // Linears alone count: 5 projections in 11 layers, 3 of the indexer in 5, 9 routers, the head.
  EXPECT_EQ(r.excluded_modules, 11 * 5 + 5 * 3 + 9 + 1);
  EXPECT_THAT(report_text(r), HasSubstr("no_such_module"));
}

TEST_F(InspectSmall, excluded_module_that_is_packed_all_the_same_is_a_conflict) {
  const std::string a = "model.layers.3.mlp.shared_experts.up_proj", b = "model.layers.5.mlp.experts.0.gate_proj";
  store_as(a + ".weight", as_mxfp4(expected(a + ".weight")));
  store_as(b + ".weight", as_mxfp4(expected(b + ".weight")));
  config_["quantization_config"] = test_support::quark_config({"*shared_experts*"});
  const InspectReport r = report();
  ASSERT_THAT(names(r.exclude_conflicts), ElementsAre(a)) << "the other packed module is not excluded";
  EXPECT_THAT(r.exclude_conflicts[0].reason, HasSubstr("mxfp4"));
  EXPECT_THAT(r.faulty, IsEmpty()) << "the tensors decide, not the config";
  EXPECT_THAT(report_text(r), HasSubstr("(mixed)"));
  EXPECT_EQ(r.by_kind.at("routed experts").at("mxfp4").tensors, 2);
}

TEST_F(InspectSmall, fp8_weights_count_with_their_scales) {
  const std::string name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight";
  const ExpectedTensor t = expected(name);
  store_as(name, as_fp8(t));
  const InspectReport r = report();
  const TensorCount& n = r.by_kind.at("attention").at("fp8_block");
  EXPECT_EQ(n.tensors, 2);
  EXPECT_EQ(n.elements, t.elements());
  EXPECT_EQ(n.bytes, t.elements() + (t.shape[0] + 127) / 128 * ((t.shape[1] + 127) / 128) * 4);
  EXPECT_THAT(r.unused, IsEmpty());
}

TEST_F(InspectSmall, wrong_shapes_and_formats_are_faulty_with_expected_and_found) {
  const std::string head = "lm_head.weight", norm = "model.norm.weight", expert = "model.layers.3.mlp.experts.1.up_proj";
  store_as(head, {{head, DType::bf16, {6143, 256}, {}}});
  store_as(norm, {{norm, DType::u8, {256}, {}}});
  auto packed = as_mxfp4(expected(expert + ".weight"));
  packed.pop_back();  // no scale
  store_as(expert + ".weight", packed);
  const InspectReport r = report();
  ASSERT_THAT(names(r.faulty), UnorderedElementsAre(head, norm, expert + ".weight"));
  const auto reason = [&](const std::string& name) {
    return std::find_if(r.faulty.begin(), r.faulty.end(), [&](const NamedReason& entry) { return entry.name == name; })->reason;
  };
  EXPECT_THAT(reason(head), ::testing::AllOf(HasSubstr("(6144, 256)"), HasSubstr("(6143, 256)")));
  EXPECT_THAT(reason(norm), ::testing::AllOf(HasSubstr("BF16 or F32 [256]"), HasSubstr("U8 [256]")));
  EXPECT_THAT(reason(expert + ".weight"), HasSubstr(expert + ".weight_scale is missing"));
  EXPECT_EQ(exit_status(), 1);
  EXPECT_THAT(err_, HasSubstr("3 are faulty"));
}

TEST_F(InspectSmall, router_bias_in_bf16_is_faulty_as_the_loader_says) {
  const std::string bias = "model.layers.3.mlp.gate.e_score_correction_bias";
  store_as(bias, {{bias, DType::bf16, {16}, {}}});
  const InspectReport r = report();
  ASSERT_THAT(names(r.faulty), UnorderedElementsAre(bias));
  EXPECT_THAT(r.faulty[0].reason, HasSubstr("expected F32 [16], found BF16 [16]"));
}

TEST_F(InspectSmall, scale_beside_a_weight_that_is_not_packed_is_unused) {
  tensors_.push_back({"model.layers.3.mlp.experts.1.up_proj.weight_scale", DType::u8, {128, 8}, {}});
  tensors_.push_back({"model.vision_tower.weight", DType::bf16, {4, 4}, {}});
  const InspectReport r = report();
  ASSERT_THAT(names(r.unused), UnorderedElementsAre("model.layers.3.mlp.experts.1.up_proj.weight_scale", "model.vision_tower.weight"));
  EXPECT_THAT(r.unused[0].reason, HasSubstr("not packed"));
  EXPECT_THAT(r.unused[1].reason, HasSubstr("no tensor of this architecture"));
}

TEST_F(InspectSmall, folder_that_is_no_model_gives_one_line_on_standard_error) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int status = run_inspect({(dir_.path() / "nowhere").string(), false});
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::AllOf(HasSubstr("ingot inspect:"), HasSubstr("nowhere")));
  EXPECT_EQ(status, 1);
}

}  // namespace
}  // namespace ingot::apps
