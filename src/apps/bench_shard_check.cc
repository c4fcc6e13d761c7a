#include "apps/bench_shard_check.h"

#include <algorithm>
#include <cmath>

#include "apps/bench_step_load.h"
#include "model/shard.h"

namespace ingot::apps {
namespace {

using model::WeightPart;
using spec::IndexerType;
using spec::MlpType;

constexpr float kSmall = 1.0f / 64;  // of the embedding: what is checked outweighs it, and the norm still makes rows of size 1 of it

struct Case {
  const char* name;
  std::vector<IndexerType> indexers;
  MlpType mlp;
  int64_t rows, context;
  // Whether this part of this layer keeps its weights; else they are zero.
  bool (*keeps)(WeightPart part, int64_t layer);
  double limit;  // of the median relative error of a row
};

// Activations are rounded to 8 bits of mantissa before a product, 2^-9 of each number, independent of each other: about 2e-3 of a sum, a
// few of them in a row. Positions and experts that are nearly as good as the last one chosen may be taken instead: a row whose expert
// changes is far off, so it is the median that is limited; a list changes in a few of its many positions.
const Case kCases[] = {
    {"experts",
     {IndexerType::full},
     MlpType::sparse,
     16,
     16,
     [](WeightPart part, int64_t) { return part != WeightPart::attention_out; },
     2e-2},
    {"attention, own list",
     {IndexerType::full},
     MlpType::dense,
     4,
     0,
     [](WeightPart part, int64_t) { return part != WeightPart::mlp_out; },
     8e-2},
    {"attention, list of another",
     {IndexerType::full, IndexerType::shared},
     MlpType::dense,
     4,
     0,
     [](WeightPart part, int64_t layer) { return part != WeightPart::mlp_out && (part != WeightPart::attention_out || layer == 1); },
     8e-2}};

Result<CheckLine> run_case(const Case& c, const ShardCheck& check, const std::shared_ptr<gpu::Accelerator>& device, ThreadPool& pool) {
  spec::ModelConfig whole = check.whole;
  whole.num_hidden_layers = static_cast<int64_t>(c.indexers.size());
  whole.num_nextn_predict_layers = 0;
  whole.indexer_types = c.indexers;
  whole.mlp_layer_types.assign(c.indexers.size(), c.mlp);
  INGOT_ASSIGN(const spec::ModelConfig config, model::shard_config(whole, check.tp));
  model::RandomWeightOptions options = check.weights;
  options.gain = [&c](WeightPart part, int64_t layer) {
    if (part == WeightPart::embed) return kSmall;
    return c.keeps(part, layer) ? 1.0f : 0.0f;
  };
  INGOT_ASSIGN(const auto weights, model::RandomWeights::make(whole, check.tp, options, device, pool));
  const StepShape shape{c.name, 1, c.rows, c.context == 0 ? check.context : c.context, false, false};
  INGOT_ASSIGN(BenchCache cache, BenchCache::make(config, check.kv_format, {shape}, int64_t{1} << 40, device, pool));
  gpu::Stream stream{&pool};
  std::vector<float> hidden[2];
  for (const gpu::DeviceMatmul matmul : {check.production, gpu::DeviceMatmul::lanes}) {
    INGOT_ASSIGN(const auto glm, model::Glm::over(weights.weights(), config, {.device_matmul = matmul, .graphs = false}, device));
    BenchSteps steps(*glm, cache, shape, whole.vocab_size, 5);
    INGOT_TRY(steps.run(stream));
    hidden[matmul == gpu::DeviceMatmul::lanes ? 1 : 0] = steps.hidden();
  }
  std::vector<double> errors = row_errors(hidden[0], hidden[1], config.hidden_size);
  // A NaN is the worst.
  std::sort(errors.begin(), errors.end(), [](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; });
  return CheckLine{c.name, errors[errors.size() / 2], errors.back(), c.limit};
}

}  // namespace

std::vector<double> row_errors(const std::vector<float>& a, const std::vector<float>& b, int64_t width) {
  std::vector<double> errors;
  for (size_t first = 0; first < a.size(); first += static_cast<size_t>(width)) {
    double difference = 0, size = 0;
    for (size_t i = first; i < first + static_cast<size_t>(width); ++i) {
      const double d = static_cast<double>(a[i]) - b[i];
      difference += d * d;
      size += static_cast<double>(b[i]) * b[i];
    }
    errors.push_back(std::sqrt(difference / size));
  }
  return errors;
}

Result<std::vector<CheckLine>> check_shard(const ShardCheck& check, std::shared_ptr<gpu::Accelerator> device, ThreadPool& pool) {
  std::vector<CheckLine> lines;
  for (const Case& c : kCases) {
    INGOT_ASSIGN(CheckLine line, run_case(c, check, device, pool));
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace ingot::apps
