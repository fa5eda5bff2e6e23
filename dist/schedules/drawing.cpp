// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/schedules/drawing.h"

#include "tessera/core/error.h"
#include "tessera/core/message.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

namespace tessera {
namespace {

struct Look {
  ActionKind kind;
  std::string_view color, legend;
};
constexpr std::array<Look, 4> kLooks{
    {{ActionKind::forward, "#1f6fb4", "F: forward"},
     {ActionKind::backward_input, "#2a9d5c", "I: gradients of inputs"},
     {ActionKind::backward_weight, "#e08a1e", "W: gradients of weights"},
     {ActionKind::backward, "#8a5cc2", "B: both gradients"}}};

// Sizes of the page, in pixels. A schedule has two lines of text above its ranks.
constexpr double kWidth = 1000, kLeft = 64, kRight = 24, kLegend = 40, kHead = 48, kRow = 20;

double height_of(const DrawnSchedule& drawn) {
  return kHead + kRow * static_cast<double>(drawn.schedule.ranks.size());
}

std::string text_at(double x, double y, std::string_view style, std::string_view text) {
  return concat("<text x=\"", x, "\" y=\"", y, "\" ", style, '>', text, "</text>\n");
}

// A horizontal bar that is no action.
std::string bar(double x, double y, double width, double height, std::string_view color) {
  return concat("<path d=\"M", x, ' ', y, 'h', width, "\" stroke=\"", color, "\" stroke-width=\"",
                height, "\"/>\n");
}

std::string legend() {
  std::string svg;
  double x = kLeft;
  for (const Look& look : kLooks) {
    svg += bar(x, 20, 14, 12, look.color) + text_at(x + 20, 24, "", look.legend);
    x += 180;
  }
  return svg + text_at(x, 24, "", "paler: later stages of a rank");
}

std::string caption(const DrawnSchedule& drawn) {
  const Simulation& s = drawn.simulation;
  double idle = 0;
  for (size_t rank = 0; rank < s.ranks.size(); ++rank) idle += s.idle(rank);
  const double all = s.end * static_cast<double>(s.ranks.size());
  return concat(counted(s.ranks.size(), "rank"), ", ", counted(drawn.schedule.stages(), "stage"),
                ", ", counted(drawn.schedule.micro_batches, "micro-batch"), ": a step takes ",
                s.end, ", ranks idle ", std::round(all > 0 ? 1000 * idle / all : 0) / 10,
                " % of it");
}

// The rectangles of a schedule, each with its place in time as a tooltip.
class Rectangles {
 public:
  Rectangles(const DrawnSchedule& drawn, double scale) : drawn_(drawn), scale_(scale) {
    std::vector<int> of_rank(drawn.schedule.ranks.size());
    for (const int rank : drawn.schedule.rank_of_stage)
      turn_.push_back(of_rank[static_cast<size_t>(rank)]++);
  }

  [[nodiscard]] std::string rank(size_t rank, double y) const {
    const std::vector<Action>& own = drawn_.schedule.ranks[rank];
    std::string svg;
    for (size_t i = 0; i < own.size(); ++i) {
      double begin = drawn_.simulation.ranks[rank].spans[i].begin;
      for (const Action& part : parts_of(own[i])) {
        const double end = begin + drawn_.times.of(part);
        svg += rectangle(part, begin, end, y);
        begin = end;
      }
    }
    return svg;
  }

 private:
  [[nodiscard]] std::string rectangle(const Action& part, double begin, double end,
                                      double y) const {
    const double x = kLeft + scale_ * begin, width = scale_ * (end - begin);
    const Look& look = *std::ranges::find(kLooks, part.kind, &Look::kind);
    const double opacity = 1 / (1 + 0.5 * turn_[static_cast<size_t>(part.stage)]);
    std::string svg =
        concat("<rect x=\"", x, "\" y=\"", y + 1, "\" width=\"", width, "\" height=\"", kRow - 2,
               "\" fill=\"", look.color, "\" fill-opacity=\"", opacity,
               "\" stroke=\"#fff\" stroke-width=\"0.5\"><title>", text(part), ": ", begin, " to ",
               end, "</title></rect>\n");
    const std::string name = std::to_string(part.micro_batch);
    constexpr double kDigit = 7;
    if (kDigit * static_cast<double>(name.size()) < width)
      svg += text_at(x + width / 2, y + 14, "text-anchor=\"middle\" font-size=\"10\" fill=\"#fff\"",
                     name);
    return svg;
  }

  const DrawnSchedule& drawn_;
  double scale_;
  std::vector<int> turn_;  // of each stage, among those of its rank
};

}  // namespace

std::vector<std::string> drawing_of(const PipelineSchedule& schedule,
                                    const Simulation& simulation) {
  double unit = std::numeric_limits<double>::infinity();
  size_t widest = 0;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Span& span = simulation.ranks[rank].spans[i];
      if (span.end > span.begin) unit = std::min(unit, span.end - span.begin);
      widest = std::max(widest, text(schedule.ranks[rank][i]).size());
    }
  }
  constexpr double kMostUnits = 100'000;
  if (simulation.end / unit > kMostUnits) return {};
  const auto place = [&](double time) {
    return unit == std::numeric_limits<double>::infinity()
               ? size_t{0}
               : static_cast<size_t>(std::lround(time / unit)) * (widest + 1);
  };
  std::vector<std::string> lines;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::string& line = lines.emplace_back(place(simulation.end), '.');
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Span& span = simulation.ranks[rank].spans[i];
      const size_t from = place(span.begin), to = place(span.end);
      if (from == to) continue;
      std::string drawn = text(schedule.ranks[rank][i]);
      drawn.resize(to - from - 1, '-');
      line.replace(from, to - from, drawn + ' ');
    }
  }
  return lines;
}

std::string svg_drawing(std::span<const DrawnSchedule> schedules) {
  double longest = 0, height = kLegend;
  for (const DrawnSchedule& drawn : schedules) {
    longest = std::max(longest, drawn.simulation.end);
    height += height_of(drawn);
  }
  height += kRight;
  const double scale = longest > 0 ? (kWidth - kLeft - kRight) / longest : 0;
  std::string svg =
      concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", kWidth, ' ', height,
             "\" width=\"", kWidth, "\" height=\"", height,
             "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#555\">\n"
             "<path d=\"M0 0H",
             kWidth, 'V', height, "H0Z\" fill=\"#fff\"/>\n", legend());
  double top = kLegend;
  for (const DrawnSchedule& drawn : schedules) {
    svg += text_at(kLeft, top + 20, "font-size=\"14\" font-weight=\"bold\" fill=\"#222\"",
                   xml_text(drawn.title));
    svg += text_at(kLeft, top + 38, "", caption(drawn));
    const Rectangles rectangles(drawn, scale);
    for (size_t rank = 0; rank < drawn.schedule.ranks.size(); ++rank) {
      const double y = top + kHead + kRow * static_cast<double>(rank);
      svg += text_at(kLeft - 8, y + 14, "text-anchor=\"end\"", concat("rank ", rank));
      svg += bar(kLeft, y + kRow / 2, scale * drawn.simulation.end, kRow - 2, "#eee");
      svg += rectangles.rank(rank, y);
    }
    top += height_of(drawn);
  }
  return svg + "</svg>\n";
}

}  // namespace tessera
