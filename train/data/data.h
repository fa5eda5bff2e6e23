// SPDX-License-Identifier: Apache-2.0
// Batches for training and evaluation. Tokens are cut into windows; which windows a step sees is a
// function of (seed, step) alone, a permutation of all windows per epoch, so any world of any mesh
// resumes at a step with nothing else known. One thread per loader reads, tokenises and prefetches.
#pragma once

#include "tessera/core/tensor.h"
#include "tessera/models/config/fields.h"
#include "tessera/train/data/tokenizer.h"

#include <cstdint>
#include <memory>
#include <string>

namespace tessera::train {

struct TESSERA_API DataConfig {
  std::string path, text_field = "text", packing = "documents";
  bool shuffle = true;
  int64_t begin_id = -1, num_prefetch_batches = 2;
  void fields(config::Fields& f);
};

/// (B, T) each, i64, of this rank's rows.
struct Batch {
  Tensor tokens;
  Tensor targets;  ///< the token that follows each; -100 where none does
  /// Since the start of the document or row, and the number of the document in its row; undefined
  /// where a row is all one.
  Tensor positions = {}, documents = {};
};

/// Which rows a loader makes. Row r of micro-batch m of step s is sample (s * micro_batches + m) *
/// global_rows + r of the run, on every world.
struct BatchPlan {
  int64_t seq_len = 0;        ///< tokens of a row
  int64_t vocabulary = 0;     ///< of the model: ids are below it
  int64_t global_rows = 1;    ///< of a micro-batch, over all ranks
  int64_t first_row = 0;      ///< of this rank's
  int64_t rows = 1;           ///< of this rank
  int64_t micro_batches = 1;  ///< of a step
  uint64_t seed = 0;
  /// The whole set once in its own order; the last window is filled up, and rows beyond it have no
  /// target.
  bool evaluation = false;
  std::string path_field = "dataloader.path";  ///< that errors name
};

struct DataInfo {
  int64_t files = 0;
  int64_t documents = 0;  ///< 0: not known before all is read
  int64_t tokens = 0;
  int64_t windows = 0;  ///< rows of an epoch
  int64_t batches = 0;  ///< of an evaluation: micro-batches that hold the whole set
};

class TESSERA_API DataLoader {
 public:
  /// Looks at the path and starts to read. ConfigError, ValueError, DataError, IoError: what is
  /// seen to be wrong without reading. `tokenizer` null: bytes.
  DataLoader(const DataConfig& config, const BatchPlan& plan,
             std::shared_ptr<const Tokenizer> tokenizer = nullptr);
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;
  ~DataLoader();

  /// Waits until all is read. Throws what reading found wrong: DataError, IoError.
  [[nodiscard]] const DataInfo& info();
  /// The next micro-batch of the run. Throws what went wrong when it was made; the one after it is
  /// next then. ValueError beyond the end of an evaluation.
  [[nodiscard]] Batch next();
  /// next() is the first micro-batch of `step` (from 0) then.
  void seek(int64_t step, int64_t micro = 0);
  /// seek and next; in order it costs no more than next.
  [[nodiscard]] Batch at(int64_t step, int64_t micro = 0);

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

/// The place, among `windows`, of the `sample`-th of a run: a permutation per epoch.
TESSERA_API int64_t shuffled_window(int64_t sample, int64_t windows, uint64_t seed);

}  // namespace tessera::train
