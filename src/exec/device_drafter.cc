#include "exec/device_drafter.h"

#include <algorithm>

#include "base/check.h"

namespace ingot::exec {

using sched::BatchItem;

static_assert(kernels::kMaxDrafted >= sched::kMaxDraftTokens);

DeviceDrafter::DeviceDrafter(model::Glm& glm, model::KvCache& cache, Verifier& verifier) : glm_(glm), cache_(cache), verifier_(verifier) {
  INGOT_CHECK(glm.has_mtp() && glm.device() != nullptr);
}

int32_t DeviceDrafter::place() {
  if (free_.empty()) return static_cast<int32_t>(num_places_++);
  const int32_t place = free_.back();
  free_.pop_back();
  return place;
}

void DeviceDrafter::free(std::vector<int32_t>& places) {
  free_.insert(free_.end(), places.begin(), places.end());
  places.clear();
}

void DeviceDrafter::forget(std::span<const sched::RequestId> released) {
  for (const sched::RequestId id : released) {
    const auto it = states_.find(id);
    if (it == states_.end()) continue;
    free(it->second.waiting);
    states_.erase(it);
  }
}

Result<> DeviceDrafter::draft(gpu::Stream& stream, const sched::BatchPlan& plan, BatchInputs& inputs,
                              std::span<const kernels::DrawRow> draws, std::span<const kernels::LogitChange> changes,
                              std::vector<Draft>& drafts) {
  chains_.clear();
  hidden_rows_.clear();
  inputs.clear();
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    if (item.num_draft <= 0) continue;
    const auto it = states_.find(item.request);
    // All before the item's only row must have been seen; a sequence that skipped pages has nothing to begin with.
    if (it == states_.end() || it->second.end != item.start || item.token_ids.size() != 1 || it->second.waiting.empty()) continue;
    State& state = it->second;
    const size_t waiting = state.waiting.size();
    for (size_t r = 0; r < waiting; ++r) {
      const int64_t position = state.end - static_cast<int64_t>(waiting - r);
      inputs.add(i, position, item.context[static_cast<size_t>(position) + 1], r + 1 == waiting, !state.was_run);
      hidden_rows_.push_back(-1 - state.waiting[r]);
    }
    // What is kept from now on goes to the GPU behind the pass that reads them.
    free(state.waiting);
    state.was_run = false;
    chains_.push_back({i, item.num_draft, state.end});
    for (int32_t d = 0; d < item.num_draft; ++d) drafts[i].append_to_chain(0);
  }
  drafted_.resize(chains_.size() * kernels::kMaxDrafted);
  std::vector<size_t> running(chains_.size());  // chains of a pass
  for (size_t c = 0; c < running.size(); ++c) running[c] = c;
  for (int32_t depth = 0; !running.empty(); ++depth) {
    rows_.clear();
    draft_places_.clear();
    bool more = false;
    for (const size_t c : running) {
      kernels::DrawRow& row = rows_.emplace_back(draws[chains_[c].item]);
      row.kind = kernels::DrawKind::greedy;
      row.num_top = -1;
      row.first_before = -1;
      row.num_drafted = verifier_.describe(plan.items[chains_[c].item], depth).num_drafted;
      row.first_drafted = draft_place(c, 0);
      draft_places_.push_back(draft_place(c, depth));
      more = more || chains_[c].length > depth + 1;
    }
    model::QueuedMtp step;
    step.batch = inputs.rows();
    step.token_places = token_places_;
    step.hidden_rows = hidden_rows_;
    step.goes_on = depth > 0;
    step.more = more;
    step.draw.rows = rows_;
    step.draw.changes = changes;
    step.draft_places = draft_places_;
    if (depth == 0) step.token_places = {};
    INGOT_TRY(glm_.queue_mtp(stream, step, cache_));
    // From here on each chain has one row a pass: the draft that came last, at the position it would have.
    inputs.clear();
    hidden_rows_.clear();
    token_places_.clear();
    std::vector<size_t> next;
    for (size_t r = 0; r < running.size(); ++r) {
      const Chain& chain = chains_[running[r]];
      if (chain.length <= depth + 1) continue;
      inputs.add(chain.item, chain.end + depth, 0, true);
      hidden_rows_.push_back(static_cast<int32_t>(r));
      token_places_.push_back(draft_place(running[r], depth));
      next.push_back(running[r]);
    }
    running = std::move(next);
  }
  return {};
}

