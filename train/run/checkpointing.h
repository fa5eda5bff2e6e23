// SPDX-License-Identifier: Apache-2.0
// When a run saves, and the save that is in flight meanwhile. A save that fails leaves the earlier
// checkpoints as they are; only that of the last step ends the run.
#pragma once

#include "tessera/train/checkpoint/saving.h"
#include "tessera/train/monitor/loss_history.h"
#include "tessera/train/run/run_facts.h"
#include "tessera/train/run/run_folder.h"
#include "tessera/train/step/run_parts.h"

#include <cstdint>
#include <memory>

namespace tessera::train {

class TESSERA_API Checkpointing {
 public:
  /// All of these must outlive it.
  Checkpointing(const RunFacts& run, RunParts& parts, const RunFolder& folder,
                const LossHistory& history, const Print& print);

  /// What is to be done after a step.
  enum class Due : uint8_t {
    nothing,
    save,
    save_and_stop,  ///< a signal asked for it
    last            ///< the run is complete
  };
  /// Agrees on it, and commits a save in flight whose files all ranks have written. `done`: steps
  /// so far. Collective.
  [[nodiscard]] Due due(int64_t done);
  /// Does it. The values of all steps are read. Collective. Errors as of Saving for the last save
  /// of a run; others are warnings.
  void follow(Due due, const Progress& progress);
  /// Saves and waits for it. Collective. Errors as of Saving, on all ranks.
  void save(const Progress& progress, bool model_only = false);

  /// Whether a signal stopped the run.
  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  [[nodiscard]] Checkpoint checkpoint(const Progress& progress, bool model_only) const;
  void begin_save(const Progress& progress);
  void finish_save();
  void saved(int64_t step, uint64_t bytes, double seconds) const;
  void save_hugging_face(int64_t step) const;

  const RunFacts& run_;
  RunParts& parts_;
  const RunFolder& folder_;
  const LossHistory& history_;
  const Print& print_;
  std::unique_ptr<BackgroundSave> in_flight_;
  bool stopped_ = false;
};

}  // namespace tessera::train
