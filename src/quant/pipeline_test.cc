#include "quant/pipeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>

#include "base/file_map.h"
#include "model/glm.h"
#include "quant/journal.h"
#include "support/tiny_glm.h"
#include "tensor/linear.h"

namespace ingot::quant {
namespace {

namespace fs = std::filesystem;
using tensor::Checkpoint;
using tensor::WeightFormat;
using test_support::TempDir;
using test_support::TinyGlm;
using test_support::TinyGlmBuilder;

TinyGlm tiny(WeightFormat format, uint64_t seed = 7) {
  return TinyGlmBuilder(seed, [format](const std::string&) { return format; }).build();
}

QuantizeOptions options_for(const fs::path& source, const fs::path& target, const std::string& scheme, const std::string& preset) {
  QuantizeOptions o;
  o.source = source;
  o.target = target;
  o.recipe.scheme = scheme;
  o.recipe.preset = preset;
  o.shard_bytes = 30'000;
  return o;
}

Result<QuantizeResult> run(const QuantizeOptions& options, const MakeCorrections& calibration = {}, Progress* progress = nullptr) {
  INGOT_ASSIGN(const Job job, prepare(options));
  ThreadPool pool(2);
  return quantize(job, calibration, pool, progress);
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) out[entry.path().filename()] = read_file(entry.path(), 1 << 30).value();
  return out;
}

std::string text_of(const Checkpoint& c, const std::string& name) {
  const tensor::TensorInfo* t = c.find(name);
  if (t == nullptr) return "(absent)";
  return std::string(reinterpret_cast<const char*>(c.data(*t).data()), t->bytes);
}

std::string text_of(const std::vector<uint8_t>& bytes) { return std::string(bytes.begin(), bytes.end()); }

struct Conversion {
  WeightFormat from;
  const char* scheme;
};

class Conversions : public ::testing::TestWithParam<Conversion> {};

// Every module has the bytes of pack_weight, whatever the source's format; the rest is copied; the result is a model.
TEST_P(Conversions, GiveTheReferencesBytes) {
  const auto [from, scheme] = GetParam();
  const WeightFormat to = std::string(scheme) == "mxfp4" ? WeightFormat::mxfp4 : WeightFormat::fp8_block;
  TempDir dir;
  const TinyGlm model = tiny(from);
  model.write(dir.path() / "source");
  const auto result = run(options_for(dir.path() / "source", dir.path() / "target", scheme, "all-linear"));
  ASSERT_TRUE(result) << result.error().text();
  EXPECT_GT(result->shards_written, 3u);
  const auto source = Checkpoint::open(dir.path() / "source"), target = Checkpoint::open(dir.path() / "target");
  ASSERT_TRUE(target) << target.error().text();
  size_t packed = 0;
  for (const auto& t : source->tensors()) {
    const bool is_weight = t.shape.size() == 2 && t.name.ends_with(".weight");
    const std::string module = is_weight ? t.name.substr(0, t.name.size() - 7) : "";
    const bool plain = !is_weight || module == "lm_head" || module == "model.embed_tokens" || module.ends_with(".mlp.gate") ||
                       module.ends_with(".weights_proj");
    if (t.name.ends_with(".weight_scale_inv")) continue;
    if (plain) {
      EXPECT_EQ(text_of(*target, t.name), text_of(*source, t.name)) << t.name;
      continue;
    }
    const auto& values = model.values.at(t.name);
    const tensor::PackedWeight expected = tensor::pack_weight(values, t.shape[0], t.shape[1], to);
    EXPECT_EQ(text_of(*target, t.name), text_of(expected.data)) << t.name;
    EXPECT_EQ(text_of(*target, tensor::scale_tensor_name(module, to)), text_of(expected.scale)) << t.name;
    ++packed;
  }
  EXPECT_EQ(result->tensors.size(), packed);
  EXPECT_EQ(packed, 7u * 5 + 4 * 2 + 3 + 6 * 27 + 1);
  const auto loaded = model::Glm::load(dir.path() / "target");
  EXPECT_TRUE(loaded) << loaded.error().text();
}

INSTANTIATE_TEST_SUITE_P(Formats, Conversions,
                         ::testing::Values(Conversion{WeightFormat::bf16, "mxfp4"}, Conversion{WeightFormat::f32, "mxfp4"},
                                           Conversion{WeightFormat::fp8_block, "mxfp4"}, Conversion{WeightFormat::bf16, "fp8-block"},
                                           Conversion{WeightFormat::f32, "fp8-block"}));

TEST(Pipeline, ScaleTensorsFollowTheirWeightsIntoTheSameShard) {
  TempDir dir;
  tiny(WeightFormat::bf16).write(dir.path() / "source");
  for (const uint64_t shard_bytes : {uint64_t{1}, uint64_t{3'000}, uint64_t{1'000'000'000}}) {
    auto options = options_for(dir.path() / "source", dir.path() / "target", "mxfp4", "all-linear");
    options.shard_bytes = shard_bytes;
    ASSERT_TRUE(run(options));
    const auto target = Checkpoint::open(dir.path() / "target");
    ASSERT_TRUE(target) << target.error().text();
    for (const auto& t : target->tensors()) {
      if (t.name.ends_with(".weight_scale")) {
        EXPECT_EQ(target->find(t.name.substr(0, t.name.size() - 6))->shard, t.shard) << t.name;
      }
    }
    if (shard_bytes == 1'000'000'000) {
      EXPECT_EQ(target->shards().size(), 1u);
    }
    fs::remove_all(dir.path() / "target");
  }
}

TEST(Pipeline, ErrorsAreThoseOfTheWeights) {
  TempDir dir;
  TinyGlm model = tiny(WeightFormat::bf16);
  model.write(dir.path() / "source");
  const auto result = run(options_for(dir.path() / "source", dir.path() / "target", "mxfp4", "amd"));
  ASSERT_TRUE(result);
  const auto target = Checkpoint::open(dir.path() / "target").value();
  for (const TensorReport& t : result->tensors) {
    const auto& x = model.values.at(t.module + ".weight");
    const auto q = tensor::dequantize(tensor::linear_view(target, t.module).value());
    double signal = 0, noise = 0;
    float most = 0;
    int64_t zeroed = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      signal += double{x[i]} * x[i];
      noise += (double{x[i]} - q[i]) * (double{x[i]} - q[i]);
      most = std::max(most, std::fabs(x[i] - q[i]));
      zeroed += x[i] != 0 && q[i] == 0 ? 1 : 0;
    }
    EXPECT_NEAR(t.error.sqnr_db(), 10 * std::log10(signal / noise), 1e-3) << t.module;
    EXPECT_FLOAT_EQ(t.error.max_error, most);
    EXPECT_EQ(t.error.zeroed, zeroed);
    EXPECT_EQ(t.error.elements, static_cast<int64_t>(x.size()));
    EXPECT_EQ(t.bytes_after, x.size() * 17 / 32);
  }
}

