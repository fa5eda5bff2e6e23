// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/io/files.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/monitor/plot.h"
#include "tessera/train/monitor/screen.h"

#include <algorithm>
#include <ostream>

namespace tessera::train {
namespace {

struct PlotConfig {
  std::string folder, metric = "loss", svg;
  int64_t width = 0, height = 0;
  bool log_scale = false;
  void fields(config::Fields& f) {
    f.add("folder", folder, "dump folder of a run; its name alone will do, as the first word");
    f.add("metric", metric, "what to show: loss, grad_norm, lr, tokens_per_second");
    f.add("log_scale", log_scale, "logarithms of the values");
    f.add("width", width, "of the plot; 0: as the terminal, or 80",
          {.min = 0, .max = 1000, .unit = "characters"});
    f.add("height", height, "of the plot; 0: as the terminal, at most 24",
          {.min = 0, .max = 1000, .unit = "lines"});
    f.add("svg", svg, "write an SVG file of this name instead");
  }
};

}  // namespace

int plot_command(Arguments arguments, std::ostream& out, const Catalogue&) {
  const auto c = parsed_folder<PlotConfig>(arguments);
  const Curve curve = read_metrics(c.folder + "/metrics.jsonl", c.metric);
  PlotOptions options{.title = c.folder, .name = c.metric, .log_scale = c.log_scale};
  if (!c.svg.empty()) {
    io::write_file_atomically(c.svg, svg_plot(curve, options));
    out << "wrote " << c.svg << '\n';
    return 0;
  }
  const Screen::Style style = Screen::style_of(out);
  options.width = c.width > 0 ? static_cast<int>(c.width) : style.width;
  options.height = c.height > 0 ? static_cast<int>(c.height) : std::min(style.height - 1, 24);
  out << terminal_plot(curve, options);
  return 0;
}

std::string plot_help(Arguments, const Catalogue&) { return help_of_fields<PlotConfig>(); }

}  // namespace tessera::train
