#include "quant/convert.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/file_io.h"
#include "tensor/dtype.h"
#include "tensor/linear.h"

namespace ingot::quant {
namespace {

using tensor::DType;
using tensor::QuantError;
using tensor::WeightFormat;
using tensor::WeightView;

tl::unexpected<Error> non_finite(const std::string& tensor, int64_t row, int64_t col, float value) {
  return fail_hint("the source is damaged; compare it with its origin", "tensor {}: row {}, column {} is {}", tensor, row, col,
                   std::isnan(value) ? "NaN"
                   : value > 0       ? "infinity"
                                     : "-infinity");
}

const uint16_t* as_bf16(const std::vector<uint8_t>& bytes) { return reinterpret_cast<const uint16_t*>(bytes.data()); }
const float* as_f32(const std::vector<uint8_t>& bytes) { return reinterpret_cast<const float*>(bytes.data()); }

int64_t row_bytes(WeightFormat format, int64_t cols) { return WeightView{nullptr, nullptr, 1, cols, 0, format}.row_bytes(); }

void at_least(std::vector<uint8_t>& buffer, int64_t bytes) {
  if (buffer.size() < static_cast<size_t>(bytes)) buffer.resize(static_cast<size_t>(bytes));
}

}  // namespace

Result<SourceFiles> SourceFiles::open(const tensor::Checkpoint& checkpoint) {
  SourceFiles out;
  for (const tensor::Shard& shard : checkpoint.shards()) {
    const int fd = ::open(shard.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail("cannot open {}: {}", shard.path.string(), std::strerror(errno));
    out.files_.push_back({fd, shard.path});
  }
  return out;
}

SourceFiles& SourceFiles::operator=(SourceFiles&& other) noexcept {
  std::swap(files_, other.files_);
  return *this;
}

SourceFiles::~SourceFiles() {
  for (const File& file : files_) ::close(file.fd);
}

Result<> SourceFiles::read(const tensor::TensorInfo& tensor, uint64_t begin, uint64_t bytes, void* out) const {
  const File& file = files_[static_cast<size_t>(tensor.shard)];
  const uint64_t at = tensor.offset + begin;
  const int error = read_fully_at(file.fd, out, bytes, at);
  if (error == kEndOfFile)
    return fail_hint("the file was cut while it was read", "tensor {}: {} ends before byte {}", tensor.name, file.path.string(),
                     at + bytes);
  if (error != 0) return fail("tensor {}: cannot read {} at byte {}: {}", tensor.name, file.path.string(), at, std::strerror(error));
  return {};
}

Result<BandOutput> BandConverter::convert(const SourceFiles& files, const Unit& unit, const Band& band, tensor::ScaleMode mode,
                                          const tensor::PackedWeight* correction) {
  if (!unit.packed()) return copy(files, unit, band);
  INGOT_TRY(read_rows(files, unit, band));
  BandOutput out;
  const BandPlace place = place_of(unit, band);
  if (correction != nullptr) {
    INGOT_TRY(compare(unit, band, *correction, &out.error));
    out.weight = std::span(correction->data).subspan(place.weight_begin, place.weight_bytes);
    out.scale = std::span(correction->scale).subspan(place.scale_begin, place.scale_bytes);
    return out;
  }
  at_least(out_, static_cast<int64_t>(place.weight_bytes));
  at_least(out_scale_, static_cast<int64_t>(place.scale_bytes));
  INGOT_TRY(pack(unit, band, mode, &out.error));
  out.weight = std::span(out_).first(place.weight_bytes);
  out.scale = std::span(out_scale_).first(place.scale_bytes);
  return out;
}

Result<BandOutput> BandConverter::copy(const SourceFiles& files, const Unit& unit, const Band& band) {
  at_least(in_, band.count);
  INGOT_TRY(files.read(*unit.source, static_cast<uint64_t>(band.begin), static_cast<uint64_t>(band.count), in_.data()));
  const DType dtype = unit.source->dtype;
  if (dtype == DType::bf16 || dtype == DType::f32) {
    const auto size = static_cast<int64_t>(tensor::dtype_bytes(dtype));
    const int64_t count = band.count / size;
    const int64_t bad =
        dtype == DType::bf16 ? tensor::first_non_finite_bf16(as_bf16(in_), count) : tensor::first_non_finite(as_f32(in_), count);
    if (bad >= 0) {
      const int64_t cols = unit.source->shape.empty() ? 1 : unit.source->shape.back();
      const int64_t at = band.begin / size + bad;
      return non_finite(unit.source->name, at / cols, at % cols,
                        dtype == DType::bf16 ? tensor::bf16_to_f32(as_bf16(in_)[bad]) : as_f32(in_)[bad]);
    }
  }
  BandOutput out;
  out.weight = std::span(in_).first(static_cast<size_t>(band.count));
  return out;
}

// The band's rows to in_, and of FP8 blocks the scales of its blocks to in_scale_.
Result<> BandConverter::read_rows(const SourceFiles& files, const Unit& unit, const Band& band) {
  const int64_t bytes = row_bytes(unit.from, unit.cols);
  at_least(in_, band.count * bytes);
  INGOT_TRY(files.read(*unit.source, static_cast<uint64_t>(band.begin * bytes), static_cast<uint64_t>(band.count * bytes), in_.data()));
  if (unit.source_scale != nullptr) {
    const int64_t scale_row = (unit.cols + 127) / 128 * 4;
    const int64_t first = band.begin / 128, end = (band.begin + band.count + 127) / 128;
    at_least(in_scale_, (end - first) * scale_row);
    INGOT_TRY(files.read(*unit.source_scale, static_cast<uint64_t>(first * scale_row), static_cast<uint64_t>((end - first) * scale_row),
                         in_scale_.data()));
  }
  return {};
}

// Row `row` of the band as f32, (cols); valid until the next call.
const float* BandConverter::row_f32(const Unit& unit, const Band& band, int64_t row) {
  if (unit.from == WeightFormat::f32) return as_f32(in_) + row * unit.cols;
  if (row_.size() < static_cast<size_t>(unit.cols)) row_.resize(static_cast<size_t>(unit.cols));
  tensor::dequantize_row({in_.data(), in_scale_.data(), band.count, unit.cols, band.begin % 128, unit.from}, row, row_.data());
  return row_.data();
}

Result<> BandConverter::pack(const Unit& unit, const Band& band, tensor::ScaleMode mode, QuantError* error) {
  const int64_t cols = unit.cols;
  const bool is_bf16 = unit.from == WeightFormat::bf16;
  for (int64_t r = 0; r < band.count; ++r) {
    const float* x = is_bf16 ? nullptr : row_f32(unit, band, r);
    const uint16_t* bits = as_bf16(in_) + r * cols;
    const int64_t bad = is_bf16 ? tensor::first_non_finite_bf16(bits, cols) : tensor::first_non_finite(x, cols);
    if (bad >= 0) return non_finite(unit.source->name, band.begin + r, bad, is_bf16 ? tensor::bf16_to_f32(bits[bad]) : x[bad]);
    if (unit.to != WeightFormat::mxfp4) continue;
    uint8_t* codes = out_.data() + r * (cols / 2);
    uint8_t* scales = out_scale_.data() + r * (cols / 32);
    if (is_bf16)
      tensor::quantize_row_mxfp4_bf16(bits, cols, mode, codes, scales, error);
    else
      tensor::quantize_row_mxfp4(x, cols, mode, nullptr, codes, scales, error);
  }
  if (unit.to == WeightFormat::fp8_block) {
    // A plan never packs FP8 blocks as FP8 blocks again, so the source is bf16 or f32.
    auto* scales = reinterpret_cast<float*>(out_scale_.data());
    if (is_bf16)
      tensor::quantize_band_fp8_bf16(as_bf16(in_), band.count, cols, out_.data(), scales, error);
    else
      tensor::quantize_band_fp8(as_f32(in_), band.count, cols, out_.data(), scales, error);
  }
  return {};
}

// The error of a weight that calibration decided, by the same measures as rounding's.
Result<> BandConverter::compare(const Unit& unit, const Band& band, const tensor::PackedWeight& correction, QuantError* error) {
  const int64_t cols = unit.cols;
  const float limit = unit.to == WeightFormat::mxfp4 ? 6.0f : 448.0f;
  if (other_row_.size() < static_cast<size_t>(cols)) other_row_.resize(static_cast<size_t>(cols));
  const WeightView packed = correction.view();
  for (int64_t r = 0; r < band.count; ++r) {
    const float* x = row_f32(unit, band, r);
    const int64_t bad = tensor::first_non_finite(x, cols), row = band.begin + r;
    if (bad >= 0) return non_finite(unit.source->name, row, bad, x[bad]);
    tensor::dequantize_row(packed, row, other_row_.data());
    for (int64_t c = 0; c < cols; ++c) {
      const float q = other_row_[static_cast<size_t>(c)], difference = std::fabs(x[c] - q);
      float scale = 0;
      if (unit.to == WeightFormat::mxfp4)
        scale = tensor::e8m0_to_f32(packed.scale[row * packed.scale_cols() + c / 32]);
      else
        std::memcpy(&scale, packed.scale + (row / 128 * packed.scale_cols() + c / 128) * 4, 4);
      error->signal += static_cast<double>(x[c]) * x[c];
      error->noise += static_cast<double>(difference) * difference;
      error->max_error = std::max(error->max_error, difference);
      error->saturated += std::fabs(x[c]) > limit * scale ? 1 : 0;
      error->zeroed += x[c] != 0 && q == 0 ? 1 : 0;
    }
    error->elements += cols;
  }
  return {};
}

}  // namespace ingot::quant
