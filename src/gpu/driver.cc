#include "gpu/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <mutex>
#include <set>

#include "base/check.h"
#include "base/log.h"
#include "gpu/driver_api.h"

namespace ingot::gpu {
namespace {

struct Library {
  void* handle = nullptr;
  std::string name;
};

Result<Library> open_one_of(const VendorConstants& vendor, const std::string& path) {
  const char* names[2] = {path.empty() ? vendor.libraries[0] : path.c_str(), path.empty() ? vendor.libraries[1] : nullptr};
  std::string reasons;
  for (const char* name : names) {
    if (name == nullptr) continue;
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return Library{handle, name};
    const char* reason = dlerror();
    reasons += fmt::format("{}{} cannot be opened: {}", reasons.empty() ? "" : "; ", name, reason == nullptr ? "no reason given" : reason);
  }
  return fail_hint(fmt::format("install {}'s driver, or use --device cpu", vendor.vendor), "{}", reasons);
}

// Newer than the rest and needed for measurements alone: a library may lack it.
bool is_optional(std::string_view name) { return name.ends_with("EventRecordWithFlags"); }

Result<DriverApi> find_functions(const VendorConstants& vendor, const Library& library) {
  DriverApi api;
  const bool first = &vendor == &kCuda;
  const char* missing = nullptr;
#define INGOT_DRIVER_FIND(field, arguments, cuda, hip)                                    \
  if (const char* name = first ? cuda : hip) {                                            \
    api.field = reinterpret_cast<decltype(api.field)>(dlsym(library.handle, name));       \
    if (api.field == nullptr && missing == nullptr && !is_optional(name)) missing = name; \
  }
  INGOT_DRIVER_FUNCTIONS(INGOT_DRIVER_FIND)
#undef INGOT_DRIVER_FIND
  if (missing != nullptr) return fail_hint("a newer driver has it", "{} has no function {}", library.name, missing);
  return api;
}

// The names of the functions, for messages: a struct of strings beside the struct of pointers.
struct FunctionNames {
#define INGOT_DRIVER_NAME(field, arguments, cuda, hip) const char* field;
  INGOT_DRIVER_FUNCTIONS(INGOT_DRIVER_NAME)
#undef INGOT_DRIVER_NAME
};
#define INGOT_DRIVER_NAME(field, arguments, cuda, hip) cuda,
constexpr FunctionNames kCudaNames{INGOT_DRIVER_FUNCTIONS(INGOT_DRIVER_NAME)};
#undef INGOT_DRIVER_NAME
#define INGOT_DRIVER_NAME(field, arguments, cuda, hip) hip,
constexpr FunctionNames kHipNames{INGOT_DRIVER_FUNCTIONS(INGOT_DRIVER_NAME)};
#undef INGOT_DRIVER_NAME

std::string arch_name(const VendorConstants& vendor, int major, int minor) {
  if (&vendor == &kCuda) return fmt::format("sm_{}{}", major, minor);
  // The stepping is not told by an attribute. Each of these versions has one that data centres run.
  if (major == 9 && minor == 0) return "gfx90a";
  if (major == 9 && minor == 4) return "gfx942";
  if (major == 9 && minor == 5) return "gfx950";
  return fmt::format("gfx{}{}?", major, minor);
}

}  // namespace

struct Driver::Impl {
  const VendorConstants& vendor;
  const FunctionNames& names;
  DriverApi api;
  std::string library;
  std::vector<DeviceInfo> devices;
  std::vector<int> ordinals;    // the vendor's number of each device
  std::mutex mutex;             // of contexts
  std::vector<void*> contexts;  // of each device, null until it is used; NVIDIA's alone

  Impl(const VendorConstants& v, const DriverApi& functions, std::string library_name)
      : vendor(v), names(&v == &kCuda ? kCudaNames : kHipNames), api(functions), library(std::move(library_name)) {}

  Result<> check(int code, const char* call) const {
    if (code == 0) return {};
    const char *name = nullptr, *text = nullptr;
    api.error_name(code, &name);
    api.error_text(code, &text);
    return fail("{}: {} ({})", call, name == nullptr ? fmt::format("error {}", code) : name,
                text == nullptr ? "unknown to the driver" : text);
  }
  // For what is destroyed: there is nobody to hand an error to.
  void check_quietly(int code, const char* call) const {
    if (const auto result = check(code, call); !result) log_warn("{}", result.error().text());
  }

