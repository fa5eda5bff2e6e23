// SPDX-License-Identifier: Apache-2.0
// From words and files to a Config. What decides which fields there are (recipe, family, flavor) is
// found first, wherever it stands; then the file's fields are set, then the words'.
#include "tessera/nn/io/files.h"
#include "tessera/train/run/config.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace tessera::train {
namespace {

constexpr size_t kMostBytes = size_t{16} << 20;  // of a configuration file

// What the arguments say before any field is set.
struct Sources {
  std::optional<std::string> recipe, file, family, flavor;
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
    if (!take("--recipe", s.recipe, i) && !take("--config", s.file, i) &&
        !take("--model.name", s.family, i) && !take("--model.flavor", s.flavor, i))
      s.rest.push_back(arguments[i]);
  }
  return s;
}

// The same of a configuration file. What is not JSON is found when its fields are set.
Sources named_in(std::string_view json_text) {
  Sources s;
  const auto json = nlohmann::json::parse(json_text, nullptr, false);
  const auto text = [](const nlohmann::json& object, const char* key,
                       std::optional<std::string>& to) {
    if (object.is_object() && object.contains(key) && object[key].is_string())
      to = object[key].get<std::string>();
  };
  text(json, "recipe", s.recipe);
  if (!json.is_object() || !json.contains("model")) return s;
  text(json["model"], "name", s.family);
  text(json["model"], "flavor", s.flavor);
  return s;
}

// Calls f; a ConfigError is one more fault.
template <class F> void collect(std::vector<std::string>& faults, F f) {
  try {
    f();
  } catch (const ConfigError& error) {
    faults.emplace_back(error.what());
  }
}

// Another family or size in the place of the model; what it is computed in stays.
void choose_model(Config& c, const std::optional<std::string>& family,
                  const std::optional<std::string>& flavor, const Catalogue& catalogue) {
  const std::string name =
      family.value_or(c.model ? c.model.family() : catalogue.families.at(0).name);
  const models::Family& chosen = models::find_family(catalogue.families, name);
  if (!flavor) {
    if (c.model && c.model.family() == name) return;
    std::string all;
    for (const auto& f : chosen.flavors) all += concat(all.empty() ? "" : ", ", f.flavor());
    fail<ConfigError>("--model.flavor", "is missing: give a size of ", name, ": ", all);
  }
  models::ModelConfig next = chosen.flavor(*flavor);
  if (c.model) next.dtype() = c.model.dtype();
  c.model = std::move(next);
}

// Where the fields' defaults come from: a recipe, or the plain defaults for a model that is named.
// Faults are added to `faults`, and something with fields comes back all the same.
Config base(const std::optional<std::string>& recipe_name, bool model_named,
            const Catalogue& catalogue, std::vector<std::string>& faults) {
  Config c;
  if (!recipe_name && model_named) return c;
  const std::string& first = catalogue.recipes.at(0).name;
  collect(faults, [&] { c = recipe(recipe_name.value_or(first), catalogue); });
  if (!c.model) c = recipe(first, catalogue);
  return c;
}

// Those of the file; a file from before families had names is of the first one.
void take_file(Config& c, std::string_view text, const std::string& where, const Sources& named,
               const Catalogue& catalogue, std::vector<std::string>& faults) {
  if (named.family || named.flavor || !c.model) {
    collect(faults, [&] { choose_model(c, named.family, named.flavor.value_or(""), catalogue); });
    if (!c.model) c.model = catalogue.families.at(0).flavor("");
  }
  for (auto& fault : c.fields().parse_json(text, where)) faults.push_back(std::move(fault));
}

}  // namespace

Config recipe(std::string_view name, const Catalogue& catalogue) {
  const auto at = std::ranges::find(catalogue.recipes, name, &Recipe::name);
  if (at != catalogue.recipes.end()) return at->make();
  std::vector<std::string> names;
  for (const Recipe& r : catalogue.recipes) names.push_back(r.name);
  const auto near = config::did_you_mean(name, names);
  fail<ConfigError>(
      "--recipe", "there is no recipe '", name, '\'',
      near ? concat("; did you mean ", *near, '?') : "; `tessera recipes` lists them");
}

Config parse_config(std::span<const std::string> arguments, const Catalogue& catalogue) {
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
  const Sources of_file = named_in(text);
  if (from.recipe && of_file.recipe && *from.recipe != *of_file.recipe) {
    faults.push_back(concat("[--recipe] ", *from.recipe, " beside --config ", *from.file,
                            ", which is of recipe ", *of_file.recipe, ": give one of them"));
  }
  const bool model_named = from.family || from.flavor || of_file.family;
  std::optional<std::string> named = from.recipe ? from.recipe : of_file.recipe;
  if (named && named->empty()) named.reset();  // a file of a run without a recipe
  Config config = base(named, model_named, catalogue, faults);
  if (from.file) take_file(config, text, *from.file, of_file, catalogue, faults);
  if (from.family || from.flavor)
    collect(faults, [&] { choose_model(config, from.family, from.flavor, catalogue); });
  if (!config.model) config.model = catalogue.families.at(0).flavor("");
  for (auto& fault : config.fields().parse(from.rest)) faults.push_back(std::move(fault));
  for (auto& fault : config.conflicts()) faults.push_back(std::move(fault));
  config::throw_if_any(faults);
  return config;
}

std::string config_help(std::span<const std::string> arguments, const Catalogue& catalogue) {
  const Sources from = sources(arguments);
  std::vector<std::string> faults;
  Config config = base(from.recipe, from.family || from.flavor, catalogue, faults);
  const std::string family =
      from.family.value_or(config.model ? config.model.family() : catalogue.families.at(0).name);
  if (!config.model || config.model.family() != family || from.flavor) {
    const models::Family& chosen = models::find_family(catalogue.families, family);
    config.model = chosen.flavor(from.flavor.value_or(chosen.flavors.at(0).flavor()));
  }
  return concat(
      "  --recipe NAME, --config FILE: where other values than these come from; then "
      "--section.field value\n  --model.name FAMILY, --model.flavor SIZE: another model; "
      "--help after them shows its fields\nfields, with the defaults of ",
      config.recipe.empty() ? config.title() : concat("--recipe ", config.recipe), ":\n",
      config.fields().help());
}

Config read_config(const std::string& path, const Catalogue& catalogue) {
  return parse_run_config(io::read_file(path, kMostBytes), path, catalogue);
}

Config parse_run_config(std::string_view json, const std::string& where,
                        const Catalogue& catalogue) {
  Config config;
  std::vector<std::string> faults;
  take_file(config, json, where, named_in(json), catalogue, faults);
  for (auto& f : config.conflicts()) faults.push_back(std::move(f));
  std::string text;
  for (const auto& f : faults) text += (text.empty() ? "" : "; ") + f;
  if (!faults.empty()) fail<DataError>("config", text);
  return config;
}

}  // namespace tessera::train
