// DeviceSteps: steps of a model on a GPU. What the caller gives goes there in one copy, what it wants comes back at the end, and the host
// waits once, or once for several steps that are queued behind each other. Small steps are captured into a graph the second time that one
// of their shape comes, and replayed from then on. Owned by the Glm, used by its thread.
//
// So that a graph serves many steps, a small step is filled up to a shape: with rows that store nothing (slot -1), with rows of the page
// table and pages that nobody reads. A row's bits do not depend on the others, so this changes no result. What is drawn from the logits is
// launched behind the graph: it depends on requests, not on shapes.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "gpu/accelerator.h"
#include "gpu/stream.h"
#include "model/forward.h"
#include "model/glm.h"
#include "model/workspace.h"

namespace ingot::model {

class DeviceSteps {
 public:
  // The workspace belongs to the same GPU and outlives this object.
  DeviceSteps(std::shared_ptr<gpu::Accelerator> device, Workspace& work, const GlmOptions& options, const spec::ModelConfig& config);
  ~DeviceSteps();
  DeviceSteps(const DeviceSteps&) = delete;
  DeviceSteps& operator=(const DeviceSteps&) = delete;

  // What a step takes and wants in the caller's memory; spans that are empty are not there.
  struct Job {
    const ForwardBatch* batch = nullptr;
    bool mtp = false;
    std::span<const float> hidden;   // (T, hidden_size), of the MTP layer
    std::span<const int32_t> lists;  // (T, list_width)
    int64_t list_width = 0;
    std::span<float> logits;       // (logit rows, vocab_size)
    std::span<float> out_hidden;   // (T, hidden_size); of the MTP layer (logit rows, hidden_size)
    std::span<int32_t> out_lists;  // (logit rows, index_topk)
  };
  // `forward` puts the operations of one step on the GPU's queue: Forward::run, run_mtp or run_head. Errors: those of the GPU.
  using Operations = std::function<void(const Step&)>;
  Result<> run(const Job& job, KvCache& cache, const Operations& forward);

  // As those of Glm, which describes them.
  Result<> queue(const gpu::Stream& caller, const QueuedStep& job, KvCache& cache, const Operations& forward);
  Result<> queue_mtp(const gpu::Stream& caller, const QueuedMtp& job, KvCache& cache, const Operations& forward);
  Result<> head(std::span<const float> hidden, std::span<float> logits, const Operations& forward);
  Result<> queue_head(const gpu::Stream& caller, const QueuedHead& job, const Operations& forward);
  Result<> fetch_drafts(std::span<int32_t> drafts);
  Result<> keep_hidden(const gpu::Stream& caller, std::span<const int32_t> rows, std::span<const int32_t> kept);
  Result<> finish();
  // Memory for queued steps with so many logit rows and sequences, beside what run() took. Errors: there is none.
  Result<> reserve(const StepLimits& limits);

  const Glm::DeviceCounts& counts() const { return counts_; }

 private:
  // All that the launches of a step depend on: equal keys, equal launches.
  using Key = std::array<int64_t, 15>;
  struct Shape {
    int64_t rows, logit_rows, seqs, max_pages;
    int64_t score_stride;  // of indexer scores; 0: whatever the positions need
    bool graph;            // may be captured
  };
  struct Captured {
    bool tried = false;  // run once, so that all memory it needs is there
    gpu::Graph graph;
  };
  // On its way to the caller.
  struct Fetched {
    size_t offset;  // in out_
    void* to;
    size_t bytes;
  };
  class Packer;

  Shape shape_of(const ForwardBatch& batch) const;
  // Room for so many bytes, and for others behind them that go elsewhere. Errors: no memory.
  Result<Packer> start_upload(size_t bytes, size_t others = 0);
  void finish_upload(const Packer& packer);
  static size_t batch_bytes(const Shape& shape);
  Step add_batch(Packer& packer, const ForwardBatch& given, const Shape& shape);
  // What DrawJob adds to an upload, and where it lies.
  struct DrawArrays {
    const kernels::DrawRow* rows = nullptr;
    const kernels::LogitChange* changes = nullptr;
    int64_t num_before = 0;
  };
  static size_t draw_bytes(const DrawJob& job);
  static DrawArrays add_draw(Packer& packer, const DrawJob& job);
  // Launches or replays the operations. `kind`: of equal shapes, those whose arrays lie at the same places.
  Result<> launch(const Step& step, const Shape& shape, bool mtp, int64_t kind, KvCache& cache, const Operations& forward);
  Result<> draw(gpu::Stream& stream, const DrawJob& job, const DrawArrays& arrays, float* logits, const int32_t* token_ids);
  Result<> reserve_kept(int64_t count);
  void reserve_chains(int64_t logit_rows, bool more);
  void take_drafts(gpu::Stream& stream, const Step& step, const int32_t* there, std::span<const int32_t> places);
  float* kept() const { return reinterpret_cast<float*>(kept_.data()); }
  StepArray<int32_t>& lists_of(int64_t width) { return lists_[width % 2]; }
  // Puts a copy to the caller's memory on the queue; finish() delivers it.
  Result<> fetch(const void* from, void* to, size_t bytes);
  gpu::Stream stream_of(const gpu::Stream& caller) const;
  void drop_graphs();

  std::shared_ptr<gpu::Accelerator> device_;
  Workspace& work_;
  const GlmOptions& options_;
  const spec::ModelConfig& config_;
  gpu::HostMemory in_, out_;  // pinned
  size_t in_used_ = 0;        // since the last wait: the GPU may still have to read it
  size_t out_used_ = 0;
  std::vector<Fetched> fetched_;  // since the last wait
  ForwardBatch batch_;            // the filled-up batch, in in_
  // What stays on the GPU between steps that are queued.
  StepArray<float> in_hidden_{work_.memory};   // (T, hidden): of the MTP step
  StepArray<float> mtp_hidden_{work_.memory};  // (logit rows, hidden): that came out of it
  // (logit rows, list_width_): the positions of the chains' heads and what was drafted since, in the array that lists_of() names.
  StepArray<int32_t> lists_[2] = {StepArray<int32_t>(work_.memory), StepArray<int32_t>(work_.memory)};
  StepArray<int32_t> drafts_{work_.memory};               // (chains, kMaxDrafted)
  StepArray<float> before_{work_.memory};                 // of kernels::AdjustRowsParams
  StepArray<kernels::SampledRow> results_{work_.memory};  // (logit rows)
  StepArray<kernels::LikelyToken> top_{work_.memory};     // (logit rows, max_top)
  gpu::DeviceMemory kept_;                                // (some rows, hidden)
  int64_t list_width_ = 0;
  std::map<Key, Captured> captured_;
  uint64_t moves_ = 0;  // of the workspace, when the graphs were captured
  Glm::DeviceCounts counts_;
};

}  // namespace ingot::model
