// SPDX-License-Identifier: Apache-2.0
// Saving: one checkpoint on its way to disk, by all ranks of the World, or by the caller alone.
//
// A save has three steps. To begin, the ranks agree on the plan (plan.h), rank 0 makes
// `step-N.partial`, and all of them see that they share it; with a snapshot, each rank copies the
// chunks that it is to write. Then each rank writes its file, without a word to the others, so this
// may run on any thread while training goes on. To commit, the ranks exchange checksums or errors:
// rank 0 writes the manifest and renames the folder, or removes it. So a step is committed by all
// ranks or by none, and an asynchronous save needs no collectives of its own thread: begin and
// commit lie between steps, where all ranks meet anyway.
#pragma once

#include "tessera/nn/io/safetensors.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/checkpoint/folder.h"
#include "tessera/train/checkpoint/manifest.h"
#include "tessera/train/checkpoint/plan.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tessera::train {

/// The data of a checkpoint. Tensors are plain, then equal on all ranks, or distributed; names are
/// the same in every run of the model, and unique among all lists.
struct Checkpoint {
  Progress progress = {};
  uint64_t seed = 0;
  std::string config = "{}";  ///< JSON object
  int64_t data_windows = 0;   ///< as in the manifest
  std::vector<nn::NamedParameter> model = {};
  std::vector<nn::NamedParameter> optimizer = {};  ///< empty: only the model
  std::vector<nn::NamedParameter> train_state = {};
  DataFingerprint data = {};  ///< as in the manifest
  std::string mesh = {};      ///< as in the manifest
  std::string products = {};  ///< as in the manifest
  /// Its files are saved with the tensors. Null: unknown.
  std::shared_ptr<const Tokenizer> tokenizer = {};
};

/// Whether a save copies what it writes, so that the tensors may change while it does.
enum class Snapshot : uint8_t { no, yes };

class TESSERA_API Saving {
 public:
  /// Collective. On all ranks: IoError if the folder cannot be written, has no room or is not the
  /// same on all hosts; errors of Holdings::add and plan_chunks.
  Saving(CheckpointFolder folder, const Checkpoint& checkpoint, Snapshot snapshot);
  Saving(const Saving&) = delete;
  Saving& operator=(const Saving&) = delete;

  /// Writes this rank's file; an error is kept for commit(). Once, on any thread.
  void write() noexcept;
  /// Collective, after write(): makes the folder `step-N`, replacing an earlier one, or throws the
  /// error of a rank on all; then earlier checkpoints are unchanged. Returns the bytes written by
  /// all ranks.
  uint64_t commit();
  [[nodiscard]] int64_t step() const { return manifest_.progress.step; }
  /// Memory that the snapshot takes on this rank.
  [[nodiscard]] int64_t snapshot_bytes() const { return snapshot_bytes_; }

 private:
  void share_folder();
  void take_chunks(const Checkpoint& checkpoint, Snapshot snapshot);
  [[nodiscard]] uint64_t finish_manifest(const std::vector<std::string>& sums);

  CheckpointFolder folder_;
  Manifest manifest_;  // without files and tensors until commit
  std::vector<PlannedTensor> plan_;
  std::string partial_;  // the folder
  int rank_ = 0, ranks_ = 1;
  std::vector<Tensor> held_;  // whose bytes chunks_ point into
  std::unique_ptr<std::byte[]> snapshot_;
  int64_t snapshot_bytes_ = 0;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<io::TensorBytes> chunks_;  // of this rank, in the order of the plan
  io::SafetensorsSums sums_;
  std::exception_ptr error_;
};

/// A save in flight, whose files a thread of its own writes while training goes on.
class TESSERA_API BackgroundSave {
 public:
  /// Collective: takes the snapshot and starts the thread. Errors as of Saving.
  BackgroundSave(CheckpointFolder folder, const Checkpoint& checkpoint);
  /// Waits for the thread; without finish() nothing is committed.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Whether this rank's file is written, or failed. Not collective.
  [[nodiscard]] bool written() const { return written_.load(std::memory_order_acquire); }
  /// Collective: waits for the thread, then commits, as Saving::commit.
  uint64_t finish();
  [[nodiscard]] const Saving& saving() const { return saving_; }

 private:
  Saving saving_;
  std::atomic<bool> written_{false};
  std::thread writer_;
};

/// Saves at once: begins, writes and commits. Collective; errors as of Saving. Returns the bytes
/// written.
TESSERA_API uint64_t save(const CheckpointFolder& folder, const Checkpoint& checkpoint);

}  // namespace tessera::train
