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
#include "spec/model_config.h"
#include "tensor/checkpoint.h"
#include "tensor/dtype.h"
#include "tensor/quantize.h"

namespace ingot::model {

// The paged cache of one replica: per layer the latents, per full layer the index keys, over one page numbering.
class KvCache {
 public:
  struct Options {
    tensor::DType dtype = tensor::DType::bf16;  // f32, bf16 or f8_e4m3 (576-byte form, scale 1.0)
    int64_t num_pages = 0;
    int64_t page_size = 64;  // tokens a page
  };
  // In the memory of `device`, or the host's when it is null. All zeros.
  // Errors: an unsupported dtype, or memory that cannot be had, naming the bytes.
  static Result<KvCache> create(const spec::ModelConfig& config, const Options& options,
                                std::shared_ptr<gpu::Accelerator> device = nullptr);

  // Bytes one token takes over all layers, index keys included.
  static int64_t bytes_per_token(const spec::ModelConfig& config, tensor::DType dtype);
  static tensor::DType index_dtype(tensor::DType dtype);  // f32 for f32, else bf16

  const Options& options() const { return options_; }
  const std::shared_ptr<gpu::Accelerator>& device() const { return device_; }
  // One page in host memory: per layer its latents, then its index keys where the layer has them. Never the one without the other.
  int64_t page_bytes() const { return page_bytes_; }
  // On a GPU both wait until the page is copied; a failure is told by the next step.
  void save_page(int64_t page, std::span<std::byte> to) const;    // page_bytes() bytes
  void load_page(std::span<const std::byte> from, int64_t page);  // page_bytes() bytes

  // Of the machine that the cache is on. On a GPU the lot is one piece of memory: the first address, options and config tell all others.
  void* latents(int64_t layer);     // (num_pages * page_size, latent_dim)
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
};

class Glm {
 public:
  // Maps the checkpoint, binds every parameter by meaning and checks format and shape. With a device the weights are copied there, the
  // steps run there, and every cache must lie there.
  // Errors name the tensor, what was expected and what was found; all missing tensors are listed. Of a device: no memory for the weights,
  // and options that only the CPU has.
  static Result<std::unique_ptr<Glm>> load(const std::filesystem::path& model_dir, const GlmOptions& options = {},
                                           std::shared_ptr<gpu::Accelerator> device = nullptr);
  virtual ~Glm() = default;

  virtual const spec::ModelConfig& config() const = 0;
  virtual const tensor::Checkpoint& checkpoint() const = 0;

  // Whether the checkpoint has an MTP layer; without one forward_mtp() must not be called.
  virtual bool has_mtp() const = 0;

  // The GPU that the model runs on; null: the CPU.
  virtual const std::shared_ptr<gpu::Accelerator>& device() const = 0;
  // Gives a GPU's steps all the memory that they will need, by running one of the largest kind on a cache of its own, so that what is free
  // afterwards can be given to the KV cache. Nothing to do on the CPU. Errors: no memory.
  virtual Result<> reserve(const StepLimits& limits) = 0;
  // Steps on a GPU so far; zeros on the CPU.
  struct DeviceCounts {
    int64_t steps = 0;     // forward() and forward_mtp() of some rows
    int64_t replayed = 0;  // of these, from a graph
    int64_t graphs = 0;    // that are kept now
    int64_t launches = 0;  // in the graph that was captured last
  };
  virtual DeviceCounts device_counts() const = 0;

  // Runs the main layers over the batch, writes the cache and fills the output. `stream` gives the CPU's threads; on a GPU the model has a
  // queue of its own, and the call returns when the output is there. A probe is of the CPU alone.
  // An empty batch is a no-op. A row's result does not depend on the other rows of the batch, to the bit.
  // Errors: those of a GPU; never on the CPU.
  virtual Result<> forward(gpu::Stream& stream, const ForwardBatch& batch, KvCache& cache, const ForwardOutput& output,
                           ForwardProbe* probe = nullptr) = 0;
  // The same for the MTP layer, which writes its part of the cache. Rows of one sequence that attend to each other go in one batch or in
  // the order of their positions.
  virtual Result<> forward_mtp(gpu::Stream& stream, const MtpBatch& batch, KvCache& cache, const MtpOutput& output,
                               ForwardProbe* probe = nullptr) = 0;
};

}  // namespace ingot::model
