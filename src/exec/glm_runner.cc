#include "exec/glm_runner.h"

#include <span>
#include <utility>

#include "base/check.h"

namespace ingot::exec {

GlmRunner::GlmRunner(std::shared_ptr<model::Glm> model, model::KvCache cache, std::shared_ptr<ThreadPool> pool,
                     const GlmRunnerOptions& options)
    : model_(std::move(model)), cache_(std::move(cache)), pool_(std::move(pool)), verifier_(options.verify) {
  INGOT_CHECK(model_ != nullptr && pool_ != nullptr);
  if (options.speculate) drafter_.emplace(*model_, cache_, verifier_);
}

Result<sched::BatchResult> GlmRunner::run(const sched::BatchPlan& plan) {
  for (const sched::PageSave& save : plan.saves) {
    save.to->resize(static_cast<size_t>(cache_.page_bytes()));
    cache_.save_page(save.page, *save.to);
  }
  for (const sched::PageLoad& load : plan.loads) cache_.load_page(*load.from, load.page);
  gpu::Stream stream{pool_.get()};
  inputs_.start(plan, cache_.options().page_size);
  drafts_.assign(plan.items.size(), {});
  if (drafter_) {
    drafter_->forget(plan.released);
    INGOT_TRY(drafter_->draft(stream, plan, inputs_, drafts_));
  }
  const model::ForwardBatch batch = inputs_.plan_rows(plan, drafts_);
  const auto vocab_size = static_cast<size_t>(model_->config().vocab_size);
  logits_.resize(batch.logit_rows.size() * vocab_size);
  if (drafter_) hidden_.resize(batch.token_ids.size() * static_cast<size_t>(model_->config().hidden_size));
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
  if (drafter_) INGOT_TRY(drafter_->keep(stream, plan, inputs_, drafts_, hidden_, result.sampled));
  return result;
}

}  // namespace ingot::exec
