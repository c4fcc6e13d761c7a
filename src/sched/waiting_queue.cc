#include "sched/waiting_queue.h"

#include <iterator>
#include <utility>

#include "base/check.h"

namespace ingot::sched {

WaitingQueue::Rank WaitingQueue::rank_of(const Sequence& sequence) {
  return {-int64_t{sequence.request.priority}, is_fresh(sequence), sequence.arrival};
}

void WaitingQueue::push(std::unique_ptr<Sequence> sequence) {
  Sequence& s = *sequence;
  INGOT_CHECK(all_.emplace(s.arrival, std::move(sequence)).second);
  ranked_.emplace(rank_of(s), &s);
  s.overtaken_mark = 0;
  (is_fresh(s) ? fresh_ : preempted_).emplace(s.arrival, &s);
}

Sequence& WaitingQueue::next(const std::function<int64_t(Sequence&)>& cached_pages) {
  INGOT_CHECK(!empty());
  const bool fresh_starves = !fresh_.empty() && sum_of_marks_ >= max_overtaken_;
  for (const auto& [arrival, sequence] : preempted_) {
    if (fresh_starves && fresh_.begin()->first < arrival) break;
    if (sequence->num_overtaken >= max_overtaken_) return *sequence;
  }
  if (fresh_starves) return *fresh_.begin()->second;
  Sequence* best = ranked_.begin()->second;
  if (policy_ == Policy::fcfs || !is_fresh(*best)) return *best;
  int64_t most_cached = -1;
  int looked_at = 0;
  for (const auto& [rank, sequence] : ranked_) {
    if (std::get<0>(rank) != std::get<0>(ranked_.begin()->first) || ++looked_at > kMaxRanked) break;
    const int64_t cached = cached_pages(*sequence);
    if (cached <= most_cached) continue;
    best = sequence;
    most_cached = cached;
  }
  return *best;
}

std::unique_ptr<Sequence> WaitingQueue::admit(Sequence& sequence) {
  // One that starves goes on starving when it is preempted.
  if (is_fresh(sequence) && fresh_.begin()->second == &sequence) sequence.num_overtaken = sum_of_marks_;
  for (const auto& [arrival, other] : preempted_) {
    if (arrival >= sequence.arrival) break;
    ++other->num_overtaken;
  }
  // The mark of the last one before it counts for all of them.
  if (auto after = fresh_.lower_bound(sequence.arrival); after != fresh_.begin()) {
    ++std::prev(after)->second->overtaken_mark;
    ++sum_of_marks_;
  }
  return remove(sequence);
}

std::unique_ptr<Sequence> WaitingQueue::remove(const Sequence& sequence) {
  const auto it = all_.find(sequence.arrival);
  INGOT_CHECK(it != all_.end() && it->second.get() == &sequence);
  ranked_.erase(rank_of(sequence));
  if (is_fresh(sequence)) {
    const auto place = fresh_.find(sequence.arrival);
    // Those before it keep what its mark says of them.
    if (place != fresh_.begin())
      std::prev(place)->second->overtaken_mark += sequence.overtaken_mark;
    else
      sum_of_marks_ -= sequence.overtaken_mark;
    fresh_.erase(place);
  } else {
    preempted_.erase(sequence.arrival);
  }
  return std::move(all_.extract(it).mapped());
}

void WaitingQueue::clear() {
  ranked_.clear();
  fresh_.clear();
  preempted_.clear();
  all_.clear();
  sum_of_marks_ = 0;
}

int64_t WaitingQueue::num_overtaken(const Sequence& sequence) const {
  if (!is_fresh(sequence)) return sequence.num_overtaken;
  int64_t count = 0;
  for (auto it = fresh_.find(sequence.arrival); it != fresh_.end(); ++it) count += it->second->overtaken_mark;
  return count;
}

void WaitingQueue::verify() const {
  INGOT_CHECK(ranked_.size() == all_.size() && fresh_.size() + preempted_.size() == all_.size());
  int64_t marks = 0;
  for (const auto& [arrival, sequence] : all_) {
    INGOT_CHECK(sequence->arrival == arrival && ranked_.at(rank_of(*sequence)) == sequence.get());
    INGOT_CHECK((is_fresh(*sequence) ? fresh_ : preempted_).at(arrival) == sequence.get());
    if (is_fresh(*sequence)) marks += sequence->overtaken_mark;
  }
  INGOT_CHECK(marks == sum_of_marks_, "marks of {} and a sum of {}", marks, sum_of_marks_);
}

}  // namespace ingot::sched
