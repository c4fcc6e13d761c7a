// The MTP layer: one decoder layer over (embedding of the next token, hidden state), with an indexer, keys and head norm of its own.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/ops.h"
#include "model/collective.h"
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
  // A rank of several multiplies its columns.
  const int64_t columns = mtp.eh_proj.cols;
  const float* x = pair;
  if (columns != 2 * hidden) {
    const int64_t rank = options_.collective == nullptr ? 0 : options_.collective->rank();
    float* part = work_.normed.get();
    role("mtp.part");
    kernels::copy_rows(stream_, {part, columns, pair + rank * columns, 2 * hidden, T, columns});
    x = part;
  }
  role("mtp.eh_proj");
  project(mtp.eh_proj, input(mtp.eh_proj, x, T, work_.wide_other), work_.hidden.get(), T);
  if (columns != 2 * hidden) reduce_residual();
  // A row that nothing is wanted of leaves its keys, which the layer makes of what it has here: a quarter of the work. On a GPU a row more
  // costs next to nothing, and the arrays of a step are not the host's. A probe sees all rows.
  if (std::ssize(batch_.logit_rows) < T && stream_.device == nullptr && probe_ == nullptr)
    mtp_wanted_rows(mtp);
  else
    mtp_layer(mtp);
}

void Forward::mtp_wanted_rows(const MtpWeights& mtp) {
  const int64_t hidden = config_.hidden_size;
  role("norm");
  norm(mtp.layer.input_norm, work_.hidden.get(), hidden, work_.normed.get(), tokens(), hidden, layer_eps());
  store_keys(mtp.layer, config_.num_hidden_layers);
  const auto rows = std::ssize(batch_.logit_rows);
  if (rows == 0) return;
  // Those that are left are a step of their own. Their keys are stored again, the same ones.
  std::vector<int32_t> token_ids, positions, slots, seqs, wanted, lists;
  for (const int32_t row : batch_.logit_rows) {
    const auto r = static_cast<size_t>(row);
    token_ids.push_back(batch_.token_ids[r]);
    positions.push_back(batch_.positions[r]);
    slots.push_back(batch_.slots[r]);
    seqs.push_back(batch_.seq_of_token[r]);
    wanted.push_back(static_cast<int32_t>(wanted.size()));
    if (step_.lists == nullptr) continue;
    const int32_t* list = step_.lists + row * step_.list_width;
    lists.insert(lists.end(), list, list + step_.list_width);
  }
  std::copy_n(gather(work_.hidden.get(), work_.logit_hidden.ensure(rows * hidden)), rows * hidden, work_.hidden.get());
  const ForwardBatch batch{token_ids, positions, slots, seqs, batch_.page_table, batch_.max_pages, wanted};
  Step step = step_;
  step.batch = &batch;
  step.token_ids = token_ids.data();
  step.positions = positions.data();
  step.slots = slots.data();
  step.seq_of_token = seqs.data();
  step.logit_rows = wanted.data();
  if (step_.lists != nullptr) step.lists = lists.data();
  Forward forward(stream_, config_, weights_, options_, inv_freq_, step, cache_, work_, nullptr);
  forward.begin();
  forward.mtp_layer(mtp);
}

void Forward::mtp_layer(const MtpWeights& mtp) {
  const int64_t hidden = config_.hidden_size;
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
  project(mtp.head, input(mtp.head, step_.out_hidden, rows, work_.wide_other), step_.logits, rows);
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
