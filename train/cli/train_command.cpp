// SPDX-License-Identifier: Apache-2.0
// Checks the configuration and the memory, and installs signal handlers, before ranks start. The
// reader of the output may leave or stall: the run and its files do not depend on it.
#include "tessera/core/cuda_backend.h"
#include "tessera/core/message.h"
#include "tessera/core/out_of_memory.h"
#include "tessera/core/process.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/cli/interruption.h"
#include "tessera/train/cli/standard_output.h"
#include "tessera/train/memory/estimate.h"
#include "tessera/train/monitor/screen.h"
#include "tessera/train/run/faults.h"
#include "tessera/train/run/trainer.h"

#include <algorithm>
#include <atomic>
#include <ostream>

namespace tessera::train {
namespace {

constexpr std::string_view kEstimate = "--estimate";

HostRanks ranks_of(const Launch& launch) {
  const bool threads = launch.launcher == Launcher::single || launch.launcher == Launcher::threads;
  if (threads) return {.all = launch.size, .of_host = launch.size, .of_process = launch.size};
  return {.all = launch.size, .of_host = std::max(1, launch.local_size)};
}

FreeMemory free_on(Device device) {
  if (device.is_cpu()) return free_memory();
  return {.device = Process::get().cuda().device_memory(device.index),
          .device_source = concat(device)};
}

// Also for devices that are elsewhere, of which nothing is known.
void print_estimate(const Config& config, const Launch& launch, std::ostream& out) {
  const HostRanks ranks = ranks_of(launch);
  const MemoryEstimate e = estimate_memory(config, ranks.all);
  std::string fits;
  try {
    fits = fit_line(e, ranks, free_on(rank_device(config.device, launch)));
  } catch (const ConfigError& error) {
    fits = concat("it is not known whether this fits: ", error.what());
  }
  const std::string stages =
      config.parallelism.pipelines()
          ? concat(" (pipeline rank ", e.pipeline_rank, ", which needs the most)")
          : "";
  out << "memory that a rank of " << ranks.all << stages << " needs to train " << config.title()
      << ":\n"
      << memory_table(e) << counted(ranks.of_host, "rank")
      << " on this host: " << byte_count(e.total * ranks.of_host) << '\n'
      << fits << '\n';
}

std::string help(Arguments arguments, const Catalogue& catalogue) {
  return concat("  ", kEstimate,
                ": print the memory that training needs, by kind, and exit; nothing is allocated\n",
                config_help(arguments, catalogue));
}

int run(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  std::vector<std::string> words(arguments.begin(), arguments.end());
  const bool estimate = std::erase(words, kEstimate) > 0;
  std::string note;
  const Config config =
      checked_config(words, catalogue, [&](const std::string& text) { note = text; });
  const Launch launch = detect_launch(static_cast<int>(config.ranks));
  config::throw_if_any(faults(config, launch.size));  // before any rank waits for another
  if (estimate) {
    if (launch.rank == 0) print_estimate(config, launch, out);
    return 0;
  }
  const Device device = rank_device(config.device, launch);
  FlightRecorder::install_signal_handler();  // SIGUSR2 dumps flight records
  install_save_signal();
  if (auto* output = dynamic_cast<StandardOutput*>(out.rdbuf())) output->write_in_background();
  if (launch.rank == 0)
    out << "tessera " << TESSERA_VERSION << '\n' << note << (note.empty() ? "" : "\n");
  // Once on each host, whose devices are alike.
  if (config.memory.check && launch.local_rank <= 0) {
    const std::string warning = check_memory(config, ranks_of(launch), free_on(device));
    if (!warning.empty()) out << warning << '\n';
  }
  // Under a launcher each rank may have its own terminal, so there is no progress bar.
  const bool alone = launch.launcher == Launcher::single;
  Screen screen(out, alone ? Screen::style_of(out) : Screen::Style{});
  std::atomic<bool> interrupted = false;
  const auto on_rank = [&](World&) {
    Trainer trainer(
        config, [&](const std::string& line) { screen.line(line); }, &screen);
    // Before the first step there is nothing to save, nor after run().
    install_stop_signals(launch.local_rank <= 0);
    trainer.run();
    remove_stop_signals();
    if (trainer.stopped_by() == SignalRequest::interrupt) interrupted = true;
    trainer.print_samples();
  };
  WorldOptions options = world_options(config);
  options.exit_if_stuck = true;
  try {
    run_launched(launch, on_rank, options);
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(concat(error.what(), "; ", memory_advice(config, launch.size)));
  }
  return interrupted ? kInterruptedStatus : 0;
}

}  // namespace

Command train_command() {
  return {.name = "train",
          .arguments = " [fields]",
          .summary =
              "train a model: tessera train --recipe NAME --dataloader.path FILE --dump_folder DIR",
          .run = run,
          .help = help};
}

}  // namespace tessera::train
