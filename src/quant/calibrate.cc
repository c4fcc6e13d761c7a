#include "quant/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "model/weights.h"
#include "quant/calibration_layer.h"
#include "quant/scratch_file.h"
#include "spec/model_config.h"

namespace ingot::quant {
namespace {

using model::LayerWeights;
using tensor::PackedWeight;
using tensor::WeightFormat;

// The share of all tokens' moments that each expert's gate and up get beside those of its own tokens, so that an expert that few tokens
// reach is not fitted to these alone. 0.03 to 0.3 give the same KL on the demo model.
constexpr float kExpertMix = 0.1f;

class StoredCorrections final : public Corrections {
 public:
  explicit StoredCorrections(ScratchFile file) : file_(std::move(file)) {}

  Result<> store(const std::string& module, const PackedWeight& weight) {
    INGOT_TRY(file_.write(end_, weight.data.size(), weight.data.data()));
    INGOT_TRY(file_.write(end_ + weight.data.size(), weight.scale.size(), weight.scale.data()));
    entries_[module] = {end_, weight.rows, weight.cols};
    end_ += weight.data.size() + weight.scale.size();
    return {};
  }
  int64_t modules() const { return static_cast<int64_t>(entries_.size()); }

  Result<std::optional<PackedWeight>> find(const std::string& module) const override {
    const auto it = entries_.find(module);
    if (it == entries_.end()) return std::nullopt;
    const auto [offset, rows, cols] = it->second;
    PackedWeight weight{WeightFormat::mxfp4, rows, cols, {}, {}};
    weight.data.resize(static_cast<size_t>(rows * cols / 2));
    weight.scale.resize(static_cast<size_t>(rows * cols / 32));
    INGOT_TRY(file_.read(offset, weight.data.size(), weight.data.data()));
    INGOT_TRY(file_.read(offset + weight.data.size(), weight.scale.size(), weight.scale.data()));
    return weight;
  }

 private:
  struct Entry {
    uint64_t offset;
    int64_t rows, cols;
  };
  ScratchFile file_;
  uint64_t end_ = 0;
  std::unordered_map<std::string, Entry> entries_;
};

// One of the two models that run side by side: its weights of the layer in work, and what it keeps of every token between pieces.
struct Side {
  LayerWeights layer;
  ScratchFile stream;              // (all tokens, hidden) f32: the residual stream at the layer's start
  ScratchFile attended;            // (all tokens, heads * v) f32
  ScratchFile lists;               // (all tokens, index_topk) i32
  std::vector<bool> has_list;      // (documents)
  std::vector<float> x, y, gated;  // of the document in work: (T, hidden), (T, heads * v), (T or T * k, intermediate)
  std::vector<int32_t> indices;
  AttentionInputs attention;
  MlpInputs mlp;
};

double mean_square(const float* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum / static_cast<double>(count);
}

// The linears of a layer that a recipe may pack.
template <class Visit>
void for_each_linear(LayerWeights& layer, Visit visit) {
  const auto visit_mlp = [&](model::MlpWeights& mlp) {
    for (WeightView* view : {&mlp.gate, &mlp.up, &mlp.down}) visit(*view);
  };
  for (WeightView* view : {&layer.q_a, &layer.q_b, &layer.kv_a, &layer.kv_b, &layer.o}) visit(*view);
  if (layer.indexer) {
    visit(layer.indexer->wq_b);
    visit(layer.indexer->wk);
  }
  if (layer.dense) visit_mlp(*layer.dense);
  if (!layer.moe) return;
  if (layer.moe->shared) visit_mlp(*layer.moe->shared);
  for (std::vector<WeightView>* views : {&layer.moe->gate, &layer.moe->up, &layer.moe->down})
    for (WeightView& view : *views) visit(view);
}

class Calibration {
 public:
  Calibration(const Recipe& recipe, const CalibrationOptions& options) : recipe_(recipe), options_(options), pool_(options.threads) {}

  Result<std::unique_ptr<Corrections>> run(const std::filesystem::path& source);

 private:
  struct Document {
    std::vector<int32_t> tokens;
    int64_t first_row = 0;  // in the scratch files
    int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  };
  // Views of the quantised side that are to be decided now.
  using Targets = std::vector<WeightView*>;

