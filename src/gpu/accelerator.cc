#include "gpu/accelerator.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace ingot::gpu {

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
    if (blob == blobs.end()) return fail("kernel {}: this program holds no code of {} for {}", entry.name, entry.source, made->info_.arch);
    INGOT_ASSIGN(const Function function, made->driver_->find(made->modules_[static_cast<size_t>(blob - blobs.begin())], entry.name));
    made->functions_.push_back(function);
  }
  INGOT_ASSIGN(made->queue_, made->driver_->create_queue());
  return made;
}

Accelerator::~Accelerator() {
  enter();
  if (queue_.handle != nullptr) driver_->destroy(queue_);
  for (const Module module : modules_) driver_->unload(module);
}

void Accelerator::enter() { keep(driver_->use(info_.index)); }

void Accelerator::copy(void* to, const void* from, size_t bytes) {
  if (!failure_) keep(driver_->copy(to, from, bytes, queue_));
}

void Accelerator::fill(void* memory, uint8_t byte, size_t bytes) {
  if (!failure_) keep(driver_->fill(memory, byte, bytes, queue_));
}

Result<> Accelerator::finish() {
  if (!failure_) keep(driver_->wait(queue_));
  if (failure_) return forward_error(*failure_);
  return {};
}

Result<> Accelerator::begin_capture() {
  if (failure_) return forward_error(*failure_);
  return driver_->begin_capture(queue_);
}

Result<Graph> Accelerator::end_capture() {
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

Result<DeviceMemory> DeviceMemory::allocate(std::shared_ptr<Accelerator> device, size_t bytes) {
  device->enter();
  auto data = device->driver().alloc(bytes);
  if (!data) {
    const auto memory = device->driver().memory();
    return fail("{} bytes on {}: {}; {} bytes of its memory are free", bytes, device->info().name, data.error().message,
                memory ? fmt::format("{}", memory->free_bytes) : "an unknown number of");
  }
  DeviceMemory made;
  made.data_ = *data;
  made.bytes_ = bytes;
  device->allocated_bytes_ += bytes;
  made.device_ = std::move(device);
  return made;
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this == &other) return *this;
  release();
  device_ = std::move(other.device_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void DeviceMemory::release() {
  if (data_ == nullptr) return;
  device_->enter();
  device_->keep(device_->driver().wait(device_->queue()));
  device_->driver().free(std::exchange(data_, nullptr));
  device_->allocated_bytes_ -= bytes_;
}

Result<HostMemory> HostMemory::allocate(std::shared_ptr<Accelerator> device, size_t bytes) {
  device->enter();
  HostMemory made;
  INGOT_ASSIGN(made.data_, device->driver().alloc_host(bytes));
  made.bytes_ = bytes;
  made.device_ = std::move(device);
  return made;
}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  if (this == &other) return *this;
  release();
  device_ = std::move(other.device_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void HostMemory::release() {
  if (data_ == nullptr) return;
  device_->enter();
  device_->keep(device_->driver().wait(device_->queue()));
  device_->driver().free_host(std::exchange(data_, nullptr));
}

}  // namespace ingot::gpu
