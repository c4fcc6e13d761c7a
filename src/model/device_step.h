// DeviceSteps: steps of a model on a GPU. What the caller gives goes there in one copy, what it wants comes back at the end, and the host
// waits once. Small steps are captured into a graph the second time that one of their shape comes, and replayed from then on. Owned by the
// Glm, used by its thread.
//
// So that a graph serves many steps, a small step is filled up to a shape: with rows that store nothing (slot -1), with rows of the page
// table and pages that nobody reads. A row's bits do not depend on the others, so this changes no result.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "gpu/accelerator.h"
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
  // `forward` puts the operations of one step on the GPU's queue: Forward::run or run_mtp. Errors: those of the GPU.
  Result<> run(const Job& job, KvCache& cache, const std::function<void(const Step&)>& forward);

  const Glm::DeviceCounts& counts() const { return counts_; }

 private:
  // All that the launches of a step depend on: equal keys, equal launches.
  using Key = std::array<int64_t, 14>;
  struct Shape {
    int64_t rows, logit_rows, seqs, max_pages;
    int64_t score_stride;  // of indexer scores; 0: whatever the positions need
    bool graph;            // may be captured
  };
  struct Captured {
    bool tried = false;  // run once, so that all memory it needs is there
    gpu::Graph graph;
  };

  Shape shape_of(const Job& job) const;
  Step upload(const Job& job, const Shape& shape);
  void drop_graphs();
  Result<> download(const Job& job, const Step& step);

  std::shared_ptr<gpu::Accelerator> device_;
  Workspace& work_;
  const GlmOptions& options_;
  const spec::ModelConfig& config_;
  gpu::HostMemory in_, out_;
  ForwardBatch batch_;  // the filled-up batch, in in_
  std::map<Key, Captured> captured_;
  uint64_t moves_ = 0;  // of the workspace, when the graphs were captured
  Glm::DeviceCounts counts_;
};

}  // namespace ingot::model