  Result<> list_devices() {
    INGOT_TRY(check(api.init(0), names.init));
    int version = 0, count = 0;
    INGOT_TRY(check(api.version(&version), names.version));
    library += fmt::format(", version {}", version);
    INGOT_TRY(check(api.device_count(&count), names.device_count));
    if (count == 0) return fail("{}: no {} GPU found", library, vendor.vendor);
    for (int i = 0; i < count; ++i) {
      DeviceInfo info;
      info.index = i;
      int device = 0;
      INGOT_TRY(check(api.device_get(&device, i), names.device_get));
      char name[256] = {};
      INGOT_TRY(check(api.device_name(name, sizeof name - 1, device), names.device_name));
      info.name = name;
      size_t bytes = 0;
      INGOT_TRY(check(api.device_memory(&bytes, device), names.device_memory));
      info.memory_bytes = static_cast<int64_t>(bytes);
      int major = 0, minor = 0, l2 = 0, shared = 0;
      const std::pair<int, int*> wanted[] = {{vendor.warp_size, &info.lanes}, {vendor.compute_units, &info.compute_units},
                                             {vendor.major, &major},          {vendor.minor, &minor},
                                             {vendor.l2_bytes, &l2},          {vendor.shared_bytes, &shared}};
      for (const auto& [attribute, value] : wanted)
        INGOT_TRY(check(api.device_attribute(value, attribute, device), names.device_attribute));
      info.arch = arch_name(vendor, major, minor);
      info.l2_bytes = l2;
      info.shared_bytes = shared;
      devices.push_back(std::move(info));
      ordinals.push_back(device);
    }
    contexts.resize(devices.size());
    return {};
  }

