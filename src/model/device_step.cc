#include "model/device_step.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/ops.h"

namespace ingot::model {
namespace {

constexpr int64_t kMaxGraphRows = gpu::kMaxStreamRows;  // larger steps are long enough to hide the launches
constexpr size_t kMaxGraphs = 256;                      // then steps of new shapes are launched one by one
constexpr int64_t kMinScoreStride = 1024;               // positions
constexpr size_t kAlignment = 256;
constexpr size_t kMinPinned = 1 << 20;  // bytes: growing costs a wait
// Where a graph finds its arrays: those that the caller gave, or those that stay between queued steps.
constexpr int64_t kCallersArrays = 0, kQueuedArrays = 1;

int64_t power_of_two(int64_t count) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count))); }

// Less than a quarter more rows than needed, and none up to eight.
int64_t filled_rows(int64_t rows) {
  if (rows <= 8) return rows;
  const int64_t step = power_of_two(rows) / 8;
  return (rows + step - 1) / step * step;
}

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
size_t ints_bytes(int64_t count) { return aligned(static_cast<size_t>(count) * 4); }

}  // namespace

// Arrays on their way to the GPU, one after the other: in pinned memory, and where they will be there.
class DeviceSteps::Packer {
 public:
  Packer(std::byte* host, std::byte* there, size_t capacity) : host_(host), there_(there), capacity_(capacity) {}
  // `values`, then as many of `filler` as `count` asks for. Returns where they will be.
  template <class T>
  T* add(std::span<const T> values, int64_t count, T filler) {
    T* to = host<T>();
    std::copy(values.begin(), values.end(), to);
    std::fill(to + values.size(), to + count, filler);
    return take<T>(count);
  }
  template <class T>
  T* add(std::span<const T> values) {
    return add(values, static_cast<int64_t>(values.size()), T{});
  }
  // What the next array is to hold, while it is written by hand.
  template <class T>
  T* host() const {
    return reinterpret_cast<T*>(host_ + end_);
  }
  template <class T>
  T* take(int64_t count) {
    if (count == 0) return nullptr;  // what is not there could seem to lie behind the end
    T* there = reinterpret_cast<T*>(there_ + end_);
    end_ += aligned(static_cast<size_t>(count) * sizeof(T));
    INGOT_CHECK(end_ <= capacity_, "an upload of more than its {} bytes", capacity_);
    return there;
  }
  const std::byte* begin() const { return host_; }
  std::byte* there() const { return there_; }
  size_t bytes() const { return end_; }

 private:
  std::byte *host_, *there_;
  size_t capacity_, end_ = 0;
};

DeviceSteps::DeviceSteps(std::shared_ptr<gpu::Accelerator> device, Workspace& work, const GlmOptions& options,
                         const spec::ModelConfig& config)
    : device_(std::move(device)), work_(work), options_(options), config_(config) {
  if (options_.graphs) counts_.most_graphs = kMaxGraphs;
}

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

DeviceSteps::Shape DeviceSteps::shape_of(const ForwardBatch& batch) const {
  const auto rows = static_cast<int64_t>(batch.token_ids.size()), logit_rows = static_cast<int64_t>(batch.logit_rows.size());
  const int64_t seqs = static_cast<int64_t>(batch.page_table.size()) / batch.max_pages;
  // The expanded form looks at the sequences one by one.
  if (!options_.graphs || rows > kMaxGraphRows || options_.mla_form != MlaForm::absorbed)
    return {rows, logit_rows, seqs, batch.max_pages, 0, false};
  const int64_t last = *std::max_element(batch.positions.begin(), batch.positions.end());
  const int64_t scores = last < config_.index_topk ? 0 : std::max(power_of_two(last + 1), kMinScoreStride);
  return {filled_rows(rows), filled_rows(logit_rows), power_of_two(seqs), power_of_two(batch.max_pages), scores, true};
}

Result<DeviceSteps::Packer> DeviceSteps::start_upload(size_t bytes, size_t others) {
  device_->enter();
  if (const size_t all = in_used_ + bytes + others; in_.bytes() < all) {
    in_ = {};  // waits
    in_used_ = 0;
    INGOT_ASSIGN(in_, gpu::HostMemory::allocate(device_, std::max(all + all / 2, kMinPinned)));
  }
  return Packer(in_.data() + in_used_, work_.inputs.ensure(static_cast<int64_t>(bytes)), bytes);
}

