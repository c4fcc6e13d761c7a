#include "gpu/accelerator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/check.h"

namespace ingot::gpu {
namespace {

constexpr size_t kFreeShared = size_t{48} << 10;  // of a block, that need not be asked for

}  // namespace

Result<std::shared_ptr<Accelerator>> Accelerator::open(std::unique_ptr<Driver> driver, int device, std::span<const CodeBlob> code,
                                                       std::span<const EntryPoint> entries) {
  INGOT_TRY(driver->use(device));
  std::shared_ptr<Accelerator> made(new Accelerator(std::move(driver)));
  made->info_ = made->driver_->devices()[static_cast<size_t>(device)];
  INGOT_ASSIGN(const std::vector<CodeBlob> blobs, code_for(code, made->info_.arch));
  for (const CodeBlob& blob : blobs) {
    INGOT_ASSIGN(const Module module, made->driver_->load(blob.bytes));
    made->modules_.push_back(module);
  }
  for (const EntryPoint& entry : entries) {
    const auto blob = std::find_if(blobs.begin(), blobs.end(), [&](const CodeBlob& b) { return b.source == entry.source; });
    if (blob == blobs.end() && entry.native) {
      made->functions_.push_back({});
      continue;
    }
    if (blob == blobs.end()) return fail("kernel {}: this program holds no code of {} for {}", entry.name, entry.source, made->info_.arch);
    INGOT_ASSIGN(const Function function, made->driver_->find(made->modules_[static_cast<size_t>(blob - blobs.begin())], entry.name));
    made->functions_.push_back(function);
  }
  // Programmatic launches came with compute capability 9.0.
  made->starts_early_ = made->driver_->kind() == "cuda" && std::atoi(made->info_.arch.c_str() + 3) >= 90;
  made->allowed_shared_.assign(made->functions_.size(), kFreeShared);
  INGOT_ASSIGN(made->queue_, made->driver_->create_queue());
  return made;
}

Accelerator::~Accelerator() {
  enter();
  if (queue_.handle != nullptr) driver_->destroy(queue_);
  for (const Module module : modules_) driver_->unload(module);
}

void Accelerator::enter() { keep(driver_->use(info_.index)); }

void Accelerator::allow_shared(size_t entry, size_t bytes) {
  if (failure_ || bytes <= allowed_shared_[entry]) return;
  allowed_shared_[entry] = bytes;
  keep(driver_->allow_shared(functions_[entry], bytes));
}

void Accelerator::copy(void* to, const void* from, size_t bytes) {
  if (!failure_) keep(driver_->copy(to, from, bytes, queue_));
}

void Accelerator::fill(void* memory, uint8_t byte, size_t bytes) {
  if (!failure_) keep(driver_->fill(memory, byte, bytes, queue_));
}

void Accelerator::record(Event event) {
  if (!failure_) keep(capturing_ ? driver_->record_in_graph(event, queue_) : driver_->record(event, queue_));
}

Result<> Accelerator::finish() {
  if (!failure_) keep(driver_->wait(queue_));
  if (failure_) return forward_error(*failure_);
  return {};
}

Result<> Accelerator::begin_capture() {
  if (failure_) return forward_error(*failure_);
  INGOT_TRY(driver_->begin_capture(queue_));
  capturing_ = true;
  return {};
}

Result<Graph> Accelerator::end_capture() {
  capturing_ = false;
  auto graph = driver_->end_capture(queue_);
  if (failure_) {
    if (graph) driver_->destroy(*graph);
    return forward_error(*failure_);
  }
  return graph;
}

void Accelerator::replay(const Graph& graph) {
  if (!failure_) keep(driver_->replay(graph, queue_));
}

template <MemoryPlace Place>
Result<AcceleratorMemory<Place>> AcceleratorMemory<Place>::allocate(std::shared_ptr<Accelerator> device, size_t bytes) {
  device->enter();
  Driver& driver = device->driver();
  auto data = Place == MemoryPlace::device ? driver.alloc(bytes) : driver.alloc_host(bytes);
  if (!data) {
    if (Place == MemoryPlace::host) return fail("{} bytes of pinned host memory: {}", bytes, data.error().message);
    const auto memory = driver.memory();
    return fail("{} bytes on {}: {}; {} bytes of its memory are free", bytes, device->info().name, data.error().message,
                memory ? fmt::format("{}", memory->free_bytes) : "an unknown number of");
  }
  AcceleratorMemory made;
  made.data_ = *data;
  made.bytes_ = bytes;
  if (Place == MemoryPlace::device) device->allocated_bytes_ += bytes;
  made.device_ = std::move(device);
  return made;
}

template <MemoryPlace Place>
AcceleratorMemory<Place>& AcceleratorMemory<Place>::operator=(AcceleratorMemory&& other) noexcept {
  if (this == &other) return *this;
  release();
  device_ = std::move(other.device_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

template <MemoryPlace Place>
void AcceleratorMemory<Place>::release() {
  if (data_ == nullptr) return;
  device_->enter();
  Driver& driver = device_->driver();
  device_->keep(driver.wait(device_->queue()));
  if (Place == MemoryPlace::device) {
    driver.free(std::exchange(data_, nullptr));
    device_->allocated_bytes_ -= bytes_;
  } else {
    driver.free_host(std::exchange(data_, nullptr));
  }
}

template class AcceleratorMemory<MemoryPlace::device>;
template class AcceleratorMemory<MemoryPlace::host>;

}  // namespace ingot::gpu
