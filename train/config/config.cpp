// SPDX-License-Identifier: Apache-2.0
// The sections in the order of --help and the dump. Conflicts are checked only if every field is in
// its range.
#include "tessera/train/config/config.h"

#include "tessera/core/message.h"
#include "tessera/models/hugging_face.h"
#include "tessera/nn/io/utf8.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>

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
    f.add_choice("dtype", dtype, "dtype of parameters, gradients and activations", precisions());
  }
};

struct InitialFields {
  std::string& folder;
  std::vector<std::string>& ignored;
  void fields(config::Fields& f) {
    f.add("initial_hf", folder,
          "folder of Hugging Face that training starts from: the model is that of its config.json",
          {.free_on_resume = true});
    f.add("ignore_hf_fields", ignored,
          "unknown fields of the config.json of a Hugging Face folder to ignore; any other unknown "
          "field is an error",
          {.free_on_resume = true});
  }
};

struct TopFields {
  Config& c;
  void fields(config::Fields& f) {
    f.add("recipe", c.recipe, "recipe that supplies the defaults of the other fields");
    f.add("dump_folder", c.dump_folder, "output folder of the run");
    f.add(
        "hf_assets_path", c.hf_assets_path,
        "folder with the model's tokenizer (tokenizer.json, or vocab.json and merges.txt), or the "
        "file itself; bytes: a token per byte; none: that of the folder of Hugging Face that the "
        "model is from, else bytes");
    f.add("overwrite", c.overwrite,
          "remove the results of an earlier run from dump_folder and start at step 0; without it, "
          "such a folder is refused unless the run resumes from a checkpoint there");
    f.add("ranks", c.ranks,
          "ranks to run as threads of this process; 0: one rank, or one per process of a launcher "
          "(mpirun, srun, torchrun)",
          {.min = 0, .max = 4096, .unit = "ranks"});
    f.add("threads", c.threads,
          "kernel threads per rank; 0: the cores divided among the ranks of the host",
          {.min = 0, .max = 4096, .unit = "threads", .per_rank = true});
    add_device(f, c.device);
  }
};

constexpr std::string_view kNoCompiler = "there is no compiler, ops run as they are: leave it out";

// Names in torchtitan, transformers and other programs that are unlike the names of the fields
// here.
constexpr std::array<config::OtherName, 23> kOtherNames{
    {{"compile.*", "", kNoCompiler},
     {"training.compile", "", kNoCompiler},
     {"optimizer.name", "", "AdamW is the only optimizer: leave it out"},
     {"job.config_file", "config"},
     {"training.dataset_path", "dataloader.path"},
     {"training.dataset", "dataloader.path"},
     {"dataloader.dataset_path", "dataloader.path"},
     {"dataset_path", "dataloader.path"},
     {"dataset", "dataloader.path"},
     {"data", "dataloader.path"},
     {"model.tokenizer_path", "hf_assets_path"},
     {"tokenizer", "hf_assets_path"},
     {"tokenizer_path", "hf_assets_path"},
     {"output_dir", "dump_folder"},
     {"out", "dump_folder"},
     {"training.batch_size", "training.local_batch_size"},
     {"batch_size", "training.local_batch_size"},
     {"learning_rate", "optimizer.lr"},
     {"max_steps", "training.steps"},
     {"epochs", "training.steps"},
     {"resume", "checkpoint.enable"},
     {"checkpoint.enable_checkpoint", "checkpoint.enable"},
     {"metrics.tensorboard", "metrics.enable_tensorboard"}}};

bool is_layer_interval(const std::string& option) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(option.data(), option.data() + option.size(), n);
  return error == std::errc() && end == option.data() + option.size() && n > 0;
}

// A number of the model; 0 where its family has none of the name.
double model_number(models::ModelConfig model, std::string_view name) {
  config::Fields f;
  f.section("model", model);
  const config::Field* field = f.find(concat("model.", name));
  return field ? *std::get<double*>(field->value) : 0;
}

