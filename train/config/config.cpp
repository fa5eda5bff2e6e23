// SPDX-License-Identifier: Apache-2.0
// The sections in the order of --help and the dump. Conflicts are checked only if every field is in
// its range.
#include "tessera/train/config/config.h"

#include "tessera/models/hugging_face.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/exchange/weights.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
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

// nn does not depend on configuration fields, so those of its structs are listed here.
struct ActivationCheckpointFields {
  nn::ActivationCheckpointConfig& c;
  void fields(config::Fields& f) {
    using Mode = nn::ActivationCheckpointConfig::Mode;
    f.add_choice("mode", c.mode, "which activations are recomputed in backward instead of stored",
                 Options<Mode>{{"none", Mode::none},
                               {"full", Mode::full},
                               {"selective", Mode::selective},
                               {"memory_budget", Mode::memory_budget}});
    f.add(
        "selective_ac_option", c.selective_option,
        "selective mode: op stores the outputs of attention and of every second matmul; a number n "
        "recomputes every n-th layer in full");
    f.add("force_recompute_paths", c.force_recompute_paths,
          "selective mode op: matmuls in modules whose path contains one of these texts are always "
          "recomputed");
    f.add("memory_budget", c.memory_budget,
          "memory_budget mode: fraction of the activation memory without checkpointing that may be "
          "used",
          {.min = 0, .max = 1});
    f.add("early_stop", c.early_stop,
          "stop recomputing once backward has all tensors that it needs");
    f.add("preserve_rng_state", c.preserve_rng_state,
          "recompute repeats the dropout masks of forward; false: it draws new ones, so gradients "
          "do not match the loss");
    f.add_choice("determinism_check", c.determinism_check,
                 "check that recompute saves tensors of the same shapes and dtypes as forward",
                 Options<bool>{{"default", true}, {"none", false}});
    f.add("debug", c.debug,
          "record the ops of forward and of recompute, and list both when they differ");
  }
};

