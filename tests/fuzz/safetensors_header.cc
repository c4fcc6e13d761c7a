// Bytes as a .safetensors file or as an index: they open, with every tensor inside the file, or give an error that names the file.
// Input: kind ('r' a whole file; 'i' an index; else a header's JSON, before it the number of data bytes in two bytes), bytes.
#include "tensor/safetensors.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "fuzz.h"
#include "tensor/checkpoint.h"

namespace ingot::tensor {
namespace {

constexpr const char* kName = "fuzzed.safetensors";

// A model folder in memory that goes with the process.
class Folder {
 public:
  Folder() {
    std::string pattern = "/dev/shm/ingot_fuzz_XXXXXX";
    INGOT_CHECK(mkdtemp(pattern.data()) != nullptr, "cannot make a folder in /dev/shm");
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Result<Checkpoint> open(std::string_view file) const {
    std::ofstream(path_ / "model.safetensors", std::ios::binary) << file;
    return Checkpoint::open(path_);
  }

 private:
  std::filesystem::path path_;
};

uint64_t sum(std::span<const std::byte> bytes) {
  uint64_t total = 0;
  for (const std::byte b : bytes) total += static_cast<uint64_t>(b);
  return total;
}

template <class T>
bool refused(const Result<T>& result) {
  if (result) return false;
  INGOT_CHECK(result.error().message.find(kName) != std::string::npos, "the error names no file: {}", result.error().text());
  return true;
}

void run_file(const std::string& file) {
  static const Folder folder;
  // Exactly as long as the file: a byte beyond it is not ours.
  const std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(file.data()),
                                     reinterpret_cast<const std::byte*>(file.data()) + file.size());
  const auto tensors = parse_safetensors(bytes, kName);
  if (refused(tensors)) return;
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  INGOT_CHECK(file.substr(8, header_bytes).find('\0') == std::string::npos, "a zero byte is in no JSON document");
  uint64_t total = 0;
  std::set<std::string_view> names;
  for (const TensorInfo& tensor : *tensors) {
    INGOT_CHECK(tensor.offset <= bytes.size() && tensor.bytes <= bytes.size() - tensor.offset, "tensor {} is not in the file", tensor.name);
    INGOT_CHECK(tensor.elements() * static_cast<int64_t>(dtype_bytes(tensor.dtype)) == static_cast<int64_t>(tensor.bytes));
    total += sum(std::span(bytes).subspan(tensor.offset, tensor.bytes));
    names.insert(tensor.name);
  }
  const auto checkpoint = folder.open(file);
  INGOT_CHECK(checkpoint.has_value() == (names.size() == tensors->size()), "{} names for {} tensors, but the folder {}", names.size(),
              tensors->size(), checkpoint ? "opens" : checkpoint.error().text());
  if (!checkpoint) return;
  for (const TensorInfo& tensor : checkpoint->tensors()) {
    INGOT_CHECK(checkpoint->find(tensor.name) == &tensor);
    total -= sum(checkpoint->data(tensor));
  }
  INGOT_CHECK(total == 0, "the folder shows other bytes than the file has");
}

void run(fuzz::Input input) {
  const uint8_t kind = input.byte();
  if (kind == 'i') {
    const auto entries = parse_safetensors_index(std::string(input.rest()), kName);
    refused(entries);
    return;
  }
  if (kind == 'r') return run_file(std::string(input.rest()));
  const size_t high = input.byte();
  const size_t num_data_bytes = high << 8 | input.byte();
  const std::string_view header = input.rest();
  std::string file;
  for (uint64_t length = header.size(), i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i));
  run_file(file.append(header).append(num_data_bytes, '\x5a'));
}

}  // namespace
}  // namespace ingot::tensor

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ingot::tensor::run({data, size});
  return 0;
}
