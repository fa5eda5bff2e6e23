// SPDX-License-Identifier: Apache-2.0
// The sections in the order of --help and the dump. What no single field shows is asked (conflicts)
// only when every field is in its range.
#include "tessera/train/run/config.h"

#include "tessera/train/data/tokenizer.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace tessera::train {
namespace {

template <class T> using Options = std::vector<std::pair<std::string, T>>;

const Options<DType>& precisions() {
  static const Options<DType> all{
      {"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float64", DType::f64}};
  return all;
}

struct ParameterDType {
  DType& dtype;
  void fields(config::Fields& f) {
    f.add_choice("dtype", dtype, "of parameters, gradients and activations", precisions());
  }
};

// Modules know nothing of configuration files, so their fields are listed here.
struct ActivationCheckpointFields {
  nn::ActivationCheckpointConfig& c;
  void fields(config::Fields& f) {
    using Mode = nn::ActivationCheckpointConfig::Mode;
    f.add_choice("mode", c.mode, "what of a layer is computed again in backward, not stored",
                 Options<Mode>{{"none", Mode::none},
                               {"full", Mode::full},
                               {"selective", Mode::selective},
                               {"memory_budget", Mode::memory_budget}});
    f.add("selective_ac_option", c.selective_option,
          "selective: op (products and attention are stored) or n (every n-th layer in full)");
    f.add("force_recompute_paths", c.force_recompute_paths,
          "selective by op: products of modules whose path holds one of these are computed again");
    f.add("memory_budget", c.memory_budget,
          "memory_budget: share of the bytes stored without checkpointing that may be stored",
          {.min = 0, .max = 1});
    f.add("early_stop", c.early_stop, "recompute ends with the last tensor that backward needs");
  }
};

struct TopFields {
  Config& c;
  void fields(config::Fields& f) {
    f.add("recipe", c.recipe, "the recipe that the other defaults come from");
    f.add("dump_folder", c.dump_folder, "where everything is written");
    f.add("ranks", c.ranks,
          "ranks as threads of this process; 0: one, or the processes that a launcher started",
          {.min = 0, .max = 4096, .unit = "ranks"});
    f.add("threads", c.threads, "threads of the kernels per rank; 0: the cores shared out",
          {.min = 0, .max = 4096, .unit = "threads"});
  }
};

bool is_layer_interval(const std::string& option) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(option.data(), option.data() + option.size(), n);
  return error == std::errc() && end == option.data() + option.size() && n > 0;
}

}  // namespace

void TrainingConfig::fields(config::Fields& f) {
  f.add("steps", steps, "optimizer steps", {.min = 1, .max = 1e12, .unit = "steps"});
  f.add("local_batch_size", local_batch_size, "rows that a rank computes with at once",
        {.min = 1, .max = 1 << 20, .unit = "sequences"});
  f.add("global_batch_size", global_batch_size,
        "rows of a step on all ranks, added up over micro-batches; -1: local_batch_size x ranks",
        {.min = -1, .max = 1 << 30, .unit = "sequences"});
  f.add("seq_len", seq_len, "length of a row", {.min = 1, .max = 1 << 24, .unit = "tokens"});
  f.add("max_norm", max_norm, "gradients are scaled to this norm at most; inf: never",
        {.min = 0, .above_min = true});
  f.add_choice("mixed_precision_param", mixed_precision_param,
               "what parameters are computed with; gradients are added up in training.dtype",
               precisions());
}

int64_t TrainingConfig::micro_batches(int64_t ranks) const {
  const int64_t at_once = local_batch_size * ranks;
  if (global_batch_size == -1) return 1;
  if (global_batch_size < 1 || global_batch_size % at_once != 0) {
    fail<ConfigError>("--training.global_batch_size", global_batch_size,
                      " is not a multiple of --training.local_batch_size ", local_batch_size, " x ",
                      ranks, ranks == 1 ? " rank" : " ranks", " = ", at_once);
  }
  return global_batch_size / at_once;
}

void ValidationConfig::fields(config::Fields& f) {
  f.add("enable", enable, "compute the loss on held-out text too");
  f.add("dataset_path", dataset_path, "held-out text: a file or a folder");
  f.add("freq", freq, "validate after the first and every n-th step",
        {.min = 1, .max = 1e12, .unit = "steps"});
  f.add("steps", steps, "batches of a validation; -1: all of the data",
        {.min = -1, .max = 1e12, .unit = "steps"});
  f.add("local_batch_size", local_batch_size,
        "rows of a batch on each rank; none: training.local_batch_size",
        {.min = 1, .max = 1 << 20, .unit = "sequences"});
  f.add("seq_len", seq_len, "length of a row; none: training.seq_len",
        {.min = 1, .max = 1 << 24, .unit = "tokens"});
}

