#include "tensor/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace ingot::tensor {
namespace {

using nlohmann::json;

std::optional<DType> dtype_from_name(std::string_view name) {
  constexpr DType kAll[] = {DType::f32, DType::bf16,    DType::f16, DType::f8_e4m3, DType::u8,  DType::i32, DType::i64, DType::boolean,
                            DType::f64, DType::f8_e5m2, DType::i8,  DType::i16,     DType::u16, DType::u32, DType::u64};
  for (DType type : kAll) {
    if (dtype_name(type) == name) return type;
  }
  return std::nullopt;
}

// What both SAX handlers share: every value that is not expected is an error with the place.
class SaxBase {
 public:
  using number_integer_t = json::number_integer_t;
  using number_unsigned_t = json::number_unsigned_t;
  using number_float_t = json::number_float_t;
  using string_t = json::string_t;
  using binary_t = json::binary_t;

  bool binary(binary_t&) { return refuse("binary value"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    error_ = fmt::format("is not valid JSON at byte {}", position);
    return false;
  }
  const std::string& error() const { return error_; }

 protected:
  bool refuse(std::string what) {
    if (error_.empty()) error_ = std::move(what);
    return false;
  }
  std::string error_;
};

// {"name": {"dtype": "BF16", "shape": [..], "data_offsets": [b, e]}, "__metadata__": {"k": "v"}}
class HeaderHandler : public SaxBase {
 public:
  std::vector<TensorInfo> tensors;
  std::vector<std::pair<uint64_t, uint64_t>> offsets;

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(number_integer_t value) { return unexpected(fmt::format("the negative number {}", value)); }
  bool number_float(number_float_t, const string_t& text) { return unexpected(fmt::format("the number {}", text)); }
  bool number_unsigned(number_unsigned_t value) {
    if (state_ == State::shape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return unexpected(fmt::format("the number {}", value));
      if (tensors.back().shape.size() >= 8) return refuse(fmt::format("tensor {}: more than 8 dimensions", tensors.back().name));
      tensors.back().shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (state_ == State::offsets) {
      if (num_offsets_ >= 2) return refuse(fmt::format("tensor {}: data_offsets has more than two numbers", tensors.back().name));
      (num_offsets_++ == 0 ? offsets.back().first : offsets.back().second) = value;
      return true;
    }
    return unexpected(fmt::format("the number {}", value));
  }
  bool string(string_t& value) {
    if (state_ == State::metadata) return true;
    if (state_ == State::field && field_ == Field::dtype) {
      const auto type = dtype_from_name(value);
      if (!type) return refuse(fmt::format("tensor {}: unknown dtype {}", tensors.back().name, value));
      tensors.back().dtype = *type;
      state_ = State::tensor;
      return true;
    }
    return unexpected(fmt::format("the string \"{}\"", value.substr(0, 60)));
  }
  bool start_object(size_t) {
    switch (state_) {
      case State::start: state_ = State::top; return true;
      case State::value:
        seen_ = 0;
        state_ = is_metadata_ ? State::metadata : State::tensor;
        return true;
      default: return unexpected("an object");
    }
  }
  bool key(string_t& value) {
    if (state_ == State::top) {
      is_metadata_ = value == "__metadata__";
      if (!is_metadata_) {
        tensors.emplace_back().name = value;
        offsets.emplace_back();
      }
      state_ = State::value;
      return true;
    }
    if (state_ == State::metadata) return true;
    field_ = value == "dtype" ? Field::dtype : value == "shape" ? Field::shape : value == "data_offsets" ? Field::offsets : Field::none;
    if (field_ == Field::none) return refuse(fmt::format("tensor {}: unknown field \"{}\"", tensors.back().name, value.substr(0, 60)));
    const int bit = 1 << static_cast<int>(field_);
    if ((seen_ & bit) != 0) return refuse(fmt::format("tensor {}: {} is given twice", tensors.back().name, value));
    seen_ |= bit;
    state_ = State::field;
    return true;
  }
  bool end_object() {
    if (state_ == State::tensor) {
      if (seen_ != 7) return refuse(fmt::format("tensor {}: dtype, shape and data_offsets are all required", tensors.back().name));
      state_ = State::top;
    } else if (state_ == State::metadata) {
      state_ = State::top;
    } else {
      state_ = State::end;
    }
    return true;
  }
  bool start_array(size_t) {
    if (state_ == State::field && field_ == Field::shape) {
      state_ = State::shape;
    } else if (state_ == State::field && field_ == Field::offsets) {
      state_ = State::offsets;
      num_offsets_ = 0;
    } else {
      return unexpected("an array");
    }
    return true;
  }
  bool end_array() {
    if (state_ == State::offsets && num_offsets_ != 2)
      return refuse(fmt::format("tensor {}: data_offsets needs two numbers", tensors.back().name));
    state_ = State::tensor;
    return true;
  }
  bool complete() const { return state_ == State::end; }

 private:
  enum class State : uint8_t { start, top, value, tensor, metadata, field, shape, offsets, end };
  enum class Field : uint8_t { dtype, shape, offsets, none };

  bool unexpected(const std::string& what) {
    if (tensors.empty()) return refuse(fmt::format("{} where a tensor entry was expected", what));
    return refuse(fmt::format("tensor {}: {} is not expected there", tensors.back().name, what));
  }

  State state_ = State::start;
  Field field_ = Field::none;
  int seen_ = 0;
  int num_offsets_ = 0;
  bool is_metadata_ = false;
};

// {"metadata": {...}, "weight_map": {"tensor": "file", ...}}
class IndexHandler : public SaxBase {
 public:
  std::vector<std::pair<std::string, std::string>> entries;
  bool has_map = false;

