// SPDX-License-Identifier: Apache-2.0
// The table of commands, and the one place where an error becomes an exit status. `--help` anywhere
// among the words is answered in place of the command.
#include "tessera/train/cli/cli.h"

#include "tessera/train/cli/commands.h"
#include "tessera/train/data/tokenizer.h"

#include <array>
#include <ostream>
#include <sstream>
#include <vector>

namespace tessera::train {
namespace {

constexpr std::string_view kUsage = R"(usage: tessera <command> [fields]
  train     train a model: tessera train --recipe NAME --dataloader.path FILE --dump_folder DIR
  generate  text from a trained model: tessera generate --checkpoint DIR --prompt TEXT
  eval      loss and perplexity of a trained model: tessera eval --checkpoint DIR --dataset_path FILE
  compare   two configurations from one seed, step by step: tessera compare A.json B.json
  plot      the loss of a run on the terminal: tessera plot RUN_FOLDER
  trace     join the ranks' profiler traces: tessera trace DIR/profiling/traces/iteration_10
  config    print the configuration that the fields given make, as JSON
  recipes   list the recipes
  models    list the model families and their sizes
`tessera <command> --help` lists the fields of a command. --version prints the version.
)";

struct Command {
  std::string_view name;
  int (*run)(Arguments, std::ostream&, const Catalogue&);
  std::string (*help)(Arguments, const Catalogue&);
};
constexpr std::array<Command, 9> kCommands{{{"train", train_command, config_help},
                                            {"generate", generate_command, generate_help},
                                            {"eval", eval_command, eval_help},
                                            {"compare", compare_command, compare_help},
                                            {"plot", plot_command, plot_help},
                                            {"trace", trace_command, trace_help},
                                            {"config", config_command, config_help},
                                            {"recipes", recipes_command, no_fields},
                                            {"models", models_command, no_fields}}};

bool asks_for_help(Arguments arguments) {
  for (const auto& a : arguments) {
    if (a == "--help" || a == "-h") return true;
  }
  return false;
}

// One line per message, each with the same beginning.
void print_error(std::ostream& err, std::string_view message) {
  std::istringstream lines{std::string(message)};
  for (std::string line; std::getline(lines, line);) err << "error: " << printable(line) << '\n';
}

}  // namespace

int run_cli(Arguments arguments, std::ostream& out, std::ostream& err, const Catalogue& catalogue) {
  constexpr int kFailed = 1, kWrongUsage = 2;
  if (arguments.empty()) {
    err << kUsage;
    return kWrongUsage;
  }
  const std::string& name = arguments[0];
  if (name == "--help" || name == "-h" || name == "help") {
    out << kUsage;
    return 0;
  }
  if (name == "--version") {
    out << "tessera " << TESSERA_VERSION << '\n';
    return 0;
  }
  for (const Command& command : kCommands) {
    if (command.name != name) continue;
    const Arguments rest = arguments.subspan(1);
    try {
      if (!asks_for_help(rest)) return command.run(rest, out, catalogue);
      out << "usage: tessera " << name << " [fields]\n" << command.help(rest, catalogue);
      return 0;
    } catch (const ConfigError& error) {
      print_error(err, error.what());
      return kWrongUsage;
    } catch (const std::exception& error) {
      print_error(err, error.what());
      return kFailed;
    }
  }
  std::vector<std::string> names;
  for (const Command& c : kCommands) names.emplace_back(c.name);
  const auto near = config::did_you_mean(name, names);
  print_error(
      err, concat("[tessera] unknown command '", name, '\'',
                  near ? concat("; did you mean ", *near, '?') : "; `tessera --help` lists them"));
  return kWrongUsage;
}

}  // namespace tessera::train
