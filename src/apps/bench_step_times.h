// Times of a step: on a GPU by events that are part of its graph, so that kernels run back to back and nothing waits for the host; on the
// CPU by the clock. Used by the local benchmarks on the model's thread.
#pragma once

#include <chrono>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gpu/accelerator.h"
#include "gpu/stream.h"

namespace ingot::apps {

inline double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class StepTimes final : public gpu::OpObserver {
 public:
  // whole: from the first operation to the last, two events. every_op: one event behind each operation, which costs a little time of its
  // own; an operation's time is from the end of the one before it, gap included.
  enum class Detail : uint8_t { whole, every_op };
  struct Op {
    std::string_view op, kernel;
    gpu::OpCost cost;
  };

  // device: null on the CPU.
  StepTimes(std::shared_ptr<gpu::Accelerator> device, Detail detail) : device_(std::move(device)), detail_(detail) {}
  ~StepTimes() override;
  StepTimes(const StepTimes&) = delete;
  StepTimes& operator=(const StepTimes&) = delete;

  // Before and after each step of one shape. The first one is needed to count operations and has no times.
  void begin_step() { next_ = 0; }
  void end_step();

  void before(std::string_view op, std::string_view kernel, const gpu::OpCost& cost) override;
  void after() override;

  // Of the step that ended last, run or replayed; after the device has finished. Errors: the driver's.
  Result<double> whole_ms() const;
  Result<std::vector<double>> op_ms() const;
  const std::vector<Op>& ops() const { return ops_; }

 private:
  void mark(size_t event);
  Result<double> between(size_t from, size_t to) const;  // ms

  std::shared_ptr<gpu::Accelerator> device_;
  const Detail detail_;
  std::vector<gpu::Event> events_;  // of a GPU
  std::vector<double> moments_;     // of the CPU, seconds
  std::vector<Op> ops_;
  size_t next_ = 0;   // operations of this step so far
  size_t total_ = 0;  // of a step; 0: none has ended
  bool empty_ = false;
};

// The operations of a step over several runs, those that are alike together, in the order in which they come.
class OpTotals {
 public:
  // What is alike: what it is for and what runs it, and the shape, too.
  enum class Alike : uint8_t { kernel, kernel_and_shape };
  struct Total {
    std::string_view op, kernel;
    gpu::OpShape shape;  // of the first
    int64_t calls = 0;   // in a step
    double bytes = 0, flop = 0;
    std::vector<double> ms;  // of each run, all calls
  };

  explicit OpTotals(Alike alike) : alike_(alike) {}
  // Adds the step that ended last. Errors: the driver's.
  Result<> add(const StepTimes& times);
  // Those of others, which were timed as often, behind these.
  void join(const OpTotals& others) { totals_.insert(totals_.end(), others.totals_.begin(), others.totals_.end()); }
  const std::vector<Total>& totals() const { return totals_; }

 private:
  Total& total_of(const StepTimes::Op& op);

  Alike alike_;
  std::vector<Total> totals_;
  size_t runs_ = 0;
};

// Calls after(ms of the call) for every run that is timed: `runs` of them, fewer when time is up. Two runs before are not: the first gets
// the memory, the second makes a GPU's graph. Returns how many were. Errors: those of run and after.
template <class Run, class After>
Result<int> repeat(int runs, double time_limit_s, Run run, After after) {
  const double start = seconds_now();
  int timed = 0;
  for (int i = 0; i < runs + 2; ++i) {
    const double before = seconds_now();
    INGOT_TRY(run());
    const double now = seconds_now();
    if (i < 2) continue;
    INGOT_TRY(after(1000 * (now - before)));
    ++timed;
    if (now - start > time_limit_s) break;
  }
  return timed;
}

}  // namespace ingot::apps
