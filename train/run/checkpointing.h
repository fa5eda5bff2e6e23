// SPDX-License-Identifier: Apache-2.0
// When a run saves, and the save in flight. A failed save changes no earlier checkpoint, and the
// run goes on, unless it is the save of the last step or of a stop.
#pragma once

#include "tessera/train/checkpoint/saving.h"
#include "tessera/train/monitor/loss_history.h"
#include "tessera/train/ranks/stop_signals.h"
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

  /// The save that is due after a step.
  enum class Due : uint8_t {
    nothing,
    save,
    terminate,  ///< SIGTERM asked for it: the run ends, and saves if checkpoints are enabled
    interrupt,  ///< the same by SIGINT
    last        ///< the run is complete
  };
  /// Agrees on the save that is due, and commits a save in flight whose files all ranks have
  /// written. `done`: steps so far. Collective.
  [[nodiscard]] Due due(int64_t done);
  /// Saves as `due` says, when the values of all steps are read. Collective. Errors as of Saving
  /// for `last` and a stop; an error of `save` is a warning.
  void follow(Due due, const Progress& progress);
  /// Saves and waits for it. Collective. Errors as of Saving, on all ranks.
  void save(const Progress& progress, bool model_only = false);

  /// The request that stopped the run, or none.
  [[nodiscard]] SignalRequest stopped_by() const { return stopped_by_; }

 private:
  [[nodiscard]] Checkpoint checkpoint(const Progress& progress, bool model_only) const;
  void stop(SignalRequest by, const Progress& progress);
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
  SignalRequest stopped_by_ = SignalRequest::none;
};

}  // namespace tessera::train
