// The sabotage ladder: a divergence that does not tell a broken quantiser from a sound one is worth nothing. Plain MXFP4 of the demo
// model's routed experts must be worse than the model itself, and every broken variant clearly worse than plain MXFP4.
#include "apps/eval_divergence.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>

#include "model/glm.h"
#include "serve/model_service.h"
#include "support/checkpoint_writer.h"
#include "tensor/checkpoint.h"
#include "tensor/quantize.h"

namespace ingot::apps {
namespace {

namespace fs = std::filesystem;
using tensor::PackedWeight;
using tensor::WeightFormat;
using ::testing::HasSubstr;

const fs::path kDemo = INGOT_SOURCE_DIR "/models/demo";
const fs::path kWords = INGOT_SOURCE_DIR "/tests/golden/eval/word.jsonl";

using Sabotage = std::function<void(PackedWeight&)>;

// Writes the demo model with its routed experts in MXFP4, each then treated by `sabotage`.
void write_mxfp4_demo(const fs::path& dir, const Sabotage& sabotage) {
  const auto checkpoint = tensor::Checkpoint::open(kDemo).value();
  std::vector<test_support::TensorToWrite> tensors;
  for (const auto& info : checkpoint.tensors()) {
    const auto data = checkpoint.data(info);
    const auto* bytes = reinterpret_cast<const uint8_t*>(data.data());
    if (info.name.find(".mlp.experts.") == std::string::npos) {
      tensors.push_back({info.name, info.dtype, info.shape, {bytes, bytes + data.size()}});
      continue;
    }
    PackedWeight source{WeightFormat::bf16, info.shape[0], info.shape[1], {bytes, bytes + data.size()}, {}};
    PackedWeight packed = tensor::pack_weight(tensor::dequantize(source.view()), source.rows, source.cols, WeightFormat::mxfp4);
    sabotage(packed);
    const std::string module = info.name.substr(0, info.name.size() - std::strlen(".weight"));
    for (auto& t : test_support::linear_tensors(module, packed)) tensors.push_back(std::move(t));
  }
  test_support::write_checkpoint(dir, tensors, uint64_t{1} << 30);
  fs::copy_file(kDemo / "config.json", dir / "config.json");
}

std::shared_ptr<const serve::ServedModel> served_demo() {
  serve::ServiceOptions options;
  options.model = kDemo;
  return serve::load_served_model(options).value();
}

quant::DivergenceReport divergence_from_demo(const fs::path& candidate, const std::vector<quant::Document>& documents) {
  const auto reference = model::Glm::load(kDemo).value(), other = model::Glm::load(candidate).value();
  const auto measured = quant::measure_divergence(*reference, *other, documents, {}).value();
  return quant::summarize(measured, {});
}

TEST(SabotageLadder, EveryBrokenQuantiserIsClearlyWorseThanPlainMxfp4) {
  const auto documents = load_documents(*served_demo(), kWords, 512, 12).value();
  const auto same = divergence_from_demo(kDemo, documents);
  EXPECT_EQ(same.mean_kl.value, 0);
  EXPECT_EQ(same.mean_kl.high, 0);
  EXPECT_EQ(same.top1_agreement.value, 1);
  EXPECT_EQ(same.expert_agreement.value, 1);

  const std::map<std::string, Sabotage> ladder{
      {"plain", [](PackedWeight&) {}},
      // The exponents of all blocks stay, but each goes to another block of its row.
      {"scrambled exponents",
       [](PackedWeight& w) {
         const auto blocks = static_cast<ptrdiff_t>(w.cols / 32);
         for (ptrdiff_t r = 0; r < w.rows; ++r)
           std::rotate(w.scale.begin() + r * blocks, w.scale.begin() + r * blocks + 1, w.scale.begin() + (r + 1) * blocks);
         std::rotate(w.scale.begin(), w.scale.begin() + w.rows / 2 * blocks, w.scale.end());
       }},
      // Four values are left: +-1 and +-4.
      {"2-bit weights",
       [](PackedWeight& w) {
         const auto coarse = [](uint8_t code) { return static_cast<uint8_t>((code & 8) | ((code & 7) < 4 ? 2 : 6)); };
         for (auto& byte : w.data) byte = static_cast<uint8_t>(coarse(byte & 15) | coarse(byte >> 4) << 4);
       }},
      {"swapped nibbles",
       [](PackedWeight& w) {
         for (auto& byte : w.data) byte = static_cast<uint8_t>(byte << 4 | byte >> 4);
       }},
      // Every second block is twice as large as it should be.
      {"half-wrong scales",
       [](PackedWeight& w) {
         for (size_t i = 0; i < w.scale.size(); i += 2) ++w.scale[i];
       }},
  };
  std::map<std::string, quant::DivergenceReport> reports;
  for (const auto& [name, sabotage] : ladder) {
    test_support::TempDir dir;
    write_mxfp4_demo(dir.path(), sabotage);
    const auto& r = reports[name] = divergence_from_demo(dir.path(), documents);
    std::printf("%-20s KL %.4f [%.4f, %.4f], likeliest the same %.3f, NLL %+.3f, same experts %.3f\n", name.c_str(), r.mean_kl.value,
                r.mean_kl.low, r.mean_kl.high, r.top1_agreement.value, r.nll_change.value, r.expert_agreement.value);
  }
  const auto& plain = reports["plain"];
  EXPECT_GT(plain.mean_kl.low, 0);
  EXPECT_LT(plain.expert_agreement.value, 1);
  for (const auto& [name, r] : reports) {
    if (name == "plain") continue;
    EXPECT_GT(r.mean_kl.low, 2 * plain.mean_kl.high) << name;
    EXPECT_LT(r.top1_agreement.high, plain.top1_agreement.value) << name;
    EXPECT_LT(r.expert_agreement.high, plain.expert_agreement.value) << name;
  }
}

}  // namespace
}  // namespace ingot::apps
