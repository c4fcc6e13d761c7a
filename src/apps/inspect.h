// `ingot inspect MODEL [--json]`: what a checkpoint is, from its headers alone: tensors by kind and format, what is missing or unused and
// why, what the quantisation did, and what serving it takes in memory. Reads no weights.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "spec/model_config.h"
#include "spec/tensor_inventory.h"
#include "tensor/checkpoint.h"

namespace ingot::apps {

struct InspectOptions {
  std::string model;  // folder with config.json and safetensors
  bool json = false;
};

// Prints the report to standard output. Exit status: 0, or 1 with the reason on standard error; a checkpoint that lacks tensors is
// reported in full and gives 1 too.
int run_inspect(const InspectOptions& options);

struct TensorCount {
  int64_t tensors = 0;
  int64_t elements = 0;  // of the unquantised weights; scales count as none
  int64_t bytes = 0;     // scales included
};

struct NamedReason {
  std::string name;
  std::string reason;
};

struct InspectReport {
  spec::ModelConfig config;
  int64_t num_shards = 0, num_tensors = 0, file_bytes = 0, tensor_bytes = 0;
  int64_t elements = 0, active_parameters = 0;
  std::map<std::string, TensorCount> by_dtype;
  // Kind ("routed experts"; those of the MTP layer apart, as "MTP: routed experts") -> format -> count.
  std::map<std::string, std::map<std::string, TensorCount>> by_kind;
  std::vector<NamedReason> missing, unused, faulty;  // faulty: there, but of a shape or format that does not fit
  int64_t num_excludes = 0, excluded_modules = 0;
  std::map<std::string, int64_t> excludes_by_form;  // "exact", "glob", "regex"
  std::vector<std::string> excludes_without_match;
  std::vector<NamedReason> exclude_conflicts;  // excluded by the config, but packed in the file
};

Result<InspectReport> inspect_checkpoint(const std::string& model);
Json report_json(const InspectReport& report);
std::string report_text(const InspectReport& report);

}  // namespace ingot::apps
