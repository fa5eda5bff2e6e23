// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run/config.h"

#include "tessera/nn/io/files.h"
#include "tessera/train/data/tokenizer.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>

namespace tessera::train {
namespace {

constexpr size_t kMostBytes = size_t{16} << 20;  // of a configuration file

template <class T> using Options = std::vector<std::pair<std::string, T>>;

const Options<DType>& precisions() {
  static const Options<DType> all{{"float32", DType::f32}, {"bfloat16", DType::bf16}};
  return all;
}

// Models and modules know nothing of configuration files, so their fields are listed here.
struct ModelFields {
  llama3::Config& c;
  void fields(config::Fields& f) {
    f.add("dim", c.dim, "width of the residual stream", {.min = 2, .max = 1 << 20});
    f.add("n_layers", c.n_layers, "number of layers", {.min = 1, .max = 4096});
    f.add("n_heads", c.n_heads, "query heads", {.min = 1, .max = 4096});
    f.add("n_kv_heads", c.n_kv_heads, "key and value heads", {.min = 1, .max = 4096});
    f.add("ffn_dim", c.ffn_dim, "width of the feed-forward", {.min = 1, .max = 1 << 24});
    f.add("vocab_size", c.vocab_size, "rows of the embedding", {.min = 1, .max = 1 << 24});
    f.add("max_seq_len", c.max_seq_len, "longest context",
          {.min = 1, .max = 1 << 30, .unit = "tokens"});
    f.add("norm_eps", c.norm_eps, "added to the mean square in norms", {.min = 0, .max = 1});
    f.add("enable_weight_tying", c.enable_weight_tying, "the head is the embedding's table");
    f.add("fused_qkv", c.fused_qkv, "queries, keys and values by one product");
    f.add("rope_theta", c.rope_theta, "base of the rotary angles", {.min = 1, .max = 1e12});
    using Kind = RopeScaling::Kind;
    RopeScaling& r = c.rope_scaling;
    f.add_choice("rope_scaling", r.kind, "how rotary angles are stretched; llama: as Llama 3.1's",
                 Options<Kind>{{"none", Kind::none}, {"llama", Kind::llama3}});
    f.add("rope_scaling_factor", r.factor, "the context is longer by this much",
          {.min = 1, .max = 1e6});
    f.add("rope_low_freq_factor", r.low_freq_factor,
          "pairs that turn at most so often in the original context are stretched in full",
          {.min = 0, .max = 1e6, .above_min = true});
    f.add("rope_high_freq_factor", r.high_freq_factor, "pairs that turn at least so often stay",
          {.min = 0, .max = 1e6, .above_min = true});
    f.add("rope_original_max_position_embeddings", r.original_max_position,
          "the context before it was stretched", {.min = 1, .max = 1 << 30, .unit = "tokens"});
  }
};

struct ParameterDType {
  DType& dtype;
  void fields(config::Fields& f) {
    f.add_choice("dtype", dtype, "of parameters, gradients and activations", precisions());
  }
};

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

std::vector<std::string> model_conflicts(const llama3::Config& m) {
  std::vector<std::string> faults;
  const auto require = [&](bool ok, const auto&... message) {
    if (!ok) faults.push_back(concat(message...));
  };
  require(m.n_heads > 0 && m.dim % m.n_heads == 0 && m.dim / m.n_heads % 2 == 0, "[--model.dim] ",
          m.dim, " is not an even multiple of --model.n_heads ", m.n_heads);
  require(m.n_kv_heads > 0 && m.n_heads % m.n_kv_heads == 0, "[--model.n_heads] ", m.n_heads,
          " is not a multiple of --model.n_kv_heads ", m.n_kv_heads);
  const RopeScaling& r = m.rope_scaling;
  require(r.kind != RopeScaling::Kind::llama3 || r.low_freq_factor < r.high_freq_factor,
          "[--model.rope_low_freq_factor] ", r.low_freq_factor,
          " is not below --model.rope_high_freq_factor ", r.high_freq_factor);
  return faults;
}

bool is_layer_interval(const std::string& option) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(option.data(), option.data() + option.size(), n);
  return error == std::errc() && end == option.data() + option.size() && n > 0;
}

// What the arguments say before any field is set.
struct Sources {
  std::optional<std::string> recipe, file;
  std::vector<std::string> rest, faults;
};

Sources sources(std::span<const std::string> arguments) {
  Sources s;
  const auto take = [&](std::string_view option, std::optional<std::string>& to, size_t& i) {
    const std::string_view word = arguments[i];
    const bool joined = word.starts_with(option) && word.substr(option.size()).starts_with('=');
    if (word != option && !joined) return false;
    if (to) s.faults.push_back(concat('[', option, "] is given twice"));
    if (joined) to = word.substr(option.size() + 1);
    else if (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) to = arguments[++i];
    else s.faults.push_back(concat('[', option, "] no value given: expected text"));
    return true;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!take("--recipe", s.recipe, i) && !take("--config", s.file, i))
      s.rest.push_back(arguments[i]);
  }
  return s;
}

