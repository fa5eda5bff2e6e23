// SPDX-License-Identifier: Apache-2.0
// The commands config, recipes and models.
#include "tessera/nn/io/utf8.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/run/faults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ostream>

namespace tessera::train {
namespace {

void require_no_fields(Arguments arguments, std::string_view command) {
  if (!arguments.empty())
    fail<ConfigError>(command, "takes no fields: given ", io::excerpt(arguments[0]));
}

int print_config(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  out << checked_config(arguments, catalogue).json();
  return 0;
}

int list_recipes(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  require_no_fields(arguments, "recipes");
  for (const Recipe& r : catalogue.recipes)
    out << fmt::format("{:<20} {}\n", r.name, r.description);
  return 0;
}

// What a family can do besides training and generation on one rank and on several.
std::vector<std::string> supported(const models::Family& f) {
  std::vector<std::string> all;
  try {
    (void)f.flavors[0].make()->tensor_parallel_plan({});
    all.emplace_back("tensor parallelism");
  } catch (const UsageError&) {  // it has no plan
  }
  bool gguf = false;
  for (const models::HuggingFace* names : f.hugging_face) {
    all.push_back(concat("config.json of ", names->model_type));
    if (!names->within.model_type.empty())
      all.push_back(concat("within ", names->within.model_type));
    gguf = gguf || names->gguf;
  }
  if (gguf) all.emplace_back("GGUF");
  return all;
}

int list_models(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  require_no_fields(arguments, "models");
  for (const models::Family& f : catalogue.families) {
    std::vector<std::string> sizes;
    for (const auto& m : f.flavors) sizes.push_back(m.flavor());
    out << fmt::format("{:<12} {}: {}; {}\n", f.name, f.description, fmt::join(sizes, ", "),
                       fmt::join(supported(f), ", "));
  }
  return 0;
}

std::string no_fields(Arguments, const Catalogue&) { return "it takes no fields\n"; }

}  // namespace

Command config_command() {
  return {.name = "config",
          .arguments = " [fields]",
          .summary = "print the resolved configuration as JSON",
          .run = print_config,
          .help = config_help};
}

Command recipes_command() {
  return {.name = "recipes",
          .arguments = "",
          .summary = "list the recipes",
          .run = list_recipes,
          .help = no_fields};
}

Command models_command() {
  return {.name = "models",
          .arguments = "",
          .summary = "list the model families, their sizes and what they support",
          .run = list_models,
          .help = no_fields};
}

}  // namespace tessera::train
