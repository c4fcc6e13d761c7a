// How far one checkpoint's predictions are from another's on the same tokens: teacher-forced, document by document, with what happens
// inside (experts chosen, positions chosen) beside the logits. Both models step through a document together, chunk by chunk, so that no
// more than one chunk's logits of each exist. Called by `ingot eval divergence` on one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/glm.h"
#include "quant/statistics.h"

namespace ingot::quant {

// Of one position: P is the reference's distribution of the next token, Q the candidate's.
struct RowDivergence {
  double kl = 0;             // KL(P || Q) in nats, exactly 0 for equal logits
  double reference_nll = 0;  // -log P(target), nats
  double candidate_nll = 0;
  bool same_top = false;  // the likeliest token is the same one; of equal logits the first
  bool finite = true;     // false: a logit is infinite or no number, and the rest means nothing
};
// `reference`, `candidate`: (vocab) logits. Softmax in double, the maximum taken out first.
RowDivergence row_divergence(const float* reference, const float* candidate, int64_t vocab, int32_t target);

struct Document {
  std::string name;
  std::vector<int32_t> tokens;  // at least 2: the first is only read
};

// Sums over one document's positions 0 .. n - 2.
struct DocumentDivergence {
  std::string name;
  int64_t positions = 0;
  std::vector<double> kl;  // (positions)
  double reference_nll = 0;
  double candidate_nll = 0;
  int64_t same_top = 0;
  int64_t first_divergence = -1;  // first position whose likeliest tokens differ; -1: none
  std::vector<Share> experts;     // (num_hidden_layers): rows with equal sets of experts, of rows; empty counts where there are none
  std::vector<Share> indexer;     // (num_hidden_layers): sum of |A and B| / |A| over rows that had to choose
};

struct LayerAgreement {
  int64_t layer = 0;
  Interval share;
};

struct DivergenceReport {
  int64_t documents = 0;
  int64_t positions = 0;
  Interval mean_kl;  // nats a token
  Interval p99_kl;
  Interval top1_agreement;
  Interval reference_nll;  // nats a token
  Interval candidate_nll;
  Interval nll_change;               // candidate - reference, paired
  Interval median_first_divergence;  // position; documents without any count with their length
  int64_t documents_without_divergence = 0;
  Interval expert_agreement;  // over all MoE layers
  std::vector<LayerAgreement> expert_layers;
  Interval indexer_overlap;  // over all full layers; NaN when no document is longer than index_topk
  std::vector<LayerAgreement> indexer_layers;
};

struct DivergenceOptions {
  int threads = 0;  // 0: one per processor
  int64_t chunk = 256;
  BootstrapOptions bootstrap = {};
};

// Errors: what makes two checkpoints incomparable, by its name in config.json, with both values.
Result<> check_comparable(const spec::ModelConfig& reference, const spec::ModelConfig& candidate);

// Runs both models over `documents`; `done` (may be empty) is told of each. The cache is f32, so that what is measured are the weights.
// Errors: models that cannot be compared; a document that is too short, too long or has ids outside the vocabulary; logits that are no
// numbers, naming model, document and position.
Result<std::vector<DocumentDivergence>> measure_divergence(model::Glm& reference, model::Glm& candidate,
                                                           std::span<const Document> documents, const DivergenceOptions& options,
                                                           const std::function<void(const DocumentDivergence&)>& done = {});

DivergenceReport summarize(std::span<const DocumentDivergence> documents, const BootstrapOptions& options);

}  // namespace ingot::quant
