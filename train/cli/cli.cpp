// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/cli/cli.h"

#include "tessera/dist/launch/launch_world.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/nn/mixed_precision.h"
#include "tessera/nn/parameters.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/data/tokenizer.h"
#include "tessera/train/monitor/metrics.h"
#include "tessera/train/monitor/screen.h"
#include "tessera/train/run/compare.h"
#include "tessera/train/run/evaluate.h"
#include "tessera/train/run/stop_signals.h"
#include "tessera/train/run/trained_model.h"
#include "tessera/train/run/trainer.h"

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
  eval      loss and perplexity of a trained model: tessera eval --checkpoint DIR --dataset_path FILE
  compare   two configurations from one seed, step by step: tessera compare A.json B.json
  plot      the loss of a run on the terminal: tessera plot RUN_FOLDER
  trace     join the ranks' profiler traces: tessera trace DIR/profiling/traces/iteration_10
  config    print the configuration that the fields given make, as JSON
  recipes   list the recipes
`tessera <command> --help` lists the fields of a command. --version prints the version.
)";

struct EvalConfig {
  std::string checkpoint, dataset_path;
  int64_t steps = -1, local_batch_size = 0, seq_len = 0, ranks = 0, threads = 0;
  void fields(config::Fields& f) {
    f.add("checkpoint", checkpoint, "dump folder of a run, or one of its checkpoints");
    f.add("dataset_path", dataset_path,
          "text to evaluate on; none: the run's validation.dataset_path, else its dataloader.path");
    f.add("steps", steps, "batches; -1: all of the data", {.min = -1, .max = 1e12});
    f.add("local_batch_size", local_batch_size,
          "rows of a batch on each rank; 0: training.local_batch_size of the run",
          {.min = 0, .max = 1 << 20, .unit = "sequences"});
    f.add("seq_len", seq_len, "length of a row; 0: training.seq_len of the run",
          {.min = 0, .max = 1 << 24, .unit = "tokens"});
    f.add("ranks", ranks, "ranks as threads of this process; 0: one, or those of a launcher",
          {.min = 0, .max = 4096, .unit = "ranks"});
    f.add("threads", threads, "threads of the kernels per rank; 0: the cores shared out",
          {.min = 0, .max = 4096, .unit = "threads"});
  }
};

template <class C> C parsed(Arguments arguments) {
  C config;
  config::Fields fields;
  fields.section("", config);
  config::throw_if_any(fields.parse(arguments));
  return config;
}

bool asks_for_help(Arguments arguments) {
  for (const auto& a : arguments) {
    if (a == "--help" || a == "-h") return true;
  }
  return false;
}

int train(Arguments arguments, std::ostream& out) {
  const Config config = parse_config(arguments);
  const Launch launch = detect_launch(static_cast<int>(config.ranks));
  (void)config.training.micro_batches(launch.size);  // before any rank waits for another
  FlightRecorder::install_signal_handler();          // SIGUSR2 dumps what the ranks are doing
  if (config.checkpoint.enable) install_stop_signals();
  if (launch.rank == 0) out << "tessera " << TESSERA_VERSION << '\n';
  // A launcher's ranks may have terminals of their own, whose output lands anywhere.
  const bool alone = launch.launcher == Launcher::single;
  Screen screen(out, alone ? Screen::style_of(out) : Screen::Style{});
  const auto run = [&](World&) {
    Trainer trainer(
        config, [&](const std::string& line) { screen.line(line); }, &screen);
    trainer.run();
    trainer.print_samples();
  };
  run_launched(launch, run, world_options(config));
  return 0;
}

int evaluate_model(Arguments arguments, std::ostream& out) {
  const auto c = parsed<EvalConfig>(arguments);
  if (c.checkpoint.empty())
    fail<ConfigError>("--checkpoint", "is missing: give the dump folder of a run");
  if (c.steps == 0) fail<ConfigError>("--steps", "0: expected at least 1, or -1 for all");
  const Launch launch = detect_launch(static_cast<int>(c.ranks));
  const TrainedModel trained = open_trained_model(c.checkpoint, [&](const std::string& line) {
    if (launch.rank == 0) out << line << '\n';
  });
  const Config& run = trained.config;
  const std::string& held_out = run.validation.dataset_path;
  const auto or_else = [](int64_t given, int64_t of_run) { return given > 0 ? given : of_run; };
  const EvaluationPlan plan{.path = !c.dataset_path.empty() ? c.dataset_path
                                    : !held_out.empty()     ? held_out
                                                            : run.dataloader.path,
                            .path_field = "dataset_path",
                            .seq_len = or_else(c.seq_len, run.training.seq_len),
                            .vocabulary = run.model.vocab_size,
                            .rows = or_else(c.local_batch_size, run.training.local_batch_size)};
  if (plan.seq_len > run.model.max_seq_len) {
    fail<ConfigError>("--seq_len", plan.seq_len, " is above the model's max_seq_len ",
                      run.model.max_seq_len);
  }
  check_evaluation_data(run.dataloader, plan);
  const auto on_rank = [&](World& world) {
    DataLoader data = evaluation_data(run.dataloader, plan);
    llama3::Model model(run.model);
    nn::load(model, trained.tensors());
    if (run.training.mixed_precision_param != run.model.dtype)
      nn::mixed_precision(model, model.blocks(), run.training.mixed_precision_param);
    const Evaluation e = evaluate(model, data, c.steps);
    if (world.rank() != 0) return;
    out << fmt::format("loss: {:.5f}  perplexity: {:.4f}  tokens: {}  data: {}\n", e.loss,
                       e.perplexity, with_separators(e.tokens), plan.path);
  };
  run_launched(launch, on_rank, {.threads = static_cast<int>(c.threads)});
  return 0;
}

