// The forward pass of tiny checkpoints against a plain reference in double, in every weight format, around index_topk, and with the
// traps that other servers fell into.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/glm.h"
#include "model/ref_forward.h"
#include "support/glm_run.h"
#include "support/model_device.h"
#include "support/tiny_glm.h"

namespace ingot::model {
namespace {

using tensor::LatentFormat;
using tensor::WeightFormat;
using test_support::Capture;
using test_support::GlmRun;
using test_support::TempDir;
using test_support::TinyGlm;
using test_support::TinyGlmBuilder;

constexpr uint64_t kSeed = 520;

WeightFormat experts_only(const std::string& module, WeightFormat format) {
  return module.find(".experts.") != std::string::npos ? format : WeightFormat::bf16;
}

struct Loaded {
  TempDir dir;
  TinyGlm tiny;
  std::unique_ptr<Glm> glm;

  explicit Loaded(TinyGlm model, const GlmOptions& options = {}) : tiny(std::move(model)) {
    tiny.write(dir.path());
    glm = test_support::load_glm(dir.path(), options);
  }
};

std::vector<int32_t> prompt(size_t length, uint64_t seed = kSeed) {
  Rng rng(seed);
  std::vector<int32_t> tokens(length);
  for (auto& t : tokens) t = static_cast<int32_t>(rng.below(160));
  return tokens;
}

// Compares every position's logits and every list with the reference. Lists must be equal: seeds are fixed and the nearest
// pair of scores around a threshold is far above f32 rounding.
void expect_reference(Loaded& loaded, const std::vector<int32_t>& tokens, size_t chunk, const std::string& what, double tolerance = 2e-5) {
  const spec::ModelConfig& config = loaded.glm->config();
  ref::Reference reference(config, loaded.tiny.values);
  const ref::Rows expected = reference.run(tokens);
  Capture capture;
  for (size_t t = 0; t < tokens.size(); ++t) capture.rows.insert(static_cast<int32_t>(t));
  GlmRun run(*loaded.glm, {.page_size = 5, .max_len = 256});
  const auto logits = run.prefill(tokens, chunk, static_cast<int64_t>(tokens.size()), &capture);
  ASSERT_EQ(logits.size(), tokens.size());
  for (size_t t = 0; t < tokens.size(); ++t) {
    const std::vector<float> row(expected[t].begin(), expected[t].end());
    ASSERT_LE(test_support::relative_error(logits[t], row), tolerance)
        << what << ", position " << t << " of " << tokens.size() << ", seed " << kSeed;
  }
  for (const auto& [layer, rows] : capture.lists) {
    for (const auto& [position, list] : rows) {
      std::vector<int32_t> positions(list.begin(), std::find(list.begin(), list.end(), -1));
      ASSERT_EQ(positions, reference.lists().at(layer)[static_cast<size_t>(position)])
          << what << ", layer " << layer << " query " << position;
    }
  }
}

struct FormatCase {
  const char* name;
  test_support::FormatOf format;
};

std::vector<FormatCase> format_cases() {
  return {{"bf16", [](const std::string&) { return WeightFormat::bf16; }},
          {"f32", [](const std::string&) { return WeightFormat::f32; }},
          {"fp8 everywhere", [](const std::string&) { return WeightFormat::fp8_block; }},
          {"mxfp4 everywhere", [](const std::string&) { return WeightFormat::mxfp4; }},
          {"mxfp4 routed experts, the rest bf16", [](const std::string& m) { return experts_only(m, WeightFormat::mxfp4); }},
          {"mxfp4 experts, fp8 attention, f32 shared expert", [](const std::string& m) {
             if (m.find(".experts.") != std::string::npos) return WeightFormat::mxfp4;
             return m.find("self_attn") != std::string::npos ? WeightFormat::fp8_block : WeightFormat::f32;
           }}};
}

TEST(TinyGlm, EveryWeightFormatAgreesWithTheReferenceInDouble) {
  for (const FormatCase& c : format_cases()) {
    for (const MlaForm form : {MlaForm::absorbed, MlaForm::expanded}) {
      Loaded loaded(TinyGlmBuilder(kSeed, c.format).build(), {form, 0});
      expect_reference(loaded, prompt(64), 64, c.name);
      if (HasFatalFailure()) return;
    }
  }
}

// Bug report I2: sequences shorter than index_topk (8), at it and just above; and O3: 1 to 9 rows at once.
TEST(TinyGlm, PromptsAroundIndexTopkAgreeWithTheReference) {
  Loaded loaded(TinyGlmBuilder(kSeed, [](const std::string& m) { return experts_only(m, WeightFormat::mxfp4); }).build());
  for (size_t length = 1; length <= 18; ++length) {
    expect_reference(loaded, prompt(length, kSeed + length), length, "whole prompt");
    expect_reference(loaded, prompt(length, kSeed + length), 1, "token by token");
    if (HasFatalFailure()) return;
  }
}

// Bug reports I1 and I3: the pairing of the indexer's RoPE changes nothing up to index_topk and everything above it.
TEST(TinyGlm, IndexerRopePairingFollowsTheConfigAndMattersOnlyAboveIndexTopk) {
  const auto bf16 = [](const std::string&) { return WeightFormat::bf16; };
  Loaded interleaved(TinyGlmBuilder(kSeed, bf16).build());
  TinyGlmBuilder builder(kSeed, bf16);
  builder.config()["indexer_rope_interleave"] = false;
  Loaded half_split(builder.build());
  expect_reference(half_split, prompt(64), 64, "half-split by config");
  const auto tokens = prompt(64);
  const auto logits = [&](Loaded& loaded) {
    GlmRun run(*loaded.glm, {.max_len = 64});
    return run.prefill(tokens, 64, 64);
  };
  const auto a = logits(interleaved), b = logits(half_split);
  for (size_t t = 0; t < 8; ++t) EXPECT_EQ(a[t], b[t]) << "position " << t << " sees all of its positions";
  double worst = 0;
  for (size_t t = 8; t < 64; ++t) worst = std::max(worst, test_support::relative_error(a[t], b[t]));
  EXPECT_GT(worst, 1e-2);
}

// Bug report I5: with one token repeated many scores tie; the choice must not depend on threads or chunks.
TEST(TinyGlm, TiedScoresChooseTheSamePositionsOnAnyThreads) {
  Loaded loaded(TinyGlmBuilder(kSeed, [](const std::string&) { return WeightFormat::bf16; }).build());
  const std::vector<int32_t> tokens(64, 42);
  Capture first;
  for (int32_t t = 0; t < 64; ++t) first.rows.insert(t);
  GlmRun whole(*loaded.glm, {.max_len = 64, .threads = 1});
  const auto expected = whole.prefill(tokens, 64, 64, &first);
  for (const int threads : {2, 3}) {
    Capture again;
    again.rows = first.rows;
    GlmRun run(*loaded.glm, {.page_size = 4, .max_len = 64, .threads = threads});
    EXPECT_EQ(run.prefill(tokens, 9, 64, &again), expected) << threads << " threads";
    for (const auto& [layer, lists] : again.lists)
      for (const auto& [position, list] : lists)
        EXPECT_EQ(list, first.lists[layer][position]) << "layer " << layer << " query " << position;
  }
}

// Bug reports I7 and I8: padding rows store nothing and change nothing.
TEST(TinyGlm, PaddingRowsWriteNothingAndChangeNoBit) {
  Loaded loaded(TinyGlmBuilder(kSeed, [](const std::string&) { return WeightFormat::bf16; }).build());
  const auto tokens = prompt(20);
  const spec::ModelConfig& config = loaded.glm->config();
  ThreadPool pool(2);
  gpu::Stream stream{&pool};
  std::vector<float> expected;
  for (const int padding : {0, 3}) {
    auto cache = KvCache::create(config, {LatentFormat::f32, 4, 8}, loaded.glm->device()).value();
    std::vector<int32_t> ids(tokens), positions, slots, seqs(tokens.size(), 0), pages{2, 0, 1};
    for (int32_t p = 0; p < 20; ++p) positions.push_back(p), slots.push_back(pages[static_cast<size_t>(p / 8)] * 8 + p % 8);
    for (int i = 0; i < padding; ++i) {
      ids.push_back(0);
      positions.push_back(0);
      slots.push_back(-1);
      seqs.push_back(0);
    }
    const std::vector<int32_t> logit_rows{19};
    std::vector<float> logits(static_cast<size_t>(config.vocab_size));
    ForwardBatch batch;
    batch.token_ids = ids;
    batch.positions = positions;
    batch.slots = slots;
    batch.seq_of_token = seqs;
    batch.page_table = pages;
    batch.max_pages = 3;
    batch.logit_rows = logit_rows;
    ASSERT_TRUE(loaded.glm->forward(stream, batch, cache, {logits, {}}).has_value());
    if (padding == 0)
      expected = logits;
    else
      EXPECT_EQ(logits, expected);
    // The last page belongs to nobody: still as it was made.
    std::vector<std::byte> unused(static_cast<size_t>(cache.page_bytes()));
    cache.save_page(3, unused);
    EXPECT_TRUE(std::all_of(unused.begin(), unused.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(TinyGlm, SmallerCachesLoseNoMoreThanTheirRounding) {
  Loaded loaded(TinyGlmBuilder(kSeed, [](const std::string&) { return WeightFormat::bf16; }).build());
  const auto tokens = prompt(8);  // all positions are seen: no list can flip
  const ref::Rows expected = ref::Reference(loaded.glm->config(), loaded.tiny.values).run(tokens);
  const std::vector<float> last(expected.back().begin(), expected.back().end());
  for (const auto& [format, tolerance] :
       {std::pair{LatentFormat::bf16, 0.02}, {LatentFormat::fp8, 0.25}, {LatentFormat::fp8_scaled, 0.25}}) {
    GlmRun run(*loaded.glm, {.format = format, .max_len = 64});
    EXPECT_LE(test_support::relative_error(run.prefill(tokens, 8, 1)[0], last), tolerance) << tensor::latent_format_name(format);
  }
}

TEST(KvCacheBytes, FullModelMatchesTheSpecification) {
  spec::ModelConfig config;
  config.num_hidden_layers = 78;
  config.num_nextn_predict_layers = 1;
  config.kv_lora_rank = 512;
  config.qk_rope_head_dim = 64;
  config.index_head_dim = 128;
  config.indexer_types.assign(78, spec::IndexerType::shared);
  for (const size_t i : {0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66, 70, 74})
    config.indexer_types[i] = spec::IndexerType::full;
  EXPECT_EQ(KvCache::bytes_per_token(config, LatentFormat::f32), 79 * 2304 + 22 * 512);
  EXPECT_EQ(KvCache::bytes_per_token(config, LatentFormat::bf16), 79 * 1152 + 22 * 256);
  EXPECT_EQ(KvCache::bytes_per_token(config, LatentFormat::fp8), 79 * 576 + 22 * 256);
  EXPECT_EQ(KvCache::bytes_per_token(config, LatentFormat::fp8_scaled), 79 * 656 + 22 * 256);
}

TEST(KvCacheBytes, WidthsThatAFormatDoesNotFitAreRefusedByName) {
  spec::ModelConfig config;
  config.kv_lora_rank = 30;
  config.qk_rope_head_dim = 4;
  const auto cache = KvCache::create(config, {LatentFormat::fp8_scaled, 4, 64});
  ASSERT_FALSE(cache.has_value());
  EXPECT_NE(cache.error().text().find("fp8_ds_mla"), std::string::npos) << cache.error().text();
  EXPECT_NE(cache.error().text().find("kv_lora_rank 30"), std::string::npos) << cache.error().text();
  EXPECT_TRUE(KvCache::create(config, {LatentFormat::fp8, 4, 64}).has_value());
}

}  // namespace
}  // namespace ingot::model
