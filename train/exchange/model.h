// SPDX-License-Identifier: Apache-2.0
// A model of Hugging Face as ours: its config.json, and any range of its tensors under our names,
// so that each rank of a mesh reads what it holds and no more.
#pragma once

#include "tessera/models/hugging_face.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/exchange/weights.h"

#include <span>
#include <string>
#include <vector>

namespace tessera::train {

/// The config.json of a folder, of any of these families, but for fields of the names `ignored`.
/// DataError: there is none, or as models::parse_hf_config.
[[nodiscard]] TESSERA_API models::HfModel read_hf_config(const std::string& folder,
                                                         std::span<const models::Family> families,
                                                         std::span<const std::string> ignored = {});

/// Whether the config.json of a folder is that of a model of Hugging Face, and not that of a run.
[[nodiscard]] TESSERA_API bool is_hf_folder(const std::string& folder);

/// Threads may share it.
class TESSERA_API HfModelFolder {
 public:
  /// Reads the names of tensors, and no bytes but those of tensors that must be equal. DataError:
  /// they are not those of this model, with every tensor that is missing, unknown, or of another
  /// shape or dtype, or they are not what config.json says.
  HfModelFolder(std::string folder, models::HfModel model);
  /// The same for a model that is there already. DataError: config.json says another one, with
  /// every field that differs (hf_differences).
  HfModelFolder(std::string folder, const models::ModelConfig& model,
                std::span<const std::string> ignored = {}, bool stretched = false);

  [[nodiscard]] const models::HfModel& model() const { return model_; }
  [[nodiscard]] const std::vector<models::NamedShape>& tensors() const { return tensors_.ours(); }
  /// The elements [begin, begin + size) of one of tensors(), in a dtype that holds them exactly.
  [[nodiscard]] Tensor read(const std::string& name, const Shape& begin, const Shape& size) const;
  /// Reads what this rank holds of each tensor, converted to its dtype. What only training has,
  /// such as the bias of routers, is not in the folder and keeps its values.
  void fill(const std::vector<nn::NamedParameter>& tensors) const;

 private:
  [[nodiscard]] std::string name_there(const std::string& theirs) const;
  void check_tensors() const;
  void check_tied() const;
  void check_storage();
  [[nodiscard]] bool equal_tensors(const std::string& a, const std::string& b) const;
  std::string folder_;
  models::HfModel model_;
  HfWeights weights_;
  models::HfTensors tensors_;
};

/// The family, or else the fields that config.json tells, in which `theirs`, of this folder,
/// differs from `ours`: "[--model.dim] 64, but ... says 32". Fields that may change on resume, or
/// that change nothing before the first step, may differ; RoPE and max_seq_len may too if the model
/// is `stretched` to longer texts than it was trained on.
[[nodiscard]] TESSERA_API std::vector<std::string> hf_differences(const models::ModelConfig& ours,
                                                                  const models::ModelConfig& theirs,
                                                                  const std::string& folder,
                                                                  bool stretched);

}  // namespace tessera::train
