// Operations as an observer is told of them, on whatever machine they are run.
#pragma once

#include <string_view>

#include "gpu/cpu.h"
#include "gpu/stream.h"
#include "kernels/device/device_kernels.h"
#include "kernels/op_cost.h"

namespace ingot::kernels {

// run() runs an operation, or puts it on the queue of a GPU; cost(hints) is what it costs.
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

// A kernel of one form on a GPU.
template <class K>
void launch_observed(gpu::Stream& stream, std::string_view op, const typename K::Params& p) {
  observed(stream, op, "lanes", p, [&] { launch<K>(*stream.device, p); });
}

// The same kernel on a GPU and on the CPU.
template <class K>
void run_observed(gpu::Stream& stream, std::string_view op, const typename K::Params& p) {
  if (stream.device != nullptr) return launch_observed<K>(stream, op, p);
  observed(stream, op, "lanes", p, [&] { gpu::cpu_launch<K>(stream, p); });
}

// By native/cpu: run(pool).
template <class Params, class Run>
void native_observed(gpu::Stream& stream, std::string_view op, const Params& p, Run run) {
  observed(stream, op, "native", p, [&] { run(*stream.pool); });
}

}  // namespace ingot::kernels
