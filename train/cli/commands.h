// SPDX-License-Identifier: Apache-2.0
// Commands of the program, a file each: a command takes the words after its name, writes to `out`
// and gives the exit status; its help lists its fields. ConfigError for wrong usage.
#pragma once

#include "tessera/models/config/fields.h"
#include "tessera/train/run/config.h"

#include <iosfwd>
#include <span>
#include <string>

namespace tessera::train {

using Arguments = std::span<const std::string>;

/// `tessera train [fields]`: trains, then prints samples.
int train_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);

/// `tessera generate --checkpoint DIR --prompt TEXT [--prompt TEXT]...`: prints as tokens come.
int generate_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string generate_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera eval --checkpoint DIR --dataset_path FILE`: loss and perplexity.
int eval_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string eval_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera compare A.json B.json`: two configurations from one seed, step by step.
int compare_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string compare_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera plot RUN_FOLDER`: a curve of its metrics.jsonl on the terminal, or as an SVG file.
int plot_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string plot_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera trace FOLDER`: joins the ranks' traces of one iteration into FOLDER/trace.json.
int trace_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string trace_help(Arguments arguments, const Catalogue& catalogue);

/// `tessera config [fields]`: the configuration that the fields make, as JSON.
int config_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
/// `tessera recipes`, `tessera models`: what there is.
int recipes_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
int models_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue);
std::string no_fields(Arguments arguments, const Catalogue& catalogue);

/// A command's own fields, from its words. ConfigError: every fault.
template <class C> C parsed_fields(Arguments arguments) {
  C config;
  config::Fields fields;
  fields.section("", config);
  config::throw_if_any(fields.parse(arguments));
  return config;
}
/// The same where the first word may be the folder.
template <class C> C parsed_folder(Arguments arguments) {
  C config;
  config::Fields fields;
  fields.section("", config);
  if (!arguments.empty() && !arguments[0].starts_with("--")) {
    config.folder = arguments[0];
    arguments = arguments.subspan(1);
  }
  std::vector<std::string> faults = fields.parse(arguments);
  if (config.folder.empty()) faults.emplace_back("[--folder] is missing: give the folder of a run");
  config::throw_if_any(faults);
  return config;
}
template <class C> std::string help_of_fields() {
  C config;
  config::Fields fields;
  fields.section("", config);
  return "fields:\n" + fields.help();
}

}  // namespace tessera::train
