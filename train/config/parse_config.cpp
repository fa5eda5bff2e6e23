// SPDX-License-Identifier: Apache-2.0
// Parses arguments and files to a Config. Recipe, family and flavor, which decide the fields, are
// read first, at any position; then the fields of the file are set, then those of the arguments.
#include "tessera/models/config/collect_impl.h"
#include "tessera/nn/io/files.h"
#include "tessera/nn/io/json_impl.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/config/config.h"
#include "tessera/train/exchange/model.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace tessera::train {
namespace {

constexpr size_t kMostBytes = size_t{16} << 20;  // of a configuration file

// The arguments that are read before any field is set.
struct Sources {
  std::optional<std::string> recipe, file, family, flavor, initial_hf, ignored;
  std::vector<std::string> rest, faults;
  bool rope = false;  // they set RoPE, so that a model from a folder may have another
};

constexpr std::string_view kIgnored = "--model.ignore_hf_fields";

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
    if (!take("--recipe", s.recipe, i) && !take("--config", s.file, i) &&
        !take("--model.name", s.family, i) && !take("--model.flavor", s.flavor, i) &&
        !take("--model.initial_hf", s.initial_hf, i) && !take(kIgnored, s.ignored, i))
      s.rest.push_back(arguments[i]);
  }
  s.rope = std::ranges::any_of(
      s.rest, [](const std::string& word) { return word.starts_with("--model.rope_"); });
  // A field like others, but for being known before a folder of Hugging Face is read.
  if (s.ignored) s.rest.push_back(concat(kIgnored, '=', *s.ignored));
  return s;
}

// The same for a configuration file. Invalid JSON is reported when its fields are set.
Sources named_in(std::string_view json_text) {
  Sources s;
  const nlohmann::ordered_json json = io::parse_json(json_text).value;
  const auto text = [](const nlohmann::ordered_json& object, const char* key,
                       std::optional<std::string>& to) {
    if (object.is_object() && object.contains(key) && object[key].is_string())
      to = object[key].get<std::string>();
  };
  text(json, "recipe", s.recipe);
  if (!json.is_object() || !json.contains("model")) return s;
  text(json["model"], "name", s.family);
  text(json["model"], "flavor", s.flavor);
  text(json["model"], "initial_hf", s.initial_hf);
  if (const auto at = json["model"].find("ignore_hf_fields"); at != json["model"].end())
    s.ignored = at->dump();
  s.rope = json["model"].contains("rope_scaling");
  return s;
}

// Replaces the model by another family or size, with the same dtype. A file without a family is of
// the first one, and sets every field.
void choose_model(Config& c, const std::optional<std::string>& family,
                  const std::optional<std::string>& flavor, const Catalogue& catalogue) {
  if (catalogue.families.empty()) fail<UsageError>("config", "the catalogue has no model family");
  if (!family && !flavor && !c.model) {
    c.model = catalogue.families[0].flavor("");
    return;
  }
  const std::string name = family.value_or(c.model ? c.model.family() : catalogue.families[0].name);
  const models::Family& chosen = models::find_family(catalogue.families, name);
  if (!flavor) {
    if (c.model && c.model.family() == name) return;
    std::string all;
    for (const auto& f : chosen.flavors) all += concat(all.empty() ? "" : ", ", f.flavor());
    c.model = chosen.flavors.at(0);  // whose fields are those that the other words may name
    fail<ConfigError>("--model.flavor", "is missing: give a size of ", name, ": ", all);
  }
  models::ModelConfig next = chosen.flavor(*flavor);
  if (c.model) next.dtype() = c.model.dtype();
  c.model = std::move(next);
}

// Whether one of these words is the field.
bool names(std::span<const std::string> words, std::string_view field) {
  return std::ranges::any_of(
      words, [&](std::string_view word) { return word.substr(0, word.find('=')) == field; });
}

// A folder without a scaling does not say which context it was trained on in the words of one.
std::vector<std::string> missing_context(std::span<const std::string> words,
                                         models::ModelConfig held, models::ModelConfig now) {
  constexpr std::string_view kScaling = "model.rope_scaling",
                             kContext = "--model.rope_original_max_position_embeddings";
  const auto scaling_of = [&](models::ModelConfig& model) {
    config::Fields fields;
    fields.section("model", model);
    const config::Field* scaling = fields.find(kScaling);
    return scaling ? scaling->text() : "none";
  };
  const std::string kind = scaling_of(now);
  if (scaling_of(held) != "none" || kind == "none" || kind == "linear" || names(words, kContext) ||
      !names(words, concat("--", kScaling)))
    return {};
  return {concat("[--", kScaling, "] the folder's model has none: give ", kContext,
                 " too, the context that it was trained on; max_position_embeddings is ",
                 held.max_seq_len())};
}

