// SPDX-License-Identifier: Apache-2.0
// Batches for training and evaluation. Tokens are split into windows; row n of a run is a function
// of (seed, n), which data set of a mixture and a permutation of its windows per epoch, so a run
// resumes from the number of rows taken alone, on any mesh and with any batch size. One thread per
// loader reads, tokenises and prefetches.
#pragma once

#include "tessera/core/tensor.h"
#include "tessera/models/config/fields.h"
#include "tessera/train/data/mixture.h"
#include "tessera/train/tokenizer/document_tokens.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

struct TESSERA_API DataConfig {
  std::string path;
  std::vector<std::string> mixture = {};  ///< in place of a path; parse_mixture says what each is
  std::string text_field = "text", packing = "documents";
  std::string document_tokens = kTokensOfTokenizer;
  std::string format = "text", chat_template = "plain", long_examples = "cut";
  bool shuffle = true;
  int64_t begin_id = -1, num_prefetch_batches = 2;
  void fields(config::Fields& f);
  /// Those of them that say how documents and examples are read, which an evaluation has too.
  void reading_fields(config::Fields& f);
  /// The mixture, or else the one path, of the field `path_field`. ConfigError: as parse_mixture.
  [[nodiscard]] std::vector<MixturePart> parts(
      const std::string& path_field = "dataloader.path") const;
  /// Conflicts between fields.
  [[nodiscard]] std::vector<std::string> conflicts() const;
};

/// (B, T) each, i64: the sequences of this rank.
struct Batch {
  Tensor tokens;
  Tensor targets;  ///< the next token of each; -100 if there is none
  /// Position of each token in its document, and index of the document in its sequence; undefined
  /// if every sequence is one document.
  Tensor positions = {}, documents = {};
  /// Bool: true at places that hold no token, behind those of a row, as its documents do not fill
  /// it; undefined if no row of the micro-batch has such a place, of this rank or of another.
  Tensor padding = {};
};

/// The rows (sequences) that a loader makes. A micro-batch is `global_rows` successive rows of the
/// run, whichever ranks read them; this rank makes `rows` of them.
struct BatchPlan {
  int64_t seq_len = 0;      ///< tokens of a row
  int64_t vocabulary = 0;   ///< vocabulary size of the model: ids are below it
  int64_t global_rows = 1;  ///< rows of a micro-batch over all ranks
  int64_t first_row = 0;    ///< first row of this rank in the micro-batch
  int64_t rows = 1;         ///< rows of this rank
  uint64_t seed = 0;
  /// For evaluation: the whole data set once, in order; the last window and additional rows are
  /// padded with ignored targets.
  bool evaluation = false;
  std::string path_field = "dataloader.path";  ///< for errors
};

/// Of a data set, or sums over those of a mixture.
struct DataInfo {
  std::string path;
  double share = 1;  ///< of the rows of the run
  int64_t files = 0;
  int64_t documents = 0;  ///< 0: unknown until all data is read
  int64_t tokens = 0;
  int64_t windows = 0;  ///< rows of an epoch
  int64_t batches = 0;  ///< for evaluation: number of micro-batches of the whole data set
  std::string listing;  ///< which files of a folder were taken and which were not; empty for a file
  std::string details;  ///< a line for people: what a fine-tuning set holds; empty for others
  std::string document_tokens;  ///< what documents of text begin and end with, for people
  /// The lines that every command prints of data that it reads: details and data_files_line.
  /// `what`: whose.
  [[nodiscard]] TESSERA_API std::vector<std::string> notes(std::string_view what = "data") const;
};

class TESSERA_API DataLoader {
 public:
  /// Checks the path and starts to read. ConfigError, ValueError, DataError, IoError: faults that
  /// are visible without reading the data. `tokenizer` null: bytes; NoTokenizer: text is a
  /// DataError.
  DataLoader(const DataConfig& config, const BatchPlan& plan,
             std::shared_ptr<const Tokenizer> tokenizer = nullptr);
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;
  ~DataLoader();

  /// Whether a data set is text, or was prepared of text; else all are ids of nobody's tokens.
  [[nodiscard]] bool is_of_text() const;
  /// Waits until all data is read. Throws errors of reading: DataError, IoError.
  [[nodiscard]] const DataInfo& info();
  /// The same of each data set of a mixture; of the one data set otherwise.
  [[nodiscard]] std::span<const DataInfo> sources();
  /// The next micro-batch of the run. Throws an error of making it; the call after that continues
  /// with the following one. ValueError beyond the end of an evaluation.
  [[nodiscard]] Batch next();
  /// Makes the micro-batch that begins at row `row` of the run (from 0) the next one. ValueError if
  /// it is negative.
  void seek(int64_t row);
  /// The micro-batch that begins at row `row`; in order it costs no more than next().
  [[nodiscard]] Batch at(int64_t row);

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

/// The window of row number `row` of a data set: a permutation of all `windows` per epoch, another
/// one for each data set `source` of a mixture.
TESSERA_API int64_t shuffled_window(int64_t row, int64_t windows, uint64_t seed, size_t source = 0);

}  // namespace tessera::train