  bool null() { return other("null"); }
  bool boolean(bool) { return other("a boolean"); }
  bool number_integer(number_integer_t) { return other("a number"); }
  bool number_unsigned(number_unsigned_t) { return other("a number"); }
  bool number_float(number_float_t, const string_t&) { return other("a number"); }
  bool string(string_t& value) {
    if (!in_map()) return other("a string");
    entries.emplace_back(std::move(key_), std::move(value));
    return true;
  }
  bool key(string_t& value) {
    if (depth_ == 1) top_key_ = value;
    key_ = std::move(value);
    return true;
  }
  bool start_object(size_t) {
    if (in_map()) return refuse(fmt::format("weight_map entry {} is an object, not a file name", key_));
    if (++depth_ > 16) return refuse("is nested too deeply");
    has_map |= in_map();
    return true;
  }
  bool end_object() {
    --depth_;
    return true;
  }
  bool start_array(size_t) {
    if (in_map() || depth_ == 0) return refuse("holds an array where an object or a file name was expected");
    if (++depth_ > 16) return refuse("is nested too deeply");
    return true;
  }
  bool end_array() {
    --depth_;
    return true;
  }

 private:
  bool in_map() const { return depth_ == 2 && top_key_ == "weight_map"; }
  bool other(const char* what) {
    if (in_map()) return refuse(fmt::format("weight_map entry {} is {}, not a file name", key_, what));
    if (depth_ == 0) return refuse("is not a JSON object");
    return true;
  }
  int depth_ = 0;
  std::string top_key_, key_;
};

// Bytes of a tensor, or nullopt when the product does not fit 63 bits.
std::optional<uint64_t> tensor_bytes(const TensorInfo& tensor) {
  uint64_t bytes = dtype_bytes(tensor.dtype);
  for (int64_t dim : tensor.shape) {
    // After each factor: a zero behind it must not hide that the elements before it can't be counted.
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) return std::nullopt;
    if (bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  }
  return bytes;
}

}  // namespace

Result<std::vector<TensorInfo>> parse_safetensors(std::span<const std::byte> file, const std::string& path) {
  if (file.size() < 8)
    return fail("{} has {} bytes: too short for a safetensors file, which begins with an 8-byte header length", path, file.size());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - 8) {
    return fail_hint("the file is cut short, or is not a safetensors file",
                     "{}: the header length field says {} bytes, but the file has {}", path, header_bytes, file.size());
  }
  if (header_bytes < 2) return fail("{}: the header length field says {} bytes; the shortest header has 2", path, header_bytes);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, header_bytes);
  if (text.find('\0') != std::string_view::npos) return fail("{}: the header has a zero byte, which no JSON text may have", path);
  HeaderHandler handler;
  if (!json::sax_parse(text.begin(), text.end(), &handler)) return fail("{}: the header {}", path, handler.error());
  if (!handler.complete()) return fail("{}: the header is not a JSON object", path);

  const uint64_t data_begin = 8 + header_bytes;
  const uint64_t data_bytes = file.size() - data_begin;
  std::vector<uint32_t> order(handler.tensors.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<uint32_t>(i);
    TensorInfo& tensor = handler.tensors[i];
    const auto [begin, end] = handler.offsets[i];
    if (begin > end) return fail("{}: tensor {}: data_offsets [{}, {}] are reversed", path, tensor.name, begin, end);
    const auto bytes = tensor_bytes(tensor);
    if (!bytes) return fail("{}: tensor {}: shape {} overflows", path, tensor.name, shape_text(tensor.shape));
    if (end - begin != *bytes) {
      return fail("{}: tensor {}: {} {} takes {} bytes, but data_offsets [{}, {}] hold {}", path, tensor.name, dtype_name(tensor.dtype),
                  shape_text(tensor.shape), *bytes, begin, end, end - begin);
    }
    if (end > data_bytes) {
      return fail_hint("the file is cut short", "{}: tensor {} ends at byte {} of the data, but the file has {} bytes of data", path,
                       tensor.name, end, data_bytes);
    }
    tensor.offset = data_begin + begin;
    tensor.bytes = *bytes;
  }
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return handler.offsets[a] < handler.offsets[b]; });
  uint64_t expected = 0;
  for (uint32_t i : order) {
    const auto [begin, end] = handler.offsets[i];
    if (begin < expected)
      return fail("{}: tensor {} begins at byte {} of the data, inside the tensor before it, which ends at {}", path,
                  handler.tensors[i].name, begin, expected);
    if (begin > expected)
      return fail("{}: bytes {} to {} of the data belong to no tensor (before tensor {})", path, expected, begin, handler.tensors[i].name);
    expected = end;
  }
  if (expected != data_bytes)
    return fail("{}: the tensors end at byte {} of the data, but the file has {} bytes of data", path, expected, data_bytes);
  return std::move(handler.tensors);
}

Result<std::vector<std::pair<std::string, std::string>>> parse_safetensors_index(std::string_view text, const std::string& path) {
  if (text.find('\0') != std::string_view::npos) return fail("{} has a zero byte, which no JSON text may have", path);
  IndexHandler handler;
  if (!json::sax_parse(text.begin(), text.end(), &handler)) return fail("{} {}", path, handler.error());
  if (!handler.has_map) return fail("{} has no weight_map object", path);
  return std::move(handler.entries);
}

}  // namespace ingot::tensor
