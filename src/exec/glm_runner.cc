#include "exec/glm_runner.h"

#include <span>
#include <utility>

#include "base/check.h"

namespace ingot::exec {

GlmRunner::GlmRunner(std::shared_ptr<model::Glm> model, model::KvCache cache, std::shared_ptr<ThreadPool> pool,
                     const GlmRunnerOptions& options)
    : model_(std::move(model)), cache_(std::move(cache)), pool_(std::move(pool)), verifier_(options.verify) {
  INGOT_CHECK(model_ != nullptr && pool_ != nullptr);
  if (model_->device() != nullptr && !options.verify.rejection_sampling) {
    device_draws_.emplace(verifier_, model_->config().vocab_size);
    if (options.speculate) device_drafter_.emplace(*model_, cache_, verifier_);
  } else if (options.speculate) {
    drafter_.emplace(*model_, cache_, verifier_);
  }
}

Result<sched::BatchResult> GlmRunner::run(const sched::BatchPlan& plan) {
  for (const sched::PageSave& save : plan.saves) {
    save.to->resize(static_cast<size_t>(cache_.page_bytes()));
    cache_.save_page(save.page, *save.to);
  }
  for (const sched::PageLoad& load : plan.loads) cache_.load_page(*load.from, load.page);
  if (plan.items.empty()) return sched::BatchResult{};  // it only keeps pages: nothing to run, draw or wait for
  gpu::Stream stream{pool_.get()};
  inputs_.start(plan, cache_.options().page_size);
  drafts_.assign(plan.items.size(), {});
  return device_draws_ ? run_on_device(stream, plan) : run_on_host(stream, plan);
}

Result<sched::BatchResult> GlmRunner::run_on_host(gpu::Stream& stream, const sched::BatchPlan& plan) {
  if (drafter_) {
    drafter_->forget(plan.released);
    INGOT_TRY(drafter_->draft(stream, plan, inputs_, drafts_));
  }
  const model::ForwardBatch batch = inputs_.plan_rows(plan, drafts_);
  const auto vocab_size = static_cast<size_t>(model_->config().vocab_size);
  logits_.resize(batch.logit_rows.size() * vocab_size);
  const bool scores = scores_.start(plan, drafts_);
  hidden_.resize(drafter_ || scores ? batch.token_ids.size() * static_cast<size_t>(model_->config().hidden_size) : 0);
  INGOT_TRY(model_->forward(stream, batch, cache_, {logits_, hidden_}));
  sched::BatchResult result;
  size_t first_row = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    if (!plan.items[i].sample) continue;
    const auto logits = [&](size_t row) { return std::span<const float>(logits_).subspan((first_row + row) * vocab_size, vocab_size); };
    INGOT_ASSIGN(auto sampled, verifier_.verify(plan.items[i], drafts_[i], logits));
    result.sampled.push_back(std::move(sampled));
    first_row += 1 + static_cast<size_t>(drafts_[i].size());
  }
  if (scores) {
    INGOT_ASSIGN(result.scored, scores_.run(stream, *model_, plan, hidden_));
  }
  if (drafter_) INGOT_TRY(drafter_->keep(stream, plan, inputs_, drafts_, hidden_, result.sampled));
  return result;
}

Result<sched::BatchResult> GlmRunner::run_on_device(gpu::Stream& stream, const sched::BatchPlan& plan) {
  device_draws_->start(plan);
  model::QueuedStep step;
  if (device_drafter_) {
    device_drafter_->forget(plan.released);
    INGOT_TRY(device_drafter_->draft(stream, plan, inputs_, device_draws_->items(), device_draws_->changes(), drafts_));
    step.token_places = device_drafter_->token_places(plan, drafts_);
  }
  const bool scores = scores_.start(plan, drafts_);
  step.keeps_hidden = device_drafter_ || scores;
  step.batch = inputs_.plan_rows(plan, drafts_);
  device_draws_->describe(plan, drafts_, step);
  INGOT_TRY(model_->queue(stream, step, cache_));
  if (scores) INGOT_TRY(scores_.queue(stream, *model_, plan));
  if (device_drafter_) INGOT_TRY(device_drafter_->fetch());
  INGOT_TRY(model_->finish());
  planned_.clear();
  for (const Draft& draft : drafts_) planned_.push_back(draft.size());
  if (device_drafter_) device_drafter_->take(drafts_);
  sched::BatchResult result;
  INGOT_ASSIGN(result.sampled, device_draws_->take(plan, drafts_));
  if (scores) {
    INGOT_ASSIGN(result.scored, scores_.take(plan, model_->config().vocab_size));
  }
  if (device_drafter_) INGOT_TRY(device_drafter_->keep(stream, plan, inputs_, planned_, result.sampled));
  return result;
}

}  // namespace ingot::exec
