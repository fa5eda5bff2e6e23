// SPDX-License-Identifier: Apache-2.0
// Both plots draw one View: the finite points of all curves, a range with a margin (not below zero
// if no value is), ticks at round values. The running mean is centred, so that it does not lag.
#include "tessera/train/monitor/plot.h"

#include "tessera/core/message.h"
#include "tessera/nn/io/utf8.h"
#include "tessera/train/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace tessera::train {
namespace {

// A step of 1, 2 or 5 times a power of ten that cuts `span` into about `count` parts.
double nice_step(double span, double count) {
  const double raw = span / count, power = std::pow(10, std::floor(std::log10(raw))),
               r = raw / power;
  return power * (r < 1.5 ? 1 : r < 3.5 ? 2 : r < 7.5 ? 5 : 10);
}

// Round values in [low, high], about `count` of them; 1, 2, 5, 10, ... or powers of ten over
// decades.
std::vector<double> ticks(double low, double high, double count, bool log_scale) {
  std::vector<double> all;
  const double decades = log_scale ? std::log10(high) - std::log10(low) : 0;
  if (decades > 1.3) {
    const bool all_digits = 3 * decades < 2 * count;
    const double stride = std::max(1.0, std::ceil(decades / (1.5 * count)));
    for (double power = std::floor(std::log10(low) / stride) * stride; power <= std::log10(high);
         power += stride) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double v = digit * std::pow(10, power);
        if ((digit == 1 || all_digits) && v >= low && v <= high) all.push_back(v);
      }
    }
    return all;
  }
  const double step = nice_step(high - low, count);
  for (double i = std::ceil(low / step); i * step <= high; ++i) all.push_back(i * step);
  return all;
}

// What is drawn: the finite points of all curves, a range around them, and how a value becomes a
// share of it.
class View {
 public:
  View(const std::vector<NamedCurve>& curves, bool log_scale) : log_(log_scale) {
    double least = std::numeric_limits<double>::infinity(), most = -least;
    first = least;
    last = most;
    for (const NamedCurve& c : curves) {
      Curve& points = lines.emplace_back(NamedCurve{c.name, {}}).curve;
      for (size_t i = 0; i < c.curve.values.size(); ++i) {
        const double v = c.curve.values[i];
        if (!std::isfinite(v) || (log_ && v <= 0)) continue;
        points.steps.push_back(c.curve.steps[i]);
        points.values.push_back(v);
        least = std::min(least, v);
        most = std::max(most, v);
      }
      if (points.steps.empty()) continue;
      first = std::min(first, points.steps.front());
      last = std::max(last, points.steps.back());
    }
    if (empty()) return;
    if (log_) {
      const double spread = std::log(most) - std::log(least);
      const double factor = std::exp(std::max(0.05 * spread, 1e-3));
      low = std::max(least / factor, std::numeric_limits<double>::min());
      high = std::min(most * factor, std::numeric_limits<double>::max());
    } else {
      const double margin = std::max(0.05 * (most - least), 1e-3 * std::max(1e-3, std::abs(most)));
      low = least >= 0 ? std::max(0.0, least - margin) : least - margin;
      high = most + margin;
    }
    last = std::max(last, first + 1);
  }
  [[nodiscard]] bool empty() const { return !(first <= last); }
  [[nodiscard]] bool several() const { return lines.size() > 1; }
  [[nodiscard]] double x(double step) const { return (step - first) / (last - first); }
  [[nodiscard]] double y(double v) const {
    return log_ ? (std::log(v) - std::log(low)) / (std::log(high) - std::log(low))
                : (v - low) / (high - low);
  }
  [[nodiscard]] std::vector<double> value_ticks(double count) const {
    return ticks(low, high, count, log_);
  }
  [[nodiscard]] std::vector<double> step_ticks(double count) const {
    return ticks(first, last, std::min(count, last - first), false);
  }

  std::vector<NamedCurve> lines;
  double first, last, low = 0, high = 1;

