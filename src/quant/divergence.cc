#include "quant/divergence.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/check.h"

namespace ingot::quant {
namespace {

constexpr int64_t kPageSize = 64;

// The logits of one row as log-probabilities. Differences to the maximum are taken first, so that large logits cost no digits.
class LogSoftmax {
 public:
  LogSoftmax(const float* logits, int64_t n) : logits_(logits) {
    for (int64_t i = 0; i < n; ++i) {
      finite_ = finite_ && std::isfinite(logits[i]);
      if (logits[i] > logits[top_]) top_ = i;
    }
    double total = 0;
    for (int64_t i = 0; i < n; ++i) total += std::exp(below_top(i));
    log_total_ = std::log(total);
  }
  bool finite() const { return finite_; }  // all logits are
  int64_t top() const { return top_; }     // the likeliest, of equals the first
  double operator[](int64_t i) const { return below_top(i) - log_total_; }

 private:
  double below_top(int64_t i) const { return static_cast<double>(logits_[i]) - static_cast<double>(logits_[top_]); }

  const float* logits_;
  int64_t top_ = 0;
  double log_total_ = 0;
  bool finite_ = true;
};

// What a chunk's forward pass chose, per layer and row.
struct Choices final : model::ForwardProbe {
  explicit Choices(int64_t layers) : experts(static_cast<size_t>(layers)), positions(static_cast<size_t>(layers)) {}

  std::vector<std::vector<int32_t>> experts;    // [layer] (T, num_experts_per_tok), each row sorted; empty: no MoE layer
  std::vector<std::vector<int32_t>> positions;  // [layer] (T, index_topk), each row sorted, -1 first; empty: nothing to choose
  int64_t rows = 0;                             // of the chunk, set before the pass

  void clear(int64_t chunk_rows) {
    rows = chunk_rows;
    for (auto& layer : experts) layer.clear();
    for (auto& layer : positions) layer.clear();
  }
  void after_router(int64_t layer, std::span<const int32_t> chosen, std::span<const float>) override { keep(experts, layer, chosen); }
  void after_index(int64_t layer, std::span<const int32_t> chosen) override { keep(positions, layer, chosen); }

 private:
  void keep(std::vector<std::vector<int32_t>>& into, int64_t layer, std::span<const int32_t> chosen) const {
    auto& kept = into[static_cast<size_t>(layer)];
    kept.assign(chosen.begin(), chosen.end());
    const auto width = static_cast<int64_t>(kept.size()) / rows;
    for (int64_t r = 0; r < rows; ++r) std::sort(kept.begin() + r * width, kept.begin() + (r + 1) * width);
  }
};

// One model on its way through a document.
class Reader {
 public:
  static Result<Reader> create(model::Glm& glm, int64_t max_len, const char* role) {
    const int64_t pages = (max_len + kPageSize - 1) / kPageSize;
    INGOT_ASSIGN(auto cache, model::KvCache::create(glm.config(), {tensor::LatentFormat::f32, pages, kPageSize}));
    return Reader(glm, std::move(cache), pages, role);
  }

  // Continues at `first`: the logits of all rows are in logits() and the choices in choices() until the next call.
  void step(gpu::Stream& stream, std::span<const int32_t> tokens, int64_t first) {
    const auto rows = static_cast<int64_t>(tokens.size());
    positions_.resize(tokens.size());
    std::iota(positions_.begin(), positions_.end(), static_cast<int32_t>(first));
    logit_rows_.resize(tokens.size());
    std::iota(logit_rows_.begin(), logit_rows_.end(), 0);
    seq_of_token_.assign(tokens.size(), 0);
    logits_.resize(static_cast<size_t>(rows * glm_->config().vocab_size));
    choices_.clear(rows);
    model::ForwardBatch batch;
    batch.token_ids = tokens;
    batch.positions = positions_;
    batch.slots = positions_;  // pages in order: slot and position are the same number
    batch.seq_of_token = seq_of_token_;
    batch.page_table = page_table_;
    batch.max_pages = static_cast<int64_t>(page_table_.size());
    batch.logit_rows = logit_rows_;
    const auto done = glm_->forward(stream, batch, cache_, {logits_, {}}, &choices_);
    INGOT_CHECK(done.has_value(), "a step on the CPU failed: {}", done.error().text());
  }
  const float* logits(int64_t row) const { return logits_.data() + row * glm_->config().vocab_size; }
  const Choices& choices() const { return choices_; }
  const char* role() const { return role_; }

 private:
  Reader(model::Glm& glm, model::KvCache cache, int64_t pages, const char* role)
      : glm_(&glm), cache_(std::move(cache)), choices_(glm.config().num_hidden_layers), role_(role) {
    page_table_.resize(static_cast<size_t>(pages));
    std::iota(page_table_.begin(), page_table_.end(), 0);
  }