// What calibration decides is written as it is, and its error is measured against the source.
class ZeroWeights final : public Corrections {
 public:
  ZeroWeights(std::string module, int64_t rows, int64_t cols) : module_(std::move(module)), rows_(rows), cols_(cols) {}
  Result<std::optional<tensor::PackedWeight>> find(const std::string& module) const override {
    if (module != module_) return std::nullopt;
    return tensor::pack_weight(std::vector<float>(static_cast<size_t>(rows_ * cols_)), rows_, cols_, WeightFormat::mxfp4);
  }

 private:
  std::string module_;
  int64_t rows_, cols_;
};

TEST(Pipeline, CorrectionsComeFirst) {
  TempDir dir;
  tiny(WeightFormat::bf16).write(dir.path() / "source");
  const std::string module = "model.layers.2.mlp.experts.3.down_proj";
  int asked = 0;
  const auto calibration = [&]() -> Result<std::unique_ptr<Corrections>> {
    ++asked;
    EXPECT_TRUE(fs::is_directory(dir.path() / "target" / ".ingot-calibration"));
    return std::make_unique<ZeroWeights>(module, 64, 32);
  };
  auto options = options_for(dir.path() / "source", dir.path() / "target", "mxfp4", "amd");
  const auto result = run(options, calibration);
  ASSERT_TRUE(result) << result.error().text();
  EXPECT_FALSE(fs::exists(dir.path() / "target" / ".ingot-calibration"));
  const auto target = Checkpoint::open(dir.path() / "target").value();
  EXPECT_EQ(text_of(target, module + ".weight"), std::string(64 * 16, '\0'));
  EXPECT_NE(text_of(target, "model.layers.2.mlp.experts.4.down_proj.weight"), std::string(64 * 16, '\0'));
  for (const TensorReport& t : result->tensors) {
    EXPECT_EQ(t.calibrated, t.module == module);
    if (t.calibrated) {
      EXPECT_EQ(t.error.noise, t.error.signal);
      EXPECT_EQ(t.error.zeroed, 64 * 32);
    }
  }
  options.resume = true;
  ASSERT_TRUE(run(options, calibration));
  EXPECT_EQ(asked, 1) << "nothing is left to calibrate for";
  fs::remove_all(dir.path() / "target");
  const auto wrong = run(options, [&]() -> Result<std::unique_ptr<Corrections>> { return std::make_unique<ZeroWeights>(module, 64, 64); });
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message.find(module), std::string::npos) << wrong.error().text();
}