// The folder of a file if it is the config.json of the run there: wherever the run was moved, and
// whichever folder the command is called in.
std::string run_of(const std::string& file) {
  const std::filesystem::path path = file,
                              folder = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code ignored;
  const bool of_run = path.filename() == "config.json" &&
                      std::filesystem::exists(folder / "metrics.jsonl", ignored);
  return of_run ? folder.string() : "";
}

// The state before any field is set: the recipe, with the model that the arguments or the file
// name.
struct Start {
  Sources words, file;
  std::string text;  // of the file
  Config config;
  std::string hf_folder = {};
  std::optional<models::ModelConfig> held = {};  // by hf_folder
  std::vector<std::string> faults;
};

// The model that a folder of Hugging Face holds takes the place of a recipe's. Its tokenizer is
// that of the run, if no field says another; open_tokenizer says whether there is one.
void choose_hugging_face(Config& c, const std::string& folder, bool keep_model,
                         const Catalogue& catalogue, std::optional<models::ModelConfig>& held) {
  held = read_hf_config(folder, catalogue.families, c.ignore_hf_fields).config;
  c.initial_hf = folder;
  c.special_tokens = read_special_tokens(folder);
  c.hf_assets_path = folder;
  if (keep_model) return;
  models::ModelConfig next = *held;
  if (c.model) next.dtype() = c.model.dtype();
  c.model = std::move(next);
}

// Even with faults the configuration has fields, so that their faults are found too.
Start start(std::span<const std::string> arguments, const Catalogue& catalogue) {
  Start s{.words = sources(arguments), .file = {}, .text = {}, .config = {}, .faults = {}};
  Sources &words = s.words, &file = s.file;
  s.faults = std::move(words.faults);
  if (words.file) {
    try {
      s.text = io::read_file(*words.file, kMostBytes);
    } catch (const IoError& error) {
      s.faults.push_back(concat("[--config] ", io::excerpt(error.what(), 300)));
      words.file.reset();
    }
  }
  file = named_in(s.text);
  for (auto* none : {&file.recipe, &file.initial_hf})
    if (*none && (*none)->empty()) none->reset();  // a run without it
  const auto one = [&](std::string_view option, const std::optional<std::string>& by_word,
                       const std::optional<std::string>& by_file, std::string_view what) {
    if (by_word && by_file && *by_word != *by_file) {
      s.faults.push_back(concat(
          '[', option, "] ", io::excerpt(*by_word), " conflicts with --config ",
          io::excerpt(*words.file), ", which is of ", what, ' ',
          by_file->empty() ? "without a name" : io::excerpt(*by_file), ": give one of them"));
    }
    return by_word ? by_word : by_file;
  };
  const auto named = one("--recipe", words.recipe, file.recipe, "recipe");
  const auto family = one("--model.name", words.family, file.family, "family");
  const auto flavor = one("--model.flavor", words.flavor, file.flavor, "flavor");

  const std::string& folder = s.hf_folder =
      one("--model.initial_hf", words.initial_hf, file.initial_hf, "folder").value_or("");
  const bool plain = !named && (family || flavor || !folder.empty());
  if (!plain) {
    if (catalogue.recipes.empty()) fail<UsageError>("config", "the catalogue has no recipe");
    const std::string& first = catalogue.recipes[0].name;
    config::collect(s.faults, [&] { s.config = recipe(named.value_or(first), catalogue); });
    if (!s.config.model) s.config = recipe(first, catalogue);
  }
  // A run's own file says all that the folder did, which may be away by now.
  const bool away = !words.initial_hf && family && !has_hf_config(folder);
  const auto& ignored = words.ignored ? words.ignored : file.ignored;
  if (ignored) {  // a fault is reported where all fields are set
    config::Fields fields = s.config.fields();
    (void)fields.find("model.ignore_hf_fields")->assign(*ignored);
  }
  if (!folder.empty() && !away)
    choose_hugging_face(s.config, folder, family || flavor, catalogue, s.held);
  if (folder.empty() || family || flavor)
    config::collect(s.faults, [&] { choose_model(s.config, family, flavor, catalogue); });
  if (!s.config.model) choose_model(s.config, {}, {}, catalogue);
  TrainingConfig& training = s.config.training;
  if (plain) training.seq_len = std::min(training.seq_len, s.config.model.max_seq_len());
  return s;
}

}  // namespace