 private:
  bool log_;
};

bool many(const Curve& points) { return points.values.size() > 200; }

// Of a fiftieth of the points around each, fewer at the ends, so that it does not lag.
std::vector<double> running_mean(const Curve& points) {
  const size_t n = points.values.size(), reach = std::max<size_t>(2, n / 100);
  std::vector<double> sums(n + 1), mean(n);
  for (size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + points.values[i];
  for (size_t i = 0; i < n; ++i) {
    const size_t side = std::min({reach, i, n - 1 - i});
    mean[i] = (sums[i + side + 1] - sums[i - side]) / static_cast<double>(2 * side + 1);
  }
  return mean;
}

std::string caption(const Curve& points) {
  if (points.values.empty()) return "there is nothing to show yet";
  return fmt::format("{:.4g} at step {} \u2192 {:.4g} at step {}", points.values.front(),
                     points.steps.front(), points.values.back(), points.steps.back());
}

std::string named(const PlotOptions& o) { return o.name + (o.log_scale ? " (log scale)" : ""); }

constexpr double kWidth = 800, kHeight = 450, kLeft = 72, kRight = 24, kTop = 56, kBottom = 52;

double page_x(double share) { return kLeft + share * (kWidth - kLeft - kRight); }
double page_y(double share) { return kHeight - kBottom - share * (kHeight - kTop - kBottom); }

std::string escaped(const std::string& text) { return xml_text(printable(text)); }

std::string polyline(const View& view, const std::vector<double>& steps,
                     const std::vector<double>& values, const std::string& style) {
  std::string points;
  for (size_t i = 0; i < values.size(); ++i)
    points += fmt::format("{}{:.1f},{:.1f}", i == 0 ? "" : " ", page_x(view.x(steps[i])),
                          page_y(view.y(values[i])));
  return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke-linejoin=\"round\" {}/>\n",
                     points, style);
}

// A curve of the page, with its last point marked.
std::string drawn(const View& view, const Curve& points, std::string_view color) {
  if (points.values.empty()) return "";
  const auto stroke = [&](int width, double opacity) {
    return fmt::format("stroke=\"{}\" stroke-width=\"{}\" stroke-opacity=\"{}\"", color, width,
                       opacity);
  };
  const bool pale = many(points);
  const std::vector<double> shown = pale ? running_mean(points) : points.values;
  std::string svg;
  if (pale) svg += polyline(view, points.steps, points.values, stroke(1, 0.4));
  svg += polyline(view, points.steps, shown, stroke(2, 1));
  return svg + fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n",
                           page_x(view.x(points.steps.back())), page_y(view.y(shown.back())),
                           color);
}

std::string text_at(double x, double y, std::string_view style, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, style, text);
}

// What a curve of several is drawn with on a terminal: a colour, or a letter.
std::string marked(size_t curve, bool color, const std::string& text) {
  constexpr std::array<int, 6> kColors{34, 31, 32, 35, 36, 33};
  return color ? fmt::format("\033[{}m{}\033[0m", kColors[curve % kColors.size()], text)
               : std::string(1, static_cast<char>('A' + curve % 26));
}

// A grid of dots, drawn as braille characters. A character has the curve that reached it last.
class Dots {
 public:
  Dots(int columns, int rows)
      : columns_(columns),
        rows_(rows),
        cells_(static_cast<size_t>(columns * rows)),
        curves_(cells_.size()) {}
  // From (x0, y0) to (x1, y1), shares of the grid, y upwards.
  void line(size_t curve, double x0, double y0, double x1, double y1) {
    const int ax = dot_x(x0), ay = dot_y(y0), bx = dot_x(x1), by = dot_y(y1);
    const int n = std::max({std::abs(bx - ax), std::abs(by - ay), 1});
    for (int i = 0; i <= n; ++i) set(curve, ax + (bx - ax) * i / n, ay + (by - ay) * i / n);
  }
  [[nodiscard]] std::string row(int r, bool several, bool color) const {
    std::string text;
    for (int c = 0; c < columns_; ++c) {
      const auto cell = static_cast<size_t>(r * columns_ + c);
      if (cells_[cell] == 0) {
        text += ' ';
        continue;
      }
      const unsigned code = 0x2800u + cells_[cell];  // three bytes of UTF-8
      const std::string braille{static_cast<char>(0xE0 | code >> 12),
                                static_cast<char>(0x80 | (code >> 6 & 0x3F)),
                                static_cast<char>(0x80 | (code & 0x3F))};
      text += several ? marked(curves_[cell], color, braille) : braille;
    }
    return text;
  }
  [[nodiscard]] int row_of(double y) const { return dot_y(y) / 4; }

