// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/config/fields.h"
#include "tessera/nn/io/files.h"
#include "tessera/train/cli/commands.h"
#include "tessera/train/monitor/chrome_trace.h"
#include "tessera/train/monitor/plot.h"
#include "tessera/train/monitor/screen.h"

#include <algorithm>
#include <filesystem>
#include <ostream>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

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

struct TraceConfig {
  std::string folder;
  void fields(config::Fields& f) {
    f.add("folder", folder,
          "that of one iteration, `profiling/traces/iteration_10`; its name "
          "alone will do, as the first word");
  }
};

// The fields of a command whose first word may be the folder.
template <class C> void parse(C& config, std::span<const std::string> arguments) {
  config::Fields fields;
  fields.section("", config);
  if (!arguments.empty() && !arguments[0].starts_with("--")) {
    config.folder = arguments[0];
    arguments = arguments.subspan(1);
  }
  std::vector<std::string> faults = fields.parse(arguments);
  if (config.folder.empty()) faults.emplace_back("[--folder] is missing: give the folder of a run");
  config::throw_if_any(faults);
}

template <class C> std::string help_of() {
  C config;
  config::Fields fields;
  fields.section("", config);
  return "fields:\n" + fields.help();
}

}  // namespace

int plot_command(std::span<const std::string> arguments, std::ostream& out) {
  PlotConfig c;
  parse(c, arguments);
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

int trace_command(std::span<const std::string> arguments, std::ostream& out) {
  TraceConfig c;
  parse(c, arguments);
  std::error_code error;
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(c.folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank") && name.ends_with("_trace.json"))
      paths.push_back(entry.path().string());
  }
  if (error) fail<IoError>("trace", "cannot read folder ", c.folder, ": ", error.message());
  if (paths.empty())
    fail<DataError>("trace", c.folder,
                    " holds no rank<r>_trace.json; give the folder of one "
                    "iteration, as profiling/traces/iteration_10");
  std::ranges::sort(paths);
  const std::string to = (fs::path(c.folder) / "trace.json").string();
  join_traces(paths, to);
  out << "wrote " << to << ", of " << paths.size() << " ranks\n";
  return 0;
}

std::string plot_help() { return help_of<PlotConfig>(); }
std::string trace_help() { return help_of<TraceConfig>(); }

}  // namespace tessera::train