Config recipe(std::string_view name, const Catalogue& catalogue) {
  const auto at = std::ranges::find(catalogue.recipes, name, &Recipe::name);
  if (at != catalogue.recipes.end()) return at->make();
  std::vector<std::string> names;
  for (const Recipe& r : catalogue.recipes) names.push_back(r.name);
  const auto near = config::did_you_mean(name, names);
  fail<ConfigError>(
      "--recipe", "there is no recipe '", io::excerpt(name), '\'',
      near ? concat("; did you mean ", *near, '?') : "; `tessera recipes` lists them");
}

ParsedConfig read_arguments(std::span<const std::string> arguments, const Catalogue& catalogue) {
  Start s = start(arguments, catalogue);
  config::Fields fields = s.config.fields();
  const auto add = [&](std::vector<std::string> more) {
    std::ranges::move(more, std::back_inserter(s.faults));
  };
  if (s.words.file) add(fields.parse_json(s.text, io::excerpt(*s.words.file)));
  std::string note;
  if (const std::string run = run_of(s.words.file.value_or("")); !run.empty()) {
    s.config.dump_folder = run;
    note = concat("dump_folder: ", run, ", where --config ", *s.words.file,
                  " lies: goes on with the run there; --dump_folder DIR begins another");
  }
  add(fields.parse(s.words.rest));
  if (!s.hf_folder.empty()) s.config.initial_hf = s.hf_folder;  // a file may have none
  // A run that begins with the model of another has nothing from the folder that the file names.
  if (!s.words.initial_hf && names(s.words.rest, "--checkpoint.initial_load_path"))
    s.config.initial_hf.clear();
  if (s.held) add(missing_context(s.words.rest, *s.held, s.config.model));
  if (s.held)
    add(hf_differences(s.config.model, *s.held, s.config.initial_hf, s.words.rope || s.file.rope));
  add(s.config.conflicts());
  // A folder may give the weights or the tokenizer alone.
  std::error_code ignored;
  for (const std::string& folder : {s.config.initial_hf_folder(), s.config.hf_assets_path}) {
    if (s.faults.empty() && s.config.special_tokens == SpecialTokensConfig() &&
        std::filesystem::is_directory(folder, ignored))
      s.config.special_tokens = read_special_tokens(folder);
  }
  if (names(s.words.rest, "--dump_folder")) note.clear();
  return {std::move(s.config), std::move(s.faults), std::move(note)};
}

Config parse_config(std::span<const std::string> arguments, const Catalogue& catalogue) {
  ParsedConfig parsed = read_arguments(arguments, catalogue);
  config::throw_if_any(parsed.faults);
  return std::move(parsed.config);
}

std::string config_help(std::span<const std::string> arguments, const Catalogue& catalogue) {
  std::vector<std::string> words(arguments.begin(), arguments.end());
  const Sources named = sources(arguments);
  // A family without a flavor uses its first size for the defaults.
  if (named.family && !named.flavor && !named.recipe) {
    const models::Family& family = models::find_family(catalogue.families, *named.family);
    words.push_back(concat("--model.flavor=", family.flavors.at(0).flavor()));
  }
  Start s = start(words, catalogue);
  config::throw_if_any(s.faults);
  return concat(
      "  --recipe NAME, --config FILE: replace the defaults below; --section.field value overrides "
      "both\n  --model.name FAMILY, --model.flavor SIZE: another model; add --help to list its "
      "fields\nfields, with the defaults of ",
      s.config.recipe.empty() ? s.config.title() : concat("--recipe ", s.config.recipe), ":\n",
      s.config.fields().help());
}

Config read_config(const std::string& path, const Catalogue& catalogue) {
  return parse_run_config(io::read_file(path, kMostBytes), path, catalogue);
}

Config parse_run_config(std::string_view json, const std::string& where,
                        const Catalogue& catalogue) {
  Config config;
  const Sources named = named_in(json);
  std::vector<std::string> faults;
  config::collect(faults, [&] { choose_model(config, named.family, named.flavor, catalogue); });
  if (!config.model) choose_model(config, {}, {}, catalogue);
  for (auto& f : config.fields().parse_json(json, where)) faults.push_back(std::move(f));
  for (auto& f : config.conflicts()) faults.push_back(std::move(f));
  std::string text;
  for (const auto& f : faults) text += (text.empty() ? "" : "; ") + f;
  if (!faults.empty()) fail<DataError>("config", text);
  return config;
}

}  // namespace tessera::train
