// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/cli.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/launch/launch_world.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/generate.h"
#include "tessera/train/stop_signals.h"
#include "tessera/train/tokenizer.h"
#include "tessera/train/trained_model.h"
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
  config    print the configuration that the fields given make, as JSON
  recipes   list the recipes
`tessera <command> --help` lists the fields of a command. --version prints the version.
)";

struct GenerateConfig {
  std::string checkpoint, prompt;
  int64_t tokens = 200, top_k = 40, context = 0, seed = 0, threads = 0;
  double temperature = 0.8;
  void fields(Fields& f) {
    f.add("checkpoint", checkpoint, "dump folder of a run, or one of its checkpoints");
    f.add("prompt", prompt, "text to go on from");
    f.add("tokens", tokens, "length of the text", {.min = 1, .max = 1 << 24, .unit = "tokens"});
    f.add("temperature", temperature, "0: always the likeliest token", {.min = 0, .max = 100});
    f.add("top_k", top_k, "draw from the k likeliest tokens", {.min = 1, .max = 1 << 24});
    f.add("context", context, "tokens that the model sees; 0: training.seq_len of the run",
          {.min = 0, .max = 1 << 24});
    f.add("seed", seed, "of the draws", {.min = 0});
    f.add("threads", threads, "threads of the kernels; 0: all cores", {.min = 0, .max = 4096});
  }
};

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
  if (config.checkpoint.enable) install_stop_signals();
  if (launch.rank == 0) out << "tessera " << TESSERA_VERSION << '\n';
  const auto run = [&](World&) {
    Trainer trainer(config, [&](const std::string& line) { out << line << std::endl; });
    trainer.run();
    trainer.print_samples();
  };
  run_launched(launch, run,
               {.threads = static_cast<int>(config.threads),
                .deterministic = config.debug.deterministic,
                .anomaly = config.debug.detect_anomaly});
  return 0;
}

int generate_text(Arguments arguments, std::ostream& out) {
  GenerateConfig c;
  Fields fields;
  fields.section("", c);
  throw_if_any(fields.parse(arguments));
  if (c.checkpoint.empty())
    fail<ConfigError>("--checkpoint", "is missing: give the dump folder of a run");
  Session session({.threads = static_cast<int>(c.threads)});
  const TrainedModel trained =
      open_trained_model(c.checkpoint, [&](const std::string& line) { out << line << '\n'; });
  const Config& config = trained.config;
  llama3::Model model(config.model);
  nn::load(model, trained.tensors);
  const GenerateOptions options{.tokens = c.tokens,
                                .temperature = c.temperature,
                                .top_k = c.top_k,
                                .context = c.context > 0 ? c.context : config.training.seq_len,
                                .seed = static_cast<uint64_t>(c.seed)};
  out << printable(c.prompt + generate(model, c.prompt, options)) << '\n';
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
std::string generate_help() {
  GenerateConfig c;
  Fields fields;
  fields.section("", c);
  return "fields:\n" + fields.help();
}
std::string no_fields() { return "it takes no fields\n"; }

struct Command {
  std::string_view name;
  int (*run)(Arguments, std::ostream&);
  std::string (*help)();
};
constexpr std::array<Command, 4> kCommands{{{"train", train, config_help},
                                            {"generate", generate_text, generate_help},
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