void DeviceSteps::finish_upload(const Packer& packer) {
  device_->copy(packer.there(), packer.begin(), packer.bytes());
  in_used_ += packer.bytes();
  counts_.bytes_up += static_cast<int64_t>(packer.bytes());
}

size_t DeviceSteps::batch_bytes(const Shape& shape) {
  return 4 * ints_bytes(shape.rows) + ints_bytes(shape.logit_rows) + ints_bytes(shape.seqs * shape.max_pages);
}

Step DeviceSteps::add_batch(Packer& packer, const ForwardBatch& given, const Shape& shape) {
  // The host's copy is what the launches are decided by.
  const auto add = [&](std::span<const int32_t> values, int64_t count, int32_t filler, std::span<const int32_t>& host) {
    host = {packer.host<int32_t>(), static_cast<size_t>(count)};
    return packer.add(values, count, filler);
  };
  Step step;
  step.batch = &batch_;
  // A row that fills up reads position 0 of the first sequence, and stores nothing.
  step.token_ids = add(given.token_ids, shape.rows, 0, batch_.token_ids);
  step.positions = add(given.positions, shape.rows, 0, batch_.positions);
  step.slots = add(given.slots, shape.rows, -1, batch_.slots);
  step.seq_of_token = add(given.seq_of_token, shape.rows, 0, batch_.seq_of_token);
  step.logit_rows = add(given.logit_rows, shape.logit_rows, 0, batch_.logit_rows);
  auto* pages = packer.host<int32_t>();
  step.page_table = add({}, shape.seqs * shape.max_pages, 0, batch_.page_table);
  for (int64_t first = 0; first < static_cast<int64_t>(given.page_table.size()); first += given.max_pages)
    std::copy_n(given.page_table.data() + first, given.max_pages, pages + first / given.max_pages * shape.max_pages);
  batch_.max_pages = shape.max_pages;
  step.score_stride = shape.score_stride;
  return step;
}

Result<> DeviceSteps::run(const Job& job, KvCache& cache, const Operations& forward) {
  const Shape shape = shape_of(*job.batch);
  const int64_t hidden_size = job.hidden.empty() ? 0 : config_.hidden_size, list_width = job.lists.empty() ? 0 : job.list_width;
  const size_t hidden_bytes = ints_bytes(shape.rows * hidden_size);
  INGOT_ASSIGN(Packer packer, start_upload(batch_bytes(shape) + ints_bytes(shape.rows * list_width), hidden_bytes));
  Step step = add_batch(packer, *job.batch, shape);
  if (list_width > 0) step.lists = packer.add(job.lists, shape.rows * list_width, -1);
  step.list_width = list_width;
  if (!job.logits.empty()) step.logits = work_.out_logits.ensure(shape.logit_rows * config_.vocab_size);
  if (!job.out_hidden.empty()) step.out_hidden = work_.out_hidden.ensure((job.mtp ? shape.logit_rows : shape.rows) * config_.hidden_size);
  if (!job.out_lists.empty()) step.out_lists = work_.out_lists.ensure(shape.logit_rows * config_.index_topk);
  finish_upload(packer);
  if (hidden_size > 0) {
    auto* staged = packer.host<float>();
    std::fill(std::copy(job.hidden.begin(), job.hidden.end(), staged), staged + shape.rows * hidden_size, 0.0f);
    float* hidden = in_hidden_.ensure(shape.rows * hidden_size);
    device_->copy(hidden, staged, static_cast<size_t>(shape.rows * hidden_size) * sizeof(float));
    in_used_ += hidden_bytes;
    counts_.bytes_up += static_cast<int64_t>(hidden_bytes);
    step.hidden = hidden;
  }
  INGOT_TRY(launch(step, shape, job.mtp, kCallersArrays, cache, forward));
  INGOT_TRY(fetch(step.logits, job.logits.data(), job.logits.size_bytes()));
  INGOT_TRY(fetch(step.out_hidden, job.out_hidden.data(), job.out_hidden.size_bytes()));
  INGOT_TRY(fetch(step.out_lists, job.out_lists.data(), job.out_lists.size_bytes()));
  return finish();
}

Result<> DeviceSteps::launch(const Step& step, const Shape& shape, bool mtp, int64_t kind, KvCache& cache, const Operations& forward) {
  ++counts_.steps;
  const Key key{mtp,
                kind,
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
                static_cast<int64_t>(cache.options().format)};
  const auto known = captured_.find(key);
  if (!shape.graph || (known == captured_.end() && captured_.size() >= kMaxGraphs)) {
    forward(step);
    return {};
  }
  if (moves_ != work_.memory.moves) drop_graphs();
  moves_ = work_.memory.moves;
  Captured& captured = captured_[key];
  if (!captured.tried) {
    forward(step);
    captured.tried = true;
    return {};
  }
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
  return {};
}

