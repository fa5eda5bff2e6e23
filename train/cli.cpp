// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/cli.h"

#include "tessera/dist/launch/launch_world.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/train/commands.h"
#include "tessera/train/screen.h"
#include "tessera/train/tokenizer.h"
#include "tessera/train/trainer.h"

#include <fmt/format.h>

#include <array>
#include <ostream>
#include <sstream>
#include <vector>

namespace tessera::train {
namespace {

using Arguments = std::span<const std::string>;

constexpr std::string_view kUsage = R"(usage: tessera <command> [fields]
  train     train a model: tessera train --recipe llama3_debugmodel --dataloader.path FILE --dump_folder DIR
  generate  text from a trained model: tessera generate --checkpoint DIR --prompt TEXT
  plot      the loss of a run on the terminal: tessera plot RUN_FOLDER
  trace     join the ranks' profiler traces: tessera trace DIR/profiling/traces/iteration_10
  config    print the configuration that the fields given make, as JSON
  recipes   list the recipes
`tessera <command> --help` lists the fields of a command. --version prints the version.
)";

bool asks_for_help(Arguments arguments) {
  for (const auto& a : arguments) {
    if (a == "--help" || a == "-h") return true;
  }
  return false;
}

int train(Arguments arguments, std::ostream& out) {
  const Config config = parse_config(arguments);
  const Launch launch = detect_launch(static_cast<int>(config.ranks));
  FlightRecorder::install_signal_handler();  // SIGUSR2 dumps what the ranks are doing
  if (launch.rank == 0) out << "tessera " << TESSERA_VERSION << '\n';
  Screen screen(out, Screen::style_of(out));
  const auto run = [&](World&) {
    Trainer trainer(
        config, [&](const std::string& line) { screen.line(line); }, &screen);
    trainer.run();
    trainer.print_samples();
  };
  run_launched(launch, run,
               {.threads = static_cast<int>(config.threads),
                .deterministic = config.debug.deterministic,
                .anomaly = config.debug.detect_anomaly});
  return 0;
}

int print_config(Arguments arguments, std::ostream& out) {
  Config config = parse_config(arguments);
  out << config.fields().dump();
  return 0;
}

int print_recipes(Arguments, std::ostream& out) {
  for (const Recipe& r : recipes()) out << fmt::format("{:<20} {}\n", r.name, r.description);
  return 0;
}

std::string config_help() {
  Config config = recipe("llama3_debugmodel");
  return "fields, with the defaults of --recipe llama3_debugmodel:\n" + config.fields().help();
}
std::string no_fields() { return "it takes no fields\n"; }

struct Command {
  std::string_view name;
  int (*run)(Arguments, std::ostream&);
  std::string (*help)();
};
constexpr std::array<Command, 6> kCommands{{{"train", train, config_help},
                                            {"generate", generate_command, generate_help},
                                            {"plot", plot_command, plot_help},
                                            {"trace", trace_command, trace_help},
                                            {"config", print_config, config_help},
                                            {"recipes", print_recipes, no_fields}}};

// One line per message, each with the same beginning.
void print_error(std::ostream& err, std::string_view message) {
  std::istringstream lines{std::string(message)};
  for (std::string line; std::getline(lines, line);) err << "error: " << printable(line) << '\n';
}

}  // namespace

int run_cli(Arguments arguments, std::ostream& out, std::ostream& err) {
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
    if (asks_for_help(rest)) {
      out << "usage: tessera " << name << " [fields]\n" << command.help();
      return 0;
    }
    try {
      return command.run(rest, out);
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
  const auto near = did_you_mean(name, names);
  print_error(
      err, concat("[tessera] unknown command '", name, '\'',
                  near ? concat("; did you mean ", *near, '?') : "; `tessera --help` lists them"));
  return kWrongUsage;
}

}  // namespace tessera::train
