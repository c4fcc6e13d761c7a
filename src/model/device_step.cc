#include "model/device_step.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace ingot::model {
namespace {

constexpr int64_t kMaxGraphRows = 128;     // larger steps are long enough to hide the launches
constexpr size_t kMaxGraphs = 256;         // then steps of new shapes are launched one by one
constexpr int64_t kMinScoreStride = 1024;  // positions
constexpr size_t kAlignment = 256;

int64_t power_of_two(int64_t count) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count))); }

// Less than a quarter more rows than needed, and none up to eight.
int64_t filled_rows(int64_t rows) {
  if (rows <= 8) return rows;
  const int64_t step = power_of_two(rows) / 8;
  return (rows + step - 1) / step * step;
}

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Arrays put one after the other into pinned memory, and where they will be on the GPU.
class Packer {
 public:
  explicit Packer(std::byte* host) : host_(host) {}
  // `values`, then as many of `filler` as `count` asks for. Returns the offset.
  template <class T>
  size_t add(std::span<const T> values, int64_t count, T filler) {
    T* to = reinterpret_cast<T*>(host_ + end_);
    std::copy(values.begin(), values.end(), to);
    std::fill(to + values.size(), to + count, filler);
    const size_t offset = end_;
    end_ += aligned(static_cast<size_t>(count) * sizeof(T));
    return offset;
  }
  size_t end() const { return end_; }

 private:
  std::byte* host_;
  size_t end_ = 0;
};

}  // namespace

DeviceSteps::DeviceSteps(std::shared_ptr<gpu::Accelerator> device, Workspace& work, const GlmOptions& options,
                         const spec::ModelConfig& config)
    : device_(std::move(device)), work_(work), options_(options), config_(config) {}

DeviceSteps::~DeviceSteps() {
  device_->enter();
  drop_graphs();
}

void DeviceSteps::drop_graphs() {
  for (auto& [key, captured] : captured_) {
    if (captured.graph.handle != nullptr) device_->driver().destroy(captured.graph);
    captured.graph = {};
  }
  counts_.graphs = 0;
}

DeviceSteps::Shape DeviceSteps::shape_of(const Job& job) const {
  const ForwardBatch& batch = *job.batch;
  const auto rows = static_cast<int64_t>(batch.token_ids.size()), logit_rows = static_cast<int64_t>(batch.logit_rows.size());
  const int64_t seqs = static_cast<int64_t>(batch.page_table.size()) / batch.max_pages;
  // The expanded form looks at the sequences one by one.
  if (!options_.graphs || rows > kMaxGraphRows || options_.mla_form != MlaForm::absorbed)
    return {rows, logit_rows, seqs, batch.max_pages, 0, false};
  const int64_t last = *std::max_element(batch.positions.begin(), batch.positions.end());
  const int64_t scores = last < config_.index_topk ? 0 : std::max(power_of_two(last + 1), kMinScoreStride);
  return {filled_rows(rows), filled_rows(logit_rows), power_of_two(seqs), power_of_two(batch.max_pages), scores, true};
}

