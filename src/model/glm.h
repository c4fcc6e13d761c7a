// GLM-5-class forward pass. Owns the bound weights (views into the mapped checkpoint) and the scratch memory of a step.
// Called by exec on one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "gpu/accelerator.h"
#include "gpu/stream.h"
#include "kernels/params.h"
#include "spec/model_config.h"
#include "tensor/checkpoint.h"
#include "tensor/dtype.h"
#include "tensor/latent_format.h"
#include "tensor/quantize.h"

namespace ingot::model {

class Collective;
struct Weights;

// The paged cache of one replica: per layer the latents, per full layer the index keys, over one page numbering.
class KvCache {
 public:
  struct Options {
    tensor::LatentFormat format = tensor::LatentFormat::bf16;
    int64_t num_pages = 0;
    int64_t page_size = 64;  // tokens a page
  };
  // In the memory of `device`, or the host's when it is null. All zeros.
  // Errors: a format that the model's widths do not fit, or memory that cannot be had, naming the bytes.
  static Result<KvCache> create(const spec::ModelConfig& config, const Options& options,
                                std::shared_ptr<gpu::Accelerator> device = nullptr);

  // Bytes one token takes over all layers, index keys included.
  static int64_t bytes_per_token(const spec::ModelConfig& config, tensor::LatentFormat format);
  static int64_t latent_bytes(const spec::ModelConfig& config, tensor::LatentFormat format);  // of these, a layer's latent
  static tensor::DType index_dtype(tensor::LatentFormat format);                              // f32 for f32, else bf16

  const Options& options() const { return options_; }
  const std::shared_ptr<gpu::Accelerator>& device() const { return device_; }
  // One page in host memory: per layer its latents, then its index keys where the layer has them. Never the one without the other.
  int64_t page_bytes() const { return page_bytes_; }
  // On a GPU both wait until the page is copied; a failure is told by the next step.
  void save_page(int64_t page, std::span<std::byte> to) const;    // page_bytes() bytes
  void load_page(std::span<const std::byte> from, int64_t page);  // page_bytes() bytes

  // Of the machine that the cache is on. On a GPU the lot is one piece of memory: the first address, options and config tell all others.
  void* latents(int64_t layer);     // (num_pages * page_size) rows of the format
  void* index_keys(int64_t layer);  // (num_pages * page_size, index_head_dim); null for shared layers

 private:
  // Calls visit(memory of the page, bytes) for each part of it, in a fixed order.
  template <class Visit>
  void visit_page(int64_t page, Visit visit) const;

