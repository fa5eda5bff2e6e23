// SPDX-License-Identifier: Apache-2.0
// Compares two configurations from one seed, step by step: the effect of precision, ranks,
// checkpointing or micro-batches on losses and gradient norms.
#pragma once

#include "tessera/train/config/config.h"
#include "tessera/train/monitor/metrics.h"

#include <functional>
#include <string>
#include <vector>

namespace tessera::train {

struct CompareConfig {
  int64_t steps = 0;  ///< steps to compare; 0: all steps of the shorter run
  std::optional<int64_t> seed;
  std::optional<double> tolerance;
  std::optional<DeviceChoice> device;  ///< of both runs; none: that of each
  std::string dump_folder = "./outputs/compare";
  bool overwrite = false;
  void fields(config::Fields& f);
};

struct Comparison {
  std::vector<StepRecord> a, b;  ///< of equal length
  struct Largest {
    double difference = 0;  ///< relative to the larger value
    int64_t step = 0;       ///< 0: no step differs
  } loss, grad_norm;
};

/// |a - b| / max(|a|, |b|); 0 for two zeros.
[[nodiscard]] TESSERA_API double relative_difference(double a, double b);

/// Runs both, one after the other, on `ranks` threads each, into dump_folder/a and dump_folder/b.
/// `print` gets their output. Errors are those of the runs.
TESSERA_API Comparison compare(Config a, Config b, const CompareConfig& options,
                               const std::function<void(const std::string&)>& print = {});

}  // namespace tessera::train
