// SPDX-License-Identifier: Apache-2.0
// What people and programs see of a run: the step line, a JSON line per step, and a plot of the
// loss.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::train {

struct StepRecord {
  int64_t step = 0;  ///< from 1
  double loss = 0, grad_norm = 0, lr = 0;
  double tokens_per_second = 0;
};

/// `step:  1  loss:  7.62441  grad_norm:  1.2345  memory:  0.45GiB(1.87%)  tps: 4,306  tflops: 0.17
/// eta: 1m 05s`. `seconds_left` below 0 leaves the last part out; a total of 0 bytes, the
/// percentage.
TESSERA_API std::string step_line(const StepRecord& record, int64_t peak_bytes, int64_t total_bytes,
                                  double flops_per_token, double seconds_left);
/// 1234567 as "1,234,567".
TESSERA_API std::string with_separators(int64_t value);
/// 3725 seconds as "1h 02m".
TESSERA_API std::string duration(double seconds);

/// Writes `metrics.jsonl`, a line per step, as the run goes.
class TESSERA_API MetricsLog {
 public:
  /// Begins a new file; a run that goes on after step `after` keeps the lines of the steps to
  /// there. IoError if it cannot.
  explicit MetricsLog(const std::string& path, int64_t after = 0);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;
  void write(const StepRecord& record);
  /// The loss on held-out data after a step; what is not finite is written as null.
  void write_validation(int64_t step, double loss);

 private:
  void write_line(const std::string& line);
  struct File;
  std::string path_;
  std::unique_ptr<File> file_;
};

/// The loss over steps as an SVG page, with a running mean when there are many steps.
TESSERA_API std::string loss_plot_svg(const std::vector<StepRecord>& records,
                                      const std::string& title);

}  // namespace tessera::train
