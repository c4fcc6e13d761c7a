#include "model/collective.h"

#include <algorithm>
#include <barrier>

#include "base/check.h"

namespace ingot::model {

struct EmulatedRanks::Meeting {
  explicit Meeting(int ranks) : parts(static_cast<size_t>(ranks)), everybody(ranks) {}
  std::vector<const float*> parts;  // of each rank, while a collective is under way
  std::barrier<> everybody;
};

namespace {

template <class Meeting>
class EmulatedRank final : public Collective {
 public:
  EmulatedRank(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  int ranks() const override { return static_cast<int>(meeting_.parts.size()); }
  int rank() const override { return rank_; }

  void all_reduce(gpu::Stream& stream, float* data, int64_t count) const override {
    INGOT_CHECK(stream.device == nullptr, "emulated ranks are of the CPU");
    meeting_.parts[static_cast<size_t>(rank_)] = data;
    meeting_.everybody.arrive_and_wait();
    std::vector<float> sum(meeting_.parts[0], meeting_.parts[0] + count);
    for (size_t r = 1; r < meeting_.parts.size(); ++r)
      for (int64_t i = 0; i < count; ++i) sum[static_cast<size_t>(i)] += meeting_.parts[r][i];
    meeting_.everybody.arrive_and_wait();  // nobody reads parts any more
    std::copy(sum.begin(), sum.end(), data);
  }

  void all_gather(gpu::Stream& stream, const float* part, float* all, int64_t rows, int64_t width) const override {
    INGOT_CHECK(stream.device == nullptr, "emulated ranks are of the CPU");
    meeting_.parts[static_cast<size_t>(rank_)] = part;
    meeting_.everybody.arrive_and_wait();
    const int64_t all_ranks = ranks();
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t r = 0; r < all_ranks; ++r)
        std::copy_n(meeting_.parts[static_cast<size_t>(r)] + row * width, width, all + (row * all_ranks + r) * width);
    meeting_.everybody.arrive_and_wait();
  }

 private:
  Meeting& meeting_;
  const int rank_;
};

}  // namespace

EmulatedRanks::EmulatedRanks(int ranks) : meeting_(std::make_unique<Meeting>(ranks)) {
  for (int r = 0; r < ranks; ++r) ranks_.push_back(std::make_unique<EmulatedRank<Meeting>>(*meeting_, r));
}
EmulatedRanks::~EmulatedRanks() = default;

const Collective& EmulatedRanks::rank(int r) const { return *ranks_.at(static_cast<size_t>(r)); }

}  // namespace ingot::model
