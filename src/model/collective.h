// Collectives: what the ranks of a tensor-parallel group say to each other in a step. One object a rank, called by its forward pass
// alone; all ranks make the same calls in the same order. Without one (a null pointer where one is asked for) a rank is the whole model.
//
// The residual stream is the same on every rank. Rank 0 adds the product of its part of a linear to it, the others put theirs in its
// place, and the sum of all is the new residual: no copy, no second addition.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gpu/stream.h"

namespace ingot::model {

class Collective {
 public:
  virtual ~Collective() = default;
  virtual int ranks() const = 0;
  virtual int rank() const = 0;
  // data (count) becomes the sum of all ranks' data, the same bits everywhere. It lies where the stream's machine computes, and the sum
  // is in order with the stream's other work.
  virtual void all_reduce(gpu::Stream& stream, float* data, int64_t count) const = 0;
  // all (rows, ranks * width): part (rows, width) of rank r goes to columns r * width and on. `all` is no part's memory.
  virtual void all_gather(gpu::Stream& stream, const float* part, float* all, int64_t rows, int64_t width) const = 0;
};

// Ranks that are threads of this process, on the CPU: for tests. A call returns when every rank has made it; sums go in rank order.
// Outlived by the threads that use it; rank(r) by nothing but it.
class EmulatedRanks {
 public:
  explicit EmulatedRanks(int ranks);
  ~EmulatedRanks();
  EmulatedRanks(const EmulatedRanks&) = delete;
  EmulatedRanks& operator=(const EmulatedRanks&) = delete;

  const Collective& rank(int r) const;

 private:
  struct Meeting;
  std::unique_ptr<Meeting> meeting_;
  std::vector<std::unique_ptr<Collective>> ranks_;
};

}  // namespace ingot::model
