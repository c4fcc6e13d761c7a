// Scratch memory of a step: named arrays that grow to the largest batch seen and stay. One owner (the Glm), one thread.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "base/check.h"

namespace ingot::model {

// An array whose contents do not outlive the next ensure(); 64-byte aligned, so that vector loads do not straddle cache lines.
template <class T>
class StepArray {
 public:
  T* ensure(int64_t count) {
    if (count > capacity_) {
      const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
      data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
      INGOT_CHECK(data_ != nullptr, "no memory for {} bytes of step scratch", bytes);
      capacity_ = count;
    }
    return data_.get();
  }
  T* get() const { return data_.get(); }

 private:
  std::unique_ptr<T, void (*)(void*)> data_{nullptr, std::free};
  int64_t capacity_ = 0;
};

struct Workspace {
  StepArray<float> hidden;                  // (T, hidden): the residual stream
  StepArray<float> normed;                  // (T, hidden)
  StepArray<float> rope_table;              // (T, rope / 2, 2)
  StepArray<float> q_latent;                // (T, q_lora_rank)
  StepArray<float> q;                       // (T, heads, nope + rope)
  StepArray<float> q_absorbed;              // (T, heads, kv_lora_rank + rope)
  StepArray<float> kv;                      // (T, kv_lora_rank + rope)
  StepArray<float> attended;                // (T, heads, kv_lora_rank)
  StepArray<float> attention_out;           // (T, heads, v)
  StepArray<float> index_key;               // (T, index_head_dim)
  StepArray<float> index_q;                 // (rows, index_n_heads, index_head_dim)
  StepArray<float> index_weights;           // (rows, index_n_heads)
  StepArray<float> index_scores;            // (some rows, positions)
  StepArray<int32_t> indices;               // (T, index_topk)
  StepArray<float> gate, up;                // (T or T * k, intermediate)
  StepArray<float> shared_gate, shared_up;  // (T, shared experts' intermediate)
  StepArray<float> router_logits;           // (T, experts)
  StepArray<int32_t> experts;               // (T, k)
  StepArray<float> expert_weights;          // (T, k)
  StepArray<int32_t> order, inverse, offsets;
  StepArray<float> expert_out;                      // (T * k, hidden)
  StepArray<float> key_latent, key_pe, key_values;  // expanded form: (keys, kv_lora_rank), (keys, rope), (keys, heads, nope + v)
  StepArray<float> rounded;                         // (rows, cols) of a linear's input
  StepArray<float> logit_hidden;                    // (logit rows, hidden)
  StepArray<float> mtp_input;                       // (T, 2 * hidden)
};

}  // namespace ingot::model
