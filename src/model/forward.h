// The forward pass of the main layers and of the MTP layer, as a sequence of kernel operations over one batch. Owned and called by Glm
// alone.
#pragma once

#include <initializer_list>
#include <string_view>

#include "kernels/params.h"
#include "model/glm.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace ingot::model {

// The arrays of a step: the batch, which the host reads to decide what to launch, and where kernels find its arrays and put the results;
// on a GPU that is memory of its own.
struct Step {
  const ForwardBatch* batch = nullptr;
  const int32_t* token_ids = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* slots = nullptr;
  const int32_t* seq_of_token = nullptr;
  const int32_t* page_table = nullptr;
  const int32_t* logit_rows = nullptr;
  const float* hidden = nullptr;   // of the MTP layer: (T, hidden_size)
  const int32_t* lists = nullptr;  // (T, list_width); null: there are none
  int64_t list_width = 0;
  float* logits = nullptr;       // (logit rows, vocab_size)
  float* out_hidden = nullptr;   // (T, hidden_size), of the MTP layer (logit rows, hidden_size); null: not wanted
  int32_t* out_lists = nullptr;  // (logit rows, index_topk); null: not wanted
  // Other than 0: the launches must not depend on the positions, except by the largest one being below index_topk or not: where lists are
  // made every row gets scores, this many, which is more than any position.
  int64_t score_stride = 0;
};

// One step. Holds references only; made for the step and thrown away after it. `inv_freq` lies where kernels run.
class Forward {
 public:
  Forward(gpu::Stream& stream, const spec::ModelConfig& config, const Weights& weights, const GlmOptions& options, const float* inv_freq,
          const Step& step, KvCache* cache, Workspace& work, ForwardProbe* probe)
      : stream_(stream),
        config_(config),
        weights_(weights),
        options_(options),
        inv_freq_(inv_freq),
        step_(step),
        batch_(*step.batch),
        cache_(cache),
        work_(work),
        probe_(probe) {}

  void run();
  void run_mtp(const MtpWeights& mtp);
  // The logits (rows, vocab_size) of hidden states (rows, hidden_size) after the final norm.
  void run_head(const float* hidden, int64_t rows);

 private:
  // The input of products, and where they want it so, what round_rows() made of it.
  struct Input {
    const float* x = nullptr;
    const uint16_t* wide = nullptr;
    int64_t wide_stride = 0;

    Input from_row(int64_t row, int64_t cols) const {
      return {x + row * cols, wide == nullptr ? nullptr : wide + row * wide_stride, wide_stride};
    }
  };

  // What the next operations are for, as an observer of the stream is to name them.
  void role(std::string_view name) { stream_.role = name; }
  void begin();
  void decoder_layer(const LayerWeights& layer, int64_t index);
  // Whether this rank adds to the residual stream what the others put in its place (collective.h).
  bool keeps_residual() const;
  void reduce_residual();
  float* gather(const float* stream, float* to);
  void copy_lists(int32_t* to);
  // The MTP layer behind its input, which is in work_.hidden: of all rows, or of those whose logits are wanted.
  void mtp_layer(const MtpWeights& mtp);
  void mtp_wanted_rows(const MtpWeights& mtp);
  // The part of attention() that all rows need: their keys go into the cache, their queries' latents, normed, into work_.q_latent: one
  // operation makes both. Returns the products' input, from work_.normed.
  Input store_keys(const LayerWeights& layer, int64_t index);
  void attention(const LayerWeights& layer, int64_t index);
  void prepare(const LayerWeights& layer, int64_t index_of_layer, float* q_latent, float* kv, float* index_key);
  // `normed` and `q_latent` are the inputs that the layer's other products have, too.
  void index(const IndexerWeights& indexer, int64_t layer, const Input& normed, const Input& q_latent);
  void choose_positions(const IndexerWeights& indexer, int64_t layer, const Input& normed, const Input& q_latent);
  void absorbed_attention(const LayerWeights& layer, int64_t index);
  void expanded_attention(const LayerWeights& layer, int64_t index);
  void dense_mlp(const MlpWeights& mlp);
  void moe(const MoeWeights& moe, int64_t layer);
  // A product of the routed experts' sorted rows; `order` null: x has those rows.
  kernels::GroupedMatmulParams expert_product(const std::vector<WeightView>& weights, const WeightView* on_device, const Input& x,
                                              int64_t x_rows, const int32_t* order, int64_t rows_per_source, const int32_t* offsets,
                                              int64_t pairs, float* y);
  const float* rounded(const WeightView& w, const float* x, int64_t rows);
  // Made in `to`, for products by weights like w.
  Input input(const WeightView& w, const float* x, int64_t rows, StepArray<uint16_t>& to);
  void project(const WeightView& w, const Input& x, float* y, int64_t rows, bool accumulate = false);
  struct Linear {
    const WeightView& w;
    float* y;
  };
  // Several linears of the same input in one go.
  void project_all(std::initializer_list<Linear> linears, const Input& x, int64_t rows);
  void norm(const VectorView& weight, const float* x, int64_t x_stride, float* y, int64_t rows, int64_t dim, float eps);

  int64_t tokens() const { return static_cast<int64_t>(batch_.token_ids.size()); }
  float layer_eps() const { return static_cast<float>(config_.rms_norm_eps); }
  float qkv_eps() const { return options_.qkv_norm_eps > 0 ? options_.qkv_norm_eps : layer_eps(); }
  float softmax_scale() const;
  kernels::PagedPositions where(int64_t first_token) const;

  gpu::Stream& stream_;
  const spec::ModelConfig& config_;
  const Weights& weights_;
  const GlmOptions& options_;
  const float* inv_freq_;  // (rope / 2)
  const Step& step_;
  const ForwardBatch& batch_;
  KvCache* const cache_;  // null: run_head() alone is called
  Workspace& work_;
  ForwardProbe* const probe_;  // may be null
  // The list of the nearest earlier full layer, (T, index_width_); null while every row sees all of its positions.
  const int32_t* indices_ = nullptr;
  int64_t index_width_ = 0;
  bool lists_given_ = false;   // by the caller: no layer chooses anew
  int64_t last_position_ = 0;  // the largest of the batch
};

}  // namespace ingot::model