// Conflicts about the weights that a run starts from or exports.
std::vector<std::string> initial_model_conflicts(const Config& c) {
  std::vector<std::string> faults;
  const auto require = [&](bool ok, const auto&... message) {
    if (!ok) faults.push_back(concat(message...));
  };
  require(
      c.initial_hf.empty() || c.checkpoint.initial_load_path.empty(),
      "[--model.initial_hf] and --checkpoint.initial_load_path both name a model to start from: "
      "give one of them");
  require(!c.checkpoint.initial_load_in_hf || !c.initial_hf.empty() ||
              !c.checkpoint.initial_load_path.empty() ||
              (!c.hf_assets_path.empty() && c.hf_assets_path != kByteTokenizer),
          "[--checkpoint.initial_load_in_hf] needs --checkpoint.initial_load_path, a folder of "
          "Hugging Face");
  require(
      c.model.hugging_face() || (c.initial_hf_folder().empty() && !c.checkpoint.last_save_in_hf),
      "[--model.name] ", c.model.family(),
      " has no names of Hugging Face: it can neither be "
      "loaded from there nor saved so");
  if (c.checkpoint.last_save_in_hf && c.model.hugging_face()) {
    try {
      (void)models::hf_config(*c.model.hugging_face(), c.model, DType::f32, {});
    } catch (const ValueError& error) {
      faults.push_back(concat("[--checkpoint.last_save_in_hf] ", error.what()));
    }
  }
  return faults;
}

// What of the model an export to transformers will leave out.
std::vector<std::string> export_warnings(const models::ModelConfig& model) {
  std::vector<std::string> all;
  const models::HuggingFace* names = model.hugging_face();
  if (!names) return all;
  for (const models::HfFixedOurs& row : models::hf_unexpressed(*names, model)) {
    if (row.buffer.empty()) continue;
    all.push_back(concat("model.", row.ours, ' ', model_number(model, row.ours),
                         " gives the model an ", row.buffer, ", for which transformers' ",
                         names->model_type, " has no place: `tessera export-hf` needs --drop ",
                         row.buffer, ", and what it writes has another loss; --model.", row.ours,
                         ' ', row.value, " trains without it"));
  }
  return all;
}

}  // namespace

void add_device(config::Fields& f, DeviceChoice& device) {
  f.add_choice("device", device,
               "device of each rank; auto: a GPU of its own where the host has one for each of its "
               "ranks, else the CPU",
               device_choices());
}

void TrainingConfig::fields(config::Fields& f) {
  f.add("steps", steps, "number of optimizer steps", {.min = 1, .max = 1e12, .unit = "steps"});
  f.add("local_batch_size", local_batch_size, "micro-batch size per rank",
        {.min = 1, .max = 1 << 20, .unit = "sequences"});
  f.add("global_batch_size", global_batch_size,
        "batch size of a step over all ranks, reached by gradient accumulation; -1: "
        "local_batch_size x ranks that read different rows",
        {.min = -1, .max = 1 << 30, .unit = "sequences"});
  f.add("seq_len", seq_len, "sequence length",
        {.min = 1, .max = 1 << 24, .unit = "tokens", .decides_rows = true});
  f.add("max_norm", max_norm, "gradients are clipped to this norm; inf: no clipping",
        {.min = 0, .above_min = true});
  f.add_choice("mixed_precision_param", mixed_precision_param,
               "dtype that forward and backward compute in; gradients accumulate in training.dtype",
               precisions());
  f.add_choice("mixed_precision_reduce", mixed_precision_reduce,
               "dtype in which gradients are reduced over ranks; float64 gradients stay so",
               Options<DType>{{"float32", DType::f32}, {"bfloat16", DType::bf16}});
}

int64_t TrainingConfig::micro_batches(int64_t parts) const {
  const int64_t at_once = local_batch_size * parts;
  if (global_batch_size == -1) return 1;
  if (global_batch_size < 1 || global_batch_size % at_once != 0) {
    fail<ConfigError>("--training.global_batch_size", global_batch_size,
                      " is not a multiple of --training.local_batch_size ", local_batch_size, " x ",
                      counted(parts, "rank"), " = ", at_once);
  }
  return global_batch_size / at_once;
}

StepSizes Config::step_sizes(int64_t parts) const {
  if (!parallelism.pipelines()) return {training.local_batch_size, training.micro_batches(parts)};
  const int64_t rows = parallelism.pipeline_parallel_microbatch_size;
  const int64_t of_step = training.global_batch_size == -1 ? training.local_batch_size * parts
                                                           : training.global_batch_size;
  if (of_step < 1 || of_step % (rows * parts) != 0) {
    fail<ConfigError>("--parallelism.pipeline_parallel_microbatch_size", rows, " x ",
                      counted(parts, "rank"), " = ", rows * parts, " does not divide the ",
                      counted(of_step, "row"), " of a step (--training.",
                      training.global_batch_size == -1 ? "local" : "global", "_batch_size)");
  }
  return {rows, of_step / (rows * parts)};
}