void DebugConfig::fields(config::Fields& f) {
  f.add("seed", seed, "of initialisation, data order, rounding, dropout and samples", {.min = 0});
  f.add("deterministic", deterministic,
        "one kernel thread per rank unless --threads says more, so that bits do not depend on the "
        "number of cores; runs of equal threads and instruction set have equal bits without it");
  f.add("detect_anomaly", detect_anomaly, "check every op's output for NaN; slow");
}

void SampleConfig::fields(config::Fields& f) {
  f.add("prompt", prompt, "text that the samples after training go on from");
  f.add("tokens", tokens, "length of each sample; 0: none",
        {.min = 0, .max = 1 << 20, .unit = "tokens"});
  f.add("temperature", temperature, "of the sampled text",
        {.min = 0, .max = 100, .above_min = true});
  f.add("top_k", top_k, "sampled text draws from the k likeliest tokens",
        {.min = 1, .max = 1 << 24});
  f.add("top_p", top_p, "sampled text draws from the likeliest that hold this probability",
        {.min = 0, .max = 1, .above_min = true});
}

std::string Config::title() const {
  return recipe.empty() ? concat(model.family(), ' ', model.flavor()) : recipe;
}

config::Fields Config::fields() {
  config::Fields f;
  TopFields top{*this};
  ActivationCheckpointFields checkpointing{activation_checkpoint};
  f.section("", top);
  f.section("training", training);
  if (model) {
    ParameterDType dtype{model.dtype()};
    f.section("training", dtype);
  }
  f.section("optimizer", optimizer);
  f.section("lr_scheduler", lr_scheduler);
  f.section("activation_checkpoint", checkpointing);
  f.section("dataloader", dataloader);
  f.section("validation", validation);
  f.section("checkpoint", checkpoint);
  f.section("debug", debug);
  f.section("metrics", metrics);
  f.section("profiler", profiler);
  f.section("sample", sample);
  if (model) f.section("model", model);
  return f;
}

std::vector<std::string> Config::conflicts() const {
  if (!model) return {"[--model.name] is missing: give a family and --model.flavor, or --recipe"};
  std::vector<std::string> faults = model.conflicts();
  const auto require = [&](bool ok, const auto&... message) {
    if (!ok) faults.push_back(concat(message...));
  };
  require(training.seq_len <= model.max_seq_len(), "[--training.seq_len] ", training.seq_len,
          " is above --model.max_seq_len ", model.max_seq_len());
  require(
      (model.dtype() == DType::f64) == (training.mixed_precision_param == DType::f64),
      "[--training.mixed_precision_param] float64 goes with --training.dtype float64 alone, and "
      "the other way round: give both");
  require(sample.tokens == 0 || model.vocab_size() >= ByteTokenizer::kVocabulary,
          "[--sample.tokens] samples need the ", ByteTokenizer::kVocabulary,
          " tokens of bytes, beyond --model.vocab_size ", model.vocab_size(),
          "; give --sample.tokens 0");
  for (auto& fault : checkpoint.conflicts()) faults.push_back(std::move(fault));
  require(!dump_folder.empty(), "[--dump_folder] is empty; give a folder");
  for (auto& fault : profiler.conflicts()) faults.push_back(std::move(fault));
  try {
    if (ranks > 0 || training.global_batch_size == 0)
      (void)training.micro_batches(std::max<int64_t>(1, ranks));
  } catch (const ConfigError& error) {
    faults.emplace_back(error.what());
  }
  require(lr_scheduler.total_steps.value_or(training.steps) >= training.steps,
          "[--lr_scheduler.total_steps] ", lr_scheduler.total_steps.value_or(0),
          " is below --training.steps ", training.steps);
  for (auto& fault : parameter_group_faults(optimizer.param_groups))
    faults.push_back(std::move(fault));
  const auto& ac = activation_checkpoint;
  require(ac.selective_option == "op" || is_layer_interval(ac.selective_option),
          "[--activation_checkpoint.selective_ac_option] '", ac.selective_option,
          "' is neither 'op' nor a positive number of layers");
  require(validation.steps != 0, "[--validation.steps] 0: expected at least 1, or -1 for all");
  require(validation.seq_len.value_or(1) <= model.max_seq_len(), "[--validation.seq_len] ",
          validation.seq_len.value_or(0), " is above --model.max_seq_len ", model.max_seq_len());
  require(!validation.enable || !validation.dataset_path.empty(),
          "[--validation.dataset_path] is empty; give held-out text, or leave out "
          "--validation.enable");
  return faults;
}

std::vector<std::string> Config::faults() const {
  Config copy = *this;
  std::vector<std::string> faults = copy.fields().check();
  if (faults.empty()) faults = conflicts();
  return faults;
}

}  // namespace tessera::train
