// SPDX-License-Identifier: Apache-2.0
// The loss of a model on held-out data, per token over all ranks. Every rank takes as many batches
// as every other, rows beyond the data count nothing, so no rank ever waits for one that is done.
#pragma once

#include "tessera/models/llama3/llama3.h"
#include "tessera/train/data.h"

namespace tessera::train {

struct Evaluation {
  double loss = 0;        ///< mean of -log p per token; NaN if no token counts
  double perplexity = 0;  ///< e to the loss
  int64_t tokens = 0;     ///< that count
};

/// Takes `steps` batches of `rows` rows per rank, -1: as many as the data needs, and never a row
/// twice. Collective over the World; the result is that of all ranks. Nothing is recorded.
TESSERA_API Evaluation evaluate(const llama3::Model& model, const TextData& data, int64_t seq_len,
                                int64_t rows, int64_t steps);

}  // namespace tessera::train
