// Penalties, logit_bias and masks on rows of logits, in place: exec/verify.h says what they mean and in which order they come. One block a
// row. The model's own logits of the tokens that are changed are kept, for the logprob of the one that is drawn.
#pragma once

#include "kernels/sample_row.kernel.h"

namespace ingot::kernels {

struct AdjustRows {
  using Params = AdjustRowsParams;
  static constexpr int kThreads = kRowThreads;
  struct Shared {
    RowShared row;
    int32_t listed[kMaxDrafted];  // whether a drafted token is among the changes
  };

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    const DrawRow& row = p.rows[g.block()];
    if (!row.changes_logits()) return;  // the whole block
    float* logits = p.logits + g.block() * p.vocab_size;
    float* before = row.first_before < 0 ? nullptr : p.before + row.first_before;
    const LogitChange* changes = p.changes + row.first_change;
    const int32_t* drafted = p.token_ids + row.first_drafted;
    const RowCheck check = check_row(g, s.row, logits, p.vocab_size);
    SampledRow& result = p.results[g.block()];
    if (g.thread() == 0) result.raw = {check.likeliest, check.bad_id, check.bad_id < 0 ? 0.0f : logits[check.bad_id]};
    if (check.likeliest < 0) {
      if (g.thread() == 0) result.token_id = -1;
      return;
    }
    for (int j = g.thread(); j < kMaxDrafted; j += g.threads()) s.listed[j] = 0;
    g.sync();  // all logits were read
    for (int32_t i = g.thread(); i < row.num_changes; i += g.threads()) {
      LogitChange change = changes[i];
      int32_t more = 0;
      for (int32_t j = 0; j < row.num_drafted; ++j) {
        if (drafted[j] != change.token_id) continue;
        ++more;
        s.listed[j] = 1;
      }
      if (more > 0) change.count = (change.count < 0 ? 0 : change.count) + more;
      const float own = apply(row, change, logits);
      if (before != nullptr) before[i] = own;
    }
    g.sync();
    // What was drafted and is not in the list yet.
    for (int32_t j = g.thread(); j < row.num_drafted; j += g.threads()) {
      if (s.listed[j] != 0 || drafted[j] < 0) continue;  // a chain that broke off has -1
      LogitChange change{drafted[j], 0, 0.0f};
      bool first = true;
      for (int32_t k = 0; k < row.num_drafted; ++k) {
        if (drafted[k] != drafted[j]) continue;
        ++change.count;
        first = first && k >= j;
      }
      if (!first) continue;
      const float own = apply(row, change, logits);
      if (before != nullptr) before[row.num_changes + j] = own;
    }
    if (row.mask < 0) return;
    g.sync();
    const uint32_t* mask = p.masks + row.mask * ((p.vocab_size + 31) / 32);
    for (int64_t i = g.thread(); i < p.vocab_size; i += g.threads()) {
      if ((mask[i / 32] >> (i % 32) & 1u) == 0u) logits[i] = gpu::bits_float(0xff800000u);
    }
  }

 private:
  // Returns what was there before.
  GPU_FN static float apply(const DrawRow& row, const LogitChange& change, float* logits) {
    const float own = logits[change.token_id];
    float logit = own;
    if (change.count >= 0) {
      double value = logit;
      const double repetition = row.repetition_penalty;
      value = value > 0 ? value / repetition : value * repetition;
      value -= static_cast<double>(row.frequency_penalty) * change.count;
      if (change.count > 0) value -= row.presence_penalty;
      logit = to_logit(value);
    }
    logits[change.token_id] = to_logit(static_cast<double>(logit) + change.bias);
    return own;
  }
  // Large penalties must not make an infinity of a logit; -infinity, a token that cannot be drawn, stays.
  GPU_FN static float to_logit(double value) {
    constexpr double kMax = 3.40282346638528859812e+38, kInfinity = __builtin_huge_val();
    if (value == kInfinity || value == -kInfinity) return static_cast<float>(value);
    return static_cast<float>(value < -kMax ? -kMax : value > kMax ? kMax : value);
  }
};

}  // namespace ingot::kernels
