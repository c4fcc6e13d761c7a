#include "quant/plan.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "tensor/linear.h"

namespace ingot::quant {
namespace {

using tensor::DType;
using tensor::TensorInfo;
using tensor::WeightFormat;

// Input of a band. Small enough that input and output stay in a core's second-level cache, large enough that a system call is cheap.
constexpr int64_t kPackedBandBytes = 1 << 20;
constexpr int64_t kCopyBandBytes = 4 << 20;
// A scale of FP8 blocks covers so many rows, so a band must have all of them.
constexpr int64_t kFp8Rows = 128;

int64_t source_row_bytes(const Unit& u) { return tensor::WeightView{nullptr, nullptr, u.rows, u.cols, 0, u.from}.row_bytes(); }

void plan_packed(Unit& u, const Module& m, WeightFormat to) {
  u.from = m.source;
  u.to = to;
  u.rows = m.rows;
  u.cols = m.cols;
  u.scale.name = tensor::scale_tensor_name(m.name, to);
  if (to == WeightFormat::mxfp4) {
    u.weight.dtype = u.scale.dtype = DType::u8;
    u.weight.shape = {m.rows, m.cols / 2};
    u.scale.shape = {m.rows, m.cols / 32};
  } else {
    u.weight.dtype = DType::f8_e4m3;
    u.weight.shape = {m.rows, m.cols};
    u.scale.dtype = DType::f32;
    u.scale.shape = {(m.rows + 127) / 128, (m.cols + 127) / 128};
  }
  for (OutputTensor* t : {&u.weight, &u.scale}) t->bytes = static_cast<uint64_t>(t->shape[0] * t->shape[1]) * tensor::dtype_bytes(t->dtype);
}

// Offsets of the tensors and the header. The widest types come first, so that every tensor is aligned to its element.
void lay_out(Plan& plan, PlannedShard& shard) {
  std::vector<OutputTensor*> order;
  for (size_t i = shard.first_unit; i < shard.end_unit; ++i) {
    order.push_back(&plan.units[i].weight);
    if (!plan.units[i].scale.name.empty()) order.push_back(&plan.units[i].scale);
  }
  std::stable_sort(order.begin(), order.end(), [](const OutputTensor* a, const OutputTensor* b) {
    return tensor::dtype_bytes(a->dtype) > tensor::dtype_bytes(b->dtype);
  });
  nlohmann::ordered_json json;
  json["__metadata__"] = {{"format", "pt"}};
  uint64_t at = 0;
  for (OutputTensor* t : order) {
    json[t->name] = {{"dtype", std::string(tensor::dtype_name(t->dtype))}, {"shape", t->shape}, {"data_offsets", {at, at + t->bytes}}};
    t->offset = at;
    at += t->bytes;
  }
  std::string text = json.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  shard.header.assign(reinterpret_cast<const char*>(&length), 8);
  shard.header += text;
  for (OutputTensor* t : order) t->offset += shard.header.size();
  shard.bytes = shard.header.size() + at;
}

}  // namespace

Result<Plan> make_plan(const tensor::Checkpoint& checkpoint, const std::vector<Module>& modules, const Recipe& recipe,
                       uint64_t shard_bytes) {
  std::unordered_map<std::string, int32_t> packed_weights;  // tensor name -> module
  std::unordered_map<std::string, int32_t> packed_scales;
  for (size_t i = 0; i < modules.size(); ++i) {
    const Module& m = modules[i];
    const WeightFormat to = recipe.format_of(m.name);
    if (to == WeightFormat::bf16) continue;
    packed_weights.emplace(m.name + ".weight", static_cast<int32_t>(i));
    const std::string old_scale = tensor::scale_tensor_name(m.name, m.source);
    if (!old_scale.empty()) packed_scales.emplace(old_scale, static_cast<int32_t>(i));
    const std::string new_scale = tensor::scale_tensor_name(m.name, to);
    if (new_scale != old_scale && checkpoint.find(new_scale) != nullptr)
      return fail("the source holds a tensor {}, but {}.weight is {}: its scales would need that name", new_scale, m.name,
                  tensor::weight_format_name(m.source));
  }
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& t : checkpoint.tensors()) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return a->shard != b->shard ? a->shard < b->shard : a->offset != b->offset ? a->offset < b->offset : a->name < b->name;
  });

  Plan plan;
  for (const TensorInfo* t : order) {
    if (packed_scales.contains(t->name)) continue;
    Unit u;
    u.source = t;
    u.weight = {t->name, t->dtype, t->shape, t->bytes, 0};
    if (const auto it = packed_weights.find(t->name); it != packed_weights.end()) {
      u.module = it->second;
      const Module& m = modules[static_cast<size_t>(it->second)];
      plan_packed(u, m, recipe.format_of(m.name));
      const std::string old_scale = tensor::scale_tensor_name(m.name, m.source);
      if (!old_scale.empty()) u.source_scale = checkpoint.find(old_scale);
    }
    plan.bytes_in += u.bytes_in();
    plan.bytes_out += u.bytes_out();
    plan.units.push_back(std::move(u));
  }

  uint64_t used = 0;
  for (size_t i = 0; i < plan.units.size(); ++i) {
    const uint64_t bytes = plan.units[i].bytes_out();
    if (plan.shards.empty() || (used > 0 && used + bytes > shard_bytes)) {
      plan.shards.push_back({"", "", 0, i, i});
      used = 0;
    }
    plan.shards.back().end_unit = i + 1;
    used += bytes;
  }
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    plan.shards[i].file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, plan.shards.size());
    lay_out(plan, plan.shards[i]);
  }
  return plan;
}

BandPlace place_of(const Unit& u, const Band& band) {
  const auto begin = static_cast<uint64_t>(band.begin), count = static_cast<uint64_t>(band.count), cols = static_cast<uint64_t>(u.cols);
  if (!u.packed()) return {begin, count, 0, 0};
  if (u.to == WeightFormat::mxfp4) return {begin * cols / 2, count * cols / 2, begin * cols / 32, count * cols / 32};
  const uint64_t scale_row = (cols + 127) / 128 * 4;
  return {begin * cols, count * cols, begin / 128 * scale_row, scale_row};
}

void append_bands(const Plan& plan, size_t unit, std::vector<Band>& out) {
  const Unit& u = plan.units[unit];
  int64_t total = static_cast<int64_t>(u.source->bytes), step = kCopyBandBytes;
  if (u.packed()) {
    total = u.rows;
    step = u.to == WeightFormat::fp8_block ? kFp8Rows : std::max<int64_t>(1, kPackedBandBytes / source_row_bytes(u));
  }
  for (int64_t begin = 0; begin < total; begin += step) out.push_back({static_cast<uint32_t>(unit), begin, std::min(step, total - begin)});
}

std::vector<Band> bands_of(const Plan& plan, const PlannedShard& shard) {
  std::vector<Band> out;
  for (size_t i = shard.first_unit; i < shard.end_unit; ++i) append_bands(plan, i, out);
  return out;
}

BandBytes largest_band(const Plan& plan) {
  BandBytes most{static_cast<uint64_t>(kCopyBandBytes), 0};
  for (const Unit& u : plan.units) {
    if (!u.packed()) continue;
    const int64_t rows = u.to == WeightFormat::fp8_block ? kFp8Rows : std::max<int64_t>(1, kPackedBandBytes / source_row_bytes(u));
    most.in = std::max(most.in, static_cast<uint64_t>(rows * source_row_bytes(u)));
    most.out = std::max(most.out, static_cast<uint64_t>(rows * u.cols));
  }
  return most;
}

}  // namespace ingot::quant
