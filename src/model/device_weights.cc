#include "model/device_weights.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"

namespace ingot::model {
namespace {

using tensor::WeightFormat;

size_t data_bytes(const WeightView& w) { return static_cast<size_t>(w.rows * w.row_bytes()); }
size_t scale_bytes(const WeightView& w) {
  if (w.format == WeightFormat::fp8_block) return static_cast<size_t>((w.first_row + w.rows + 127) / 128 * w.scale_cols()) * sizeof(float);
  return static_cast<size_t>(w.rows * w.scale_cols());
}

// Calls visit.weight(view) for every linear and table and visit.vector(view, size) for every vector.
template <class Visit>
void each_tensor(MlpWeights& mlp, Visit& visit) {
  for (WeightView* w : {&mlp.gate, &mlp.up, &mlp.down}) visit.weight(*w);
}
template <class Visit>
void each_tensor(LayerWeights& layer, Visit& visit) {
  visit.vector(layer.input_norm, layer.q_a.cols);
  visit.vector(layer.post_attention_norm, layer.q_a.cols);
  visit.vector(layer.q_a_norm, layer.q_a.rows);
  visit.vector(layer.kv_a_norm, layer.kv_b.cols);
  for (WeightView* w : {&layer.q_a, &layer.q_b, &layer.kv_a, &layer.kv_b, &layer.o}) visit.weight(*w);
  if (layer.indexer) {
    IndexerWeights& indexer = *layer.indexer;
    visit.vector(indexer.k_norm_weight, indexer.wk.rows);
    visit.vector(indexer.k_norm_bias, indexer.wk.rows);
    for (WeightView* w : {&indexer.wq_b, &indexer.wk, &indexer.weights_proj}) visit.weight(*w);
  }
  if (layer.dense) each_tensor(*layer.dense, visit);
  if (!layer.moe) return;
  MoeWeights& moe = *layer.moe;
  visit.weight(moe.router);
  for (std::vector<WeightView>* experts : {&moe.gate, &moe.up, &moe.down})
    for (WeightView& w : *experts) visit.weight(w);
  if (moe.shared) each_tensor(*moe.shared, visit);
  visit.array(moe.router_bias, moe.on_device.router_bias);
  visit.array(moe.gate, moe.on_device.gate);
  visit.array(moe.up, moe.on_device.up);
  visit.array(moe.down, moe.on_device.down);
}
template <class Visit>
void each_tensor(Weights& all, Visit& visit) {
  visit.weight(all.embed);
  visit.weight(all.lm_head);
  visit.vector(all.final_norm, all.embed.cols);
  for (LayerWeights& layer : all.layers) each_tensor(layer, visit);
  if (!all.mtp) return;
  MtpWeights& mtp = *all.mtp;
  for (VectorView* v : {&mtp.enorm, &mtp.hnorm, &mtp.final_norm}) visit.vector(*v, all.embed.cols);
  for (WeightView* w : {&mtp.eh_proj, &mtp.embed, &mtp.head}) visit.weight(*w);
  each_tensor(mtp.layer, visit);
}

// Pieces of host memory and their places in one piece of device memory. What is part of another piece (a head's rows of kv_b) or the same
// (the embedding table that is the head too) has no place of its own.
class Layout {
 public:
  void weight(const WeightView& w) {
    add(w.data, data_bytes(w));
    add(w.scale, scale_bytes(w));
  }
  void vector(const VectorView& v, int64_t size) { add(v.data, static_cast<size_t>(size) * tensor::dtype_bytes(v.dtype)); }
  template <class T>
  void array(const std::vector<T>& host, const T*) {
    add(host.data(), host.size() * sizeof(T));
  }

  // Decides the places. Returns the bytes of all.
  size_t place() {
    size_t end = 0;
    const uint8_t* covered = nullptr;  // the end of the piece before
    for (auto piece = pieces_.begin(); piece != pieces_.end();) {
      if (piece->first + piece->second.bytes <= covered) {
        piece = pieces_.erase(piece);
        continue;
      }
      INGOT_CHECK(piece->first >= covered, "two tensors overlap in part");
      covered = piece->first + piece->second.bytes;
      piece->second.offset = end;
      end += (piece->second.bytes + kAlignment - 1) / kAlignment * kAlignment;
      ++piece;
    }
    return end;
  }
  // The offset of what lies at `host`.
  size_t offset(const void* host) const {
    const auto* at = static_cast<const uint8_t*>(host);
    auto piece = pieces_.upper_bound(at);
    INGOT_CHECK(piece != pieces_.begin());
    --piece;
    const auto within = static_cast<size_t>(at - piece->first);
    INGOT_CHECK(within < piece->second.bytes, "a tensor has no place");
    return piece->second.offset + within;
  }
  template <class Copy>
  void each(Copy copy) const {
    for (const auto& [host, piece] : pieces_) copy(piece.offset, host, piece.bytes);
  }

 private:
  static constexpr size_t kAlignment = 256;  // as an allocation of its own would have
  struct Piece {
    size_t bytes = 0;
    size_t offset = 0;
  };
  void add(const void* host, size_t bytes) {
    if (host == nullptr || bytes == 0) return;
    Piece& piece = pieces_[static_cast<const uint8_t*>(host)];
    piece.bytes = std::max(piece.bytes, bytes);
  }

  std::map<const uint8_t*, Piece> pieces_;  // by where they lie
};

// Turns host pointers into those of the device.
class Mover {
 public:
  Mover(const Layout& layout, const uint8_t* base) : layout_(layout), base_(base) {}
  void weight(WeightView& w) const {
    w.data = moved(w.data);
    w.scale = moved(w.scale);
  }
  void vector(VectorView& v, int64_t) const { v.data = moved(static_cast<const uint8_t*>(v.data)); }
  template <class T>
  void array(const std::vector<T>& host, const T*& device) const {
    device = host.empty() ? nullptr : reinterpret_cast<const T*>(base_ + layout_.offset(host.data()));
  }

 private:
  const uint8_t* moved(const uint8_t* host) const { return host == nullptr ? nullptr : base_ + layout_.offset(host); }
  const Layout& layout_;
  const uint8_t* base_;
};

}  // namespace

Result<DeviceWeights> DeviceWeights::upload(const Weights& host, std::shared_ptr<gpu::Accelerator> device) {
  DeviceWeights made;
  made.weights_ = host;
  Layout layout;
  each_tensor(made.weights_, layout);
  const size_t bytes = layout.place();
  auto memory = gpu::DeviceMemory::allocate(device, bytes);
  if (!memory) return fail_hint("use a smaller checkpoint or a larger GPU", "no memory for the weights: {}", memory.error().message);
  made.memory_ = std::move(*memory);
  auto* base = reinterpret_cast<uint8_t*>(made.memory_.data());
  Mover mover(layout, base);
  each_tensor(made.weights_, mover);
  // After the move, since the arrays of views are among the pieces.
  layout.each([&](size_t offset, const void* from, size_t count) { device->copy(base + offset, from, count); });
  INGOT_TRY(device->finish());
  return made;
}

}  // namespace ingot::model