Step DeviceSteps::upload(const Job& job, const Shape& shape) {
  const ForwardBatch& given = *job.batch;
  const int64_t hidden_size = job.hidden.empty() ? 0 : config_.hidden_size;
  const int64_t list_width = job.lists.empty() ? 0 : job.list_width;
  const auto bytes_of = [](int64_t count) { return aligned(static_cast<size_t>(count) * 4); };
  const size_t bytes = 4 * bytes_of(shape.rows) + bytes_of(shape.logit_rows) + bytes_of(shape.seqs * shape.max_pages) +
                       bytes_of(shape.rows * hidden_size) + bytes_of(shape.rows * list_width);
  if (in_.bytes() < bytes) {
    in_ = {};
    auto memory = gpu::HostMemory::allocate(device_, bytes + bytes / 2);
    if (!memory) {
      device_->report(std::move(memory).error());
      return {};
    }
    in_ = std::move(*memory);
  }
  std::byte* there = work_.inputs.ensure(static_cast<int64_t>(bytes));

  Packer packer(in_.data());
  // A row that fills up reads position 0 of the first sequence, and stores nothing.
  const size_t token_ids = packer.add(given.token_ids, shape.rows, 0), positions = packer.add(given.positions, shape.rows, 0),
               slots = packer.add(given.slots, shape.rows, -1), seq_of_token = packer.add(given.seq_of_token, shape.rows, 0),
               logit_rows = packer.add(given.logit_rows, shape.logit_rows, 0);
  const size_t page_table = packer.add(std::span<const int32_t>(), shape.seqs * shape.max_pages, 0);
  auto* pages = reinterpret_cast<int32_t*>(in_.data() + page_table);
  for (int64_t first = 0; first < static_cast<int64_t>(given.page_table.size()); first += given.max_pages)
    std::copy_n(given.page_table.data() + first, given.max_pages, pages + first / given.max_pages * shape.max_pages);
  const size_t hidden = packer.add(job.hidden, shape.rows * hidden_size, 0.0f);
  const size_t lists = packer.add(job.lists, shape.rows * list_width, -1);
  INGOT_CHECK(packer.end() == bytes);
  device_->copy(there, in_.data(), bytes);

  const auto host = [&](size_t offset, int64_t count) {
    return std::span<const int32_t>(reinterpret_cast<const int32_t*>(in_.data() + offset), static_cast<size_t>(count));
  };
  const auto ints = [&](size_t offset) { return reinterpret_cast<const int32_t*>(there + offset); };
  batch_ = {host(token_ids, shape.rows),
            host(positions, shape.rows),
            host(slots, shape.rows),
            host(seq_of_token, shape.rows),
            host(page_table, shape.seqs * shape.max_pages),
            shape.max_pages,
            host(logit_rows, shape.logit_rows)};
  Step step;
  step.batch = &batch_;
  step.token_ids = ints(token_ids);
  step.positions = ints(positions);
  step.slots = ints(slots);
  step.seq_of_token = ints(seq_of_token);
  step.page_table = ints(page_table);
  step.logit_rows = ints(logit_rows);
  if (hidden_size > 0) step.hidden = reinterpret_cast<const float*>(there + hidden);
  if (list_width > 0) step.lists = ints(lists);
  step.list_width = list_width;
  step.score_stride = shape.score_stride;
  if (!job.logits.empty()) step.logits = work_.out_logits.ensure(shape.logit_rows * config_.vocab_size);
  if (!job.out_hidden.empty()) step.out_hidden = work_.out_hidden.ensure((job.mtp ? shape.logit_rows : shape.rows) * config_.hidden_size);
  if (!job.out_lists.empty()) step.out_lists = work_.out_lists.ensure(shape.logit_rows * config_.index_topk);
  return step;
}

Result<> DeviceSteps::run(const Job& job, KvCache& cache, const std::function<void(const Step&)>& forward) {
  device_->enter();
  ++counts_.steps;
  const Shape shape = shape_of(job);
  const Step step = upload(job, shape);
  if (step.batch == nullptr) return device_->finish();
  const Key key{job.mtp,
                shape.rows,
                shape.logit_rows,
                shape.seqs,
                shape.max_pages,
                shape.score_stride,
                step.list_width,
                step.logits != nullptr,
                step.out_hidden != nullptr,
                step.out_lists != nullptr,
                static_cast<int64_t>(reinterpret_cast<uintptr_t>(cache.latents(0))),
                cache.options().num_pages,
                cache.options().page_size,
                static_cast<int64_t>(cache.options().dtype)};
  const auto known = captured_.find(key);
  if (!shape.graph || (known == captured_.end() && captured_.size() >= kMaxGraphs)) {
    forward(step);
    return download(job, step);
  }
  if (moves_ != work_.memory.moves) drop_graphs();
  moves_ = work_.memory.moves;
  Captured& captured = captured_[key];
  if (!captured.tried) {
    forward(step);
    captured.tried = true;
  } else {
    if (captured.graph.handle == nullptr) {
      INGOT_TRY(device_->begin_capture());
      work_.memory.may_move = false;
      forward(step);
      work_.memory.may_move = true;
      INGOT_ASSIGN(captured.graph, device_->end_capture());
      ++counts_.graphs;
      counts_.launches = static_cast<int64_t>(captured.graph.nodes);
    }
    device_->replay(captured.graph);
    ++counts_.replayed;
  }
  return download(job, step);
}

Result<> DeviceSteps::download(const Job& job, const Step& step) {
  const size_t parts[] = {job.logits.size_bytes(), job.out_hidden.size_bytes(), job.out_lists.size_bytes()};
  const void* const from[] = {step.logits, step.out_hidden, step.out_lists};
  void* const to[] = {job.logits.data(), job.out_hidden.data(), job.out_lists.data()};
  size_t bytes = 0;
  for (const size_t part : parts) bytes += aligned(part);
  if (out_.bytes() < bytes) {
    out_ = {};
    INGOT_ASSIGN(out_, gpu::HostMemory::allocate(device_, bytes + bytes / 2));
  }
  size_t offset = 0;
  for (size_t i = 0; i < 3; ++i) {
    if (parts[i] > 0) device_->copy(out_.data() + offset, from[i], parts[i]);
    offset += aligned(parts[i]);
  }
  INGOT_TRY(device_->finish());
  offset = 0;
  for (size_t i = 0; i < 3; ++i) {
    if (parts[i] > 0) std::memcpy(to[i], out_.data() + offset, parts[i]);
    offset += aligned(parts[i]);
  }
  return {};
}

}  // namespace ingot::model