void ValidationConfig::fields(config::Fields& f) {
  f.add("enable", enable, "compute the validation loss during training");
  f.add("dataset_path", dataset_path, "validation data: a file or a folder");
  f.add("freq", freq, "steps between validations; the first step is validated too",
        {.min = 1, .max = 1e12, .unit = "steps"});
  f.add("steps", steps, "batches per validation; -1: all of the data",
        {.min = -1, .max = 1e12, .unit = "steps"});
  f.add("local_batch_size", local_batch_size,
        "batch size per rank; none: training.local_batch_size",
        {.min = 1, .max = 1 << 20, .unit = "sequences"});
  f.add("seq_len", seq_len, "sequence length; none: training.seq_len",
        {.min = 1, .max = 1 << 24, .unit = "tokens"});
}

void CommDeadlines::fields(config::Fields& f) {
  f.add("init_timeout_seconds", init_timeout_seconds,
        "deadline of the start and of the end of all ranks, and of each collective until a first "
        "training step is done",
        {.min = 1, .max = 1e6, .unit = "seconds"});
  f.add(
      "storage_timeout_seconds", storage_timeout_seconds,
      "deadline of each collective while checkpoints and weights are written or read, where ranks "
      "wait for each other's disks",
      {.min = 1, .max = 1e6, .unit = "seconds"});
}

void CommConfig::fields(config::Fields& f) {
  CommDeadlines::fields(f);
  f.add("train_timeout_seconds", train_timeout_seconds,
        "deadline of each collective after the first step",
        {.min = 1, .max = 1e6, .unit = "seconds"});
  f.add("trace_buf_size", trace_buf_size,
        "latest collectives of each rank that are kept, for the flight record of a timeout and for "
        "profiles; 0: none",
        {.min = 0, .max = 1e7, .unit = "collectives"});
}

void DebugConfig::fields(config::Fields& f) {
  f.add("seed", seed,
        "seed of initialisation, data order, stochastic rounding, dropout and samples",
        {.min = 0, .decides_rows = true});
  f.add("deterministic", deterministic,
        "make results independent of the number of cores: one kernel thread per rank unless "
        "--threads is given; with equal threads and instruction set, runs are bitwise equal "
        "without it");
  f.add("deterministic_warn_only", deterministic_warn_only,
        "with deterministic: warn instead of failing if a resumed run cannot be bitwise equal to "
        "an uninterrupted one, because matmuls use another library or instruction set");
  f.add("detect_anomaly", detect_anomaly, "check the output of every op for NaN; slow");
  f.add("replica_check_freq", replica_check_freq,
        "steps between comparisons of the parameters of all ranks, bit by bit; 0: only after "
        "initialisation or loading",
        {.min = 0, .max = 1e12, .unit = "steps"});
  f.add("moe_force_load_balance", moe_force_load_balance,
        "give each expert the same number of tokens, whatever routers say; to measure speed. "
        "Tokens take turns by their places, which a load balancer of context parallelism moves");
}

void MemoryConfig::fields(config::Fields& f) {
  f.add("check", check,
        "before anything is allocated, compare the memory that training needs with what is free, "
        "and refuse to start if it does not fit");
}

void SampleConfig::fields(config::Fields& f) {
  f.add("prompt", prompt, "prompt of the samples generated after training");
  f.add("tokens", tokens, "length of each sample; 0: no samples",
        {.min = 0, .max = 1 << 20, .unit = "tokens"});
  f.add("temperature", temperature, "sampling temperature",
        {.min = 0, .max = 100, .above_min = true});
  f.add("top_k", top_k, "sample from the k most likely tokens", {.min = 1, .max = 1 << 24});
  f.add("top_p", top_p, "sample from the fewest most likely tokens whose probabilities sum to this",
        {.min = 0, .max = 1, .above_min = true});
}

std::string Config::tokenizer_path() const {
  return hf_assets_path.empty() ? initial_hf_folder() : hf_assets_path;
}

std::string Config::initial_hf_folder() const {
  if (!initial_hf.empty()) return initial_hf;
  if (!checkpoint.initial_load_in_hf) return "";
  if (!checkpoint.initial_load_path.empty()) return checkpoint.initial_load_path;
  return hf_assets_path == kByteTokenizer ? "" : hf_assets_path;
}