  model::Glm* glm_;
  model::KvCache cache_;
  Choices choices_;
  const char* role_;
  std::vector<int32_t> page_table_, positions_, seq_of_token_, logit_rows_;
  std::vector<float> logits_;  // (rows, vocab)
};

void add_agreement(const spec::ModelConfig& config, const Choices& a, const Choices& b, int64_t first, int64_t rows,
                   DocumentDivergence& into) {
  for (size_t layer = 0; layer < a.experts.size(); ++layer) {
    const auto &ours = a.experts[layer], &theirs = b.experts[layer];
    for (int64_t r = 0; r < rows && !ours.empty(); ++r) {
      const int64_t k = config.num_experts_per_tok;
      into.experts[layer].sum += std::equal(ours.begin() + r * k, ours.begin() + (r + 1) * k, theirs.begin() + r * k);
      into.experts[layer].count += 1;
    }
  }
  for (size_t layer = 0; layer < a.positions.size(); ++layer) {
    const auto &ours = a.positions[layer], &theirs = b.positions[layer];
    const int64_t k = config.index_topk;
    for (int64_t r = 0; r < rows && !ours.empty(); ++r) {
      if (first + r < k) continue;  // it takes all positions there are
      int64_t common = 0;
      auto x = ours.begin() + r * k, y = theirs.begin() + r * k;
      const auto x_end = x + k, y_end = y + k;
      while (x != x_end && y != y_end) {
        common += *x == *y;
        const bool step_x = *x <= *y, step_y = *y <= *x;
        x += step_x, y += step_y;
      }
      into.indexer[layer].sum += static_cast<double>(common) / static_cast<double>(k);
      into.indexer[layer].count += 1;
    }
  }
}

Result<> check_document(const spec::ModelConfig& config, const Document& document) {
  const auto length = static_cast<int64_t>(document.tokens.size());
  if (length < 2) return fail("{}: a document needs 2 tokens at least, it has {}", document.name, length);
  if (length > config.max_position_embeddings)
    return fail("{}: {} tokens are more than max_position_embeddings {}", document.name, length, config.max_position_embeddings);
  for (const int32_t id : document.tokens)
    if (id < 0 || id >= config.vocab_size)
      return fail("{}: token id {} is outside the vocabulary of {}", document.name, id, config.vocab_size);
  return {};
}

}  // namespace

RowDivergence row_divergence(const float* reference, const float* candidate, int64_t vocab, int32_t target) {
  const LogSoftmax p(reference, vocab), q(candidate, vocab);
  RowDivergence row;
  row.finite = p.finite() && q.finite();
  if (!row.finite) return row;
  for (int64_t i = 0; i < vocab; ++i) row.kl += std::exp(p[i]) * (p[i] - q[i]);
  row.kl = std::max(row.kl, 0.0);  // rounding: about -1e-16 for almost equal distributions
  row.reference_nll = -p[target];
  row.candidate_nll = -q[target];
  row.same_top = p.top() == q.top();
  return row;
}

Result<> check_comparable(const spec::ModelConfig& a, const spec::ModelConfig& b) {
  if (a.architecture != b.architecture) return fail("the models differ in architecture: {} and {}", a.architecture, b.architecture);
  const struct {
    const char* name;
    int64_t a, b;
  } sizes[] = {
      {"vocab_size", a.vocab_size, b.vocab_size},
      {"num_hidden_layers", a.num_hidden_layers, b.num_hidden_layers},
      {"hidden_size", a.hidden_size, b.hidden_size},
      {"n_routed_experts", a.n_routed_experts, b.n_routed_experts},
      {"num_experts_per_tok", a.num_experts_per_tok, b.num_experts_per_tok},
      {"index_topk", a.index_topk, b.index_topk},
  };
  for (const auto& size : sizes)
    if (size.a != size.b) return fail("the models differ in {}: {} and {}", size.name, size.a, size.b);
  if (a.indexer_types != b.indexer_types) return fail("the models differ in indexer_types");
  if (a.mlp_layer_types != b.mlp_layer_types) return fail("the models differ in mlp_layer_types");
  return {};
}

Result<std::vector<DocumentDivergence>> measure_divergence(model::Glm& reference, model::Glm& candidate,
                                                           std::span<const Document> documents, const DivergenceOptions& options,
                                                           const std::function<void(const DocumentDivergence&)>& done) {
  INGOT_CHECK(options.chunk > 0, "chunk {}", options.chunk);
  const spec::ModelConfig& config = reference.config();
  INGOT_TRY(check_comparable(config, candidate.config()));
  size_t longest = 0;
  for (const Document& document : documents) {
    INGOT_TRY(check_document(config, document));
    INGOT_TRY(check_document(candidate.config(), document));
    longest = std::max(longest, document.tokens.size());
  }
  ThreadPool pool(options.threads);
  gpu::Stream stream{&pool};
  INGOT_ASSIGN(Reader a, Reader::create(reference, static_cast<int64_t>(longest), "the reference"));
  INGOT_ASSIGN(Reader b, Reader::create(candidate, static_cast<int64_t>(longest), "the candidate"));
  std::vector<DocumentDivergence> all;
  std::vector<RowDivergence> rows;
  for (const Document& document : documents) {
    const std::span<const int32_t> tokens = document.tokens;
    DocumentDivergence sums;
    sums.name = document.name;
    sums.positions = static_cast<int64_t>(tokens.size()) - 1;
    sums.experts.resize(static_cast<size_t>(config.num_hidden_layers));
    sums.indexer.resize(static_cast<size_t>(config.num_hidden_layers));
    // The last token is a target and nothing more.
    for (int64_t first = 0; first < sums.positions; first += options.chunk) {
      const int64_t count = std::min(options.chunk, sums.positions - first);
      const auto chunk = tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
      a.step(stream, chunk, first);
      b.step(stream, chunk, first);
      rows.resize(static_cast<size_t>(count));
      pool.parallel_for(count, 4, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          rows[static_cast<size_t>(r)] =
              row_divergence(a.logits(r), b.logits(r), config.vocab_size, tokens[static_cast<size_t>(first + r + 1)]);
      });
      for (int64_t r = 0; r < count; ++r) {
        const RowDivergence& row = rows[static_cast<size_t>(r)];
        if (!row.finite) {
          const float* own = a.logits(r);
          const bool in_reference = !std::all_of(own, own + config.vocab_size, [](float x) { return std::isfinite(x); });
          return fail("{} gives logits that are no numbers at position {} of {}", in_reference ? a.role() : b.role(), first + r,
                      document.name);
        }
        sums.kl.push_back(row.kl);
        sums.reference_nll += row.reference_nll;
        sums.candidate_nll += row.candidate_nll;
        sums.same_top += row.same_top;
        if (!row.same_top && sums.first_divergence < 0) sums.first_divergence = first + r;
      }
      add_agreement(config, a.choices(), b.choices(), first, count, sums);
    }
    if (done) done(sums);
    all.push_back(std::move(sums));
  }
  return all;
}