struct InitialFields {
  std::string& folder;
  void fields(config::Fields& f) {
    f.add("initial_hf", folder,
          "folder of Hugging Face that training starts from: the model is that of its config.json",
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

// Whether a rank has its tokens in another order than the sequence.
bool tokens_move(const ParallelismConfig& c) {
  return c.context_parallel_degree > 1 &&
         c.context_parallel_load_balancer != nn::LoadBalancer::none;
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
                      parts, parts == 1 ? " rank" : " ranks", " = ", at_once);
  }
  return global_batch_size / at_once;
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

std::vector<std::string> Config::own_steps() const {
  if (!checkpoint.enable || overwrite) return {};
  const auto folder = std::filesystem::path(dump_folder) / checkpoint.folder;
  return CheckpointFolder(folder.string()).latest_first();
}

std::string Config::tokenizer_path() const {
  return hf_assets_path.empty() ? initial_hf_folder() : hf_assets_path;
}

std::shared_ptr<const Tokenizer> Config::open_tokenizer() const {
  const std::string path = tokenizer_path();
  std::shared_ptr<const Tokenizer> tokenizer;
  if (!initial_hf.empty() && path == initial_hf && !has_hf_config(initial_hf)) {
    (void)first_whole(
        {own_steps()}, [](const std::string&) {},
        [&](const CheckpointReader& from) { tokenizer = from.tokenizer(); });
  }
  const auto open = [&] {
    if (!tokenizer) tokenizer = train::open_tokenizer(path, "hf_assets_path");
    if (path.empty() || tokenizer->vocabulary() <= model.vocab_size()) return;
    fail<ConfigError>("--model.vocab_size", model.vocab_size(), " is below the ",
                      tokenizer->vocabulary(), " tokens of --hf_assets_path ", io::excerpt(path),
                      "; give at least as many");
  };
  // An import names its own folder.
  const bool of_the_model = !path.empty() && path != kByteTokenizer &&
                            (path == initial_hf_folder() || path == checkpoint.initial_load_path);
  try {
    open();
  } catch (const Error& error) {
    if (!of_the_model) throw;
    return std::make_shared<NoTokenizer>(
        concat("the model has no tokenizer that can be used: ", error.what(),
               "; give the tokenizer that the model was trained with as --hf_assets_path, or "
               "--hf_assets_path ",
               kByteTokenizer, " if its tokens are bytes"));
  }
  return tokenizer;
}

std::string Config::initial_hf_folder() const {
  if (!initial_hf.empty()) return initial_hf;
  if (!checkpoint.enable || !checkpoint.initial_load_in_hf) return "";
  if (!checkpoint.initial_load_path.empty()) return checkpoint.initial_load_path;
  return hf_assets_path == kByteTokenizer ? "" : hf_assets_path;
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
  InitialFields initial{initial_hf};
  f.section("model", initial);
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
  require(
      initial_hf.empty() || checkpoint.initial_load_path.empty(),
      "[--model.initial_hf] and --checkpoint.initial_load_path both name a model to start from: "
      "give one of them");
  require(!checkpoint.initial_load_in_hf || !initial_hf.empty() ||
              !checkpoint.initial_load_path.empty() ||
              (!hf_assets_path.empty() && hf_assets_path != kByteTokenizer),
          "[--checkpoint.initial_load_in_hf] needs --checkpoint.initial_load_path, a folder of "
          "Hugging Face");
  require(model.hugging_face() || (initial_hf_folder().empty() && !checkpoint.last_save_in_hf),
          "[--model.name] ", model.family(),
          " has no names of Hugging Face: it can neither be "
          "loaded from there nor saved so");
  if (checkpoint.last_save_in_hf && model.hugging_face()) {
    try {
      (void)models::hf_config(*model.hugging_face(), model, DType::f32, {});
    } catch (const ValueError& error) {
      faults.push_back(concat("[--checkpoint.last_save_in_hf] ", error.what()));
    }
  }
  for (auto& fault : checkpoint.conflicts()) faults.push_back(std::move(fault));
  for (auto& fault : dataloader.conflicts()) faults.push_back(std::move(fault));
  for (auto& fault : special_tokens.conflicts()) faults.push_back(std::move(fault));
  require(!dump_folder.empty(), "[--dump_folder] is empty; give a folder");
  for (auto& fault : profiler.conflicts()) faults.push_back(std::move(fault));
  std::ranges::move(parallelism_conflicts(), std::back_inserter(faults));
  // Here and not among those, since only training drops tokens.
  if (const double factor = model_number(model, "capacity_factor"); tokens_move(parallelism)) {
    require(factor == 0, "[--model.capacity_factor] ", factor,
            ": experts take the first tokens of a sequence, whose order "
            "--parallelism.context_parallel_load_balancer changes; give that none, or "
            "--model.capacity_factor 0");
  }
  require(!debug.moe_force_load_balance || !model.conflicts().empty() ||
              model.make()->force_load_balance(),
          "[--debug.moe_force_load_balance] ", title(), " has no experts: leave it out");
  require(
      training.global_batch_size != 0,
      "[--training.global_batch_size] 0: expected a multiple of --training.local_batch_size, or "
      "-1 for one micro-batch");
  if (ranks > 0) std::ranges::move(conflicts_on(ranks), std::back_inserter(faults));
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
  if (!tokens_move(parallelism)) return all;
  for (const char* name : {"embedding_dropout", "residual_dropout"}) {
    const double p = model_number(model, name);
    if (p == 0) continue;
    all.push_back(concat("model.", name, ' ', p,
                         " has other masks than on one rank; --parallelism."
                         "context_parallel_load_balancer none gives the same"));
  }
  return all;
}

// The numbers that the degree must divide are those of the family's plan, which the model tells.
std::vector<std::string> Config::parallelism_conflicts() const {
  std::vector<std::string> faults = parallelism.conflicts();
  const int64_t tp = parallelism.tensor_parallel_degree, ep = parallelism.expert_parallel_degree,
                heads = parallelism.context_parallel_ulysses_degree;
  if ((tp <= 1 && ep <= 1 && heads <= 1) || !model.conflicts().empty()) return faults;
  const auto made = model.make();
  if (heads > 1) {
    const std::string fault = nn::exchanged_heads_fault(*made, heads, tp);
    if (!fault.empty()) {
      faults.push_back(concat("[--parallelism.context_parallel_ulysses_degree] ", fault,
                              ": give a lower degree; 1 exchanges none"));
    }
  }
  if (ep > 1) {
    const std::vector<int64_t> counts = nn::expert_counts(*made);
    if (counts.empty()) {
      faults.push_back(concat("[--parallelism.expert_parallel_degree] ", ep,
                              ": the model has no experts; leave it out"));
    }
    for (const int64_t n : counts) {
      if (n % ep == 0) continue;
      faults.push_back(concat("[--parallelism.expert_parallel_degree] ", ep,
                              " does not divide the ", n,
                              " experts of a layer: give a degree that does"));
    }
  }
  if (tp <= 1) return faults;
  try {
    for (const auto& [field, number] : made->tensor_parallel_plan({}).divided) {
      if (number % tp == 0) continue;
      faults.push_back(concat("[--parallelism.tensor_parallel_degree] ", tp, " does not divide --",
                              field, ' ', number, ": give a degree that does"));
    }
  } catch (const UsageError& error) {  // the family has no plan
    faults.emplace_back(error.what());
  }
  return faults;
}

// What does not fit the ranks: none while a degree or batch size has a fault of its own.
std::vector<std::string> Config::conflicts_on(int64_t n) const {
  if (!parallelism.conflicts().empty() || training.global_batch_size == 0) return {};
  std::vector<std::string> faults;
  const auto check = [&](const auto& look) {
    try {
      look();
    } catch (const ConfigError& error) {
      if (std::ranges::count(faults, error.what()) == 0) faults.emplace_back(error.what());
    }
  };
  check([&] { (void)training.micro_batches(parallelism.data_parts(n)); });
  check([&] { (void)parallelism.reshard(n); });
  check([&] { (void)parallelism.experts(n); });
  return faults;
}

std::vector<std::string> Config::faults_on(int64_t n) const {
  std::vector<std::string> all = faults();
  for (std::string& fault : conflicts_on(n)) {
    if (std::ranges::count(all, fault) == 0) all.push_back(std::move(fault));
  }
  return all;
}

std::vector<std::string> Config::faults() const {
  Config copy = *this;
  std::vector<std::string> faults = copy.fields().check();
  if (faults.empty()) faults = conflicts();
  return faults;
}

}  // namespace tessera::train
