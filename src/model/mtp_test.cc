// The MTP layer: drafts of the demo model against an independent plain implementation, and of tiny checkpoints in every mix of formats
// against the reference in double.
#include <gtest/gtest.h>

#include "model/glm.h"
#include "model/ref_forward.h"
#include "support/glm_run.h"
#include "support/golden.h"
#include "support/model_device.h"
#include "support/tiny_glm.h"

namespace ingot::model {
namespace {

using tensor::WeightFormat;
using test_support::Capture;
using test_support::GlmRun;
using test_support::Golden;
using test_support::load_glm;
using test_support::source_dir;
using test_support::TempDir;
using test_support::TinyGlm;
using test_support::TinyGlmBuilder;

struct Drafts {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;
  std::vector<int32_t> list;
};

// Prompt, then the MTP rows of the prompt in pieces of `chunk`, then a chain.
Drafts draft(GlmRun& run, std::span<const int32_t> prompt, int32_t next, int64_t count, bool share, size_t chunk) {
  run.prefill(prompt, prompt.size(), 1);
  const std::vector<float> hidden = run.hidden();
  const size_t width = hidden.size() / prompt.size();
  std::vector<int32_t> following(prompt.begin() + 1, prompt.end());
  following.push_back(next);
  GlmRun::MtpRow row;
  for (size_t at = 0; at < prompt.size(); at += chunk) {
    const size_t rows = std::min(chunk, prompt.size() - at);
    row = run.mtp(
        {0, static_cast<int64_t>(at), std::span(following).subspan(at, rows), std::span(hidden).subspan(at * width, rows * width), {}});
  }
  Drafts out;
  out.list = row.list;
  std::vector<int32_t> list(row.list.begin(), std::find(row.list.begin(), row.list.end(), -1));
  for (int64_t step = 0; step < count; ++step) {
    out.logits.push_back(row.logits);
    out.tokens.push_back(test_support::argmax(row.logits));
    const auto position = static_cast<int64_t>(prompt.size()) + step;
    if (share) list.push_back(static_cast<int32_t>(position));
    row = run.mtp(
        {0, position, std::span(out.tokens).last(1), row.hidden, share ? std::span<const int32_t>(list) : std::span<const int32_t>()});
  }
  return out;
}

// Symptoms: acceptance falls from 64 to 36 % when hidden states are recycled before the norm (C10), or the list is the main model's (C9).
TEST(MtpAgainstPlainPython, DraftsOfTheDemoModelAgree) {
  auto glm = load_glm(source_dir() / "models/demo", {.qkv_norm_eps = 1e-6f});
  ASSERT_TRUE(glm->has_mtp());
  for (const char* name : {"short", "mid", "long"}) {
    const Golden golden(name);
    const auto prompt = golden.integers("token_ids");
    for (const bool share : {true, false}) {
      const std::string key = share ? "mtp_shared_" : "mtp_own_";
      const auto expected = golden.as<float>(key + "logits");
      GlmRun run(*glm, {});
      const Drafts ours = draft(run, prompt, golden.integers("main_next_token")[0], 5, share, prompt.size());
      EXPECT_EQ(ours.tokens, golden.integers(key + "drafts")) << name << " " << key;
      std::printf("%s %s", name, key.c_str());
      for (size_t i = 0; i < 5; ++i) {
        const double error =
            test_support::relative_error(ours.logits[i], std::span(expected).subspan(i * ours.logits[i].size(), ours.logits[i].size()));
        std::printf(" %.1e", error);
        EXPECT_LE(error, 5e-5) << name << " " << key << "draft " << i;
      }
      std::printf("\n");
    }
  }
}

struct MtpCase {
  const char* name;
  WeightFormat main, mtp;
  bool own_tables = false;
};

std::vector<int32_t> prompt(size_t length, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> tokens(length);
  for (auto& t : tokens) t = static_cast<int32_t>(rng.below(160));
  return tokens;
}

// Bug reports A1, A4, A6: the MTP layer in a format of its own, with its own embedding and head or the main model's.
TEST(TinyMtp, EveryMixOfFormatsAgreesWithTheReferenceInDouble) {
  const WeightFormat bf16 = WeightFormat::bf16, fp8 = WeightFormat::fp8_block, mxfp4 = WeightFormat::mxfp4;
  for (const MtpCase& c : {MtpCase{"bf16", bf16, bf16},
                           {"bf16 under mxfp4", mxfp4, bf16},
                           {"fp8 under mxfp4", mxfp4, fp8},
                           {"mxfp4", mxfp4, mxfp4},
                           {"bf16 under fp8", fp8, bf16},
                           {"own tables", mxfp4, bf16, true}}) {
    TinyGlmBuilder builder(11, [&](const std::string& module) { return module.find("layers.6.") != std::string::npos ? c.mtp : c.main; });
    if (c.own_tables) {
      builder.table("model.layers.6.embed_tokens.weight", 160, 64, 1.0f);
      builder.table("model.layers.6.shared_head.head.weight", 160, 64, 0.2f);
    }
    const TinyGlm tiny = builder.build();
    const TempDir dir;
    tiny.write(dir.path());
    auto glm = load_glm(dir.path());
    for (const size_t length : {1, 3, 7, 8, 9, 10, 40}) {  // around index_topk
      const auto tokens = prompt(length, length);
      ref::Reference reference(glm->config(), tiny.values);
      reference.run(tokens);
      for (const bool share : {true, false}) {
        const auto expected = reference.draft(tokens, 77, 3, share);
        for (const size_t chunk : {length, size_t{1}, size_t{6}}) {
          GlmRun run(*glm, {.page_size = 5, .max_len = 64});
          const Drafts ours = draft(run, tokens, 77, 3, share, chunk);
          for (size_t i = 0; i < 3; ++i) {
            const std::vector<float> row(expected.logits[i].begin(), expected.logits[i].end());
            ASSERT_LE(test_support::relative_error(ours.logits[i], row), 2e-5)
                << c.name << ", " << length << " tokens, draft " << i << (share ? ", one list" : ", own lists") << ", chunks of " << chunk;
          }
          const std::vector<int32_t> list(ours.list.begin(), std::find(ours.list.begin(), ours.list.end(), -1));
          EXPECT_EQ(list, expected.list) << c.name << ", " << length << " tokens";
        }
      }
    }
  }
}

TEST(TinyMtp, ACheckpointWithoutTheLayerLoadsAndSaysSo) {
  TinyGlm tiny = TinyGlmBuilder(12, [](const std::string&) { return WeightFormat::bf16; }).build();
  TinyGlm part = tiny;
  std::erase_if(tiny.tensors, [](const auto& t) { return t.name.starts_with("model.layers.6."); });
  const TempDir dir, broken;
  tiny.write(dir.path());
  const auto glm = Glm::load(dir.path());
  ASSERT_TRUE(glm.has_value()) << glm.error().text();
  EXPECT_FALSE((*glm)->has_mtp());
  part.erase("model.layers.6.eh_proj.weight");  // a layer that is there in part is a damaged one
  part.write(broken.path());
  const auto refused = Glm::load(broken.path());
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().text().find("model.layers.6.eh_proj.weight"), std::string::npos) << refused.error().text();
}

// The hidden states that the MTP layer reads are those of the logits, and asking for them changes no bit.
TEST(TinyMtp, RowsDoNotSeeTheirNeighbours) {
  const TinyGlm tiny = TinyGlmBuilder(13, [](const std::string&) { return WeightFormat::bf16; }).build();
  const TempDir dir;
  tiny.write(dir.path());
  auto glm = load_glm(dir.path());
  const auto tokens = prompt(30, 5);
  GlmRun whole(*glm, {.format = tensor::LatentFormat::bf16, .max_len = 64});
  const Drafts expected = draft(whole, tokens, 9, 4, true, tokens.size());
  for (const size_t chunk : {1, 2, 7, 16}) {
    GlmRun run(*glm, {.format = tensor::LatentFormat::bf16, .page_size = 3, .max_len = 64, .page_seed = chunk, .threads = 3});
    const Drafts again = draft(run, tokens, 9, 4, true, chunk);
    EXPECT_EQ(again.logits, expected.logits) << "chunks of " << chunk;
  }
}

}  // namespace
}  // namespace ingot::model
