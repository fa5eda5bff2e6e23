// SPDX-License-Identifier: Apache-2.0
// Opens a trained model: from the dump folder of a run, with checkpoints or model.safetensors, or
// from a step folder.
#pragma once

#include "tessera/train/checkpoint/checkpoint.h"
#include "tessera/train/config/config.h"

#include <memory>
#include <string>
#include <vector>

namespace tessera::train {

/// Opened once for all ranks; each rank then reads what it holds.
class TESSERA_API TrainedModel {
 public:
  Config config;
  /// Of the checkpoint; null if it has none: then it is that of `config`.
  std::shared_ptr<const Tokenizer> tokenizer;
  /// Loads a model without bytes onto `device`, with these layouts (a FillModel). Collective: each
  /// rank reads the ranges that it holds. A damaged step is skipped with a warning on rank 0, if an
  /// earlier one has the same model and tokenizer. DataError, IoError on all ranks: there is none,
  /// or it does not fit the model.
  void fill(models::LanguageModel& model, const nn::LayoutOf& layout_of, Device device,
            const Warn& warn) const;
  /// Its tensors, as they are stored.
  [[nodiscard]] const CheckpointReader& reader() const { return *from_; }

 private:
  friend TrainedModel open_trained_model(const std::string& path, const Warn& warn,
                                         const Catalogue& catalogue);
  [[nodiscard]] std::vector<nn::NamedParameter> as_saved(models::LanguageModel& model,
                                                         const CheckpointReader& from) const;
  std::shared_ptr<const CheckpointReader> from_;  // what config and tokenizer are of
  StepFolders steps_;                             // from_'s and earlier ones; none: a file
};
/// Opens the latest model of a dump folder: a checkpoint, or model.safetensors if its step is
/// higher. Reads the manifest and the tokenizer, but no tensors. IoError, DataError: missing or
/// damaged.
[[nodiscard]] TESSERA_API TrainedModel open_trained_model(const std::string& path, const Warn& warn,
                                                          const Catalogue& catalogue = {});

/// Opens model.safetensors of the run in `folder`, which has its model alone, as a checkpoint of
/// whole tensors; null: it has none. IoError, DataError: damaged.
[[nodiscard]] TESSERA_API std::shared_ptr<const CheckpointReader> open_model_file(
    const std::string& folder);

/// The mark that ends an answer of the chat template that the run trained with, by this tokenizer;
/// -1: it trained on no conversations, or the template writes none, or, with a warning, it cannot
/// be opened.
[[nodiscard]] TESSERA_API int64_t answer_end(const Config& config, const Tokenizer& tokenizer,
                                             const Warn& warn);

}  // namespace tessera::train