  Options options_;
  int64_t latent_page_bytes_ = 0;  // of one layer
  int64_t index_page_bytes_ = 0;
  int64_t page_bytes_ = 0;
  std::vector<std::shared_ptr<void>> latents_;
  std::vector<std::shared_ptr<void>> index_keys_;
  std::shared_ptr<gpu::Accelerator> device_;    // null: the host
  std::shared_ptr<gpu::HostMemory> page_copy_;  // one page on its way from or to the GPU
};

// One step's rows, flat over sequences. All ids and slots were checked by the scheduler.
struct ForwardBatch {
  std::span<const int32_t> token_ids;     // (T)
  std::span<const int32_t> positions;     // (T)
  std::span<const int32_t> slots;         // (T): page * page_size + offset, where the token's key goes
  std::span<const int32_t> seq_of_token;  // (T): row of page_table
  std::span<const int32_t> page_table;    // (num_seqs, max_pages)
  int64_t max_pages = 0;
  std::span<const int32_t> logit_rows;  // rows of the batch whose logits are wanted, any number
};

struct ForwardOutput {
  std::span<float> logits;  // (logit_rows, vocab_size)
  std::span<float> hidden;  // (T, hidden_size) after the final norm, as the MTP layer reads it; empty: not wanted
};

// Rows of the MTP layer. The row at position i takes the hidden state of position i and the token at i + 1, and predicts the one at i + 2.
// Its key lies in the slot of position i, in a layer of its own behind the main ones.
struct MtpBatch {
  ForwardBatch rows;              // token_ids: those that follow the positions
  std::span<const float> hidden;  // (T, hidden_size): the main model's after its final norm; of a drafted position MtpOutput::hidden
  // Which positions each row attends to, padded behind them with -1: those of the row that the chain of drafts began with, and the drafted
  // ones since (config's index_share_for_mtp_iteration). Empty: the layer's own indexer chooses.
  std::span<const int32_t> lists;  // (T, list_width)
  int64_t list_width = 0;
};

// For each of rows.logit_rows.
struct MtpOutput {
  std::span<float> logits;   // (logit_rows, vocab_size)
  std::span<float> hidden;   // (logit_rows, hidden_size) after shared_head.norm: the input of the next drafted row
  std::span<int32_t> lists;  // (logit_rows, index_topk): the positions that the row attended to, -1 padded; empty: not wanted
};

// What a GPU draws from the rows of logits of a step. All that the spans point to lives until Glm::finish(), which fills what comes back.
struct DrawJob {
  std::span<const kernels::DrawRow> rows;         // (logit rows); empty: nothing is drawn
  std::span<const kernels::LogitChange> changes;  // as the rows say
  int64_t max_top = 0;                            // of the rows' num_top
  std::span<kernels::SampledRow> results;         // (logit rows); empty: not wanted
  std::span<kernels::LikelyToken> top;            // (logit rows, max_top); empty: not wanted
};

// A step of the main layers on a GPU that is put behind those before it, with no wait. Drafts are tokens that steps of the MTP layer have
// drawn since the last wait; each has a place.
struct QueuedStep {
  ForwardBatch batch;
  std::span<const int32_t> token_places;  // (T): the place of the row's draft, -1: token_ids has its token; empty: that of all rows
  bool keeps_hidden = false;              // hidden states of all rows stay on the GPU for queue_mtp() and keep_hidden()
  DrawJob draw;                           // DrawRow::first_drafted counts rows of the batch
  std::span<const int32_t> logits_back;   // of batch.logit_rows, by number, rising: those whose logits are to come back as well
  std::span<float> logits;                // (logits_back, vocab_size)
};

// Logits of more rows of the last main step that kept its hidden states, which are drawn from alone.
struct QueuedHead {
  std::span<const int32_t> rows;  // of its batch, at most Glm::kHeadRows
  DrawJob draw;                   // of these rows; none has drafts
};

// The same of the MTP layer.
struct QueuedMtp {
  ForwardBatch batch;                     // logit_rows: those that a draft is drawn from
  std::span<const int32_t> token_places;  // as above
  // Where each row has its hidden state: s of the last main step's row s, -1 - k of the one kept as number k. When the step goes on with
  // chains, that of logit row s of the MTP step before, whose list of positions the row then gets, and its own position.
  std::span<const int32_t> hidden_rows;  // (T)
  bool goes_on = false;
  bool more = false;                      // another step will go on with these rows
  DrawJob draw;                           // DrawRow::first_drafted counts places
  std::span<const int32_t> draft_places;  // (logit rows): where the token drawn goes, less than kMaxDrafted times the chains' number
};

enum class MlaForm : uint8_t { absorbed, expanded };

struct GlmOptions {
  MlaForm mla_form = MlaForm::absorbed;  // equal in exact arithmetic
  float qkv_norm_eps = 0;                // 0: config's rms_norm_eps; transformers uses 1e-6 (golden tests only)
  // Emulates what matrix hardware does with activations: the inputs of linears whose weight is MXFP4 or FP8 are rounded first.
  // On the CPU alone.
  tensor::ActivationFormat activations = tensor::ActivationFormat::f32;
  // On a GPU: how it multiplies by weights, and whether small steps are captured into graphs and replayed.
  gpu::DeviceMatmul device_matmul = gpu::DeviceMatmul::lanes;
  bool graphs = true;
  // Of a tensor-parallel rank: how its sums are added to the other ranks'; outlives the model. Null: the weights are the whole model.
  const Collective* collective = nullptr;
};

// Sees a forward pass from inside: for calibration, comparison of models, and tests. Every array is only valid during the call.
struct ForwardProbe {
  virtual ~ForwardProbe() = default;
  // After each decoder layer: the residual stream (T, hidden).
  virtual void after_layer(int64_t /*layer*/, std::span<const float> /*hidden*/) {}
  // The positions chosen for each row (T, index_topk), -1 padded; only when some row has more than index_topk positions.
  virtual void after_index(int64_t /*layer*/, std::span<const int32_t> /*indices*/) {}
  // The experts chosen for each row (T, num_experts_per_tok) of an MoE layer, and their weights.
  virtual void after_router(int64_t /*layer*/, std::span<const int32_t> /*experts*/, std::span<const float> /*weights*/) {}
  // x (rows, w.cols) is about to be multiplied by linear `w`. w.data is the tensor's place in checkpoint(). The absorbed form of attention
  // never multiplies by kv_b as a whole; the expanded one does.
  virtual void before_linear(const tensor::WeightView& /*w*/, const float* /*x*/, int64_t /*rows*/) {}
  // The same for the routed experts: row r with offsets[e] <= r < offsets[e + 1] of expert e is x[order[r] / rows_per_source], or x[r] when
  // order is null. offsets has weights.size() + 1 entries.
  virtual void before_experts(std::span<const tensor::WeightView> /*weights*/, const float* /*x*/, const int32_t* /*order*/,
                              int64_t /*rows_per_source*/, const int32_t* /*offsets*/) {}
};

// The largest steps that are to come.
struct StepLimits {
  int64_t rows = 0;
  int64_t logit_rows = 0;      // of these, and sequences at once
  int64_t context_length = 0;  // of one sequence
  int64_t kept_rows = 0;       // hidden states that are kept from step to step (keep_hidden); 0: no drafts
  tensor::LatentFormat cache_format = tensor::LatentFormat::bf16;
};

class Glm {
 public:
  // Maps the checkpoint, binds every parameter by meaning and checks format and shape. With a device the weights are copied there, the
  // steps run there, and every cache must lie there.
  // Errors name the tensor, what was expected and what was found; all missing tensors are listed. Of a device: no memory for the weights,
  // and options that only the CPU has.
  static Result<std::unique_ptr<Glm>> load(const std::filesystem::path& model_dir, const GlmOptions& options = {},
                                           std::shared_ptr<gpu::Accelerator> device = nullptr);
  // The same over weights that lie where they are to be read, in the memory of `device` or the host's, and outlive the model; it has no
  // checkpoint. config: that of the weights, of a rank's part shard_config's. Errors: as load.
  static Result<std::unique_ptr<Glm>> over(const Weights& weights, const spec::ModelConfig& config, const GlmOptions& options,
                                           std::shared_ptr<gpu::Accelerator> device);
  virtual ~Glm() = default;

