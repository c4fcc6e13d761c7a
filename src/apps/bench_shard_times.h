// Times of a step on a GPU by events that are part of its graph: kernels run back to back, and nothing waits for the host. Used by
// `ingot bench shard` on the model's thread.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gpu/accelerator.h"
#include "gpu/stream.h"

namespace ingot::apps {

class StepTimes final : public gpu::OpObserver {
 public:
  // whole: from the first operation to the last, two events. every_op: one event behind each operation, which costs a little time of its
  // own; an operation's time is from the end of the one before it, gap included.
  enum class Detail : uint8_t { whole, every_op };
  struct Op {
    std::string_view op, kernel;
    gpu::OpCost cost;
  };

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

  std::shared_ptr<gpu::Accelerator> device_;
  const Detail detail_;
  std::vector<gpu::Event> events_;
  std::vector<Op> ops_;
  size_t next_ = 0;   // operations of this step so far
  size_t total_ = 0;  // of a step; 0: none has ended
  bool empty_ = false;
};

}  // namespace ingot::apps