int compare_runs(Arguments arguments, std::ostream& out) {
  size_t files = 0;
  while (files < arguments.size() && !arguments[files].starts_with("--")) ++files;
  if (files != 2) {
    fail<ConfigError>("compare", "expected two configuration files first, given ", files,
                      ": tessera compare A.json B.json [fields]");
  }
  const auto c = parsed<CompareConfig>(arguments.subspan(2));
  if (detect_launch().launcher != Launcher::single)
    fail<ConfigError>("compare", "runs its ranks as threads: start it without a launcher");
  const auto config_of = [](const std::string& file) {
    return parse_config(std::vector<std::string>{"--config", file});
  };
  const Config first = config_of(arguments[0]), second = config_of(arguments[1]);
  const Comparison r =
      compare(first, second, c, [&](const std::string& line) { out << line << std::endl; });
  out << fmt::format("A: {}\nB: {}\n{:>6} {:>11} {:>11} {:>9} {:>11} {:>11} {:>9}\n", arguments[0],
                     arguments[1], "step", "loss A", "loss B", "apart", "norm A", "norm B",
                     "apart");
  for (size_t i = 0; i < r.a.size(); ++i) {
    const StepRecord &a = r.a[i], &b = r.b[i];
    out << fmt::format("{:6} {:11.6f} {:11.6f} {:9.1e} {:11.6f} {:11.6f} {:9.1e}\n", a.step, a.loss,
                       b.loss, relative_difference(a.loss, b.loss), a.grad_norm, b.grad_norm,
                       relative_difference(a.grad_norm, b.grad_norm));
  }
  const auto largest = [](std::string_view name, const Comparison::Largest& l) {
    return l.step == 0 ? fmt::format("{}: equal", name)
                       : fmt::format("{}: {:.1e} at step {}", name, l.difference, l.step);
  };
  const std::string summary = "largest relative difference: " + largest("loss", r.loss) + ", " +
                              largest("gradient norm", r.grad_norm);
  out << summary << '\n';
  const auto within = [&](double difference) { return difference <= c.tolerance.value_or(1e300); };
  if (!within(r.loss.difference) || !within(r.grad_norm.difference))
    fail<NumericError>("compare", summary, "; more than --tolerance ", *c.tolerance);
  return 0;
}

int print_config(Arguments arguments, std::ostream& out) {
  Config config = parse_config(arguments);
  out << config.fields().dump();
  return 0;
}

int print_recipes(Arguments arguments, std::ostream& out) {
  if (!arguments.empty()) fail<ConfigError>("recipes", "takes no fields: given ", arguments[0]);
  for (const Recipe& r : recipes()) out << fmt::format("{:<20} {}\n", r.name, r.description);
  return 0;
}

std::string config_help() {
  Config config = recipe("llama3_debugmodel");
  return "  --recipe NAME, --config FILE: where other values than these come from; then "
         "--section.field value\nfields, with the defaults of --recipe llama3_debugmodel:\n" +
         config.fields().help();
}
template <class C> std::string help_of() {
  C c;
  config::Fields fields;
  fields.section("", c);
  return "fields:\n" + fields.help();
}
std::string no_fields() { return "it takes no fields\n"; }

struct Command {
  std::string_view name;
  int (*run)(Arguments, std::ostream&);
  std::string (*help)();
};
constexpr std::array<Command, 8> kCommands{{{"train", train, config_help},
                                            {"generate", generate_command, generate_help},
                                            {"eval", evaluate_model, help_of<EvalConfig>},
                                            {"compare", compare_runs, help_of<CompareConfig>},
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
  const auto near = config::did_you_mean(name, names);
  print_error(
      err, concat("[tessera] unknown command '", name, '\'',
                  near ? concat("; did you mean ", *near, '?') : "; `tessera --help` lists them"));
  return kWrongUsage;
}

}  // namespace tessera::train
