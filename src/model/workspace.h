// Scratch memory of a step: named arrays that grow to the largest batch seen and stay. One owner (the Glm), one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/check.h"
#include "gpu/accelerator.h"

namespace ingot::model {

// Where scratch arrays lie: in the host's memory, or in a GPU's.
struct StepMemory {
  std::shared_ptr<gpu::Accelerator> device;  // null: the host
  uint64_t moves = 0;                        // of arrays to other addresses, as they grew
  bool may_move = true;                      // false while launches are captured with the addresses of now
};

// An array whose contents do not outlive the next ensure(); 64-byte aligned, so that vector loads do not straddle cache lines.
template <class T>
class StepArray {
 public:
  explicit StepArray(StepMemory& memory) : memory_(memory) {}

  // On a GPU without the memory: null, and Accelerator::finish() tells.
  T* ensure(int64_t count) {
    if (count > capacity_) grow(count);
    return data_;
  }
  T* get() const { return data_; }

 private:
  void grow(int64_t count) {
    INGOT_CHECK(memory_.may_move, "step scratch grows during a capture");
    ++memory_.moves;
    data_ = nullptr;
    // A GPU's memory is not given and taken lightly: half as much again, so that a slowly growing array moves seldom.
    if (memory_.device) count = std::max(count, capacity_ + capacity_ / 2);
    capacity_ = 0;
    const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    if (!memory_.device) {
      host_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
      INGOT_CHECK(host_ != nullptr, "no memory for {} bytes of step scratch", bytes);
      data_ = host_.get();
    } else {
      device_ = {};
      auto made = gpu::DeviceMemory::allocate(memory_.device, bytes);
      if (!made) return memory_.device->report({"step scratch: " + made.error().message, "give the KV cache less memory"});
      device_ = std::move(*made);
      data_ = reinterpret_cast<T*>(device_.data());
    }
    capacity_ = count;
  }

  StepMemory& memory_;
  std::unique_ptr<T, void (*)(void*)> host_{nullptr, std::free};
  gpu::DeviceMemory device_;
  T* data_ = nullptr;
  int64_t capacity_ = 0;
};

struct Workspace {
  explicit Workspace(std::shared_ptr<gpu::Accelerator> device) : memory{std::move(device)} {}

  StepMemory memory;
  StepArray<float> hidden{memory};                          // (T, hidden): the residual stream
  StepArray<float> normed{memory};                          // (T, hidden)
  StepArray<float> rope_table{memory};                      // (T, rope / 2, 2)
  StepArray<float> q_latent{memory};                        // (T, q_lora_rank)
  StepArray<float> q{memory};                               // (T, heads, nope + rope)
  StepArray<float> q_absorbed{memory};                      // (T, heads, kv_lora_rank + rope)
  StepArray<float> kv{memory};                              // (T, kv_lora_rank + rope)
  StepArray<float> attended{memory};                        // (T, heads, kv_lora_rank)
  StepArray<float> attention_out{memory};                   // (T, heads, v)
  StepArray<float> index_key{memory};                       // (T, index_head_dim)
  StepArray<float> index_q{memory};                         // (rows, index_n_heads, index_head_dim)
  StepArray<float> index_weights{memory};                   // (rows, index_n_heads)
  StepArray<float> index_scores{memory};                    // (some rows, positions)
  StepArray<int32_t> indices{memory};                       // (T, index_topk)
  StepArray<float> gate{memory}, up{memory};                // (T or T * k, intermediate)
  StepArray<float> shared_gate{memory}, shared_up{memory};  // (T, shared experts' intermediate)
  StepArray<float> router_logits{memory};                   // (T, experts)
  StepArray<int32_t> experts{memory};                       // (T, k)
  StepArray<float> expert_weights{memory};                  // (T, k)
  StepArray<int32_t> order{memory}, inverse{memory}, offsets{memory};
  StepArray<float> expert_out{memory};  // (T * k, hidden)
  StepArray<float> key_latent{memory}, key_pe{memory},
      key_values{memory};            // expanded form: (keys, kv_lora_rank), (keys, rope), (keys, heads, nope + v)
  StepArray<float> rounded{memory};  // (rows, cols) of a linear's input
  // Inputs of products in the order that native kernels for many rows want.
  StepArray<uint16_t> wide_normed{memory}, wide_latent{memory}, wide_other{memory}, wide_gate{memory}, expert_rounded{memory};
  StepArray<float> logit_hidden{memory};  // (logit rows, hidden)
  StepArray<float> mtp_input{memory};     // (T, 2 * hidden)
  // On a GPU alone: what came from the caller, and what goes back.
  StepArray<std::byte> inputs{memory};
  StepArray<float> out_logits{memory};   // (logit rows, vocab)
  StepArray<float> out_hidden{memory};   // (T or logit rows, hidden)
  StepArray<int32_t> out_lists{memory};  // (logit rows, index_topk)
};

}  // namespace ingot::model