  ~Impl() {
    for (size_t i = 0; i < contexts.size(); ++i) {
      if (contexts[i] != nullptr) check_quietly(api.context_release(ordinals[i]), names.context_release);
    }
    // The library stays open: the vendors' threads may still be in it.
  }
};

// The call of one function of the table with its own name in the message.
#define INGOT_DRIVER_CALL(function, ...) impl_->check(impl_->api.function(__VA_ARGS__), impl_->names.function)

std::string DeviceInfo::text() const {
  return fmt::format("{} ({}, {} compute units, {} lanes, {:.1f} GiB, L2 {} MiB, {} KiB shared memory a block)", name, arch, compute_units,
                     lanes, static_cast<double>(memory_bytes) / (1 << 30), l2_bytes >> 20, shared_bytes >> 10);
}

Result<std::unique_ptr<Driver>> Driver::open(std::string_view kind) {
  if (kind != "auto") return open_library(kind, "");
  auto first = open_library(kCuda.kind, "");
  if (first) return first;
  auto second = open_library(kHip.kind, "");
  if (second) return second;
  return fail_hint("use --device cpu", "no GPU can be used. {}: {}. {}: {}", kCuda.vendor, first.error().message, kHip.vendor,
                   second.error().message);
}

Result<std::unique_ptr<Driver>> Driver::open_library(std::string_view kind, const std::string& path) {
  const VendorConstants* vendor = kind == kCuda.kind ? &kCuda : kind == kHip.kind ? &kHip : nullptr;
  if (vendor == nullptr) return fail("unknown kind of GPU {:?}: it is one of cuda, hip, auto", std::string(kind));
  INGOT_ASSIGN(const Library library, open_one_of(*vendor, path));
  INGOT_ASSIGN(const DriverApi api, find_functions(*vendor, library));
  auto impl = std::make_unique<Impl>(*vendor, api, library.name);
  INGOT_TRY(impl->list_devices());
  return std::unique_ptr<Driver>(new Driver(std::move(impl)));
}

Driver::Driver(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Driver::~Driver() = default;

std::string_view Driver::kind() const { return impl_->vendor.kind; }
const std::string& Driver::library() const { return impl_->library; }
const std::vector<DeviceInfo>& Driver::devices() const { return impl_->devices; }

Result<> Driver::use(int device) {
  if (device < 0 || static_cast<size_t>(device) >= impl_->devices.size())
    return fail("GPU {} does not exist: there are {}", device, impl_->devices.size());
  const auto i = static_cast<size_t>(device);
  const DeviceInfo& info = impl_->devices[i];
  if (info.lanes != impl_->vendor.lanes)
    return fail("{} has warps of {} lanes; Ingot's code for {} has {}", info.name, info.lanes, impl_->vendor.vendor, impl_->vendor.lanes);
  if (impl_->api.device_use != nullptr) return INGOT_DRIVER_CALL(device_use, impl_->ordinals[i]);
  const std::lock_guard lock(impl_->mutex);
  if (impl_->contexts[i] == nullptr) INGOT_TRY(INGOT_DRIVER_CALL(context_retain, &impl_->contexts[i], impl_->ordinals[i]));
  return INGOT_DRIVER_CALL(context_use, impl_->contexts[i]);
}

Result<MemoryInfo> Driver::memory() const {
  size_t free = 0, total = 0;
  INGOT_TRY(INGOT_DRIVER_CALL(memory_info, &free, &total));
  return MemoryInfo{static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

Result<void*> Driver::alloc(size_t bytes) {
  void* memory = nullptr;
  if (bytes > 0) INGOT_TRY(INGOT_DRIVER_CALL(alloc, &memory, bytes));
  return memory;
}

void Driver::free(void* memory) {
  if (memory != nullptr) impl_->check_quietly(impl_->api.free(memory), impl_->names.free);
}

Result<void*> Driver::alloc_host(size_t bytes) {
  void* memory = nullptr;
  if (bytes > 0) INGOT_TRY(INGOT_DRIVER_CALL(alloc_host, &memory, bytes, kHostPortableMapped));
  return memory;
}

void Driver::free_host(void* memory) {
  if (memory != nullptr) impl_->check_quietly(impl_->api.free_host(memory), impl_->names.free_host);
}

Result<Queue> Driver::create_queue() {
  Queue queue;
  INGOT_TRY(INGOT_DRIVER_CALL(queue_create, &queue.handle, kQueueNonBlocking));
  return queue;
}

void Driver::destroy(Queue queue) { impl_->check_quietly(impl_->api.queue_destroy(queue.handle), impl_->names.queue_destroy); }
Result<> Driver::wait(Queue queue) { return INGOT_DRIVER_CALL(queue_wait, queue.handle); }

Result<> Driver::copy(void* to, const void* from, size_t bytes, Queue queue) {
  if (bytes == 0) return {};
  if (impl_->api.copy != nullptr) return INGOT_DRIVER_CALL(copy, to, from, bytes, queue.handle);
  return INGOT_DRIVER_CALL(copy_of_kind, to, from, bytes, kCopyDefault, queue.handle);
}

Result<> Driver::fill(void* memory, uint8_t byte, size_t bytes, Queue queue) {
  if (bytes == 0) return {};
  return INGOT_DRIVER_CALL(fill, memory, byte, bytes, queue.handle);
}

Result<Event> Driver::create_event(bool timing) {
  Event event;
  INGOT_TRY(INGOT_DRIVER_CALL(event_create, &event.handle, timing ? 0 : kEventWithoutTiming));
  return event;
}

void Driver::destroy(Event event) { impl_->check_quietly(impl_->api.event_destroy(event.handle), impl_->names.event_destroy); }
Result<> Driver::record(Event event, Queue queue) { return INGOT_DRIVER_CALL(event_record, event.handle, queue.handle); }
Result<> Driver::record_in_graph(Event event, Queue queue) {
  if (impl_->api.event_record_with == nullptr)
    return fail_hint("a newer driver has it", "{} has no function {}", impl_->library, impl_->names.event_record_with);
  return INGOT_DRIVER_CALL(event_record_with, event.handle, queue.handle, kEventRecordExternal);
}
Result<> Driver::wait(Queue queue, Event event) { return INGOT_DRIVER_CALL(queue_wait_event, queue.handle, event.handle, 0); }
Result<> Driver::wait(Event event) { return INGOT_DRIVER_CALL(event_wait, event.handle); }

Result<bool> Driver::done(Event event) const {
  const int code = impl_->api.event_query(event.handle);
  if (code == kNotReady) return false;
  INGOT_TRY(impl_->check(code, impl_->names.event_query));
  return true;
}

Result<float> Driver::elapsed_ms(Event from, Event to) const {
  float milliseconds = 0.0f;
  INGOT_TRY(INGOT_DRIVER_CALL(event_elapsed, &milliseconds, from.handle, to.handle));
  return milliseconds;
}

Result<Module> Driver::load(std::span<const uint8_t> code) {
  Module module;
  INGOT_TRY(INGOT_DRIVER_CALL(module_load, &module.handle, code.data()));
  return module;
}

void Driver::unload(Module module) { impl_->check_quietly(impl_->api.module_unload(module.handle), impl_->names.module_unload); }

Result<Function> Driver::find(Module module, const char* name) const {
  Function function;
  auto found = INGOT_DRIVER_CALL(module_function, &function.handle, module.handle, name);
  if (!found) return fail("kernel {}: {}", name, found.error().message);
  return function;
}

Result<> Driver::allow_shared(Function function, size_t bytes) {
  // AMD's runtime takes any size that the hardware has.
  if (impl_->api.function_set == nullptr) return {};
  return INGOT_DRIVER_CALL(function_set, function.handle, kMaxDynamicSharedBytes, static_cast<int>(bytes));
}

Result<> Driver::launch_bytes(Function function, Grid grid, size_t shared_bytes, Queue queue, const void* params, bool early) {
  if (grid.blocks == 0) return {};
  if (grid.blocks < 0 || grid.blocks > std::numeric_limits<int32_t>::max()) return fail("a grid of {} blocks", grid.blocks);
  void* arguments[] = {const_cast<void*>(params)};  // read only, copied before the call returns
  if (early && impl_->api.launch_with != nullptr) {
    LaunchAttribute attribute{kStartEarly, 0, 1, {}};
    const LaunchConfig config{{static_cast<unsigned>(grid.blocks), 1, 1},
                              {static_cast<unsigned>(grid.threads), 1, 1},
                              static_cast<unsigned>(shared_bytes),
                              queue.handle,
                              &attribute,
                              1};
    return INGOT_DRIVER_CALL(launch_with, &config, function.handle, arguments, nullptr);
  }
  return INGOT_DRIVER_CALL(launch, function.handle, static_cast<unsigned>(grid.blocks), 1, 1, static_cast<unsigned>(grid.threads), 1, 1,
                           static_cast<unsigned>(shared_bytes), queue.handle, arguments, nullptr);
}

Result<> Driver::begin_capture(Queue queue) { return INGOT_DRIVER_CALL(capture_begin, queue.handle, kCaptureThreadLocal); }

Result<Graph> Driver::end_capture(Queue queue) {
  void* recorded = nullptr;
  INGOT_TRY(INGOT_DRIVER_CALL(capture_end, queue.handle, &recorded));
  Graph graph;
  auto result = INGOT_DRIVER_CALL(graph_nodes, recorded, nullptr, &graph.nodes);
  if (result) result = INGOT_DRIVER_CALL(graph_instantiate, &graph.handle, recorded, 0);
  impl_->check_quietly(impl_->api.graph_destroy(recorded), impl_->names.graph_destroy);
  INGOT_TRY(result);
  return graph;
}

Result<> Driver::replay(const Graph& graph, Queue queue) { return INGOT_DRIVER_CALL(graph_launch, graph.handle, queue.handle); }

void Driver::destroy(Graph graph) { impl_->check_quietly(impl_->api.graph_exec_destroy(graph.handle), impl_->names.graph_exec_destroy); }

Result<std::vector<CodeBlob>> code_for(std::span<const CodeBlob> blobs, std::string_view arch) {
  std::vector<CodeBlob> found;
  std::set<std::string_view> there;
  for (const CodeBlob& blob : blobs) {
    there.insert(blob.arch);
    // The compiler's "a" means: with what this architecture alone has.
    if (blob.arch == arch || (blob.arch.size() == arch.size() + 1 && blob.arch.starts_with(arch) && blob.arch.ends_with('a')))
      found.push_back(blob);
  }
  if (!found.empty()) return found;
  return fail_hint("build Ingot where a compiler for it is installed; cmake tells what it leaves out",
                   "this program holds no code for {}; it has {}", arch,
                   there.empty() ? "none" : fmt::format("{}", fmt::join(there, ", ")));
}

}  // namespace ingot::gpu
