// SPDX-License-Identifier: Apache-2.0
// What can be refused is refused, and signals are handled, before there are ranks.
#include "tessera/dist/launch/run.h"
#include "tessera/dist/process_group/flight_recorder.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/monitor/screen.h"
#include "tessera/train/run/stop_signals.h"
#include "tessera/train/run/trainer.h"

#include <ostream>

namespace tessera::train {

int train_command(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  const Config config = parse_config(arguments, catalogue);
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

}  // namespace tessera::train
