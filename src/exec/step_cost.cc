// What a step costs on this machine, measured once at start: the adaptive draft policy decides by it.
#include <algorithm>
#include <chrono>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "exec/glm_runner.h"

namespace ingot::exec {
namespace {

constexpr int kRepeats = 5;           // the median counts: another program may take the machine for one of them
constexpr int64_t kContext = 128;     // positions before the rows
constexpr int64_t kRowsTogether = 6;  // rows of one sequence, as when it verifies five drafts; more rows are of more sequences

int64_t capacity_of(const model::KvCache& cache) { return cache.options().num_pages * cache.options().page_size; }

class Meter {
 public:
  Meter(model::Glm& glm, model::KvCache& cache, ThreadPool& pool, int64_t max_rows)
      : glm_(glm), cache_(cache), stream_{&pool}, first_(std::min(kContext, capacity_of(cache) - max_rows)) {}

  // Seconds of one forward pass over so many rows, all of whose logits are wanted; on a GPU, where they stay, a token of each.
  Result<double> step(int64_t rows) {
    if (glm_.device() != nullptr) {
      return median(rows, [&]() -> Result<> {
        model::QueuedStep step;
        step.batch = batch_;
        step.keeps_hidden = true;
        step.draw.rows = draws_;
        step.draw.results = results_;
        INGOT_TRY(glm_.queue(stream_, step, cache_));
        return glm_.finish();
      });
    }
    return median(rows, [&] { return glm_.forward(stream_, batch_, cache_, {logits_, hidden_}); });
  }
  // Of one pass of the MTP layer, behind a step of as many rows.
  Result<double> pass(int64_t rows) {
    if (glm_.device() != nullptr) {
      return median(rows, [&]() -> Result<> {
        model::QueuedMtp step;
        step.batch = batch_;
        step.hidden_rows = wanted_;
        step.draw.rows = draws_;
        step.draft_places = wanted_;
        INGOT_TRY(glm_.queue_mtp(stream_, step, cache_));
        return glm_.finish();
      });
    }
    return median(rows, [&] {
      model::MtpBatch mtp;
      mtp.rows = batch_;
      mtp.hidden = hidden_;
      return glm_.forward_mtp(stream_, mtp, cache_, {logits_, out_hidden_, {}});
    });
  }

 private:
  // Pages of a sequence's own that `rows` rows behind the first_ positions touch. The pages before them are the same for all.
  int64_t own_pages(int64_t rows) const {
    const int64_t page_size = cache_.options().page_size;
    return (first_ % page_size + rows + page_size - 1) / page_size;
  }

  // Rows of other tokens each time: of the experts, a step reads those that its tokens ask for.
  void prepare(int64_t rows) {
    const auto n = static_cast<size_t>(rows);
    const auto vocab_size = static_cast<uint64_t>(glm_.config().vocab_size);
    const int64_t page_size = cache_.options().page_size, shared = first_ / page_size;
    int64_t together = std::min(rows, kRowsTogether);
    const auto seqs_of = [&](int64_t of_one) { return (rows + of_one - 1) / of_one; };
    while (together < rows && shared + seqs_of(together) * own_pages(together) > cache_.options().num_pages)
      together = std::min(rows, 2 * together);
    const int64_t own = own_pages(together), max_pages = shared + own;
    pages_.clear();
    for (int64_t seq = 0; seq < seqs_of(together); ++seq) {
      for (int64_t page = 0; page < max_pages; ++page) pages_.push_back(static_cast<int32_t>(page < shared ? page : page + seq * own));
    }
    ids_.resize(n);
    positions_.resize(n);
    slots_.resize(n);
    seqs_.resize(n);
    wanted_.resize(n);
    for (size_t i = 0; i < n; ++i) {
      const int64_t seq = static_cast<int64_t>(i) / together, position = first_ + static_cast<int64_t>(i) % together;
      ids_[i] = static_cast<int32_t>(rng_.below(vocab_size));
      positions_[i] = static_cast<int32_t>(position);
      slots_[i] =
          static_cast<int32_t>(pages_[static_cast<size_t>(seq * max_pages + position / page_size)] * page_size + position % page_size);
      seqs_[i] = static_cast<int32_t>(seq);
      wanted_[i] = static_cast<int32_t>(i);
    }
    logits_.resize(n * vocab_size);
    hidden_.assign(n * static_cast<size_t>(glm_.config().hidden_size), 0.5f);
    out_hidden_.resize(hidden_.size());
    kernels::DrawRow greedy;
    greedy.kind = kernels::DrawKind::greedy;
    draws_.assign(n, greedy);
    results_.resize(n);
    batch_ = {ids_, positions_, slots_, seqs_, pages_, max_pages, wanted_};
  }

  template <class Run>
  Result<double> median(int64_t rows, Run run) {
    prepare(rows);
    INGOT_TRY(run());  // memory grows, weights come in
    std::vector<double> seconds;
    for (int i = 0; i < kRepeats; ++i) {
      prepare(rows);
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
  std::vector<int32_t> pages_, ids_, positions_, slots_, seqs_, wanted_;
  std::vector<float> logits_, hidden_, out_hidden_;
  std::vector<kernels::DrawRow> draws_;
  std::vector<kernels::SampledRow> results_;
  model::ForwardBatch batch_;
};

}  // namespace

Result<sched::StepCost> measure_step_cost(model::Glm& glm, model::KvCache& cache, ThreadPool& pool, int64_t max_rows) {
  INGOT_CHECK(glm.has_mtp() && max_rows > 0);
  max_rows = std::min(max_rows, capacity_of(cache));
  Meter meter(glm, cache, pool, max_rows);
  // The first step of a process finds nothing in memory, and it must not be the plain one that all others are compared with.
  INGOT_TRY(meter.step(max_rows));
  INGOT_TRY(meter.pass(max_rows));
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