  virtual const spec::ModelConfig& config() const = 0;
  virtual const tensor::Checkpoint& checkpoint() const = 0;

  // Whether the checkpoint has an MTP layer; without one forward_mtp() must not be called.
  virtual bool has_mtp() const = 0;

  // The GPU that the model runs on; null: the CPU.
  virtual const std::shared_ptr<gpu::Accelerator>& device() const = 0;
  // Gives a GPU's steps all the memory that they will need, by running one of the largest kind on a cache of its own, so that what is free
  // afterwards can be given to the KV cache. An observer of `stream` sees it. Nothing to do on the CPU. Errors: no memory.
  virtual Result<> reserve(gpu::Stream& stream, const StepLimits& limits) = 0;
  // Steps on a GPU so far; zeros on the CPU.
  struct DeviceCounts {
    int64_t steps = 0;        // of the main layers or the MTP layer, of some rows
    int64_t replayed = 0;     // of these, from a graph
    int64_t graphs = 0;       // that are kept now
    int64_t most_graphs = 0;  // that are ever kept
    int64_t launches = 0;     // in the graph that was captured last
    int64_t waits = 0;        // of the host for the GPU
    int64_t bytes_up = 0, bytes_down = 0;
  };
  virtual DeviceCounts device_counts() const = 0;
  // Of the MoE layer that ran last: the rows of expert e are [offsets[e], offsets[e + 1]) of (rows * num_experts_per_tok). There must have
  // been one. Errors: those of a GPU.
  virtual Result<std::vector<int32_t>> last_expert_offsets() const = 0;

  // Runs the main layers over the batch, writes the cache and fills the output. `stream` gives the CPU's threads and the observer; on a
  // GPU the model has a queue of its own, and the call returns when the output is there. A probe is of the CPU alone.
  // A step that is replayed from a graph shows the observer nothing again.
  // An empty batch is a no-op. A row's result does not depend on the other rows of the batch, to the bit.
  // Errors: those of a GPU; never on the CPU.
  virtual Result<> forward(gpu::Stream& stream, const ForwardBatch& batch, KvCache& cache, const ForwardOutput& output,
                           ForwardProbe* probe = nullptr) = 0;
  // The logits (rows, vocab_size) of some of the hidden states (rows, hidden_size) that forward() gave, to the bit those that it gives
  // itself: for who wants more rows of them than should be in memory at once. At most kHeadRows, for which reserve() has the memory.
  // Errors: as forward().
  static constexpr int64_t kHeadRows = 64;
  virtual Result<> head(gpu::Stream& stream, std::span<const float> hidden, std::span<float> logits) = 0;
  // The same as forward() for the MTP layer, which writes its part of the cache. Rows of one sequence that attend to each other go in one
  // batch or in the order of their positions.
  virtual Result<> forward_mtp(gpu::Stream& stream, const MtpBatch& batch, KvCache& cache, const MtpOutput& output,
                               ForwardProbe* probe = nullptr) = 0;

  // Of a model on a GPU alone: steps that follow each other without the host. What they are given is read at once, and what they give back
  // is there after finish(), which waits. Errors: those of the GPU, by finish() at the latest.
  virtual Result<> queue(gpu::Stream& stream, const QueuedStep& step, KvCache& cache) = 0;
  virtual Result<> queue_mtp(gpu::Stream& stream, const QueuedMtp& step, KvCache& cache) = 0;
  virtual Result<> queue_head(gpu::Stream& stream, const QueuedHead& job) = 0;
  // The drafts of places [0, drafts.size()); -1: its row had no numbers to draw from.
  virtual Result<> fetch_drafts(std::span<int32_t> drafts) = 0;
  // Keeps hidden states of the last main step's `rows` as numbers `kept`, in place of what was there.
  virtual Result<> keep_hidden(gpu::Stream& stream, std::span<const int32_t> rows, std::span<const int32_t> kept) = 0;
  virtual Result<> finish() = 0;
};

}  // namespace ingot::model
