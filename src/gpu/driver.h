// Driver: one interface to NVIDIA's driver (libcuda.so.1) and AMD's runtime (libamdhip64.so.7 or .6). The library is opened at run time,
// so a program that holds this starts on any machine; on one without a GPU open() says what is missing, and nothing else happens.
//
// Errors carry the call and the vendor's own name and text: "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (out of memory)". An error of a
// kernel that ran earlier is reported by a later call, as both vendors do.
//
// Threads: use(device) belongs to the calling thread and must have been called by it before anything below it here. Calls may come from
// several threads; a queue, event or graph is used by one at a time.
//
// Work on a queue runs in order and behind the caller's back; what it reads and writes must live until it is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gpu/code.h"
#include "gpu/grid.h"

namespace ingot::gpu {

struct DeviceInfo {
  int index = 0;
  std::string name;          // "NVIDIA H200"
  std::string arch;          // "sm_90", "gfx942"
  int lanes = 0;             // of a warp
  int compute_units = 0;     // streaming multiprocessors, compute units
  int64_t memory_bytes = 0;  // all of it
  int64_t l2_bytes = 0;
  int64_t shared_bytes = 0;  // the most that a block may ask for

  std::string text() const;  // one line
};

struct MemoryInfo {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};

// Handles: plain values, made and destroyed by the Driver.
struct Queue {
  void* handle = nullptr;  // null is the device's default queue
};
struct Event {
  void* handle = nullptr;
};
struct Module {
  void* handle = nullptr;
};
struct Function {
  void* handle = nullptr;
};
struct Graph {
  void* handle = nullptr;
  size_t nodes = 0;  // launches, copies and fills in it
};

class Driver {
 public:
  // `kind` is "cuda", "hip" or "auto" (the first of these two that has a GPU). Errors: an unknown kind; the library is not there, is
  // too old, or finds no GPU.
  static Result<std::unique_ptr<Driver>> open(std::string_view kind);
  // The same with a library of the caller's choosing in place of the system's; for tests. `kind` is "cuda" or "hip".
  static Result<std::unique_ptr<Driver>> open_library(std::string_view kind, const std::string& path);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  std::string_view kind() const;                   // "cuda" or "hip"
  const std::string& library() const;              // "libcuda.so.1, version 13000"
  const std::vector<DeviceInfo>& devices() const;  // never empty

  // Makes `device` (an index of devices()) the one that this thread's calls mean.
  Result<> use(int device);
  Result<MemoryInfo> memory() const;

  // Device memory, aligned to 256 bytes. 0 bytes give null.
  Result<void*> alloc(size_t bytes);
  void free(void* memory);
  // Pinned host memory, which copies read at full speed and kernels reach at the same address.
  Result<void*> alloc_host(size_t bytes);
  void free_host(void* memory);

  Result<Queue> create_queue();
  void destroy(Queue queue);
  Result<> wait(Queue queue);  // until all its work is done

  // From and to device or host memory, in any combination. Host memory should be pinned: other memory makes the call wait.
  Result<> copy(void* to, const void* from, size_t bytes, Queue queue);
  Result<> fill(void* memory, uint8_t byte, size_t bytes, Queue queue);

  // Events without timing are cheaper, and have no elapsed time.
  Result<Event> create_event(bool timing);
  void destroy(Event event);
  Result<> record(Event event, Queue queue);
  // While `queue` is being captured: a part of the graph, so that every replay records the event anew.
  Result<> record_in_graph(Event event, Queue queue);
  Result<> wait(Queue queue, Event event);  // later work of `queue` waits; the caller does not
  Result<> wait(Event event);
  Result<bool> done(Event event) const;
  Result<float> elapsed_ms(Event from, Event to) const;  // both with timing and done

  Result<Module> load(std::span<const uint8_t> code);
  void unload(Module module);
  Result<Function> find(Module module, const char* name) const;
  // Lets blocks of `function` have this much shared memory beyond what it declares; needed above 48 KiB.
  Result<> allow_shared(Function function, size_t bytes);

  // Runs `function` with one argument, a struct passed by value. A grid of no blocks runs nothing. With `early` it may be set up while
  // the work before it still runs, where the vendor has that: then it must wait for that work by itself, as every GPU_ENTRY does.
  // Errors: more blocks than 2^31 - 1; what the driver has against it.
  template <class Params>
  Result<> launch(Function function, Grid grid, size_t shared_bytes, Queue queue, const Params& params, bool early = false) {
    return launch_bytes(function, grid, shared_bytes, queue, &params, early);
  }

  // Between begin_capture and end_capture the work put on `queue` is not run but written down. end_capture must be called even when
  // something between them failed; it then fails too, and the queue can be used again.
  Result<> begin_capture(Queue queue);
  Result<Graph> end_capture(Queue queue);
  Result<> replay(const Graph& graph, Queue queue);
  void destroy(Graph graph);

 private:
  struct Impl;
  explicit Driver(std::unique_ptr<Impl> impl);
  Result<> launch_bytes(Function function, Grid grid, size_t shared_bytes, Queue queue, const void* params, bool early);
  std::unique_ptr<Impl> impl_;
};

// The blobs that a device of architecture `arch` runs, one for each file that was compiled. Errors: there is none; the message names the
// architectures there are.
Result<std::vector<CodeBlob>> code_for(std::span<const CodeBlob> blobs, std::string_view arch);

}  // namespace ingot::gpu