Result<> DeviceSteps::fetch(const void* from, void* to, size_t bytes) {
  if (bytes == 0) return {};
  if (const size_t all = out_used_ + bytes; out_.bytes() < all) {
    if (!fetched_.empty()) INGOT_TRY(finish());  // what is on its way goes to the memory that there is
    out_ = {};
    INGOT_ASSIGN(out_, gpu::HostMemory::allocate(device_, std::max(all + all / 2, kMinPinned)));
  }
  device_->copy(out_.data() + out_used_, from, bytes);
  fetched_.push_back({out_used_, to, bytes});
  out_used_ += aligned(bytes);
  counts_.bytes_down += static_cast<int64_t>(bytes);
  return {};
}

Result<> DeviceSteps::finish() {
  device_->enter();
  ++counts_.waits;
  const std::vector<Fetched> fetched = std::exchange(fetched_, {});
  in_used_ = out_used_ = 0;
  INGOT_TRY(device_->finish());
  for (const Fetched& f : fetched) std::memcpy(f.to, out_.data() + f.offset, f.bytes);
  return {};
}

gpu::Stream DeviceSteps::stream_of(const gpu::Stream& caller) const {
  return {nullptr, device_.get(), options_.device_matmul, caller.observer, {}};
}

size_t DeviceSteps::draw_bytes(const DrawJob& job) { return aligned(job.rows.size_bytes()) + aligned(job.changes.size_bytes()); }

DeviceSteps::DrawArrays DeviceSteps::add_draw(Packer& packer, const DrawJob& job) {
  DrawArrays arrays;
  arrays.rows = packer.add(job.rows);
  arrays.changes = packer.add(job.changes);
  for (const kernels::DrawRow& row : job.rows) {
    if (row.first_before >= 0)
      arrays.num_before = std::max<int64_t>(arrays.num_before, row.first_before + row.num_changes + row.num_drafted);
  }
  return arrays;
}

Result<> DeviceSteps::draw(gpu::Stream& stream, const DrawJob& job, const DrawArrays& arrays, float* logits, const int32_t* token_ids) {
  const auto rows = static_cast<int64_t>(job.rows.size());
  if (rows == 0) return {};
  kernels::SampledRow* results = results_.ensure(rows);
  kernels::LikelyToken* top = top_.ensure(rows * job.max_top);
  float* before = before_.ensure(arrays.num_before);
  const auto any = [&](auto wanted) { return std::any_of(job.rows.begin(), job.rows.end(), wanted); };
  const int64_t vocab = config_.vocab_size;
  if (any([](const kernels::DrawRow& row) { return row.num_top >= 0; }))
    kernels::logprob_rows(stream, {results, top, logits, arrays.rows, rows, vocab, job.max_top});
  if (any([](const kernels::DrawRow& row) { return row.changes_logits(); }))
    kernels::adjust_rows(stream, {logits, before, results, arrays.rows, arrays.changes, token_ids, nullptr, rows, vocab});
  kernels::sample_rows(stream, {results, logits, arrays.rows, arrays.changes, token_ids, before, rows, vocab});
  INGOT_TRY(fetch(results, job.results.data(), job.results.size_bytes()));
  return fetch(top, job.top.data(), job.top.size_bytes());
}

Result<> DeviceSteps::queue(const gpu::Stream& caller, const QueuedStep& job, KvCache& cache, const Operations& forward) {
  const Shape shape = shape_of(job.batch);
  INGOT_ASSIGN(Packer packer, start_upload(batch_bytes(shape) + aligned(job.token_places.size_bytes()) + draw_bytes(job.draw)));
  Step step = add_batch(packer, job.batch, shape);
  const int32_t* places = packer.add(job.token_places);
  const DrawArrays arrays = add_draw(packer, job.draw);
  if (shape.logit_rows > 0) step.logits = work_.out_logits.ensure(shape.logit_rows * config_.vocab_size);
  if (job.keeps_hidden) step.out_hidden = work_.out_hidden.ensure(shape.rows * config_.hidden_size);
  finish_upload(packer);
  gpu::Stream stream = stream_of(caller);
  take_drafts(stream, step, places, job.token_places);
  INGOT_TRY(launch(step, shape, false, kQueuedArrays, cache, forward));
  // The model's own logits, before anything is changed: neighbours in one copy.
  const auto width = static_cast<size_t>(config_.vocab_size);
  for (size_t first = 0; first < job.logits_back.size();) {
    size_t end = first + 1;
    while (end < job.logits_back.size() && job.logits_back[end] == job.logits_back[end - 1] + 1) ++end;
    INGOT_TRY(fetch(step.logits + static_cast<size_t>(job.logits_back[first]) * width, job.logits.data() + first * width,
                    (end - first) * width * sizeof(float)));
    first = end;
  }
  return draw(stream, job.draw, arrays, step.logits, step.token_ids);
}

