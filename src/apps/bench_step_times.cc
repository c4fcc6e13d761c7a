#include "apps/bench_step_times.h"

#include <algorithm>

#include "base/check.h"

namespace ingot::apps {

StepTimes::~StepTimes() {
  if (!device_) return;
  device_->enter();
  for (const gpu::Event event : events_) device_->driver().destroy(event);
}

void StepTimes::end_step() {
  if (next_ == 0) return;  // replayed: nothing was shown, and the events are those of the capture
  INGOT_CHECK(total_ == 0 || next_ == total_, "a step of {} operations after one of {}", next_, total_);
  total_ = next_;
}

void StepTimes::mark(size_t event) {
  if (!device_) {
    moments_.resize(std::max(moments_.size(), event + 1));
    moments_[event] = seconds_now();
    return;
  }
  while (events_.size() <= event) {
    auto made = device_->driver().create_event(true);
    if (!made) return device_->report(std::move(made).error());
    events_.push_back(*made);
  }
  device_->record(events_[event]);
}

void StepTimes::before(std::string_view op, std::string_view kernel, const gpu::OpCost& cost) {
  // Of no rows: it launches nothing.
  empty_ = cost.bytes == 0 && cost.flop == 0;
  if (empty_) return;
  // Of a whole step not before its end is known, so that both events are of the same steps.
  if (next_ == 0 && (detail_ == Detail::every_op || total_ > 0)) mark(0);
  if (ops_.size() <= next_) ops_.resize(next_ + 1);
  ops_[next_] = {op, kernel, cost};
}

void StepTimes::after() {
  if (empty_) return;
  ++next_;
  if (detail_ == Detail::every_op)
    mark(next_);
  else if (next_ == total_)
    mark(1);
}

Result<double> StepTimes::between(size_t from, size_t to) const {
  if (!device_) return 1000 * (moments_[to] - moments_[from]);
  INGOT_ASSIGN(const float ms, device_->driver().elapsed_ms(events_[from], events_[to]));
  return static_cast<double>(ms);
}

Result<double> StepTimes::whole_ms() const {
  INGOT_CHECK(total_ > 0 && std::max(events_.size(), moments_.size()) > 1, "no step was timed");
  return between(0, detail_ == Detail::whole ? 1 : total_);
}

Result<std::vector<double>> StepTimes::op_ms() const {
  INGOT_CHECK(detail_ == Detail::every_op && total_ > 0, "no operations were timed");
  std::vector<double> times;
  for (size_t i = 0; i < total_; ++i) {
    INGOT_ASSIGN(const double ms, between(i, i + 1));
    times.push_back(ms);
  }
  return times;
}

OpTotals::Total& OpTotals::total_of(const StepTimes::Op& op) {
  const auto found = std::find_if(totals_.begin(), totals_.end(), [&](const Total& t) {
    return t.op == op.op && t.kernel == op.kernel && (alike_ == Alike::kernel || t.shape == op.cost.shape);
  });
  if (found != totals_.end()) return *found;
  return totals_.emplace_back(Total{op.op, op.kernel, op.cost.shape, 0, 0, 0, {}});
}

Result<> OpTotals::add(const StepTimes& times) {
  INGOT_ASSIGN(const std::vector<double> ms, times.op_ms());
  ++runs_;
  for (Total& total : totals_) total.calls = 0, total.bytes = 0, total.flop = 0;
  for (size_t i = 0; i < ms.size(); ++i) {
    Total& total = total_of(times.ops()[i]);
    ++total.calls;
    total.bytes += times.ops()[i].cost.bytes;
    total.flop += times.ops()[i].cost.flop;
    total.ms.resize(runs_);
    total.ms.back() += ms[i];
  }
  return {};
}

}  // namespace ingot::apps