std::string Config::title() const {
  if (!recipe.empty()) return recipe;
  return std::string(model.family()) + (model.flavor().empty() ? "" : concat(' ', model.flavor()));
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
  f.section("parallelism", parallelism);
  f.section("activation_checkpoint", checkpointing);
  f.section("dataloader", dataloader);
  f.section("validation", validation);
  f.section("checkpoint", checkpoint);
  f.section("comm", comm);
  f.section("debug", debug);
  f.section("memory", memory);
  f.section("metrics", metrics);
  f.section("profiler", profiler);
  f.section("sample", sample);
  f.section("special_tokens", special_tokens);
  if (model) f.section("model", model);
  InitialFields initial{initial_hf, ignore_hf_fields};
  f.section("model", initial);
  f.know(kOtherNames);
  return f;
}

std::string Config::json() const {
  Config copy = *this;
  return copy.fields().dump();
}

std::vector<std::string> Config::conflicts() const {
  if (!model) return {"[--model.name] is missing: give a family and --model.flavor, or --recipe"};
  std::vector<std::string> faults = model.conflicts();
  const auto require = [&](bool ok, const auto&... message) {
    if (!ok) faults.push_back(concat(message...));
  };
  require(training.seq_len <= model.max_seq_len(), "[--training.seq_len] ", training.seq_len,
          " is above --model.max_seq_len ", model.max_seq_len());
  require((model.dtype() == DType::f64) == (training.mixed_precision_param == DType::f64),
          "[--training.mixed_precision_param] float64 and --training.dtype float64 need "
          "each other: give both");
  std::ranges::move(initial_model_conflicts(*this), std::back_inserter(faults));
  for (auto& fault : checkpoint.conflicts()) faults.push_back(std::move(fault));
  for (auto& fault : dataloader.conflicts()) faults.push_back(std::move(fault));
  for (auto& fault : special_tokens.conflicts()) faults.push_back(std::move(fault));
  require(!dump_folder.empty(), "[--dump_folder] is empty; give a folder");
  for (auto& fault : profiler.conflicts()) faults.push_back(std::move(fault));
  std::ranges::move(parallelism.conflicts(), std::back_inserter(faults));
  // Here and not among those, since only training drops tokens.
  if (const double factor = model_number(model, "capacity_factor"); parallelism.moves_tokens()) {
    require(factor == 0, "[--model.capacity_factor] ", factor,
            ": experts take the first tokens of a sequence, whose order "
            "--parallelism.context_parallel_load_balancer changes; give that none, or "
            "--model.capacity_factor 0");
  }
  require(
      training.global_batch_size != 0,
      "[--training.global_batch_size] 0: expected a multiple of --training.local_batch_size, or "
      "-1 for one micro-batch");
  require(lr_scheduler.total_steps.value_or(training.steps) >= training.steps,
          "[--lr_scheduler.total_steps] ", lr_scheduler.total_steps.value_or(0),
          " is below --training.steps ", training.steps);
  for (auto& fault : parameter_group_faults(optimizer.param_groups))
    faults.push_back(std::move(fault));
  const auto& ac = activation_checkpoint;
  require(ac.selective_option == "op" || is_layer_interval(ac.selective_option),
          "[--activation_checkpoint.selective_ac_option] '", io::excerpt(ac.selective_option),
          "' is neither 'op' nor a positive number of layers");
  require(validation.steps != 0, "[--validation.steps] 0: expected at least 1, or -1 for all");
  require(validation.seq_len.value_or(1) <= model.max_seq_len(), "[--validation.seq_len] ",
          validation.seq_len.value_or(0), " is above --model.max_seq_len ", model.max_seq_len());
  require(!validation.enable || !validation.dataset_path.empty(),
          "[--validation.dataset_path] is empty; give validation data, or leave out "
          "--validation.enable");
  return faults;
}

std::vector<std::string> Config::warnings() const {
  std::vector<std::string> all = checkpoint.warnings();
  for (std::string& line : lr_scheduler.warnings(training.steps)) all.push_back(std::move(line));
  if (!validation.enable && !validation.dataset_path.empty())
    all.emplace_back(
        "validation.dataset_path is given without --validation.enable: nothing is validated");
  std::ranges::move(export_warnings(model), std::back_inserter(all));
  if (!parallelism.moves_tokens()) return all;
  for (const char* name : {"embedding_dropout", "residual_dropout"}) {
    const double p = model_number(model, name);
    if (p == 0) continue;
    all.push_back(concat("model.", name, ' ', p,
                         " has other masks than on one rank; --parallelism."
                         "context_parallel_load_balancer none gives the same"));
  }
  return all;
}

PassSettings Config::pass_settings() const {
  return {.parallelism = parallelism,
          .activation_checkpoint = activation_checkpoint,
          .parameters = model.dtype(),
          .compute = training.mixed_precision_param,
          .reduce = training.mixed_precision_reduce};
}

}  // namespace tessera::train
