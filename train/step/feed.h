// SPDX-License-Identifier: Apache-2.0
// Feed: the micro-batches of a run's steps, from rows of its data to tensors on the mesh, and how
// far the run has got in them. Micro-batches of the next step are made while a device computes this
// one.
#pragma once

#include "tessera/models/model.h"
#include "tessera/train/data/data.h"
#include "tessera/train/parallel/parallelism.h"
#include "tessera/train/step/build_model.h"
#include "tessera/train/step/forward_backward.h"

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

namespace tessera::train {

/// Rows [first, first + count) of the run, counted from 0, as plain tensors.
using BatchSource = std::function<Batch(int64_t first, int64_t count)>;
/// This rank's rows of the micro-batch that begins at row `first` of the run.
using MicroBatchSource = std::function<Batch(int64_t first)>;

/// The micro-batches of one step.
struct StepInput {
  int64_t first = 0;  ///< the first of its rows, over all ranks
  /// Counts over this rank's rows: tokens with a target, tokens without padding, operations.
  double targets = 0, tokens = 0, flops = 0;
  std::vector<PlacedBatch> batches = {};  ///< of all ranks, on their devices
};

/// Sequences of a run, and their length.
struct FeedSizes {
  int64_t rows = 1;           ///< of a micro-batch, on a rank
  int64_t micro_batches = 1;  ///< of a step
  int64_t seq_len = 0;
};

class TESSERA_API Feed {
 public:
  /// `share` is this rank's; `model`, which counts operations, must outlive the feed.
  Feed(MicroBatchSource source, FeedSizes sizes, models::LanguageModel& model, BatchPlacer placer,
       DataShare share);

  /// Rows of a micro-batch and of a step, over all ranks.
  [[nodiscard]] int64_t rows_at_once() const { return sizes_.rows * share_.parts; }
  [[nodiscard]] int64_t rows_per_step() const { return rows_at_once() * sizes_.micro_batches; }
  [[nodiscard]] int64_t tokens_per_step() const { return rows_per_step() * sizes_.seq_len; }
  [[nodiscard]] int64_t micro_batches() const { return sizes_.micro_batches; }
  [[nodiscard]] const DataShare& share() const { return share_; }

  /// Rows of all steps so far, over all ranks; not those made ahead.
  [[nodiscard]] int64_t rows() const { return rows_; }
  /// The next step begins at this row.
  void seek(int64_t row) { rows_ = row; }

  /// The input of the step that begins at rows(): the one made ahead, if it has these rows. Meets
  /// no other rank; throws the errors of reading. `around` wraps "data" and "place".
  [[nodiscard]] StepInput next(const Around& around);
  /// Makes the input of the step after that one. An error is thrown by the next() of its rows.
  void look_ahead(const Around& around);

 private:
  struct Ahead {
    StepInput input;
    std::exception_ptr failure = {};  // why it could not be made
  };
  [[nodiscard]] StepInput input_from(int64_t first, const Around& around);

  MicroBatchSource source_;
  FeedSizes sizes_;
  models::LanguageModel& model_;
  BatchPlacer placer_;
  DataShare share_;
  std::optional<Ahead> ahead_;
  int64_t rows_ = 0;
};

/// (3) f64 on `device`, equal on all ranks: sums over them of an input's targets, tokens and
/// operations. Collective over the axes of `share`.
[[nodiscard]] TESSERA_API Tensor summed_counts(const StepInput& input, const Mesh& mesh,
                                               const DataShare& share, Device device);

}  // namespace tessera::train
