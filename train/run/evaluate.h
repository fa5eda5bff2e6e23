// SPDX-License-Identifier: Apache-2.0
// The loss of a model on held-out data, per token over all ranks. Every rank takes as many batches
// as every other, rows beyond the data count nothing, so no rank ever waits for one that is done.
#pragma once

#include "tessera/models/model.h"
#include "tessera/train/data/data.h"

#include <string>

namespace tessera::train {

struct Evaluation {
  double loss = 0;        ///< mean of -log p per token; NaN if no token counts
  double perplexity = 0;  ///< e to the loss
  int64_t tokens = 0;     ///< that count
};

/// Held-out data and how much of it a rank takes at once.
struct EvaluationPlan {
  std::string path, path_field;  ///< the field that errors name
  int64_t seq_len = 0, vocabulary = 0, rows = 1;
};
/// This rank's rows of the whole set in its own order; `like` says how documents are read. Errors
/// are those of DataLoader.
TESSERA_API DataLoader evaluation_data(const DataConfig& like, const EvaluationPlan& plan);

/// Reads the data once and throws what is wrong with it: before there are ranks, so that none of
/// them waits for one that fails.
TESSERA_API void check_evaluation_data(const DataConfig& like, const EvaluationPlan& plan);

/// Takes `steps` batches of evaluation_data, -1: all. Collective over the World; the result is that
/// of all ranks. Nothing is recorded, and the model is in eval mode meanwhile.
TESSERA_API Evaluation evaluate(models::LanguageModel& model, DataLoader& data, int64_t steps);

}  // namespace tessera::train
