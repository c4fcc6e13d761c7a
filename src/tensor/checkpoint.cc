#include "tensor/checkpoint.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "tensor/safetensors.h"

namespace ingot::tensor {
namespace {

namespace fs = std::filesystem;

// Large enough for the index of a 60,000-tensor model (7 MB) many times over.
constexpr size_t kMaxIndexBytes = 256 << 20;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

}  // namespace

int64_t TensorInfo::elements() const {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

Result<Checkpoint> Checkpoint::open(const fs::path& model_dir) {
  std::error_code ec;
  if (!fs::is_directory(model_dir, ec))
    return fail_hint("give the folder that holds config.json", "{} is not a folder", model_dir.string());

  // Which files, and (with an index) how many tensors each must hold.
  std::map<std::string, int64_t> expected_in_file;
  std::unordered_map<std::string, std::string> file_of_tensor;
  const fs::path index_path = model_dir / kIndexName;
  const bool has_index = fs::exists(index_path, ec);
  if (has_index) {
    INGOT_ASSIGN(const std::string text, read_file(index_path, kMaxIndexBytes));
    INGOT_ASSIGN(auto entries, parse_safetensors_index(text, index_path.string()));
    file_of_tensor.reserve(entries.size());
    for (auto& [tensor, file] : entries) {
      if (file.empty() || file.find('/') != std::string::npos || file.find('\0') != std::string::npos || file == "..") {
        return fail("{}: tensor {} is said to be in \"{}\", which is not a file name in this folder", index_path.string(), tensor, file);
      }
      ++expected_in_file[file];
      if (!file_of_tensor.emplace(tensor, file).second) return fail("{}: tensor {} is listed twice", index_path.string(), tensor);
    }
    if (expected_in_file.empty()) return fail("{}: weight_map is empty", index_path.string());
  } else if (fs::exists(model_dir / kSingleName, ec)) {
    expected_in_file[kSingleName] = -1;
  } else {
    return fail("{} has neither {} nor {}", model_dir.string(), kIndexName, kSingleName);
  }

  for (const auto& [file, count] : expected_in_file) {
    if (!fs::exists(model_dir / file, ec)) {
      return fail_hint("copy the whole checkpoint", "shard {} is missing: {} tensors of the index are in it", (model_dir / file).string(),
                       count);
    }
  }

  Checkpoint checkpoint;
  for (const auto& [file, count] : expected_in_file) {
    const fs::path path = model_dir / file;
    INGOT_ASSIGN(FileMap map, FileMap::open(path));
    INGOT_ASSIGN(auto tensors, parse_safetensors(map.bytes(), path.string()));
    const auto shard = static_cast<int32_t>(checkpoint.shards_.size());
    uint64_t data_begin = map.size();
    for (auto& tensor : tensors) {
      data_begin = std::min(data_begin, tensor.offset);
      tensor.shard = shard;
      if (has_index) {
        const auto listed = file_of_tensor.find(tensor.name);
        if (listed == file_of_tensor.end()) {
          return fail_hint("the index is stale", "{} holds tensor {}, which {} does not list", path.string(), tensor.name, kIndexName);
        }
        if (listed->second != file) {
          return fail_hint("the index is stale", "tensor {} is in {}, but {} says it is in {}", tensor.name, path.string(), kIndexName,
                           listed->second);
        }
      }
    }
    checkpoint.shards_.push_back({path, map.size(), data_begin >= 8 ? data_begin - 8 : 0, static_cast<int64_t>(tensors.size())});
    checkpoint.maps_.push_back(std::move(map));
    std::move(tensors.begin(), tensors.end(), std::back_inserter(checkpoint.tensors_));
  }

  auto& all = checkpoint.tensors_;
  std::sort(all.begin(), all.end(), [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  checkpoint.by_name_.reserve(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (!checkpoint.by_name_.emplace(all[i].name, static_cast<uint32_t>(i)).second) {
      return fail("tensor {} is there twice: in {} and in {}", all[i].name,
                  checkpoint.shards_[static_cast<size_t>(all[i - 1].shard)].path.string(),
                  checkpoint.shards_[static_cast<size_t>(all[i].shard)].path.string());
    }
  }
  for (const auto& [tensor, file] : file_of_tensor) {
    if (checkpoint.find(tensor) == nullptr) {
      return fail_hint("the index is stale, or the shard was replaced", "{} says tensor {} is in {}, but it is not", kIndexName, tensor,
                       (model_dir / file).string());
    }
  }
  return checkpoint;
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

std::span<const std::byte> Checkpoint::data(const TensorInfo& tensor) const {
  return maps_[static_cast<size_t>(tensor.shard)].bytes().subspan(tensor.offset, tensor.bytes);
}

}  // namespace ingot::tensor
