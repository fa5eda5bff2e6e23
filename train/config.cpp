// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/config.h"

#include "tessera/train/files.h"
#include "tessera/train/tokenizer.h"

#include <algorithm>
#include <array>

namespace tessera::train {
namespace {

// The model knows nothing of configuration files, so its fields are listed here.
struct ModelFields {
  llama3::Config& c;
  void fields(Fields& f) {
    f.add("dim", c.dim, "width of the residual stream", {.min = 2, .max = 1 << 20});
    f.add("n_layers", c.n_layers, "number of layers", {.min = 1, .max = 4096});
    f.add("n_heads", c.n_heads, "query heads", {.min = 1, .max = 4096});
    f.add("n_kv_heads", c.n_kv_heads, "key and value heads", {.min = 1, .max = 4096});
    f.add("ffn_dim", c.ffn_dim, "width of the feed-forward", {.min = 1, .max = 1 << 24});
    f.add("vocab_size", c.vocab_size, "rows of the embedding",
          {.min = ByteTokenizer::kVocabulary, .max = 1 << 24});
    f.add("max_seq_len", c.max_seq_len, "longest context",
          {.min = 1, .max = 1 << 30, .unit = "tokens"});
    f.add("rope_theta", c.rope_theta, "base of the rotary angles", {.min = 1, .max = 1e12});
    f.add("norm_eps", c.norm_eps, "added to the mean square in norms", {.min = 0, .max = 1});
  }
};

struct TopFields {
  Config& c;
  void fields(Fields& f) {
    f.add("recipe", c.recipe, "the recipe that the other defaults come from");
    f.add("dump_folder", c.dump_folder, "where everything is written");
    f.add("ranks", c.ranks,
          "ranks as threads of this process; 0: one, or the processes that a launcher started",
          {.min = 0, .max = 4096, .unit = "ranks"});
    f.add("threads", c.threads, "threads of the kernels per rank; 0: the cores shared out",
          {.min = 0, .max = 4096, .unit = "threads"});
  }
};

Config llama3_debugmodel() {
  Config c;
  c.recipe = "llama3_debugmodel";
  c.model = llama3::debugmodel();
  c.training.steps = 10;
  c.lr_scheduler.warmup_steps = 2;
  c.lr_scheduler.decay_ratio = 0.8;
  c.metrics.log_freq = 1;
  c.sample.prompt = "// The ";
  return c;
}

constexpr std::array<Recipe, 1> kRecipes{{
    {"llama3_debugmodel", "Llama 3 with 6 layers of 256, byte tokenizer; minutes on two cores",
     llama3_debugmodel},
}};

}  // namespace

void TrainingConfig::fields(Fields& f) {
  f.add("steps", steps, "optimizer steps", {.min = 1, .max = 1e12, .unit = "steps"});
  f.add("local_batch_size", local_batch_size, "rows of a step on each rank",
        {.min = 1, .max = 1 << 20, .unit = "sequences"});
  f.add("seq_len", seq_len, "length of a row", {.min = 1, .max = 1 << 24, .unit = "tokens"});
  f.add("max_norm", max_norm, "gradients are scaled to this norm at most",
        {.min = 0, .above_min = true});
}

void DebugConfig::fields(Fields& f) {
  f.add("seed", seed, "of initialisation, data order and samples", {.min = 0});
  f.add("deterministic", deterministic, "same bits on every run, whatever it costs");
  f.add("detect_anomaly", detect_anomaly, "check every op's output for NaN; slow");
}

void SampleConfig::fields(Fields& f) {
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

Fields Config::fields() {
  Fields f;
  TopFields top{*this};
  ModelFields model_fields{model};
  f.section("", top);
  f.section("training", training);
  f.section("optimizer", optimizer);
  f.section("lr_scheduler", lr_scheduler);
  f.section("dataloader", dataloader);
  f.section("debug", debug);
  f.section("metrics", metrics);
  f.section("profiler", profiler);
  f.section("sample", sample);
  f.section("model", model_fields);
  return f;
}

std::vector<std::string> Config::conflicts() const {
  std::vector<std::string> faults;
  const auto require = [&](bool ok, const std::string& message) {
    if (!ok) faults.push_back(message);
  };
  const llama3::Config& m = model;
  require(training.seq_len <= m.max_seq_len,
          concat("[--training.seq_len] ", training.seq_len, " is above --model.max_seq_len ",
                 m.max_seq_len));
  require(
      m.dim % m.n_heads == 0 && m.dim / m.n_heads % 2 == 0,
      concat("[--model.dim] ", m.dim, " is not an even multiple of --model.n_heads ", m.n_heads));
  require(m.n_heads % m.n_kv_heads == 0,
          concat("[--model.n_heads] ", m.n_heads, " is not a multiple of --model.n_kv_heads ",
                 m.n_kv_heads));
  require(!dump_folder.empty(), "[--dump_folder] is empty; give a folder");
  for (auto& fault : profiler.conflicts()) faults.push_back(std::move(fault));
  return faults;
}

std::span<const Recipe> recipes() { return kRecipes; }

Config recipe(std::string_view name) {
  const auto at = std::ranges::find(kRecipes, name, &Recipe::name);
  if (at != kRecipes.end()) return at->make();
  std::vector<std::string> names;
  for (const Recipe& r : kRecipes) names.emplace_back(r.name);
  const auto near = did_you_mean(name, names);
  fail<ConfigError>(
      "--recipe", "there is no recipe '", name, '\'',
      near ? concat("; did you mean ", *near, '?') : "; `tessera recipes` lists them");
}

Config parse_config(std::span<const std::string> arguments) {
  // The recipe comes first wherever it stands, since it sets the defaults that the rest changes.
  std::string name = "llama3_debugmodel";
  std::vector<std::string> rest, faults;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word.starts_with("--recipe=")) name = word.substr(std::string_view("--recipe=").size());
    else if (word == "--recipe" && i + 1 < arguments.size()) name = arguments[++i];
    else rest.push_back(word);
  }
  Config config = recipe("llama3_debugmodel");
  try {
    config = recipe(name);
  } catch (const ConfigError& error) {
    faults.emplace_back(error.what());
  }
  for (auto& f : config.fields().parse(rest)) faults.push_back(std::move(f));
  for (auto& f : config.conflicts()) faults.push_back(std::move(f));
  throw_if_any(faults);
  return config;
}

Config read_config(const std::string& path) {
  Config config;
  auto faults = config.fields().parse_json(read_file(path), path);
  for (auto& f : config.conflicts()) faults.push_back(std::move(f));
  std::string text;
  for (const auto& f : faults) text += (text.empty() ? "" : "; ") + f;
  if (!faults.empty()) fail<DataError>("config", text);
  return config;
}

}  // namespace tessera::train
