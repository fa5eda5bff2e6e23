// SPDX-License-Identifier: Apache-2.0
// What people and programs see of a step: the step line, and a JSON line in metrics.jsonl, which
// `tessera plot` reads back.
#pragma once

#include "tessera/core/api.h"
#include "tessera/models/config/fields.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::train {

struct TESSERA_API MetricsConfig {
  int64_t log_freq = 10;
  bool enable_tensorboard = false, disable_color_printing = false, measure_ceiling = true;
  std::string save_tb_folder = "tb", summary = "total";
  void fields(config::Fields& f);
};

struct StepRecord {
  int64_t step = 0;  ///< from 1
  double loss = 0, grad_norm = 0, lr = 0;
  double tokens_per_second = 0;
  double flops = 0;  ///< operations of the step, on all ranks
  /// Auxiliary losses as `loss/<name>`, and the model's own figures.
  std::vector<std::pair<std::string, double>> statistics = {};
};

/// What the step line shows besides the record.
struct StepFacts {
  int64_t peak_bytes = 0, total_bytes = 0;  ///< a total of 0 leaves the percentage out
  double flops_per_token = 0;
  double ceiling_flops = 0;  ///< per second, of all ranks; 0 leaves mfu out
  double seconds_left = -1;  ///< below 0 leaves eta out
  bool color = false;        ///< with the escape codes of terminals
};
/// `step:  1  loss:  7.62441  grad_norm:  1.2345  memory:  0.45GiB(1.87%)  tps: 4,306  tflops: 0.17
/// mfu: 41.20%  eta: 1m 05s`; mfu is the share of the measured ceiling.
TESSERA_API std::string step_line(const StepRecord& record, const StepFacts& facts);
/// 1234567 as "1,234,567".
TESSERA_API std::string with_separators(int64_t value);
/// 3725 seconds as "1h 02m".
TESSERA_API std::string duration(double seconds);
/// 1536 as "1.5 KiB".
TESSERA_API std::string byte_count(int64_t bytes);

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

/// One number by step.
struct Curve {
  std::vector<double> steps, values;
};
/// The field `name` of each line of a metrics.jsonl, in order; a later line of a step counts. Lines
/// without the field or with null are left out, so is a last line that is being written. IoError:
/// unreadable. DataError: a line that is no JSON object with a step, or no line has the field.
TESSERA_API Curve read_metrics(const std::string& path, std::string_view name);

}  // namespace tessera::train
