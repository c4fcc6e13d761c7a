#include "exec/glm_runner.h"

#include <span>
#include <utility>

#include "base/check.h"

namespace ingot::exec {

GlmRunner::GlmRunner(std::shared_ptr<model::Glm> model, model::KvCache cache, std::shared_ptr<ThreadPool> pool)
    : model_(std::move(model)), cache_(std::move(cache)), pool_(std::move(pool)) {
  INGOT_CHECK(model_ != nullptr && pool_ != nullptr);
}

Result<sched::BatchResult> GlmRunner::run(const sched::BatchPlan& plan) {
  for (const sched::PageSave& save : plan.saves) {
    save.to->resize(static_cast<size_t>(cache_.page_bytes()));
    cache_.save_page(save.page, *save.to);
  }
  for (const sched::PageLoad& load : plan.loads) cache_.load_page(*load.from, load.page);
  const model::ForwardBatch batch = inputs_.fill(plan, cache_.options().page_size);
  const auto vocab_size = static_cast<size_t>(model_->config().vocab_size);
  logits_.resize(batch.logit_rows.size() * vocab_size);
  gpu::Stream stream{pool_.get()};
  model_->forward(stream, batch, cache_, logits_);
  sched::BatchResult result;
  result.sampled.reserve(batch.logit_rows.size());
  for (const sched::BatchItem& item : plan.items) {
    if (!item.sample) continue;
    const auto row = std::span<const float>(logits_).subspan(result.sampled.size() * vocab_size, vocab_size);
    auto drawn = sampler_.sample(row, *item.sampling, item.num_generated);
    if (!drawn)
      return fail("request {}, position {}: {}", item.request, item.start + static_cast<int64_t>(item.token_ids.size()),
                  drawn.error().text());
    result.sampled.push_back({.request = item.request, .token_ids = {drawn->token_id}, .logprobs = {}, .num_drafted = 0});
    if (item.sampling->top_logprobs >= 0) result.sampled.back().logprobs.push_back(std::move(drawn->logprob));
  }
  return result;
}

}  // namespace ingot::exec
