// SPDX-License-Identifier: Apache-2.0
// Steps that a device was given and whose values nobody has read yet. The host reads the values of
// all of them by one copy, which it begins when a step is logged and waits for when the device has
// the step after it to do.
#pragma once

#include "tessera/core/host_read.h"
#include "tessera/train/monitor/metrics.h"
#include "tessera/train/monitor/step_values.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera::train {

/// A step, and the state to return to if it is not finite.
struct QueuedStep {
  int64_t step = 0;  ///< from 1
  double lr = 0;
  std::chrono::steady_clock::time_point began = {};
  int64_t first_row = 0;                      ///< of its rows
  int64_t optimizer_steps = 0;                ///< before it
  std::vector<int64_t> parameter_steps = {};  ///< before it
  Tensor not_finite = {};                     ///< as models::Loss, or undefined
};

/// A step whose values the host has.
struct ReadStep {
  QueuedStep step;
  StepRecord record;
  double targets = 0;    ///< tokens that have one, of all ranks
  bool skipped = false;  ///< it was not finite, or came after one that was not
};

class TESSERA_API StepQueue {
 public:
  explicit StepQueue(int64_t tokens_per_step) : tokens_per_step_(tokens_per_step) {}

  /// `values` has kLossValue, kNormValue, kFlopsValue, kTargetsValue and kSkipValue (nonzero: it
  /// was not finite, and the update did nothing), with auxiliary losses among them, then statistics
  /// of the model. Collective, as StepValues::gathered.
  void push(QueuedStep step, StepValues& values, Tensor skip);
  /// () bool: whether a step that is not read yet was not finite; undefined if there is none.
  [[nodiscard]] const Tensor& spoiled() const { return spoiled_; }
  /// Steps whose values nobody reads yet.
  [[nodiscard]] size_t unread() const { return unread_.size(); }

  /// Begins to read the values of all unread steps. Nothing may be on its way.
  void begin_reading();
  /// Waits for the values on their way; none: empty. In order.
  [[nodiscard]] std::vector<ReadStep> finish_reading();
  /// Forgets the unread steps, which come again after one that was not finite.
  void clear();

 private:
  struct Unread {
    QueuedStep step;
    std::vector<std::string> names;
    Tensor values;  // (names) f64
  };
  [[nodiscard]] static ReadStep read(const Unread& step, std::span<const double> values);

  int64_t tokens_per_step_;
  std::vector<Unread> unread_, reading_;  // the latest steps; before them those on their way
  std::optional<HostRead> on_the_way_;    // values of reading_
  Tensor spoiled_;
  std::chrono::steady_clock::time_point last_read_;
};

}  // namespace tessera::train