std::span<const int32_t> DeviceDrafter::token_places(const sched::BatchPlan& plan, const std::vector<Draft>& drafts) {
  token_places_.clear();
  size_t chain = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    token_places_.resize(token_places_.size() + plan.items[i].token_ids.size(), -1);
    if (drafts[i].size() == 0) continue;
    for (int32_t d = 0; d < drafts[i].size(); ++d) token_places_.push_back(draft_place(chain, d));
    ++chain;
  }
  return token_places_;
}

Result<> DeviceDrafter::fetch() { return glm_.fetch_drafts(drafted_); }

void DeviceDrafter::take(std::vector<Draft>& drafts) const {
  for (size_t c = 0; c < chains_.size(); ++c) {
    Draft& draft = drafts[chains_[c].item];
    for (int32_t d = 0; d < chains_[c].length; ++d) {
      const int32_t token = drafted_[static_cast<size_t>(draft_place(c, d))];
      if (token < 0) {
        draft.token_ids.resize(static_cast<size_t>(d));
        draft.parents.resize(static_cast<size_t>(d));
        break;
      }
      draft.token_ids[static_cast<size_t>(d)] = token;
    }
  }
}

Result<> DeviceDrafter::keep(gpu::Stream& stream, const sched::BatchPlan& plan, BatchInputs& inputs, std::span<const int32_t> planned,
                             std::span<const sched::SampledTokens> sampled) {
  const int64_t page_size = cache_.options().page_size;
  inputs.clear();
  hidden_rows_.clear();
  from_.clear();
  to_.clear();
  size_t row = 0;
  size_t next_sampled = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    const size_t rows = item.token_ids.size(), first_row = row;
    row += rows + static_cast<size_t>(planned[i]);
    const sched::SampledTokens* drawn = item.sample ? &sampled[next_sampled++] : nullptr;
    if (drawn && drawn->token_ids.empty()) {  // an error: it ends
      forget(std::span(&item.request, 1));
      continue;
    }
    State& state = states_[item.request];
    // What was found in the cache has no rows here; a head that drafted nothing was run already.
    if (state.end != item.start || state.was_run) free(state.waiting);
    state.was_run = false;
    const size_t held = rows + (drawn ? drawn->token_ids.size() - 1 : 0);
    state.end = item.start + static_cast<int64_t>(held);

    // The rows that wait: those that are kept, then those of this step.
    const size_t kept = state.waiting.size(), waiting = kept + held;
    const int64_t first = state.end - static_cast<int64_t>(waiting), full_end = state.end / page_size * page_size;
    const int64_t run_end =
        state.end - std::max(full_end, first) > static_cast<int64_t>(kMaxWaiting) ? state.end : std::max(full_end, first);
    const auto source = [&](size_t r) { return r < kept ? -1 - state.waiting[r] : static_cast<int32_t>(first_row + r - kept); };
    const auto num_run = static_cast<size_t>(run_end - first);
    for (size_t r = 0; r < num_run; ++r) {
      const auto next = static_cast<size_t>(first) + r + 1;
      const int32_t token = next < item.context.size() ? item.context[next] : drawn->token_ids[next - item.context.size()];
      inputs.add(i, first + static_cast<int64_t>(r), token, false);
      hidden_rows_.push_back(source(r));
    }
    // A chain can begin at the last row, run or not.
    state.was_run = num_run == waiting && drawn != nullptr;
    const size_t stays = state.was_run ? waiting - 1 : num_run;
    std::vector<int32_t> places;
    for (size_t r = 0; r < waiting; ++r) {
      if (r < kept) {
        (r < stays ? free_ : places).push_back(state.waiting[r]);
      } else if (r >= stays) {
        places.push_back(place());
        from_.push_back(source(r));
        to_.push_back(places.back());
      }
    }
    state.waiting = std::move(places);
  }
  if (!hidden_rows_.empty()) {
    model::QueuedMtp step;
    step.batch = inputs.rows();
    step.hidden_rows = hidden_rows_;
    INGOT_TRY(glm_.queue_mtp(stream, step, cache_));
  }
  return glm_.keep_hidden(stream, from_, to_);
}

}  // namespace ingot::exec
