// SPDX-License-Identifier: Apache-2.0
// Output of a step: the step line for people, and a JSON line in metrics.jsonl, which `tessera
// plot` reads.
#pragma once

#include "tessera/core/api.h"
#include "tessera/models/config/fields.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::train {

struct TESSERA_API MetricsConfig {
  int64_t log_freq = 10;
  bool enable_tensorboard = false, disable_color_printing = false, measure_ceiling = true;
  std::string save_tb_folder = "tb", summary = "total";
  std::vector<std::string> step_line = {};
  void fields(config::Fields& f);
};

struct StepRecord {
  int64_t step = 0;  ///< from 1
  double loss = 0, grad_norm = 0, lr = 0;
  double tokens_per_second = 0;
  double flops = 0;  ///< operations of the step, on all ranks
  /// Auxiliary losses as `loss/<name>`, and the model's statistics.
  std::vector<std::pair<std::string, double>> statistics = {};
  /// The one of this name. ConfigError, with the names that there are.
  [[nodiscard]] TESSERA_API double statistic(std::string_view name) const;
};

/// Values of the step line besides the record.
struct StepFacts {
  int64_t peak_bytes = 0, total_bytes = 0;  ///< total 0: no percentage
  double flops_per_token = 0;
  double ceiling_flops = 0;   ///< peak FLOP/s of all ranks; 0: no mfu
  bool ceiling_holds = true;  ///< false: the peak changed since it was measured, mfu is N/A
  double seconds_left = -1;   ///< below 0: no eta
  std::vector<std::string> statistics = {};  ///< names of those to show
  bool color = false;                        ///< with terminal escape codes
};
/// `step:  1  loss:  7.62441  grad_norm:  1.2345  memory:  0.45GiB(1.87%)  tps: 4,306  tflops: 0.17
/// mfu: 41.20%  eta: 1m 05s`; `mfu: N/A` where mfu_of has none.
TESSERA_API std::string step_line(const StepRecord& record, const StepFacts& facts);
/// Model FLOPs utilization: FLOP/s in percent of the peak. None without a peak (0), where it does
/// not hold, or above 100 %: a peak that is exceeded is none.
[[nodiscard]] TESSERA_API std::optional<double> mfu_of(double flops, double ceiling, bool holds);
/// 1234567 as "1,234,567".
TESSERA_API std::string with_separators(int64_t value);
/// The same with its noun, given in the singular: `1,234 tokens`.
TESSERA_API std::string with_separators(int64_t value, std::string_view noun);
/// 3725 seconds as "1h 02m".
TESSERA_API std::string duration(double seconds);
/// 1536 as "1.5 KiB".
TESSERA_API std::string byte_count(int64_t bytes);

/// Writes `metrics.jsonl`, a line per step, during the run.
class TESSERA_API MetricsLog {
 public:
  /// Begins a new file; a run resumed after step `after` keeps the lines up to that step. IoError
  /// if it cannot.
  explicit MetricsLog(const std::string& path, int64_t after = 0);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;
  void write(const StepRecord& record);
  /// The validation loss after a step; non-finite values are written as null.
  void write_validation(int64_t step, double loss);

 private:
  void write_line(const std::string& line);
  struct File;
  std::string path_;
  std::unique_ptr<File> file_;
};

/// A metric by step.
struct Curve {
  std::vector<double> steps, values;
};
/// The field `name` of each line of a metrics.jsonl, in order; for a repeated step the later line
/// counts. Lines without the field or with null are skipped, and an incomplete last line too.
/// IoError: unreadable. DataError: a line is not a JSON object with a step, or no line has the
/// field.
TESSERA_API Curve read_metrics(const std::string& path, std::string_view name);

}  // namespace tessera::train