// Stops the run when so many shards are done, as a crash would, but where the test wants it.
class StopAfter final : public Progress {
 public:
  StopAfter(const fs::path& source_file, size_t shards) : source_file_(source_file), shards_(shards) {}
  void begin(uint64_t, size_t, uint64_t, size_t) override {}
  void advance(uint64_t bytes) override { bytes_ += bytes; }
  void shard_done(const PlannedShard&, uint64_t) override {
    if (++done_ == shards_) fs::resize_file(source_file_, 100);  // the next read fails
  }
  size_t done() const { return done_; }
  uint64_t bytes() const { return bytes_; }

 private:
  fs::path source_file_;
  size_t shards_, done_ = 0;
  std::atomic<uint64_t> bytes_{0};
};

TEST(Pipeline, ResumeAfterAFailureGivesTheSameFilesAndNumbers) {
  TempDir dir;
  const fs::path source = dir.path() / "source", target = dir.path() / "target";
  tiny(WeightFormat::bf16).write(source);
  auto options = options_for(source, dir.path() / "whole", "mxfp4", "all-linear");
  const auto whole = run(options);
  ASSERT_TRUE(whole);

  fs::path last;
  for (const auto& entry : fs::directory_iterator(source)) {
    if (entry.path().extension() == ".safetensors" && entry.path() > last) last = entry.path();
  }
  const std::string bytes = read_file(last, 1 << 30).value();
  const auto time = fs::last_write_time(last);
  options.target = target;
  StopAfter stop(last, 3);
  const auto failed = run(options, {}, &stop);
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message.find(last.filename().string()), std::string::npos) << failed.error().text();
  EXPECT_FALSE(fs::exists(target / "config.json"));
  std::ofstream(last, std::ios::binary) << bytes;
  fs::last_write_time(last, time);

  options.resume = true;
  StopAfter watch(last, std::numeric_limits<size_t>::max());
  const auto resumed = run(options, {}, &watch);
  ASSERT_TRUE(resumed) << resumed.error().text();
  EXPECT_GE(resumed->shards_kept, 3u);
  EXPECT_EQ(resumed->shards_written, watch.done());
  EXPECT_LT(watch.bytes(), prepare(options)->plan.bytes_in);
  EXPECT_EQ(contents(dir.path() / "whole"), contents(target));
  ASSERT_EQ(resumed->tensors.size(), whole->tensors.size());
  for (size_t i = 0; i < whole->tensors.size(); ++i) {
    EXPECT_EQ(resumed->tensors[i].module, whole->tensors[i].module);
    EXPECT_EQ(resumed->tensors[i].error.noise, whole->tensors[i].error.noise);
    EXPECT_EQ(resumed->tensors[i].error.max_error, whole->tensors[i].error.max_error);
  }
}

TEST(Pipeline, ScalesOfAnotherTensorOfThatNameAreRefused) {
  TempDir dir;
  TinyGlm model = tiny(WeightFormat::bf16);
  model.tensors.push_back({"model.layers.2.mlp.experts.0.up_proj.weight_scale", tensor::DType::u8, {32, 2}, std::vector<uint8_t>(64, 120)});
  model.write(dir.path() / "source");
  const auto refused = prepare(options_for(dir.path() / "source", dir.path() / "target", "mxfp4", "amd"));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("experts.0.up_proj.weight_scale"), std::string::npos) << refused.error().text();
}

