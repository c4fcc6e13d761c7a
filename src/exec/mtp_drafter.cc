#include "exec/mtp_drafter.h"

#include <algorithm>

#include "base/check.h"

namespace ingot::exec {

using sched::BatchItem;

MtpDrafter::MtpDrafter(model::Glm& glm, model::KvCache& cache, Verifier& verifier)
    : glm_(glm),
      cache_(cache),
      verifier_(verifier),
      hidden_size_(static_cast<size_t>(glm.config().hidden_size)),
      vocab_size_(static_cast<size_t>(glm.config().vocab_size)),
      list_size_(static_cast<size_t>(glm.config().index_topk)) {
  INGOT_CHECK(glm.has_mtp());
}

void MtpDrafter::forget(std::span<const sched::RequestId> released) {
  for (const sched::RequestId id : released) states_.erase(id);
}

Result<> MtpDrafter::run(gpu::Stream& stream, const BatchInputs& inputs, bool with_lists) {
  const model::ForwardBatch rows = inputs.rows();
  const size_t wanted = rows.logit_rows.size();
  logits_.resize(wanted * vocab_size_);
  out_hidden_.resize(wanted * hidden_size_);
  lists_.resize(with_lists ? wanted * list_size_ : 0);
  model::MtpBatch batch;
  batch.rows = rows;
  batch.hidden = hidden_;
  batch.lists = lists_in_;
  batch.list_width = list_width_;
  INGOT_TRY(glm_.forward_mtp(stream, batch, cache_, {logits_, out_hidden_, lists_}));
  hidden_.clear();
  lists_in_.clear();
  return {};
}

void MtpDrafter::take_head(size_t row, Head& head) const {
  const auto slice = [row](const auto& all, size_t width) { return std::span(all).subspan(row * width, width); };
  const auto hidden = slice(out_hidden_, hidden_size_);
  const auto list = slice(lists_, list_size_);
  head.hidden.assign(hidden.begin(), hidden.end());
  head.list.assign(list.begin(), std::find(list.begin(), list.end(), -1));
}

Result<> MtpDrafter::draft(gpu::Stream& stream, const sched::BatchPlan& plan, BatchInputs& inputs, std::vector<Draft>& drafts) {
  // A sequence that drafts: the row its next draft comes from.
  struct Chain {
    const BatchItem* item = nullptr;
    size_t index = 0;
    State* state = nullptr;
    bool begins = false;  // its head is among the rows of the first pass
  };
  std::vector<Chain> chains;
  inputs.clear();
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    if (item.num_draft <= 0) continue;
    const auto it = states_.find(item.request);
    // All before the item's only row must have been seen; a sequence that skipped pages has nothing to begin with.
    if (it == states_.end() || it->second.end != item.start || item.token_ids.size() != 1) continue;
    State& state = it->second;
    const size_t waiting = num_waiting(state);
    if (waiting == 0 && state.head.logits.empty()) continue;
    for (size_t r = 0; r < waiting; ++r) {
      const int64_t position = state.end - static_cast<int64_t>(waiting - r);
      inputs.add(i, position, item.context[static_cast<size_t>(position) + 1], r + 1 == waiting);
    }
    if (waiting > 0) {
      hidden_.insert(hidden_.end(), state.waiting.begin(), state.waiting.end());
      state.waiting.clear();
    }
    chains.push_back({&item, i, &state, waiting > 0});
  }
  if (!hidden_.empty()) INGOT_TRY(run(stream, inputs, true));
  const auto extend = [&](const Chain& chain, std::span<const float> logits) {
    Draft& draft = drafts[chain.index];
    return verifier_.extend(*chain.item, logits, draft) && draft.size() < chain.item->num_draft;
  };
  size_t head_row = 0;
  std::erase_if(chains, [&](const Chain& chain) {
    if (!chain.begins) return !extend(chain, chain.state->head.logits);
    take_head(head_row, chain.state->head);
    return !extend(chain, logits(head_row++));
  });
  // From here on each chain has one row a pass: the draft that came last, at the position it would have.
  const bool share = glm_.config().index_share_for_mtp_iteration;
  for (int64_t pass = 0; !chains.empty(); ++pass) {
    inputs.clear();
    list_width_ = share ? static_cast<int64_t>(list_size_) + pass + 1 : 0;
    for (const Chain& chain : chains) {
      Head& head = chain.state->head;
      const int64_t position = chain.state->end + pass;
      inputs.add(chain.index, position, drafts[chain.index].token_ids.back(), true);
      hidden_.insert(hidden_.end(), head.hidden.begin(), head.hidden.end());
      if (!share) continue;
      head.list.push_back(static_cast<int32_t>(position));
      lists_in_.insert(lists_in_.end(), head.list.begin(), head.list.end());
      lists_in_.resize(lists_in_.size() + static_cast<size_t>(list_width_) - head.list.size(), -1);
    }
    INGOT_TRY(run(stream, inputs, false));
    size_t row = 0;
    std::erase_if(chains, [&](const Chain& chain) {
      const auto hidden = std::span(out_hidden_).subspan(row * hidden_size_, hidden_size_);
      chain.state->head.hidden.assign(hidden.begin(), hidden.end());
      return !extend(chain, logits(row++));
    });
  }
  return {};
}

