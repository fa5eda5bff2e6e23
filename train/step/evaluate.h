// SPDX-License-Identifier: Apache-2.0
// The loss of a model on validation data, per token over all ranks. Every rank runs the same number
// of batches, and padded rows do not count, so no rank waits for one that has finished.
#pragma once

#include "tessera/models/model.h"
#include "tessera/nn/context/context_parallel.h"
#include "tessera/train/data/data.h"

#include <memory>
#include <optional>
#include <string>

namespace tessera::train {

struct Evaluation {
  double loss = 0;        ///< mean of -log p per token; NaN without tokens
  double perplexity = 0;  ///< e to the loss
  int64_t tokens = 0;     ///< tokens with a target
};

/// Validation data and batch size.
struct EvaluationPlan {
  std::string path, path_field;  ///< path_field: as in BatchPlan
  int64_t seq_len = 0, vocabulary = 0, rows = 1;
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;  ///< of the model; null: bytes
};
/// This rank's rows of the whole data set, in order, as data_share of the mesh says; `like` says
/// how documents are read. Errors are those of DataLoader.
TESSERA_API DataLoader evaluation_data(const DataConfig& like, const EvaluationPlan& plan,
                                       const Mesh& mesh);

/// Reads the data once and throws its errors, before ranks start, so that no rank waits for one
/// that fails.
TESSERA_API void check_evaluation_data(const DataConfig& like, const EvaluationPlan& plan);

/// Evaluates `steps` batches of evaluation_data of the model's mesh (-1: all), with sequences cut
/// as `cut` says (ParallelismConfig::sequence_cut). Collective over the mesh; the result covers all
/// ranks. UsageError: plain parameters. Runs under NoGrad with the model in eval mode.
TESSERA_API Evaluation evaluate(models::LanguageModel& model, DataLoader& data, int64_t steps,
                                const std::optional<nn::ContextParallelOptions>& cut);

}  // namespace tessera::train