TEST(Pipeline, ProgressCountsEveryByteOnce) {
  TempDir dir;
  tiny(WeightFormat::fp8_block).write(dir.path() / "source");
  const auto options = options_for(dir.path() / "source", dir.path() / "target", "mxfp4", "all-linear");
  StopAfter watch("", std::numeric_limits<size_t>::max());
  ASSERT_TRUE(run(options, {}, &watch));
  EXPECT_EQ(watch.bytes(), prepare(options)->plan.bytes_in);
}

TEST(Journal, ALineCutShortCountsAsNotWritten) {
  TempDir dir;
  const Json identity = {{"options", {{"--scheme", "mxfp4"}}}, {"source", Json::array()}};
  const ShardRecord first{"a", 10, 0xfedcba9876543210u, {{3, true, {1.0 / 3, 2e-300, 0.1f, 7, 1, 2}}}}, second{"b", 20, 6, {}};
  {
    auto journal = Journal::create(dir.path(), identity);
    ASSERT_TRUE(journal);
    ASSERT_TRUE(journal->append(first));
    ASSERT_TRUE(journal->append(second));
    ASSERT_TRUE(journal->finish());
  }
  const fs::path file = dir.path() / kJournalName;
  const std::string whole = read_file(file, 1 << 20).value();
  size_t complete = 0;
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << whole.substr(0, cut);
    if (cut > 0 && whole[cut - 1] == '\n') ++complete;
    {
      auto journal = Journal::resume(dir.path(), identity);
      ASSERT_TRUE(journal) << cut << ": " << journal.error().text();
      ASSERT_EQ(journal->records().size(), complete == 0 ? 0 : std::min<size_t>(complete - 1, 2)) << cut;
      ASSERT_EQ(journal->finished(), complete == 4);
      for (size_t i = journal->records().size(); i < 2; ++i) ASSERT_TRUE(journal->append(i == 0 ? first : second));
      ASSERT_TRUE(journal->finish());
    }
    ASSERT_EQ(read_file(file, 1 << 20).value(), whole) << "cut at " << cut;
  }
  const auto again = Journal::resume(dir.path(), identity);
  const ShardRecord& record = again->records()[0];
  EXPECT_EQ(record.digest, first.digest);
  EXPECT_EQ(record.modules[0].error.signal, 1.0 / 3);
  EXPECT_EQ(record.modules[0].error.max_error, 0.1f);
  EXPECT_TRUE(record.modules[0].calibrated);
}

TEST(Journal, DamageOtherRunsAndASecondOwnerAreRefused) {
  TempDir dir;
  const Json identity = {{"options", {{"--scheme", "mxfp4"}}},
                         {"source", {{{"file", "a"}, {"bytes", 1}, {"digest", "x"}, {"modified_ns", 5}}}}};
  {
    const auto owner = Journal::create(dir.path(), identity);
    ASSERT_TRUE(owner);
    const auto second = Journal::resume(dir.path(), identity);
    ASSERT_FALSE(second);
    EXPECT_NE(second.error().message.find("another process"), std::string::npos);
  }
  for (const auto& [field, word] : {std::pair{"bytes", "size"}, {"digest", "header"}, {"modified_ns", "time"}}) {
    Json other = identity;
    other["source"][0][field] = 9;
    const auto refused = Journal::resume(dir.path(), other);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("\"a\" has changed (" + std::string(word)), std::string::npos) << refused.error().text();
  }
  Json other = identity;
  other["options"]["--scheme"] = "fp8-block";
  EXPECT_NE(Journal::resume(dir.path(), other).error().message.find("--scheme was \"mxfp4\", now it is \"fp8-block\""), std::string::npos);
  std::ofstream(dir.path() / kJournalName, std::ios::app) << "{\"shard\": 5}\n";
  EXPECT_NE(Journal::resume(dir.path(), identity).error().message.find("line 2 is damaged"), std::string::npos);
}

}  // namespace
}  // namespace ingot::quant
