// The die on rows of logits: exec/sampler.h says what the numbers of a DrawRow mean and in which order the filters come. One block a row;
// nothing is sorted: what top_k and top_p keep is all above one logit and the first few of those equal to it, which two searches find.
#pragma once

#include "kernels/sample_row.kernel.h"

namespace ingot::kernels {

struct SampleRows {
  using Params = SampleRowsParams;
  static constexpr int kThreads = kRowThreads;
  struct Shared {
    RowShared row;
    float own;  // the model's own logit of the token
  };

  template <class G>
  GPU_FN void operator()(G& g, Shared& s, const Params& p) const {
    const DrawRow& row = p.rows[g.block()];
    if (row.kind == DrawKind::none) return;  // the whole block
    SampledRow& result = p.results[g.block()];
    const float* logits = p.logits + g.block() * p.vocab_size;
    const bool changed = row.changes_logits();
    if (changed && result.raw.likeliest < 0) return;  // AdjustRows has said why, and the token below was never written
    const RowCheck check = check_row(g, s.row, logits, p.vocab_size);
    const int64_t token = check.likeliest < 0 || row.kind == DrawKind::greedy
                              ? check.likeliest
                              : draw(g, s.row, row, logits, p.vocab_size, logits[check.likeliest]);
    if (g.thread() == 0) s.own = token < 0 ? 0.0f : logits[token];
    g.sync();
    if (token >= 0 && changed && row.first_before >= 0) find_own(g, s, p, row, static_cast<int32_t>(token));
    g.sync();
    if (g.thread() != 0) return;
    const RowVerdict verdict{check.likeliest, check.bad_id, check.bad_id < 0 ? 0.0f : logits[check.bad_id]};
    if (!changed) result.raw = verdict;
    result.adjusted = verdict;
    result.token_id = static_cast<int32_t>(token);
    result.logit = s.own;
  }

 private:
  template <class G>
  GPU_FN static void find_own(G& g, Shared& s, const Params& p, const DrawRow& row, int32_t token) {
    const float* before = p.before + row.first_before;
    for (int32_t i = g.thread(); i < row.num_changes; i += g.threads()) {
      if (p.changes[row.first_change + i].token_id == token) s.own = before[i];
    }
    g.sync();
    if (g.thread() != 0) return;
    // A drafted token that is in the list as well has no place of its own.
    for (int32_t i = 0; i < row.num_changes; ++i) {
      if (p.changes[row.first_change + i].token_id == token) return;
    }
    for (int32_t j = 0; j < row.num_drafted; ++j) {
      if (p.token_ids[row.first_drafted + j] != token) continue;
      s.own = before[row.num_changes + j];
      return;
    }
  }

  // The token at row.uniform of the distribution.
  template <class G>
  GPU_FN static int64_t draw(G& g, RowShared& s, const DrawRow& row, const float* logits, int64_t count, float max) {
    const int bits = mass_bits(count);
    const double shift = max, temperature = row.temperature, min_weight = row.min_p;
    // Kept so far: logits above `key`, and those equal to it up to id `last`.
    uint32_t key = 0;
    int64_t last = count;
    const auto kept = [&](int64_t i) {
      const uint32_t own = gpu::ordered_bits(logits[i]);
      return own > key || (own == key && i <= last);
    };
    const auto weight = [&](float logit) { return exp_of_negative((static_cast<double>(logit) - shift) / temperature); };
    for (int round = 0; round < 2; ++round) {
      const bool by_mass = round == 1;
      if (by_mass ? row.top_p >= 1.0f : row.top_k <= 0 || row.top_k >= count) continue;
      const auto worth = [&](int64_t i) -> Mass {
        if (!kept(i)) return 0;
        return by_mass ? mass_of(weight(logits[i]), bits) : 1;
      };
      const Cut cut = cut_row(g, s, logits, count, worth, [&](Mass total) -> Mass {
        if (!by_mass) return static_cast<Mass>(row.top_k);
        // Rounded up; the float's top_p is less than 1 by more than a rounding.
        const double share = static_cast<double>(row.top_p) * static_cast<double>(total);
        const Mass whole = static_cast<Mass>(share);
        return whole + (static_cast<double>(whole) < share || whole == 0 ? 1 : 0);
      });
      const Mass each = by_mass ? mass_of(weight(float_of_key(cut.key)), bits) : 1;
      const Mass ties = (cut.left + each - 1) / each;
      const int64_t before = last;
      const uint32_t floor = key;
      key = cut.key;
      last = place_of(
                 g, s, count,
                 [&](int64_t i) -> Mass { return gpu::ordered_bits(logits[i]) == cut.key && (cut.key > floor || i <= before) ? 1 : 0; },
                 [&](Mass) { return ties - 1; })
                 .index;
    }
    return place_of(
               g, s, count,
               [&](int64_t i) -> Mass {
                 if (!kept(i)) return 0;
                 const double own = weight(logits[i]);
                 return own < min_weight ? 0 : mass_of(own, bits);
               },
               [&](Mass total) {
                 const auto target = static_cast<Mass>(row.uniform * static_cast<double>(total));
                 return target < total ? target : total - 1;
               })
        .index;
  }
};

}  // namespace ingot::kernels
