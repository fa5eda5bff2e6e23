// SPDX-License-Identifier: Apache-2.0
// Trainer: composes model, data, optimizer and schedule, runs the steps and writes what a run
// leaves behind: config.json, metrics.jsonl, loss.svg and model.safetensors in the dump folder.
// Data parallel by layouts alone: parameters are replicated over the mesh's one axis, the batch is
// cut over it, gradients come out partial and are reduced once. One rank is a mesh like any other.
#pragma once

#include "tessera/dist/mesh.h"
#include "tessera/dist/world.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/train/config.h"
#include "tessera/train/monitor.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::train {

class TESSERA_API Trainer {
 public:
  /// Checks that the dump folder can be written, reads the data and makes the model, before
  /// anything is trained. Made on every rank of a World; rank 0 writes. `print` gets the lines that
  /// people read, on rank 0, and `screen` the bar.
  explicit Trainer(const Config& config, std::function<void(const std::string&)> print = {},
                   Screen* screen = nullptr);

  /// One optimizer step. NumericError, before parameters change, if loss or gradient norm is not
  /// finite; it names the step and the op and module that made the first such value.
  StepRecord step();
  /// All steps that are left, then the plot and the checkpoint.
  void run();
  /// Greedy and sampled text of the model as it is.
  void print_samples();

  [[nodiscard]] llama3::Model& model() { return model_; }
  /// Records of past steps for the plot: all of them up to some thousands, then every second,
  /// fourth, ...
  [[nodiscard]] const std::vector<StepRecord>& records() const { return records_; }

 private:
  [[nodiscard]] Batch next_batch() const;
  [[nodiscard]] Tensor loss_of(const Batch& batch) const;
  void reduce_gradients();
  [[noreturn]] void diagnose(const Batch& batch, double loss, double grad_norm);
  [[nodiscard]] std::string in_folder(std::string_view file) const;
  void announce();
  void remember(const StepRecord& record);

  Config config_;
  World& world_;
  const Mesh* mesh_;
  std::function<void(const std::string&)> print_;
  TextData data_;
  llama3::Model model_;
  nn::AttentionMetadata metadata_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<Monitor> monitor_;
  std::vector<StepRecord> records_;
  int64_t done_ = 0, stride_ = 1;
};

}  // namespace tessera::train