 private:
  [[nodiscard]] int dot_x(double x) const {
    return std::clamp(static_cast<int>(std::lround(x * (columns_ * 2 - 1))), 0, columns_ * 2 - 1);
  }
  [[nodiscard]] int dot_y(double y) const {
    return std::clamp(static_cast<int>(std::lround((1 - y) * (rows_ * 4 - 1))), 0, rows_ * 4 - 1);
  }
  void set(size_t curve, int x, int y) {
    // Bits of a braille cell, by row and column of its dots.
    constexpr std::array<std::array<uint8_t, 2>, 4> kBits{
        {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
    const auto cell = static_cast<size_t>(y / 4 * columns_ + x / 2);
    cells_[cell] |= kBits[static_cast<size_t>(y % 4)][static_cast<size_t>(x % 2)];
    curves_[cell] = curve;
  }
  int columns_, rows_;
  std::vector<uint8_t> cells_;
  std::vector<size_t> curves_;
};

}  // namespace

std::string svg_plot(const std::vector<NamedCurve>& curves, const PlotOptions& o) {
  constexpr std::array<std::string_view, 8> kColors{"#1f6fb4", "#d1495b", "#2a9d5c", "#8a5cc2",
                                                    "#e08a1e", "#17a2b8", "#7f7f7f", "#b5a300"};
  const View view(curves, o.log_scale);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" "
      "fill=\"#555\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      kWidth, kHeight);
  svg +=
      text_at(kLeft, 26, "font-size=\"16\" font-weight=\"bold\" fill=\"#222\"", escaped(o.title));
  if (view.empty())
    return svg + text_at(kLeft, 46, "", "there is nothing to show yet") + "</svg>\n";
  svg +=
      text_at(kLeft, 44, "",
              escaped(view.several() ? named(o) : named(o) + ": " + caption(view.lines[0].curve)));
  const double left = page_x(0), right = page_x(1), bottom = page_y(0);
  for (const double v : view.value_ticks(6)) {
    const double y = page_y(view.y(v));
    svg += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#e6e6e6\"/>\n", left, y, right);
    svg += text_at(left - 8, y + 4, "text-anchor=\"end\"", fmt::format("{:g}", v));
  }
  for (const double v : view.step_ticks(8)) {
    const double x = page_x(view.x(v));
    svg += fmt::format("<path d=\"M{:.1f} {:.1f}v5\" stroke=\"#999\"/>\n", x, bottom);
    svg += text_at(x, bottom + 19, "text-anchor=\"middle\"", fmt::format("{}", v));
  }
  svg += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\" fill=\"none\" stroke=\"#999\"/>\n",
                     left, page_y(1), bottom, right);
  svg += text_at((left + right) / 2, kHeight - 12, "text-anchor=\"middle\"", "step");

  for (size_t i = 0; i < view.lines.size(); ++i) {
    const auto& [name, points] = view.lines[i];
    const std::string_view color = kColors[i % kColors.size()];
    svg += drawn(view, points, color);
    if (!view.several()) continue;
    svg += text_at(right - 8, page_y(1) + 16 * static_cast<double>(i + 1),
                   fmt::format("text-anchor=\"end\" fill=\"{}\"", color),
                   escaped(name + ": " + caption(points)));
  }
  return svg + "</svg>\n";
}

