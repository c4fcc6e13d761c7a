// The requests that wait for their turn, and whose turn it is. Owned by the scheduler, used by its thread. A queue of thousands costs a
// step nothing and an admission the logarithm of its length (under lpm kMaxRanked estimates beside), and so does whoever leaves.
//
// The order: who starves, oldest first; then by priority; within it those that were preempted, by arrival; then, under fcfs, by arrival,
// under lpm the longest cached prefix of the first kMaxRanked, by arrival when these are equal.
//
// Who starves was overtaken by max_overtaken later arrivals. Whoever goes before the newest of many waiting overtakes them all, so the
// counts are not kept one by one: a sequence has a mark, and was overtaken as often as its mark and those of all that came after it
// together say. Of those that were never preempted the oldest has the highest count, which is the sum of all marks; if it does not starve,
// none does. The few that were preempted count for themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "sched/sequence.h"

namespace ingot::sched {

// Which waiting request is next, within a priority.
enum class Policy : uint8_t {
  fcfs,  // first come, first served
  lpm,   // longest cached prefix first
};

class WaitingQueue {
 public:
  // Ranking by cached prefix looks at so many of the waiting. Bounds the cost of a long queue.
  static constexpr int kMaxRanked = 128;

  WaitingQueue(Policy policy, int32_t max_overtaken) : policy_(policy), max_overtaken_(max_overtaken) {}

  bool empty() const { return all_.empty(); }
  size_t size() const { return all_.size(); }

  // Arrival and preemption say where it stands; neither may change while it waits.
  void push(std::unique_ptr<Sequence> sequence);
  // Whose turn it is, of a queue that is not empty. `cached_pages` tells how long a cached prefix a sequence has.
  Sequence& next(const std::function<int64_t(Sequence&)>& cached_pages);
  // It goes: all that came before it are overtaken.
  std::unique_ptr<Sequence> admit(Sequence& sequence);
  // It has ended.
  std::unique_ptr<Sequence> remove(const Sequence& sequence);
  void clear();
  // By arrival. `visit` must not change the queue.
  template <class Visit>
  void each(Visit visit) const {
    for (const auto& [arrival, sequence] : all_) visit(*sequence);
  }

  // Later arrivals that went before it, since it came or was preempted first. Walks the queue: for tests.
  int64_t num_overtaken(const Sequence& sequence) const;
  // Aborts when the indices disagree. For tests.
  void verify() const;

 private:
  using Rank = std::tuple<int64_t, bool, uint64_t>;  // less goes first: (-priority, never preempted, arrival)
  static Rank rank_of(const Sequence& sequence);
  static bool is_fresh(const Sequence& sequence) { return sequence.num_preempted == 0; }

  const Policy policy_;
  const int64_t max_overtaken_;
  std::map<uint64_t, std::unique_ptr<Sequence>> all_;  // by arrival
  std::map<Rank, Sequence*> ranked_;
  std::map<uint64_t, Sequence*> fresh_;      // never preempted, by arrival
  std::map<uint64_t, Sequence*> preempted_;  // the others
  int64_t sum_of_marks_ = 0;                 // of fresh_: Sequence::overtaken_mark
};

}  // namespace ingot::sched
