// Operations that are put on a GPU's queue, as an observer is told of them.
#pragma once

#include <string_view>

#include "gpu/stream.h"
#include "kernels/device/device_kernels.h"
#include "kernels/op_cost.h"

namespace ingot::kernels {

// run() puts an operation on the queue; cost(hints) is what it costs.
template <class Cost, class Run>
void observed_at(gpu::Stream& stream, std::string_view op, std::string_view kernel, Cost cost, Run run) {
  if (stream.observer == nullptr) return run();
  stream.observer->before(stream.role.empty() ? op : stream.role, kernel, cost(stream.observer->hints));
  run();
  stream.observer->after();
}

// The same where its params tell what it costs.
template <class Params, class Run>
void observed(gpu::Stream& stream, std::string_view op, std::string_view kernel, const Params& p, Run run) {
  observed_at(
      stream, op, kernel, [&p](const gpu::OpHints& hints) { return op_cost(p, hints); }, run);
}

// A kernel of one form.
template <class K>
void launch_observed(gpu::Stream& stream, std::string_view op, const typename K::Params& p) {
  observed(stream, op, "lanes", p, [&] { launch<K>(*stream.device, p); });
}

}  // namespace ingot::kernels