std::string svg_plot(const Curve& curve, const PlotOptions& o) {
  return svg_plot(std::vector<NamedCurve>{{"", curve}}, o);
}

std::string terminal_plot(const std::vector<NamedCurve>& curves, const PlotOptions& o) {
  const View view(curves, o.log_scale);
  const int width = std::max(o.width, 24), height = std::max(o.height, 6);
  std::string title = printable(o.title);
  title += title.empty() ? "" : "  ";
  if (view.empty()) return title + "there is nothing to show yet\n";
  const auto tick_values = view.value_ticks(std::max(2.0, height / 4.0));
  size_t label = 1;
  for (const double v : tick_values) label = std::max(label, fmt::format("{:g}", v).size());
  const int legend = view.several() ? static_cast<int>(view.lines.size()) : 0;
  const int columns = width - static_cast<int>(label) - 2, rows = std::max(3, height - 3 - legend);

  Dots dots(columns, rows);
  for (size_t curve = 0; curve < view.lines.size(); ++curve) {
    const auto& [steps, values] = view.lines[curve].curve;
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t before = i == 0 ? 0 : i - 1;
      dots.line(curve, view.x(steps[before]), view.y(values[before]), view.x(steps[i]),
                view.y(values[i]));
    }
  }

  std::vector<std::string> labels(static_cast<size_t>(rows));
  for (const double v : tick_values)
    labels[static_cast<size_t>(dots.row_of(view.y(v)))] = fmt::format("{:g}", v);
  std::string head = title + named(o);
  if (!view.several()) head += "  " + caption(view.lines[0].curve);
  std::string text = (static_cast<int>(head.size()) <= width + 2 ? head : o.name) + '\n';
  for (size_t i = 0; view.several() && i < view.lines.size(); ++i) {
    const auto& [name, points] = view.lines[i];
    const std::string line = concat(io::excerpt(name), "  ", caption(points));
    text += concat(marked(i, o.color, "\u2501"), ' ',
                   io::excerpt(line, static_cast<size_t>(width - 5)), '\n');
  }
  for (int r = 0; r < rows; ++r) {
    const std::string& tick = labels[static_cast<size_t>(r)];
    std::string line = fmt::format("{:>{}} {}{}", tick, label, tick.empty() ? "\u2502" : "\u2524",
                                   dots.row(r, view.several(), o.color));
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  std::string axis, numbers(static_cast<size_t>(width), ' ');
  std::vector<char> ticked(static_cast<size_t>(columns));
  for (const double v : view.step_ticks(columns / 12.0)) {
    const auto at = std::min(static_cast<int>(std::lround(view.x(v) * (columns - 1))), columns - 1);
    ticked[static_cast<size_t>(at)] = 1;
    const std::string number = fmt::format("{}", v);
    const int begin =
        std::min(static_cast<int>(label) + 2 + at - static_cast<int>(number.size()) / 2,
                 width - static_cast<int>(number.size()));
    if (begin >= 0) numbers.replace(static_cast<size_t>(begin), number.size(), number);
  }
  for (const char mark : ticked) axis += mark ? "\u2534" : "\u2500";
  numbers.erase(numbers.find_last_not_of(' ') + 1);
  return text + fmt::format("{:>{}} \u2514{}\n", "", label, axis) + numbers + '\n';
}

std::string terminal_plot(const Curve& curve, const PlotOptions& o) {
  return terminal_plot(std::vector<NamedCurve>{{"", curve}}, o);
}

std::string loss_plot_svg(const std::vector<StepRecord>& records, const std::string& title) {
  Curve curve;
  for (const StepRecord& r : records) {
    curve.steps.push_back(static_cast<double>(r.step));
    curve.values.push_back(r.loss);
  }
  return svg_plot(curve, {.title = title});
}

}  // namespace tessera::train