Result<> MtpDrafter::keep(gpu::Stream& stream, const sched::BatchPlan& plan, BatchInputs& inputs, const std::vector<Draft>& drafts,
                          std::span<const float> hidden, std::span<const sched::SampledTokens> sampled) {
  const int64_t page_size = cache_.options().page_size;
  std::vector<State*> heads;  // of the sequences whose last row is run now
  inputs.clear();
  size_t row = 0;
  size_t next_sampled = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    const size_t planned = item.token_ids.size(), num_rows = planned + static_cast<size_t>(drafts[i].size());
    const sched::SampledTokens* drawn = item.sample ? &sampled[next_sampled++] : nullptr;
    if (drawn && drawn->token_ids.empty()) {  // an error: it ends
      states_.erase(item.request);
      row += num_rows;
      continue;
    }
    State& state = states_[item.request];
    state.head.logits.clear();
    if (state.end != item.start) state = {.end = item.start, .waiting = {}, .head = {}};  // it found pages in the cache
    const size_t held = planned + (drawn ? drawn->token_ids.size() - 1 : 0);
    const auto states = hidden.subspan(row * hidden_size_, held * hidden_size_);
    row += num_rows;
    state.waiting.insert(state.waiting.end(), states.begin(), states.end());
    state.end += static_cast<int64_t>(held);

    const size_t waiting = num_waiting(state);
    const int64_t first = state.end - static_cast<int64_t>(waiting);
    const int64_t full_end = state.end / page_size * page_size;
    for (int64_t position = first; position < full_end; ++position) {
      const auto next = static_cast<size_t>(position) + 1;
      const int32_t token = next < item.context.size() ? item.context[next] : drawn->token_ids[next - item.context.size()];
      inputs.add(i, position, token, drawn && position + 1 == state.end);
    }
    if (full_end <= first) continue;
    const auto num_run = static_cast<std::ptrdiff_t>(static_cast<size_t>(full_end - first) * hidden_size_);
    hidden_.insert(hidden_.end(), state.waiting.begin(), state.waiting.begin() + num_run);
    state.waiting.erase(state.waiting.begin(), state.waiting.begin() + num_run);
    if (drawn && full_end == state.end) heads.push_back(&state);
  }
  if (hidden_.empty()) return {};
  INGOT_TRY(run(stream, inputs, true));
  for (size_t r = 0; r < heads.size(); ++r) {
    take_head(r, heads[r]->head);
    heads[r]->head.logits.assign(logits(r).begin(), logits(r).end());
  }
  return {};
}

}  // namespace ingot::exec