DivergenceReport summarize(std::span<const DocumentDivergence> documents, const BootstrapOptions& options) {
  DivergenceReport report;
  report.documents = static_cast<int64_t>(documents.size());
  const auto ratio = [&](const std::function<Share(const DocumentDivergence&)>& share) {
    std::vector<Share> shares;
    for (const auto& document : documents) shares.push_back(share(document));
    return bootstrap_ratio(shares, options);
  };
  const auto a_token = [&](const std::function<double(const DocumentDivergence&)>& sum) {
    return ratio([&](const DocumentDivergence& d) { return Share{sum(d), static_cast<double>(d.positions)}; });
  };
  std::vector<std::vector<double>> kl;
  std::vector<double> first;
  for (const auto& document : documents) {
    report.positions += document.positions;
    kl.push_back(document.kl);
    const bool never = document.first_divergence < 0;
    report.documents_without_divergence += never;
    first.push_back(static_cast<double>(never ? document.positions : document.first_divergence));
  }
  report.mean_kl = a_token([](const DocumentDivergence& d) { return std::accumulate(d.kl.begin(), d.kl.end(), 0.0); });
  const PooledQuantile pooled(kl);
  report.p99_kl = bootstrap(
      report.documents, [&](std::span<const int32_t> times) { return pooled.at(0.99, times); }, options);
  report.top1_agreement = a_token([](const DocumentDivergence& d) { return static_cast<double>(d.same_top); });
  report.reference_nll = a_token([](const DocumentDivergence& d) { return d.reference_nll; });
  report.candidate_nll = a_token([](const DocumentDivergence& d) { return d.candidate_nll; });
  report.nll_change = a_token([](const DocumentDivergence& d) { return d.candidate_nll - d.reference_nll; });
  report.median_first_divergence = bootstrap(
      report.documents,
      [&](std::span<const int32_t> times) {
        std::vector<double> drawn;
        for (size_t d = 0; d < first.size(); ++d) drawn.insert(drawn.end(), static_cast<size_t>(times[d]), first[d]);
        return median(std::move(drawn));
      },
      options);

  // Over all layers, and of each that has any.
  const auto layers = [&](std::vector<Share> DocumentDivergence::*shares, Interval& total, std::vector<LayerAgreement>& each) {
    total = ratio([&](const DocumentDivergence& d) {
      Share sum;
      for (const Share& layer : d.*shares) sum.sum += layer.sum, sum.count += layer.count;
      return sum;
    });
    const size_t count = documents.empty() ? 0 : (documents[0].*shares).size();
    for (size_t layer = 0; layer < count; ++layer) {
      const Interval share = ratio([&](const DocumentDivergence& d) { return (d.*shares)[layer]; });
      if (!std::isnan(share.value)) each.push_back({static_cast<int64_t>(layer), share});
    }
  };
  layers(&DocumentDivergence::experts, report.expert_agreement, report.expert_layers);
  layers(&DocumentDivergence::indexer, report.indexer_overlap, report.indexer_layers);
  return report;
}

}  // namespace ingot::quant
