// The MTP layer: one decoder layer over (embedding of the next token, hidden state), with an indexer, keys and head norm of its own.
#include "base/check.h"
#include "kernels/ops.h"
#include "model/forward.h"

namespace ingot::model {

void Forward::run_mtp(const MtpWeights& mtp) {
  const int64_t T = tokens(), hidden = config_.hidden_size;
  begin();
  // The embedding half comes first.
  float* pair = work_.mtp_input.ensure(T * 2 * hidden);
  float* embedded = work_.normed.get();
  kernels::embed(stream_, {embedded, step_.token_ids, mtp.embed, T});
  const auto half = [&](const VectorView& weight, const float* x, float* y) {
    kernels::rms_norm(stream_, {y, 2 * hidden, x, hidden, weight.data, weight.dtype, T, hidden, layer_eps()});
  };
  half(mtp.enorm, embedded, pair);
  half(mtp.hnorm, step_.hidden, pair + hidden);
  project(mtp.eh_proj, pair, work_.hidden.get(), T);

  // While every row sees all of its positions a list says nothing new.
  lists_given_ = step_.lists != nullptr && last_position_ >= config_.index_topk;
  if (lists_given_) {
    indices_ = step_.lists;
    index_width_ = step_.list_width;
  }
  decoder_layer(mtp.layer, config_.num_hidden_layers);

  const auto rows = static_cast<int64_t>(batch_.logit_rows.size());
  if (rows == 0) return;
  gather(work_.hidden.get(), step_.out_hidden);
  norm(mtp.final_norm, step_.out_hidden, hidden, step_.out_hidden, rows, hidden, layer_eps());
  project(mtp.head, step_.out_hidden, step_.logits, rows);
  if (step_.out_lists != nullptr) copy_lists(step_.out_lists);
}

void Forward::copy_lists(int32_t* to) {
  const int64_t width = config_.index_topk;
  const int32_t* lists = indices_;
  if (lists == nullptr) {
    // Nothing was chosen: every row saw all of its positions, which top_k lists without looking at scores.
    int32_t* all = work_.indices.ensure(tokens() * width);
    kernels::top_k(stream_, {all, nullptr, 0, step_.positions, tokens(), width});
    lists = all;
  } else {
    INGOT_CHECK(index_width_ == width, "a given list is not handed on");
  }
  kernels::copy_rows(stream_, {to, width, lists, width, static_cast<int64_t>(batch_.logit_rows.size()), width, step_.logit_rows});
}

}  // namespace ingot::model
