// SPDX-License-Identifier: Apache-2.0
// DeviceTimes: how long a device runs the kernels of each op of a training step. The host only
// queues them, so its clock would show how long that takes. What is launched between the ends of
// two ops is charged to the second one.
#pragma once

#include "tessera/core/cuda_backend.h"
#include "tessera/core/error.h"
#include "tessera/core/process.h"

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::bench {

enum Part { kForward, kBackward, kOptimizer, kParts };

class DeviceTimes {
 public:
  struct Kernel {
    int64_t launches = 0;
    double seconds = 0;
  };
  using Kernels = std::map<std::string, Kernel>;  ///< by name
  using Owner = std::pair<Part, std::string_view>;
  static constexpr std::string_view kNoOp = "(no op)";  ///< of what no op launched

  /// Starts the trace. There is none on a CPU, nor on a device without CUPTI.
  explicit DeviceTimes(Device device) : device_(device) {
    if (!device.is_cuda()) return;
    try {
      DeviceTrace& trace = Process::get().cuda().trace();
      trace.start(device.index);
      trace.mark(1);
      trace_ = &trace;
    } catch (const DeviceError& e) {
      why_not_ = e.what();
    }
  }
  ~DeviceTimes() {
    try {
      if (trace_) (void)trace_->stop(device_.index);
    } catch (const Error&) {  // the device is lost: the run's own error says so
    }
  }
  DeviceTimes(const DeviceTimes&) = delete;
  DeviceTimes& operator=(const DeviceTimes&) = delete;

  /// Why a device has no times; empty if it has, and for a CPU.
  [[nodiscard]] const std::string& why_not() const { return why_not_; }
  /// Charges what was launched since the last call to this op.
  void ended(Part part, std::string_view op) {
    if (!trace_) return;
    owners_.emplace_back(part, op);
    trace_->mark(owners_.size() + 1);
  }
  /// Ends the trace; false if there was none.
  bool finish() {
    if (!trace_) return false;
    const DeviceWorks works = std::exchange(trace_, nullptr)->stop(device_.index);
    dropped_ = works.dropped;
    for (const DeviceWork& w : works.all) {
      const bool marked = w.mark != 0 && w.mark <= owners_.size();
      Kernel& kernel = kernels_[marked ? owners_[w.mark - 1] : Owner(kForward, kNoOp)][w.name];
      ++kernel.launches;
      kernel.seconds += static_cast<double>(w.end - w.begin) * 1e-9;
    }
    return true;
  }
  [[nodiscard]] const std::map<Owner, Kernels>& kernels() const { return kernels_; }
  [[nodiscard]] double seconds(const Owner& owner) const {
    double sum = 0;
    if (const auto found = kernels_.find(owner); found != kernels_.end())
      for (const auto& [name, kernel] : found->second) sum += kernel.seconds;
    return sum;
  }
  /// Records that CUPTI had no room for.
  [[nodiscard]] int64_t dropped() const { return dropped_; }

 private:
  const Device device_;
  DeviceTrace* trace_ = nullptr;
  std::string why_not_;
  std::vector<Owner> owners_;  // by mark, from 1
  std::map<Owner, Kernels> kernels_;
  int64_t dropped_ = 0;
};

}  // namespace tessera::bench