std::optional<std::string> recipe_of(std::string_view json_text) {
  const auto json = nlohmann::json::parse(json_text, nullptr, false);
  if (!json.is_object() || !json.contains("recipe") || !json["recipe"].is_string()) return {};
  return json["recipe"].get<std::string>();
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

config::Fields Config::fields() {
  config::Fields f;
  TopFields top{*this};
  ModelFields model_fields{model};
  ParameterDType dtype{model.dtype};
  ActivationCheckpointFields checkpointing{activation_checkpoint};
  f.section("", top);
  f.section("training", training);
  f.section("training", dtype);
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
  f.section("model", model_fields);
  return f;
}

std::vector<std::string> Config::conflicts() const {
  std::vector<std::string> faults = model_conflicts(model);
  const auto require = [&](bool ok, const auto&... message) {
    if (!ok) faults.push_back(concat(message...));
  };
  require(training.seq_len <= model.max_seq_len, "[--training.seq_len] ", training.seq_len,
          " is above --model.max_seq_len ", model.max_seq_len);
  require(sample.tokens == 0 || model.vocab_size >= ByteTokenizer::kVocabulary,
          "[--sample.tokens] samples need the ", ByteTokenizer::kVocabulary,
          " tokens of bytes, beyond --model.vocab_size ", model.vocab_size,
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
  require(validation.seq_len.value_or(1) <= model.max_seq_len, "[--validation.seq_len] ",
          validation.seq_len.value_or(0), " is above --model.max_seq_len ", model.max_seq_len);
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

Config parse_config(std::span<const std::string> arguments) {
  Sources from = sources(arguments);
  std::vector<std::string> faults = std::move(from.faults);
  std::string text;
  if (from.file) {
    try {
      text = io::read_file(*from.file, kMostBytes);
    } catch (const IoError& error) {
      faults.push_back(concat("[--config] ", error.what()));
      from.file.reset();
    }
  }
  // The recipe comes first wherever it stands, since it sets the defaults that the rest changes.
  const auto of_file = recipe_of(text);
  if (from.recipe && of_file && *from.recipe != *of_file) {
    faults.push_back(concat("[--recipe] ", *from.recipe, " beside --config ", *from.file,
                            ", which is of recipe ", *of_file, ": give one of them"));
  }
  Config config = recipe("llama3_debugmodel");
  try {
    config = recipe(from.recipe.value_or(of_file.value_or("llama3_debugmodel")));
  } catch (const ConfigError& error) {
    faults.emplace_back(error.what());
  }
  config::Fields fields = config.fields();
  const auto add = [&](std::vector<std::string> more) {
    std::ranges::move(more, std::back_inserter(faults));
  };
  if (from.file) add(fields.parse_json(text, *from.file));
  add(fields.parse(from.rest));
  add(config.conflicts());
  config::throw_if_any(faults);
  return config;
}

Config read_config(const std::string& path) {
  return parse_run_config(io::read_file(path, kMostBytes), path);
}

Config parse_run_config(std::string_view json, const std::string& where) {
  Config config;
  auto faults = config.fields().parse_json(json, where);
  for (auto& f : config.conflicts()) faults.push_back(std::move(f));
  std::string text;
  for (const auto& f : faults) text += (text.empty() ? "" : "; ") + f;
  if (!faults.empty()) fail<DataError>("config", text);
  return config;
}

}  // namespace tessera::train
