// What a step costs on this machine, measured once at start: the adaptive draft policy decides by it.
#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/check.h"
#include "base/rng.h"
#include "exec/glm_runner.h"

namespace ingot::exec {
namespace {

constexpr int kRepeats = 3;        // the median counts: another program may take the machine for one of them
constexpr int64_t kContext = 128;  // positions before the rows

int64_t capacity_of(const model::KvCache& cache) { return cache.options().num_pages * cache.options().page_size; }

class Meter {
 public:
  Meter(model::Glm& glm, model::KvCache& cache, ThreadPool& pool, int64_t max_rows)
      : glm_(glm),
        cache_(cache),
        stream_{&pool},
        first_(std::min(kContext, capacity_of(cache) - max_rows)),
        pages_(static_cast<size_t>(cache.options().num_pages)) {
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  // Seconds of one forward pass over so many rows, all of whose logits are wanted.
  Result<double> step(int64_t rows) {
    prepare(rows);
    return median([&] { return glm_.forward(stream_, batch_, cache_, {logits_, hidden_}); });
  }
  // Of one pass of the MTP layer.
  Result<double> pass(int64_t rows) {
    prepare(rows);
    out_hidden_.resize(hidden_.size());
    model::MtpBatch mtp;
    mtp.rows = batch_;
    mtp.hidden = hidden_;
    return median([&] { return glm_.forward_mtp(stream_, mtp, cache_, {logits_, out_hidden_, {}}); });
  }

 private:
  void prepare(int64_t rows) {
    const auto n = static_cast<size_t>(rows);
    const auto vocab_size = static_cast<uint64_t>(glm_.config().vocab_size);
    ids_.resize(n);
    for (int32_t& id : ids_) id = static_cast<int32_t>(rng_.below(vocab_size));
    positions_.resize(n);
    std::iota(positions_.begin(), positions_.end(), static_cast<int32_t>(first_));
    seqs_.assign(n, 0);
    wanted_.resize(n);
    std::iota(wanted_.begin(), wanted_.end(), 0);
    logits_.resize(n * vocab_size);
    hidden_.assign(n * static_cast<size_t>(glm_.config().hidden_size), 0.5f);
    // Page i of the sequence is page i of the cache, so slots are positions.
    batch_ = {ids_, positions_, positions_, seqs_, pages_, static_cast<int64_t>(pages_.size()), wanted_};
  }

  template <class Run>
  Result<double> median(Run run) {
    INGOT_TRY(run());  // memory grows, weights come in
    std::vector<double> seconds;
    for (int i = 0; i < kRepeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      INGOT_TRY(run());
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::nth_element(seconds.begin(), seconds.begin() + kRepeats / 2, seconds.end());
    return seconds[kRepeats / 2];
  }

  model::Glm& glm_;
  model::KvCache& cache_;
  gpu::Stream stream_;
  Rng rng_{5};
  int64_t first_;
  std::vector<int32_t> pages_, ids_, positions_, seqs_, wanted_;
  std::vector<float> logits_, hidden_, out_hidden_;
  model::ForwardBatch batch_;
};

}  // namespace

Result<sched::StepCost> measure_step_cost(model::Glm& glm, model::KvCache& cache, ThreadPool& pool, int64_t max_rows) {
  INGOT_CHECK(glm.has_mtp() && max_rows > 0);
  max_rows = std::min(max_rows, capacity_of(cache));
  Meter meter(glm, cache, pool, max_rows);
  sched::StepCost cost;
  for (int64_t rows = 1;; rows = std::min(max_rows, rows < 8 ? rows + 1 : rows + rows / 2)) {
    INGOT_ASSIGN(const double step, meter.step(rows));
    INGOT_ASSIGN(const double pass, meter.pass(rows));
    cost.step.points.push_back({static_cast<double>(rows), step});
    cost.pass.points.push_back({static_cast<double>(rows), pass});
    if (rows == max_rows) return cost;
  }
}

}  // namespace ingot::exec
