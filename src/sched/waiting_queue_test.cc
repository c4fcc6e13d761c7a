// The queue against a plain twin that looks at everyone and counts one by one. Symptoms: a step that slows down with the length of the
// queue is what the indices are for; a request that never has its turn, or one that goes before its turn, is what they must not bring.
#include "sched/waiting_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"

namespace ingot::sched {
namespace {

struct Twin {
  Sequence* sequence = nullptr;
  uint64_t arrival = 0;
  int32_t priority = 0;
  bool fresh = true;
  int64_t cached = 0;
  int64_t count = 0;
};

class TwoQueues {
 public:
  TwoQueues(Policy policy, int32_t max_overtaken) : queue_(policy, max_overtaken), policy_(policy), max_overtaken_(max_overtaken) {}

  void submit(int32_t priority, int64_t cached) {
    auto sequence = std::make_unique<Sequence>();
    sequence->arrival = next_arrival_++;
    sequence->request.priority = priority;
    sequence->ranked_pages = cached;
    twins_.push_back({sequence.get(), sequence->arrival, priority, true, cached, 0});
    queue_.push(std::move(sequence));
  }
  void admit() {
    if (queue_.empty()) return;
    Sequence& chosen = queue_.next([](Sequence& s) { return s.ranked_pages; });
    const auto best = std::min_element(twins_.begin(), twins_.end(), [&](const Twin& a, const Twin& b) { return rank(a) < rank(b); });
    ASSERT_EQ(&chosen, best->sequence) << "arrival " << chosen.arrival << ", but it is the turn of " << best->arrival;
    Twin gone = *best;
    const bool is_oldest = std::none_of(twins_.begin(), twins_.end(), [&](const Twin& t) { return t.fresh && t.arrival < gone.arrival; });
    if (gone.fresh && !is_oldest) gone.count = 0;  // it did not starve
    twins_.erase(best);
    for (Twin& twin : twins_) twin.count += twin.arrival < gone.arrival ? 1 : 0;
    running_.emplace_back(queue_.admit(chosen), gone);
  }
  void preempt(size_t index) {
    auto [sequence, twin] = std::move(running_[index]);
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
    ++sequence->num_preempted;
    twin.fresh = false;
    twins_.push_back(twin);
    queue_.push(std::move(sequence));
  }
  void end_waiting(size_t index) {
    queue_.remove(*twins_[index].sequence);
    twins_.erase(twins_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  void check() {
    queue_.verify();
    ASSERT_EQ(queue_.size(), twins_.size());
    for (const Twin& twin : twins_) {
      ASSERT_EQ(queue_.num_overtaken(*twin.sequence), twin.count) << "arrival " << twin.arrival;
      ASSERT_LE(twin.count, max_overtaken_) << "arrival " << twin.arrival << " starves";
    }
  }

  std::vector<Twin> twins_;
  std::vector<std::pair<std::unique_ptr<Sequence>, Twin>> running_;

 private:
  std::tuple<bool, int64_t, bool, int64_t, uint64_t> rank(const Twin& t) const {
    if (t.count >= max_overtaken_) return {false, 0, false, 0, t.arrival};
    return {true, -t.priority, t.fresh, policy_ == Policy::lpm && t.fresh ? -t.cached : 0, t.arrival};
  }

  WaitingQueue queue_;
  const Policy policy_;
  const int64_t max_overtaken_;
  uint64_t next_arrival_ = 0;
};

TEST(WaitingQueue, TheTurnIsThatOfAPlainScanOfAll) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    TwoQueues queues(rng.below(2) == 0 ? Policy::fcfs : Policy::lpm, static_cast<int32_t>(rng.below(12)));
    const uint64_t priorities = 1 + rng.below(3);
    for (int action = 0; action < 400 && !HasFailure(); ++action) {
      switch (rng.below(6)) {
        case 0:
        case 1:
        case 2:
          // Fewer than lpm ranks: beyond, its choice is not that of all.
          if (queues.twins_.size() < WaitingQueue::kMaxRanked)
            queues.submit(static_cast<int32_t>(rng.below(priorities)), static_cast<int64_t>(rng.below(4)));
          break;
        case 3: queues.admit(); break;
        case 4:
          if (!queues.running_.empty() && rng.below(2) == 0) queues.preempt(rng.below(queues.running_.size()));
          break;
        case 5:
          if (!queues.twins_.empty() && rng.below(3) == 0) queues.end_waiting(rng.below(queues.twins_.size()));
          break;
      }
      queues.check();
    }
  }
}

}  // namespace
}  // namespace ingot::sched
