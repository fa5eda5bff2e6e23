// SPDX-License-Identifier: Apache-2.0
// The commands config, recipes and models.
#include "tessera/nn/io/utf8.h"
#include "tessera/train/cli/commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ostream>

namespace tessera::train {
namespace {

void require_no_fields(Arguments arguments, std::string_view command) {
  if (!arguments.empty())
    fail<ConfigError>(command, "takes no fields: given ", io::excerpt(arguments[0]));
}

}  // namespace

int config_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  Config config = parse_config(arguments, catalogue);
  out << config.fields().dump();
  return 0;
}

int recipes_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  require_no_fields(arguments, "recipes");
  for (const Recipe& r : catalogue.recipes)
    out << fmt::format("{:<20} {}\n", r.name, r.description);
  return 0;
}

int models_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  require_no_fields(arguments, "models");
  for (const models::Family& f : catalogue.families) {
    std::vector<std::string> sizes;
    for (const auto& m : f.flavors) sizes.push_back(m.flavor());
    out << fmt::format("{:<12} {}: {}\n", f.name, f.description, fmt::join(sizes, ", "));
  }
  return 0;
}

std::string no_fields(Arguments, const Catalogue&) { return "it takes no fields\n"; }

}  // namespace tessera::train
