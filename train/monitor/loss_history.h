// SPDX-License-Identifier: Apache-2.0
// The records of past steps, for the plot at the end of a run. Up to 8192 steps all are kept, then
// every second one, then every fourth: a bounded number, evenly spaced, however long the run is.
#pragma once

#include "tessera/core/tensor.h"
#include "tessera/train/monitor/metrics.h"

#include <cstdint>
#include <vector>

namespace tessera::train {

/// The name of a history among the tensors of a checkpoint.
inline constexpr const char* kLosses = "losses";

class TESSERA_API LossHistory {
 public:
  void add(const StepRecord& record);
  [[nodiscard]] const std::vector<StepRecord>& records() const { return records_; }

  /// (records, 4) f64, on the CPU: step, loss, gradient norm and learning rate of each.
  [[nodiscard]] Tensor tensor() const;
  /// Replaces the records by a tensor() of a checkpoint.
  void restore(const Tensor& losses);

 private:
  std::vector<StepRecord> records_;
  int64_t stride_ = 1;
};

}  // namespace tessera::train
