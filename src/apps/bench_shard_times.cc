#include "apps/bench_shard_times.h"

#include "base/check.h"

namespace ingot::apps {

StepTimes::~StepTimes() {
  device_->enter();
  for (const gpu::Event event : events_) device_->driver().destroy(event);
}

void StepTimes::end_step() {
  if (next_ == 0) return;  // replayed: nothing was shown, and the events are those of the capture
  INGOT_CHECK(total_ == 0 || next_ == total_, "a step of {} operations after one of {}", next_, total_);
  total_ = next_;
}

void StepTimes::mark(size_t event) {
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

Result<double> StepTimes::whole_ms() const {
  INGOT_CHECK(total_ > 0 && events_.size() > 1, "no step was timed");
  INGOT_ASSIGN(const float ms, device_->driver().elapsed_ms(events_[0], events_[detail_ == Detail::whole ? 1 : total_]));
  return static_cast<double>(ms);
}

Result<std::vector<double>> StepTimes::op_ms() const {
  INGOT_CHECK(detail_ == Detail::every_op && total_ > 0, "no operations were timed");
  std::vector<double> times;
  for (size_t i = 0; i < total_; ++i) {
    INGOT_ASSIGN(const float ms, device_->driver().elapsed_ms(events_[i], events_[i + 1]));
    times.push_back(static_cast<double>(ms));
  }
  return times;
}

}  // namespace ingot::apps
