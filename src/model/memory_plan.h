// Who gets how much of a machine's memory: what is there, what the model takes, and what the KV cache may have. A value and a pure function
// that makes it, or refuses. Called at start by serve.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/glm.h"

namespace ingot::model {

// Bytes, unless a name says otherwise.
struct MemoryRequest {
  std::string where;        // "NVIDIA H200", "the host"
  int64_t total = 0;        // 0: not known
  int64_t free = 0;         // before anything of the model was there
  int64_t replicas = 1;     // that share this memory
  int64_t weights = 0;      // of each replica, as the next two
  bool mapped = false;      // weights are pages of a file, which all replicas share and the system takes back at need: not counted
  int64_t workspace = 0;    // of the largest steps
  int64_t graphs = 0;       // captured steps, and whatever else the driver takes
  double fraction = 1;      // of what these leave, for the caches of all replicas; the rest is the reserve
  int64_t page_bytes = 0;   // of the KV cache, all layers
  int64_t page_tokens = 0;  // that a page holds
  int64_t pages = 0;        // wanted by each replica
  bool all_pages = false;   // refuse when there are fewer
};

struct MemoryPlan {
  MemoryRequest request;
  int64_t num_pages = 0;  // of each replica's cache; at least 1
  int64_t cache = 0;      // bytes of these
  int64_t reserve = 0;    // what stays free, of all replicas together

  // What it says at start: the memory, then an item a line, in GiB.
  std::vector<std::string> lines() const;
};

// Errors, each with the numbers and the flag to change: the model does not fit; no page is left for the cache, or fewer than asked for.
Result<MemoryPlan> plan_memory(const MemoryRequest& request);

// What the graphs of a GPU's steps will take at most: that of a node, from the driver's free memory before and after some small steps are
// captured, times the nodes of the largest of these, times the number of graphs that are kept. 0 on the CPU and without graphs.
// Errors: those of the GPU.
struct GraphMemory {
  int64_t bytes = 0;
  int64_t graphs = 0;      // that it is for
  int64_t nodes = 0;       // of a graph
  int64_t node_bytes = 0;  // measured, at least what the driver's granularity could hide
};
Result<GraphMemory> measure_graph_memory(Glm& glm);

}  // namespace ingot::model
