// The MTP layer: one decoder layer over (embedding of the next token, hidden state), with an indexer, keys and head norm of its own.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "kernels/ops.h"
#include "model/forward.h"

namespace ingot::model {

void Forward::run_mtp(const MtpWeights& mtp, const MtpBatch& batch, const MtpOutput& output) {
  const int64_t T = tokens(), hidden = config_.hidden_size;
  begin();
  // The embedding half comes first.
  float* pair = work_.mtp_input.ensure(T * 2 * hidden);
  float* embedded = work_.normed.get();
  kernels::embed(stream_, {embedded, batch_.token_ids.data(), mtp.embed, T});
  const auto half = [&](const VectorView& weight, const float* x, float* y) {
    kernels::rms_norm(stream_, {y, 2 * hidden, x, hidden, weight.data, weight.dtype, T, hidden, layer_eps()});
  };
  half(mtp.enorm, embedded, pair);
  half(mtp.hnorm, batch.hidden.data(), pair + hidden);
  project(mtp.eh_proj, pair, work_.hidden.get(), T);

  // While every row sees all of its positions a list says nothing new.
  lists_given_ = !batch.lists.empty() && last_position_ >= config_.index_topk;
  if (lists_given_) {
    indices_ = batch.lists.data();
    index_width_ = batch.list_width;
  }
  decoder_layer(mtp.layer, config_.num_hidden_layers);

  const auto rows = static_cast<int64_t>(batch_.logit_rows.size());
  if (rows == 0) return;
  gather(work_.hidden.get(), batch_.logit_rows, output.hidden.data());
  norm(mtp.final_norm, output.hidden.data(), hidden, output.hidden.data(), rows, hidden, layer_eps());
  project(mtp.head, output.hidden.data(), output.logits.data(), rows);
  if (!output.lists.empty()) copy_lists(output.lists);
}

void Forward::copy_lists(std::span<int32_t> to) {
  const auto width = static_cast<size_t>(config_.index_topk);
  for (size_t r = 0; r < batch_.logit_rows.size(); ++r) {
    const auto row = static_cast<size_t>(batch_.logit_rows[r]);
    const auto list = to.subspan(r * width, width);
    if (indices_ != nullptr) {
      INGOT_CHECK(index_width_ == config_.index_topk, "a given list is not handed on");
      std::copy_n(indices_ + row * width, width, list.begin());
      continue;
    }
    const auto count = static_cast<size_t>(batch_.positions[row]) + 1;
    std::fill(list.begin(), list.end(), -1);
    std::iota(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(count), 0);
  }
}

}  // namespace ingot::model
