// SPDX-License-Identifier: Apache-2.0
// Rank 0 reads the manifest and sends it, so that a thousand ranks do not. Ranks read the bytes
// that they need twice: to check them, and, when all have, into place. The second time they are in
// the system's cache, and are checked again.
#include "tessera/train/checkpoint/loading.h"

#include "tessera/core/error.h"
#include "tessera/core/scopes.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/checkpoint/differences.h"
#include "tessera/train/ranks/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

namespace tessera::train {
namespace {

// Suffix in checkpoints for the step count of a parameter that skipped some optimizer steps.
constexpr const char* kOwnSteps = ".step";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream from(text);
  for (std::string line; std::getline(from, line);) lines.push_back(line);
  return lines;
}

// Faults of all ranks; ranks that hold the same may report the same.
std::vector<std::string> faults_of_ranks(const std::vector<std::string>& own) {
  std::vector<std::string> all;
  for (const std::string& text : texts_of_ranks(fmt::format("{}", fmt::join(own, "\n")))) {
    for (const std::string& line : lines_of(text))
      if (!std::ranges::count(all, line)) all.push_back(line);
  }
  return all;
}

// What is wrong with a step; empty: it was loaded.
std::string load_step(const std::string& step, const Wanted& wanted,
                      std::unique_ptr<CheckpointReader>& reader) {
  std::string text, fault;
  if (own_rank() == 0) {
    try {
      text = read_manifest(step);
    } catch (const Error& error) {
      fault = error.what();
    }
  }
  fault = text_of_first(fault);
  if (!fault.empty()) return fault;
  text = text_of_first(text);
  std::vector<nn::NamedParameter> tensors;
  on_all_or_none([&] {
    reader = std::make_unique<CheckpointReader>(step, text);
    tensors = wanted(*reader);
  });
  std::vector<std::string> faults;
  try {
    for (const std::string& f : reader->faults_of(tensors)) faults.push_back(io::excerpt(f, 1000));
  } catch (const Error& error) {
    faults.emplace_back(io::excerpt(error.what(), 1000));
  }
  faults = faults_of_ranks(faults);
  if (!faults.empty())
    return concat("[checkpoint] ", step, " is incomplete or damaged: ", first_few(faults));
  on_all_or_none([&] {
    const NoGrad guard;
    reader->fill(tensors);
  });
  return "";
}

}  // namespace

TensorEntries without(TensorEntries entries, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string states = name + '.';
    std::erase_if(entries, [&](const auto& entry) {
      return entry.first == name || entry.first.starts_with(states);
    });
  }
  return entries;
}

LoadTarget::LoadTarget(nn::Module& model, optim::Optimizer* optimizer,
                       std::vector<std::string> elsewhere)
    : model_(model_tensors(model)), optimizer_(optimizer), elsewhere_(std::move(elsewhere)) {
  if (!optimizer) return;
  states_ = optimizer->state().tensors;
  for (const std::string& name : optimizer->names()) {
    own_steps_.push_back({name + kOwnSteps, {}});
    std::erase_if(states_, [&](const auto& t) { return t.name == own_steps_.back().name; });
  }
}

std::vector<std::string> LoadTarget::differences(const Manifest& manifest) const {
  std::vector<std::string> faults = tensor_differences(without(manifest.model, elsewhere_), model_);
  if (!optimizer_) return faults;
  TensorEntries states = without(manifest.optimizer, elsewhere_);
  for (const auto& steps : own_steps_) states.erase(steps.name);
  for (std::string& fault : tensor_differences(states, states_)) faults.push_back(std::move(fault));
  return faults;
}

std::vector<nn::NamedParameter> LoadTarget::tensors(const Manifest& manifest) {
  std::vector<nn::NamedParameter> all = model_;
  all.insert(all.end(), states_.begin(), states_.end());
  for (auto& [name, steps] : own_steps_) {
    if (!manifest.optimizer.contains(name)) continue;
    steps = empty({}, DType::i64);
    all.push_back({name, steps});
  }
  return all;
}

void LoadTarget::set_steps(int64_t steps) const {
  if (!optimizer_) return;
  optimizer_->set_steps(steps);
  std::vector<int64_t> of_parameters = optimizer_->parameter_steps();
  for (size_t i = 0; i < own_steps_.size(); ++i) {
    if (own_steps_[i].tensor.defined()) of_parameters[i] = own_steps_[i].tensor.item<int64_t>();
  }
  optimizer_->set_steps(steps, of_parameters);
}

std::unique_ptr<CheckpointReader> load_first_whole(const StepFolders& own, const Wanted& wanted,
                                                   const Warn& warn) {
  StepFolders steps = own;  // rank 0's
  steps.paths = lines_of(text_of_first(fmt::format("{}", fmt::join(own.paths, "\n"))));
  steps.if_damaged = text_of_first(own.if_damaged == IfDamaged::skip ? "skip" : "fail") == "skip"
                         ? IfDamaged::skip
                         : IfDamaged::fail;
  for (const std::string& step : steps.paths) {
    std::unique_ptr<CheckpointReader> reader;
    const std::string fault = load_step(step, wanted, reader);
    if (fault.empty()) return reader;
    if (steps.if_damaged == IfDamaged::fail) {
      meet_before_failing();
      throw DataError(fault);
    }
    if (own_rank() == 0 && warn) warn(concat("warning: skipped a checkpoint: ", fault));
  }
  if (steps.paths.empty()) return nullptr;
  meet_before_failing();
  fail_none_whole(steps.paths.size(), std::filesystem::path(steps.paths[0]).parent_path().string());
}

}  // namespace tessera::train
