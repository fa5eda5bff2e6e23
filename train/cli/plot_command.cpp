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
    f.add("folder", folder,
          "dump folder of a run; the first arguments may be the folders of several runs, which are "
          "laid over one another");
    f.add("metric", metric, "metric to plot: loss, grad_norm, lr, tokens_per_second");
    f.add("log_scale", log_scale, "logarithmic y axis");
    f.add("width", width, "width of the plot; 0: that of the terminal, or 80",
          {.min = 0, .max = 1000, .unit = "characters"});
    f.add("height", height, "height of the plot; 0: that of the terminal, at most 24",
          {.min = 0, .max = 1000, .unit = "lines"});
    f.add("svg", svg, "write the plot to this SVG file instead of the terminal");
  }
};

int run(Arguments arguments, std::ostream& out, const Catalogue&) {
  const auto [c, folders] = parsed_folders<PlotConfig>(arguments, 1000);
  std::vector<NamedCurve> curves;
  for (const std::string& folder : folders)
    curves.push_back({folder, read_metrics(folder + "/metrics.jsonl", c.metric)});
  PlotOptions options{.title = curves.size() == 1 ? curves[0].name : "",
                      .name = c.metric,
                      .log_scale = c.log_scale};
  if (!c.svg.empty()) {
    (void)io::make_folder_of(c.svg, "--svg");
    io::write_file_atomically(c.svg, svg_plot(curves, options));
    out << "wrote " << c.svg << '\n';
    return 0;
  }
  const Screen::Style style = Screen::style_of(out);
  options.width = c.width > 0 ? static_cast<int>(c.width) : style.width;
  options.color = style.color;
  options.height = c.height > 0 ? static_cast<int>(c.height) : std::min(style.height - 1, 24);
  out << terminal_plot(curves, options);
  return 0;
}

}  // namespace

Command plot_command() {
  return {.name = "plot",
          .arguments = " RUN_FOLDER... [fields]",
          .summary = "plot the losses of runs on the terminal: tessera plot RUN_FOLDER...",
          .run = run,
          .help = fields_help<PlotConfig>};
}

}  // namespace tessera::train