void DeviceSteps::take_drafts(gpu::Stream& stream, const Step& step, const int32_t* there, std::span<const int32_t> places) {
  if (std::all_of(places.begin(), places.end(), [](int32_t place) { return place < 0; })) return;
  // The upload put the tokens that are known there; nobody else reads the array before.
  kernels::take_drafts(stream, {const_cast<int32_t*>(step.token_ids), drafts_.get(), there, static_cast<int64_t>(places.size())});
}

Result<> DeviceSteps::queue_mtp(const gpu::Stream& caller, const QueuedMtp& job, KvCache& cache, const Operations& forward) {
  const Shape shape = shape_of(job.batch);
  const int64_t hidden = config_.hidden_size, logit_rows = static_cast<int64_t>(job.batch.logit_rows.size());
  const bool share = config_.index_share_for_mtp_iteration;
  // Rows that fill up get the hidden state of the first.
  INGOT_ASSIGN(Packer packer, start_upload(batch_bytes(shape) + aligned(job.token_places.size_bytes()) + ints_bytes(shape.rows) +
                                           aligned(job.draft_places.size_bytes()) + draw_bytes(job.draw)));
  Step step = add_batch(packer, job.batch, shape);
  const int32_t* token_places = packer.add(job.token_places);
  const int32_t* sources = packer.add(job.hidden_rows, shape.rows, job.hidden_rows.front());
  const int32_t* draft_places = packer.add(job.draft_places);
  const DrawArrays arrays = add_draw(packer, job.draw);
  finish_upload(packer);
  gpu::Stream stream = stream_of(caller);
  if (!job.goes_on && logit_rows > 0) {
    reserve_chains(logit_rows, job.more && share);
  }
  take_drafts(stream, step, token_places, job.token_places);
  float* in_hidden = in_hidden_.ensure(shape.rows * hidden);
  const float* from = job.goes_on ? mtp_hidden_.get() : work_.out_hidden.get();
  kernels::move_rows(stream, {in_hidden, nullptr, from, kept(), sources, shape.rows, hidden});
  step.hidden = in_hidden;
  if (job.goes_on && share) {
    // To and fro between two arrays: the width tells which, so that a graph finds its lists where they were.
    const int32_t* shorter = lists_of(list_width_).get();
    int32_t* longer = lists_of(++list_width_).get();
    kernels::extend_lists(stream, {longer, shorter, sources, step.positions, shape.rows, list_width_ - 1});
    step.lists = longer;
    step.list_width = list_width_;
  }
  if (logit_rows > 0) {
    step.logits = work_.out_logits.ensure(shape.logit_rows * config_.vocab_size);
    step.out_hidden = mtp_hidden_.get();
    if (!job.goes_on && job.more && share) {
      list_width_ = config_.index_topk;
      step.out_lists = lists_of(list_width_).get();
    }
  }
  INGOT_TRY(launch(step, shape, true, kQueuedArrays, cache, forward));
  INGOT_TRY(draw(stream, job.draw, arrays, step.logits, drafts_.get()));
  if (logit_rows > 0) kernels::keep_drafts(stream, {drafts_.get(), results_.get(), draft_places, logit_rows});
  return {};
}

Result<> DeviceSteps::head(std::span<const float> hidden, std::span<float> logits, const Operations& forward) {
  INGOT_ASSIGN(Packer packer, start_upload(aligned(hidden.size_bytes())));
  Step step;
  step.hidden = packer.add(hidden);
  step.logits = work_.out_logits.ensure(static_cast<int64_t>(logits.size()));
  finish_upload(packer);
  forward(step);
  INGOT_TRY(fetch(step.logits, logits.data(), logits.size_bytes()));
  return finish();
}

