// SPDX-License-Identifier: Apache-2.0
// A curve over steps, as an SVG page and for a terminal (braille: 2 x 4 dots per character). Values
// that are not finite are left out; many are shown pale with their running mean.
#pragma once

#include "tessera/train/monitor/metrics.h"

#include <string>
#include <vector>

namespace tessera::train {

struct PlotOptions {
  std::string title = {}, name = "loss";
  bool log_scale = false;       ///< of values; those that are not above 0 are left out then
  int width = 80, height = 20;  ///< of the terminal plot, characters in all; at least 24 x 6
};

TESSERA_API std::string svg_plot(const Curve& curve, const PlotOptions& options);
/// Lines that end with newlines, none wider than options.width.
TESSERA_API std::string terminal_plot(const Curve& curve, const PlotOptions& options);
/// The loss of a run as an SVG page.
TESSERA_API std::string loss_plot_svg(const std::vector<StepRecord>& records,
                                      const std::string& title);

}  // namespace tessera::train
