// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/monitor/plot.h"

#include "tessera/train/monitor/screen.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace tessera::train {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Characters, not bytes.
size_t columns(const std::string& line) {
  return static_cast<size_t>(std::ranges::count_if(
      line, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

Curve falling(int n) {
  Curve curve;
  for (int i = 1; i <= n; ++i) {
    curve.steps.push_back(i);
    curve.values.push_back(8.0 / i);
  }
  return curve;
}

TEST(Plot, TheSvgHoldsEveryFinitePoint) {
  std::vector<StepRecord> records;
  for (int64_t i = 1; i <= 30; ++i)
    records.push_back({.step = i, .loss = 8.0 / static_cast<double>(i)});
  records[4].loss = kNan;
  const std::string svg = loss_plot_svg(records, "a < b & c\x01\xFF");
  EXPECT_NE(svg.find("a &lt; b &amp; c"), svg.npos);
  EXPECT_EQ(svg.find("nan"), svg.npos);
  const size_t begin = svg.find("points=\"") + 8;
  const std::string points = svg.substr(begin, svg.find('"', begin) - begin);
  EXPECT_EQ(std::ranges::count(points, ','), 29);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_TRUE(loss_plot_svg({}, "none").ends_with("</svg>\n"));
  EXPECT_EQ(loss_plot_svg({{.step = 1, .loss = 3}}, "one").find("inf"), std::string::npos);
}

TEST(Plot, AFallingLineInBraille) {
  const Curve curve{{1, 2, 3}, {3, 2, 1}};
  const std::string text = terminal_plot(curve, {.title = "run", .width = 30, .height = 9});
  EXPECT_EQ(text, R"(loss
3 ┤⠒⠢⢄⣀
  │    ⠉⠒⠢⢄⣀
  │         ⠉⠒⠢⢄⡀
2 ┤             ⠈⠉⠒⠢⢄⣀
  │                   ⠉⠒⠢⠤⣀
1 ┤                        ⠉⠑⠢
  └┴────────────┴────────────┴
   1            2            3
)");
}

TEST(Plot, FitsAnyTerminal) {
  for (const int n : {1, 2, 3, 100, 5000}) {
    for (const int width : {1, 24, 25, 80, 211}) {
      for (const int height : {1, 6, 7, 24, 60}) {
        for (const bool log_scale : {false, true}) {
          const auto lines = lines_of(terminal_plot(
              falling(n),
              {.title = "t", .log_scale = log_scale, .width = width, .height = height}));
          EXPECT_EQ(lines.size(), static_cast<size_t>(std::max(height, 6)));
          for (const auto& line : lines)
            EXPECT_LE(columns(line), static_cast<size_t>(std::max(width, 24))) << line;
        }
      }
    }
  }
}

TEST(Plot, OddValues) {
  EXPECT_NE(terminal_plot({}, {}).find("nothing to show"), std::string::npos);
  EXPECT_NE(terminal_plot({{1, 2}, {kNan, kNan}}, {}).find("nothing to show"), std::string::npos);
  // Logarithms leave out what has none.
  EXPECT_NE(terminal_plot({{1, 2}, {-1, 0}}, {.log_scale = true}).find("nothing"),
            std::string::npos);
  for (const double v : {0.0, -3.0, 1e-300, 1e300, 5.0}) {
    for (const bool log_scale : {false, true}) {
      const PlotOptions options{.log_scale = log_scale};
      const Curve flat{{1, 2}, {v, v}}, rising{{1, 2}, {v, v + 1}};
      for (const Curve& c : {flat, rising}) {
        EXPECT_EQ(svg_plot(c, options).find("nan"), std::string::npos) << v;
        EXPECT_FALSE(terminal_plot(c, options).empty());
      }
    }
  }
}

TEST(Plot, LogTicksAreDecades) {
  const std::string svg = svg_plot({{1, 2, 3}, {1e-3, 1, 900}}, {.log_scale = true});
  for (const char* tick : {">0.001<", ">0.1<", ">10<", ">100<"})
    EXPECT_NE(svg.find(tick), std::string::npos) << tick;
}

TEST(ScreenTest, ABarStaysBelowTheLines) {
  std::ostringstream out;
  {
    Screen screen(out, {.bar = true, .color = true, .width = 10});
    screen.line("one");
    screen.bar("0123456789abc");
    screen.line("two");
  }
  EXPECT_EQ(out.str(), "one\n\r\033[K012345678\r\033[Ktwo\n012345678\r\033[K");
}

TEST(ScreenTest, PlainLinesWhereThereIsNoTerminal) {
  std::ostringstream out;
  const auto style = Screen::style_of(out);
  EXPECT_FALSE(style.bar);
  EXPECT_FALSE(style.color);
  Screen screen(out, style);
  screen.bar("never");
  screen.line("one");
  screen.clear_bar();
  EXPECT_EQ(out.str(), "one\n");
}

TEST(ScreenTest, TheBarSaysHowFarItIs) {
  EXPECT_EQ(progress_bar(27, 60, 1.2345, 3.21449, 40, 72),
            "[==========>            ]  27/60  45%  1.23 s/step  loss 3.2145  eta 40s");
  EXPECT_TRUE(progress_bar(60, 60, 1, 3, 0, 80).starts_with("[====="));
  EXPECT_EQ(progress_bar(60, 60, 1, 3, 0, 80).find('>'), std::string::npos);
  for (int width = 0; width < 200; ++width)
    EXPECT_LE(progress_bar(1234567, 9999999, 0.001, 10, 1e6, width).size(),
              static_cast<size_t>(width));
}

}  // namespace
}  // namespace tessera::train
