// SPDX-License-Identifier: Apache-2.0
// Reads a checkpoint: whole tensors, or the ranges that a rank holds, straight into its shards.
// What is read is checked first, by the checksums of chunks, so a rank reads little more than it
// needs, and no tensor is in memory a second time.
#pragma once

#include "tessera/nn/io/safetensors.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/checkpoint/manifest.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tessera::train {

/// The text of a step folder's manifest, whose files all exist and have their sizes. DataError says
/// what is missing or differs; IoError: a file cannot be read.
[[nodiscard]] TESSERA_API std::string read_manifest(const std::string& step_folder);

/// Threads may share a reader.
class TESSERA_API CheckpointReader {
 public:
  /// Errors as read_manifest. The bytes of tensors are not read yet.
  explicit CheckpointReader(const std::string& step_folder)
      : CheckpointReader(step_folder, read_manifest(step_folder)) {}
  /// The same for a rank that was sent the text.
  CheckpointReader(const std::string& step_folder, const std::string& manifest_text);
  /// Of a folder whose contents are known in another way.
  CheckpointReader(std::string folder, Manifest manifest);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const Manifest& manifest() const { return manifest_; }

  /// Reads every byte; what is wrong, by file, tensor and range. Empty: nothing.
  [[nodiscard]] std::vector<std::string> faults() const;
  /// DataError with the faults, if there are any.
  void verify() const;
  /// Reads what this rank holds of these tensors, of their dtypes and shapes, and says what is
  /// wrong with it. All ranks call it: they share out the files of whole tensors, whose checksums
  /// cover all of them.
  [[nodiscard]] std::vector<std::string> faults_of(
      const std::vector<nn::NamedParameter>& tensors) const;
  /// Reads the same into the tensors. DataError, IoError: as faults_of; some may then be changed.
  void fill(const std::vector<nn::NamedParameter>& tensors) const;

  /// The run's tokenizer, of checked files; null if there is none in the checkpoint. DataError:
  /// damaged, or as make_tokenizer.
  [[nodiscard]] std::shared_ptr<const Tokenizer> tokenizer() const;

  /// A whole tensor. DataError: there is none of this name, or its bytes are wrong.
  [[nodiscard]] Tensor read(const std::string& tensor) const;
  /// The elements of a box of it.
  [[nodiscard]] Tensor read(const std::string& tensor, const Box& box) const;
  /// All tensors of a part of the manifest.
  [[nodiscard]] std::vector<nn::NamedParameter> read_all(const TensorEntries& part) const;

 private:
  /// Elements of a tensor that are read; the box is not empty.
  struct Need {
    std::string name;
    const TensorEntry* entry;
    Box box;
  };
  /// A checked piece of need `index`, and the piece's bytes.
  using Take = std::function<void(size_t index, const Box& piece, const void* bytes)>;
  /// Reads the tokenizer's files; what is wrong with them.
  [[nodiscard]] std::vector<std::string> tokenizer_faults(std::vector<TokenizerFile>& files) const;
  /// DataError: there is no such tensor.
  [[nodiscard]] const TensorEntry& entry(const std::string& tensor) const;
  [[nodiscard]] std::vector<Need> needs_of(const std::vector<nn::NamedParameter>& tensors) const;
  /// Reads each need into the tensor beside it.
  void fill(const std::vector<Need>& needs, const std::vector<Tensor>& shards) const;
  /// Reads each file once, in order; faults of what is needed.
  [[nodiscard]] std::vector<std::string> walk(const std::vector<Need>& needs,
                                              const Take& take) const;
  /// Of files of whole tensors, each `parts`-th from `first` on: faults of their checksums.
  [[nodiscard]] std::vector<std::string> whole_file_faults(size_t first, size_t parts) const;
  /// A data file, opened and checked; what is wrong with it. Some are kept open, since whoever
  /// reads a tensor at a time needs the same ones again.
  [[nodiscard]] std::string open(size_t file,
                                 std::shared_ptr<const io::SafetensorsFile>& opened) const;
  [[noreturn]] void fail_damaged(const std::vector<std::string>& faults) const;

  std::string path_;
  Manifest manifest_;
  std::vector<size_t> chunks_in_file_;
  mutable std::mutex mutex_;  // of the next one
  mutable std::map<size_t, std::shared_ptr<const io::SafetensorsFile>> opened_;
};

}  // namespace tessera::train