  Result<> open(const std::filesystem::path& source);
  Result<> embed();
  Result<> prepare_mtp(const model::MtpWeights& mtp);
  Result<> run_layer(const LayerWeights& layer, int64_t index);
  Result<> attention_inputs();
  Result<> attention_latents();
  Result<> attention_output();
  Result<> mlp_inputs();
  Result<> expert_inputs(int64_t begin, int64_t end, InputMoments& all);
  Result<> mlp_outputs();
  Result<> expert_outputs(int64_t begin, int64_t end);
  Result<> finish_layer();

  Targets targets(std::initializer_list<WeightView*> views) const;
  WeightFormat wanted_format(const WeightView& view) const;
  void round_others();
  bool wanted(LayerWeights layer) const;
  Result<> decide(InputMoments& moments, const Targets& targets);
  Result<> read_stream(const Document& document, Side& side);
  Result<> to_attention_inputs(const Document& document);
  Result<> to_mlp_inputs(const Document& document);
  void to_outputs(const Document& document, Side& side, bool shared);
  void add_rows(InputMoments& moments, const std::vector<float>& x, const std::vector<float>& x0, int64_t rows);
  void add_weighted(InputMoments& moments, const std::vector<float>& x, const std::vector<float>& x0, const std::vector<float>& weights);
  void report(std::string_view stage, double error = 0) const;
  std::vector<float> token_weights(const std::vector<float>& stream, int64_t tokens) const;
  int64_t experts_at_once(int64_t cols) const { return std::max<int64_t>(1, options_.max_statistics_bytes / InputMoments::bytes(cols, 0)); }

