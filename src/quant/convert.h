// One band from the source's files to output bytes in memory. The source is read, not mapped: memory stays with these few buffers, and a
// disk's error arrives as an error that names the tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "quant/plan.h"
#include "tensor/checkpoint.h"
#include "tensor/quantize.h"
#include "tensor/quantize_rows.h"

namespace ingot::quant {

// The source's shards, open for reading. Any thread.
class SourceFiles {
 public:
  static Result<SourceFiles> open(const tensor::Checkpoint& checkpoint);
  SourceFiles() = default;
  SourceFiles(SourceFiles&& other) noexcept : files_(std::move(other.files_)) { other.files_.clear(); }
  SourceFiles& operator=(SourceFiles&& other) noexcept;
  SourceFiles(const SourceFiles&) = delete;
  SourceFiles& operator=(const SourceFiles&) = delete;
  ~SourceFiles();

  // `bytes` bytes of the tensor from byte `begin` on. Errors: the tensor, the file and the system's reason; a file that was cut.
  Result<> read(const tensor::TensorInfo& tensor, uint64_t begin, uint64_t bytes, void* out) const;

 private:
  struct File {
    int fd = -1;
    std::filesystem::path path;
  };
  std::vector<File> files_;
};

// A band's bytes, for where place_of says; valid until the converter's next call.
struct BandOutput {
  std::span<const uint8_t> weight, scale;
  tensor::QuantError error;  // of a packed module
};

// The buffers of one thread.
class BandConverter {
 public:
  // `correction`: the module's packed weight when calibration decided it, else null. Errors: reading; a NaN or an infinity, with tensor,
  // row and column.
  Result<BandOutput> convert(const SourceFiles& files, const Unit& unit, const Band& band, tensor::ScaleMode mode,
                             const tensor::PackedWeight* correction);

 private:
  Result<BandOutput> copy(const SourceFiles& files, const Unit& unit, const Band& band);
  Result<> read_rows(const SourceFiles& files, const Unit& unit, const Band& band);
  const float* row_f32(const Unit& unit, const Band& band, int64_t row);
  Result<> pack(const Unit& unit, const Band& band, tensor::ScaleMode mode, tensor::QuantError* error);
  Result<> compare(const Unit& unit, const Band& band, const tensor::PackedWeight& correction, tensor::QuantError* error);

  std::vector<uint8_t> in_, in_scale_, out_, out_scale_;
  std::vector<float> row_, other_row_;  // (cols), or (128, cols) for FP8
};

}  // namespace ingot::quant