Result<> DeviceSteps::queue_head(const gpu::Stream& caller, const QueuedHead& job, const Operations& forward) {
  const auto rows = static_cast<int64_t>(job.rows.size()), width = config_.hidden_size;
  INGOT_ASSIGN(Packer packer, start_upload(aligned(job.rows.size_bytes()) + draw_bytes(job.draw)));
  const int32_t* from = packer.add(job.rows);
  const DrawArrays arrays = add_draw(packer, job.draw);
  finish_upload(packer);
  gpu::Stream stream = stream_of(caller);
  float* hidden = work_.logit_hidden.ensure(rows * width);
  kernels::move_rows(stream, {hidden, nullptr, work_.out_hidden.get(), nullptr, from, rows, width});
  Step step;
  step.hidden = hidden;
  step.logits = work_.out_logits.ensure(rows * config_.vocab_size);
  forward(step);
  return draw(stream, job.draw, arrays, step.logits, nullptr);
}

Result<> DeviceSteps::fetch_drafts(std::span<int32_t> drafts) { return fetch(drafts_.get(), drafts.data(), drafts.size_bytes()); }

// Of the largest size that the chains will need, since what is in the arrays must stay: chains end, and none begins.
void DeviceSteps::reserve_chains(int64_t logit_rows, bool more) {
  const int64_t most = filled_rows(logit_rows), width = config_.index_topk + kernels::kMaxDrafted;
  mtp_hidden_.ensure(most * config_.hidden_size);
  drafts_.ensure(logit_rows * kernels::kMaxDrafted);
  if (!more) return;
  for (StepArray<int32_t>& lists : lists_) lists.ensure(most * width);
}

Result<> DeviceSteps::reserve(const StepLimits& limits) {
  // Penalties of many long contexts at once may need more, and are given it while there is some.
  constexpr int64_t kChanges = 1 << 20;
  constexpr int64_t kMaxTop = 20;
  device_->enter();
  constexpr int64_t kPageSize = 16;  // the smallest that is sensible
  const Shape shape{limits.rows, limits.logit_rows, limits.logit_rows, limits.context_length / kPageSize + 1, 0, false};
  const size_t inputs = batch_bytes(shape) + 2 * ints_bytes(limits.rows) + ints_bytes(limits.logit_rows) +
                        sizeof(kernels::DrawRow) * static_cast<size_t>(limits.logit_rows) + sizeof(kernels::LogitChange) * kChanges;
  work_.inputs.ensure(static_cast<int64_t>(inputs));
  before_.ensure(kChanges);
  results_.ensure(limits.logit_rows);
  top_.ensure(limits.logit_rows * kMaxTop);
  if (limits.kept_rows == 0) return device_->finish();
  in_hidden_.ensure(limits.rows * config_.hidden_size);
  reserve_chains(limits.logit_rows, config_.index_share_for_mtp_iteration);
  return reserve_kept(limits.kept_rows);
}

Result<> DeviceSteps::reserve_kept(int64_t count) {
  const auto width = static_cast<size_t>(config_.hidden_size) * sizeof(float), bytes = static_cast<size_t>(count) * width;
  if (bytes <= kept_.bytes()) return {};
  INGOT_ASSIGN(gpu::DeviceMemory larger, gpu::DeviceMemory::allocate(device_, std::max(bytes, kept_.bytes() + kept_.bytes() / 2)));
  if (kept_.bytes() > 0) device_->copy(larger.data(), kept_.data(), kept_.bytes());
  kept_ = std::move(larger);  // the smaller one is given back when the copy is done
  return {};
}

Result<> DeviceSteps::keep_hidden(const gpu::Stream& caller, std::span<const int32_t> rows, std::span<const int32_t> kept_rows) {
  INGOT_CHECK(rows.size() == kept_rows.size(), "{} hidden states for {} places", rows.size(), kept_rows.size());
  if (rows.empty()) return {};
  INGOT_TRY(reserve_kept(*std::max_element(kept_rows.begin(), kept_rows.end()) + 1));
  INGOT_ASSIGN(Packer packer, start_upload(aligned(rows.size_bytes()) + aligned(kept_rows.size_bytes())));
  const int32_t* from = packer.add(rows);
  const int32_t* to = packer.add(kept_rows);
  finish_upload(packer);
  gpu::Stream stream = stream_of(caller);
  kernels::move_rows(stream, {kept(), to, work_.out_hidden.get(), nullptr, from, static_cast<int64_t>(rows.size()), config_.hidden_size});
  return {};
}

}  // namespace ingot::model