  const Recipe& recipe_;
  const CalibrationOptions& options_;
  ThreadPool pool_;
  gpu::Stream stream_{&pool_};
  spec::ModelConfig config_;
  tensor::Checkpoint checkpoint_;
  model::Weights weights_;
  std::unordered_map<const uint8_t*, std::string> modules_;  // by the place of their weight
  std::unique_ptr<LayerPass> pass_;
  std::vector<Document> documents_;
  Side source_, quantised_;
  std::deque<PackedWeight> packed_;  // of the layer in work; quantised_.layer points into them
  std::unique_ptr<StoredCorrections> corrections_;
  int64_t layer_ = 0;
};

void Calibration::report(std::string_view stage, double error) const {
  if (options_.progress) options_.progress({layer_, config_.total_layers(), stage, corrections_->modules(), error});
}

Result<> Calibration::open(const std::filesystem::path& source) {
  INGOT_ASSIGN(config_, spec::load_model_config(source));
  INGOT_ASSIGN(checkpoint_, tensor::Checkpoint::open(source));
  auto weights = model::bind_weights(checkpoint_, config_);
  if (!weights) return fail("{}: {}", source.string(), weights.error().message);
  weights_ = std::move(*weights);
  for (const tensor::TensorInfo& tensor : checkpoint_.tensors())
    if (tensor.name.ends_with(".weight"))
      modules_[reinterpret_cast<const uint8_t*>(checkpoint_.data(tensor).data())] = tensor.name.substr(0, tensor.name.size() - 7);
  CalibrationDataOptions data;
  data.max_tokens = options_.max_tokens;
  data.max_document_tokens = std::min(options_.max_document_tokens, config_.max_position_embeddings);
  data.vocab_size = config_.vocab_size;
  data.seed = options_.seed;
  INGOT_ASSIGN(auto documents, load_calibration_data(options_.data, options_.tokenize, data));
  int64_t row = 0;
  for (std::vector<int32_t>& tokens : documents) {
    documents_.push_back({std::move(tokens), row});
    row += documents_.back().length();
  }
  for (Side* side : {&source_, &quantised_}) {
    for (ScratchFile* file : {&side->stream, &side->attended, &side->lists}) {
      INGOT_ASSIGN(*file, ScratchFile::create(options_.work_folder));
    }
    side->has_list.assign(documents_.size(), false);
  }
  INGOT_ASSIGN(ScratchFile file, ScratchFile::create(options_.work_folder));
  corrections_ = std::make_unique<StoredCorrections>(std::move(file));
  pass_ = std::make_unique<LayerPass>(config_, stream_);
  return {};
}

Result<std::unique_ptr<Corrections>> Calibration::run(const std::filesystem::path& source) {
  INGOT_TRY(open(source));
  INGOT_TRY(embed());
  bool mtp = false;
  if (weights_.mtp) {
    WeightView input = weights_.mtp->eh_proj;
    mtp = wanted(weights_.mtp->layer) || !targets({&input}).empty();
  }
  // The layers after the last one that has something to decide need not run.
  size_t end = weights_.layers.size();
  while (end > 0 && !mtp && !wanted(weights_.layers[end - 1])) --end;
  for (size_t i = 0; i < end; ++i) INGOT_TRY(run_layer(weights_.layers[i], static_cast<int64_t>(i)));
  if (mtp) {
    layer_ = config_.num_hidden_layers;
    INGOT_TRY(prepare_mtp(*weights_.mtp));
    INGOT_TRY(run_layer(weights_.mtp->layer, layer_));
  }
  return std::unique_ptr<Corrections>(std::move(corrections_));
}

// --- what a piece starts from

Result<> Calibration::read_stream(const Document& document, Side& side) {
  const int64_t hidden = config_.hidden_size;
  side.x.resize(static_cast<size_t>(document.length() * hidden));
  return side.stream.read(static_cast<uint64_t>(document.first_row * hidden) * 4, side.x.size() * 4, side.x.data());
}

Result<> Calibration::to_attention_inputs(const Document& document) {
  for (Side* side : {&source_, &quantised_}) {
    INGOT_TRY(read_stream(document, *side));
    pass_->attention_inputs(side->layer, side->x.data(), document.length(), side->attention);
  }
  return {};
}

Result<> Calibration::to_mlp_inputs(const Document& document) {
  const int64_t width = config_.num_attention_heads * config_.v_head_dim;
  for (Side* side : {&source_, &quantised_}) {
    INGOT_TRY(read_stream(document, *side));
    side->y.resize(static_cast<size_t>(document.length() * width));
    INGOT_TRY(side->attended.read(static_cast<uint64_t>(document.first_row * width) * 4, side->y.size() * 4, side->y.data()));
    pass_->add_product(side->layer.o, side->y, document.length(), side->x.data());
    pass_->mlp_inputs(side->layer, side->x.data(), document.length(), side->mlp);
  }
  return {};
}

// The stream after the routed experts and, with `shared`, after the whole MLP. side.gated: left as the last down projection's input.
void Calibration::to_outputs(const Document& document, Side& side, bool shared) {
  const LayerWeights& layer = side.layer;
  if (layer.moe) {
    pass_->gated_experts(*layer.moe, side.mlp, document.length(), side.gated);
    pass_->add_experts(*layer.moe, side.mlp, side.gated, document.length(), side.x.data());
  }
  const model::MlpWeights* mlp = layer.dense ? &*layer.dense : layer.moe->shared ? &*layer.moe->shared : nullptr;
  if (mlp == nullptr) return;
  pass_->gated(*mlp, side.mlp, document.length(), side.gated);
  if (shared) pass_->add_product(mlp->down, side.gated, document.length(), side.x.data());
}

// An error of the residual stream counts relative to the stream's size, since a norm is the next to read it.
std::vector<float> Calibration::token_weights(const std::vector<float>& stream, int64_t tokens) const {
  std::vector<float> weights;
  for (int64_t t = 0; t < tokens; ++t)
    weights.push_back(static_cast<float>(1.0 / (mean_square(stream.data() + t * config_.hidden_size, config_.hidden_size) + 1e-30)));
  return weights;
}

void Calibration::add_rows(InputMoments& moments, const std::vector<float>& x, const std::vector<float>& x0, int64_t rows) {
  for (int64_t t = 0; t < rows; ++t) moments.add(stream_, x.data() + t * moments.cols(), x0.data() + t * moments.cols(), nullptr, 1.0f);
}

// With the difference of the two streams as what the output has to make up.
void Calibration::add_weighted(InputMoments& moments, const std::vector<float>& x, const std::vector<float>& x0,
                               const std::vector<float>& weights) {
  const int64_t hidden = config_.hidden_size;
  std::vector<float> residual(static_cast<size_t>(hidden));
  for (int64_t t = 0; t < static_cast<int64_t>(weights.size()); ++t) {
    for (int64_t i = 0; i < hidden; ++i)
      residual[static_cast<size_t>(i)] = source_.x[static_cast<size_t>(t * hidden + i)] - quantised_.x[static_cast<size_t>(t * hidden + i)];
    moments.add(stream_, x.data() + t * moments.cols(), x0.data() + t * moments.cols(), residual.data(), weights[static_cast<size_t>(t)]);
  }
}

// --- which weights, and their decision

WeightFormat Calibration::wanted_format(const WeightView& view) const {
  const auto it = modules_.find(view.data);
  return it == modules_.end() ? WeightFormat::bf16 : recipe_.format_of(it->second);
}

Calibration::Targets Calibration::targets(std::initializer_list<WeightView*> views) const {
  Targets out;
  for (WeightView* view : views)
    if (view->format != WeightFormat::mxfp4 && wanted_format(*view) == WeightFormat::mxfp4) out.push_back(view);
  return out;
}

// What the recipe packs to FP8 is rounded to nearest before anything runs.
void Calibration::round_others() {
  for_each_linear(quantised_.layer, [this](WeightView& view) {
    if (wanted_format(view) != WeightFormat::fp8_block || view.format == WeightFormat::fp8_block) return;
    packed_.push_back(tensor::pack_weight(tensor::dequantize(view), view.rows, view.cols, WeightFormat::fp8_block));
    view = packed_.back().view();
  });
}

bool Calibration::wanted(LayerWeights layer) const {
  bool any = false;
  for_each_linear(layer, [&](WeightView& view) { any = any || !targets({&view}).empty(); });
  return any;
}

Result<> Calibration::decide(InputMoments& moments, const Targets& targets) {
  if (targets.empty()) return {};
  moments.finish(stream_);
  const int64_t cols = moments.cols();
  auto solver = GptqSolver::create(moments.second(), cols, options_.gptq, stream_);
  if (!solver) return fail("calibrating {}: {}", modules_.at(targets.front()->data), solver.error().message);
  const WeightView cross{reinterpret_cast<const uint8_t*>(moments.cross().data()), nullptr, cols, cols, 0, WeightFormat::f32};
  for (WeightView* view : targets) {
    const std::string& module = modules_.at(view->data);
    const std::vector<float> values = tensor::dequantize(*view);
    // W x0 - W x is what the changed input lost.
    std::vector<float> shift(values.size());
    kernels::matmul_transposed(stream_, {shift.data(), cols, values.data(), cols, cross, view->rows});
    if (moments.output_rows() > 0)
      for (size_t i = 0; i < shift.size(); ++i) shift[i] += moments.residual()[i];
    packed_.push_back(solver->quantize(values, shift, view->rows, stream_));
    INGOT_TRY(corrections_->store(module, packed_.back()));
    *view = packed_.back().view();
  }
  return {};
}

// --- the pieces of a layer

Result<> Calibration::embed() {
  for (const Document& document : documents_) {
    source_.x.resize(static_cast<size_t>(document.length() * config_.hidden_size));
    kernels::embed(stream_, {source_.x.data(), document.tokens.data(), weights_.embed, document.length()});
    for (Side* side : {&source_, &quantised_})
      INGOT_TRY(
          side->stream.write(static_cast<uint64_t>(document.first_row * config_.hidden_size) * 4, source_.x.size() * 4, source_.x.data()));
  }
  return {};
}

// The MTP layer's stream: eh_proj of the next token's embedding and the main model's last hidden state. A document's last token, whose
// successor is not known, takes itself.
Result<> Calibration::prepare_mtp(const model::MtpWeights& mtp) {
  const int64_t hidden = config_.hidden_size;
  WeightView decided = mtp.eh_proj;
  packed_.clear();
  InputMoments moments(2 * hidden, 0);
  const auto inputs = [&](const Document& document, Side& side) -> Result<> {
    const int64_t T = document.length();
    INGOT_TRY(read_stream(document, side));
    std::vector<int32_t> next(document.tokens.begin() + 1, document.tokens.end());
    next.push_back(document.tokens.back());
    std::vector<float> embedded(side.x.size());
    kernels::embed(stream_, {embedded.data(), next.data(), mtp.embed, T});
    pass_->norm(mtp.enorm, embedded.data(), hidden, embedded.data(), T, hidden);
    pass_->norm(weights_.final_norm, side.x.data(), hidden, side.x.data(), T, hidden);
    pass_->norm(mtp.hnorm, side.x.data(), hidden, side.x.data(), T, hidden);
    side.y.resize(2 * side.x.size());
    kernels::copy_rows(stream_, {side.y.data(), 2 * hidden, embedded.data(), hidden, T, hidden});
    kernels::copy_rows(stream_, {side.y.data() + hidden, 2 * hidden, side.x.data(), hidden, T, hidden});
    return {};
  };
  const Targets wanted = targets({&decided});
  if (!wanted.empty()) {
    report("MTP input");
    for (const Document& document : documents_) {
      for (Side* side : {&source_, &quantised_}) INGOT_TRY(inputs(document, *side));
      add_rows(moments, quantised_.y, source_.y, document.length());
    }
    INGOT_TRY(decide(moments, wanted));
  }
  for (const Document& document : documents_)
    for (Side* side : {&source_, &quantised_}) {
      INGOT_TRY(inputs(document, *side));
      std::fill(side->x.begin(), side->x.end(), 0.0f);
      pass_->add_product(side == &source_ ? mtp.eh_proj : decided, side->y, document.length(), side->x.data());
      INGOT_TRY(side->stream.write(static_cast<uint64_t>(document.first_row * hidden) * 4, side->x.size() * 4, side->x.data()));
    }
  return {};
}

Result<> Calibration::run_layer(const LayerWeights& layer, int64_t index) {
  layer_ = index;
  source_.layer = quantised_.layer = layer;
  packed_.clear();
  round_others();
  INGOT_TRY(attention_inputs());
  INGOT_TRY(attention_latents());
  INGOT_TRY(attention_output());
  INGOT_TRY(mlp_inputs());
  INGOT_TRY(mlp_outputs());
  return finish_layer();
}

Result<> Calibration::attention_inputs() {
  LayerWeights& layer = quantised_.layer;
  Targets wanted = targets({&layer.q_a, &layer.kv_a});
  if (layer.indexer)
    for (WeightView* view : targets({&layer.indexer->wk})) wanted.push_back(view);
  if (wanted.empty()) return {};
  report("attention inputs");
  InputMoments moments(config_.hidden_size, 0);
  for (const Document& document : documents_) {
    INGOT_TRY(to_attention_inputs(document));
    add_rows(moments, quantised_.attention.normed, source_.attention.normed, document.length());
  }
  return decide(moments, wanted);
}

Result<> Calibration::attention_latents() {
  LayerWeights& layer = quantised_.layer;
  Targets from_q = targets({&layer.q_b});
  if (layer.indexer)
    for (WeightView* view : targets({&layer.indexer->wq_b})) from_q.push_back(view);
  const Targets from_kv = targets({&layer.kv_b});
  if (from_q.empty() && from_kv.empty()) return {};
  report("attention latents");
  InputMoments q(config_.q_lora_rank, 0), kv(config_.kv_lora_rank, 0);
  for (const Document& document : documents_) {
    INGOT_TRY(to_attention_inputs(document));
    add_rows(q, quantised_.attention.q_latent, source_.attention.q_latent, document.length());
    add_rows(kv, quantised_.attention.latent, source_.attention.latent, document.length());
  }
  INGOT_TRY(decide(q, from_q));
  return decide(kv, from_kv);
}

Result<> Calibration::attention_output() {
  report("attention output");
  const int64_t width = config_.num_attention_heads * config_.v_head_dim, topk = config_.index_topk;
  const Targets wanted = targets({&quantised_.layer.o});
  InputMoments moments(width, config_.hidden_size);
  for (size_t d = 0; d < documents_.size(); ++d) {
    const Document& document = documents_[d];
    INGOT_TRY(to_attention_inputs(document));
    for (Side* side : {&source_, &quantised_}) {
      const auto at = static_cast<uint64_t>(document.first_row * topk) * 4;
      side->indices.clear();
      if (side->has_list[d] && !side->layer.indexer) {
        side->indices.resize(static_cast<size_t>(document.length() * topk));
        INGOT_TRY(side->lists.read(at, side->indices.size() * 4, side->indices.data()));
      }
      pass_->attend(side->layer, side->attention, document.length(), side->indices, side->y);
      if (side->layer.indexer) {
        side->has_list[d] = !side->indices.empty();
        INGOT_TRY(side->lists.write(at, side->indices.size() * 4, side->indices.data()));
      }
      INGOT_TRY(side->attended.write(static_cast<uint64_t>(document.first_row * width) * 4, side->y.size() * 4, side->y.data()));
    }
    if (wanted.empty()) continue;
    std::vector<float> after = source_.x;
    pass_->add_product(source_.layer.o, source_.y, document.length(), after.data());
    add_weighted(moments, quantised_.y, source_.y, token_weights(after, document.length()));
  }
  return decide(moments, wanted);
}

Result<> Calibration::mlp_inputs() {
  LayerWeights& layer = quantised_.layer;
  InputMoments all(config_.hidden_size, 0);
  if (layer.moe) {
    const auto experts = static_cast<int64_t>(layer.moe->gate.size()), step = experts_at_once(config_.hidden_size);
    report("experts' inputs");
    for (int64_t e = 0; e < experts; e += step) INGOT_TRY(expert_inputs(e, std::min(e + step, experts), all));
    if (!layer.moe->shared) return {};
    return decide(all, targets({&layer.moe->shared->gate, &layer.moe->shared->up}));
  }
  const Targets wanted = targets({&layer.dense->gate, &layer.dense->up});
  if (wanted.empty()) return {};
  report("MLP inputs");
  for (const Document& document : documents_) {
    INGOT_TRY(to_mlp_inputs(document));
    add_rows(all, quantised_.mlp.normed, source_.mlp.normed, document.length());
  }
  return decide(all, wanted);
}

// Gate and up of the experts [begin, end). all: the moments of every token, filled when begin is 0.
Result<> Calibration::expert_inputs(int64_t begin, int64_t end, InputMoments& all) {
  model::MoeWeights& moe = *quantised_.layer.moe;
  const int64_t hidden = config_.hidden_size, k = config_.num_experts_per_tok;
  std::vector<InputMoments> moments;
  std::vector<Targets> wanted;
  for (int64_t e = begin; e < end; ++e) {
    wanted.push_back(targets({&moe.gate[static_cast<size_t>(e)], &moe.up[static_cast<size_t>(e)]}));
    moments.emplace_back(hidden, 0);
  }
  for (const Document& document : documents_) {
    INGOT_TRY(to_mlp_inputs(document));
    const MlpInputs& in = quantised_.mlp;
    if (begin == 0) add_rows(all, in.normed, source_.mlp.normed, document.length());
    for (int64_t e = begin; e < end; ++e) {
      if (wanted[static_cast<size_t>(e - begin)].empty()) continue;
      for (int32_t row = in.offsets[static_cast<size_t>(e)]; row < in.offsets[static_cast<size_t>(e + 1)]; ++row) {
        const int32_t pair = in.order[static_cast<size_t>(row)];
        const float weight = in.weights[static_cast<size_t>(pair)];
        moments[static_cast<size_t>(e - begin)].add(stream_, in.normed.data() + pair / k * hidden,
                                                    source_.mlp.normed.data() + pair / k * hidden, nullptr, weight * weight);
      }
    }
  }
  all.finish(stream_);
  for (size_t i = 0; i < moments.size(); ++i) {
    moments[i].finish(stream_);
    // An expert that no token reached sees what all tokens are.
    const double mean = moments[i].weight() / all.weight();
    moments[i].mix(all, mean > 0 ? kExpertMix * static_cast<float>(mean) : 1.0f);
    INGOT_TRY(decide(moments[i], wanted[i]));
  }
  return {};
}

Result<> Calibration::mlp_outputs() {
  LayerWeights& layer = quantised_.layer;
  if (layer.moe) {
    const auto experts = static_cast<int64_t>(layer.moe->down.size()), step = experts_at_once(config_.moe_intermediate_size);
    report("experts' outputs");
    for (int64_t e = 0; e < experts; e += step) INGOT_TRY(expert_outputs(e, std::min(e + step, experts)));
    if (!layer.moe->shared) return {};
  }
  // The last to be added to the stream makes up for what the layer has got wrong so far.
  WeightView& down = layer.dense ? layer.dense->down : layer.moe->shared->down;
  const Targets wanted = targets({&down});
  if (wanted.empty()) return {};
  report("MLP output");
  InputMoments moments(down.cols, config_.hidden_size);
  for (const Document& document : documents_) {
    INGOT_TRY(to_mlp_inputs(document));
    const std::vector<float> weights = token_weights(source_.x, document.length());
    for (Side* side : {&source_, &quantised_}) to_outputs(document, *side, false);
    add_weighted(moments, quantised_.gated, source_.gated, weights);
  }
  return decide(moments, wanted);
}

// Down of the experts [begin, end).
Result<> Calibration::expert_outputs(int64_t begin, int64_t end) {
  model::MoeWeights& moe = *quantised_.layer.moe;
  const int64_t dim = config_.moe_intermediate_size, k = config_.num_experts_per_tok;
  std::vector<InputMoments> moments;
  std::vector<Targets> wanted;
  bool any = false;
  for (int64_t e = begin; e < end; ++e) {
    wanted.push_back(targets({&moe.down[static_cast<size_t>(e)]}));
    moments.emplace_back(dim, 0);
    any = any || !wanted.back().empty();
  }
  if (!any) return {};
  for (const Document& document : documents_) {
    INGOT_TRY(to_mlp_inputs(document));
    const std::vector<float> weights = token_weights(source_.x, document.length());
    for (Side* side : {&source_, &quantised_}) pass_->gated_experts(*side->layer.moe, side->mlp, document.length(), side->gated);
    const MlpInputs &in = quantised_.mlp, &in0 = source_.mlp;
    for (int64_t e = begin; e < end; ++e) {
      if (wanted[static_cast<size_t>(e - begin)].empty()) continue;
      // Rows of an expert are in the order of tokens on both sides; a token that the source sends elsewhere has no input to compare with.
      int32_t row0 = in0.offsets[static_cast<size_t>(e)];
      const int32_t end0 = in0.offsets[static_cast<size_t>(e + 1)];
      for (int32_t row = in.offsets[static_cast<size_t>(e)]; row < in.offsets[static_cast<size_t>(e + 1)]; ++row) {
        const int32_t pair = in.order[static_cast<size_t>(row)];
        const int64_t token = pair / k;
        while (row0 < end0 && in0.order[static_cast<size_t>(row0)] / k < token) ++row0;
        const bool both = row0 < end0 && in0.order[static_cast<size_t>(row0)] / k == token;
        const float* x = quantised_.gated.data() + row * dim;
        const float routed = in.weights[static_cast<size_t>(pair)];
        moments[static_cast<size_t>(e - begin)].add(stream_, x, both ? source_.gated.data() + row0 * dim : x, nullptr,
                                                    routed * routed * weights[static_cast<size_t>(token)]);
      }
    }
  }
  for (size_t i = 0; i < moments.size(); ++i) INGOT_TRY(decide(moments[i], wanted[i]));
  return {};
}

Result<> Calibration::finish_layer() {
  const int64_t hidden = config_.hidden_size;
  double error = 0;
  int64_t tokens = 0;
  for (const Document& document : documents_) {
    INGOT_TRY(to_mlp_inputs(document));
    for (Side* side : {&source_, &quantised_}) {
      to_outputs(document, *side, true);
      INGOT_TRY(side->stream.write(static_cast<uint64_t>(document.first_row * hidden) * 4, side->x.size() * 4, side->x.data()));
    }
    for (int64_t t = 0; t < document.length(); ++t) {
      const float *x0 = source_.x.data() + t * hidden, *x = quantised_.x.data() + t * hidden;
      double difference = 0;
      for (int64_t i = 0; i < hidden; ++i) difference += (static_cast<double>(x[i]) - x0[i]) * (static_cast<double>(x[i]) - x0[i]);
      error += difference / (mean_square(x0, hidden) * static_cast<double>(hidden) + 1e-30);
    }
    tokens += document.length();
  }
  report("done", std::sqrt(error / static_cast<double>(tokens)));
  return {};
}

}  // namespace

Result<std::unique_ptr<Corrections>> calibrate(const std::filesystem::path& source, const Recipe& recipe,
                                               const CalibrationOptions& options) {
  return Calibration(recipe, options).run(source);
}

}  // namespace ingot::quant
