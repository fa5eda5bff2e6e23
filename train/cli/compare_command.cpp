// SPDX-License-Identifier: Apache-2.0
// Each configuration sets its number of ranks, so they are threads and a launcher is refused. The
// whole table is printed before a difference above the tolerance fails.
#include "tessera/dist/launch/run.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/run/compare.h"

#include <fmt/format.h>

#include <ostream>

namespace tessera::train {
namespace {

int run(Arguments arguments, std::ostream& out, const Catalogue& catalogue) {
  size_t files = 0;
  while (files < arguments.size() && !arguments[files].starts_with("--")) ++files;
  if (files != 2) {
    fail<ConfigError>("compare", "expected two configuration files first, given ", files,
                      ": tessera compare A.json B.json [fields]");
  }
  const auto c = parsed_fields<CompareConfig>(arguments.subspan(2));
  if (detect_launch().launcher != Launcher::single)
    fail<ConfigError>("compare", "runs its ranks as threads: start it without a launcher");
  const auto config_of = [&](const std::string& file) {
    return parse_config(std::vector<std::string>{"--config", file}, catalogue);
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

}  // namespace

Command compare_command() {
  return {
      .name = "compare",
      .arguments = " A.json B.json [fields]",
      .summary =
          "compare losses and gradient norms of two configurations: tessera compare A.json B.json",
      .run = run,
      .help = fields_help<CompareConfig>};
}

}  // namespace tessera::train
