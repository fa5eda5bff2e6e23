// SPDX-License-Identifier: Apache-2.0
// Plots curves over steps as an SVG page or for a terminal (braille: 2 x 4 dots per character).
// Non-finite values are skipped; many values are drawn pale with their running mean. Several curves
// share both axes and get a legend; on a terminal they differ by colour, else by letters.
#pragma once

#include "tessera/train/monitor/metrics.h"

#include <string>
#include <vector>

namespace tessera::train {

struct PlotOptions {
  std::string title = {}, name = "loss";
  bool log_scale = false;       ///< logarithmic y axis; values that are not above 0 are skipped
  int width = 80, height = 20;  ///< characters of the terminal plot; at least 24 x 6
  bool color = false;           ///< escape codes tell several curves of a terminal plot apart
};

/// A curve and what the legend calls it.
struct NamedCurve {
  std::string name;
  Curve curve;
};

TESSERA_API std::string svg_plot(const std::vector<NamedCurve>& curves, const PlotOptions& options);
TESSERA_API std::string svg_plot(const Curve& curve, const PlotOptions& options);
/// Lines that end with newlines, none wider than options.width; options.height of them, or more if
/// the legend leaves fewer than three to the curves.
TESSERA_API std::string terminal_plot(const std::vector<NamedCurve>& curves,
                                      const PlotOptions& options);
TESSERA_API std::string terminal_plot(const Curve& curve, const PlotOptions& options);
/// The loss of a run as an SVG page.
TESSERA_API std::string loss_plot_svg(const std::vector<StepRecord>& records,
                                      const std::string& title);

}  // namespace tessera::train
