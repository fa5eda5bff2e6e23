// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/monitor/plot.h"

#include "tessera/train/monitor/screen.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fcntl.h>
#include <limits>
#include <sstream>
#include <sys/ioctl.h>
#include <thread>
#include <unistd.h>

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

TEST(Plot, SeveralRunsShareTheAxesAndHaveALegend) {
  const std::vector<NamedCurve> runs{{"a", {{1, 2, 3}, {3, 2, 1}}}, {"b", {{2, 5}, {2, 4}}}};
  PlotOptions options{.width = 34, .height = 12};
  EXPECT_EQ(terminal_plot(runs, options), R"(loss
A a  3 at step 1 → 1 at step 3
B b  2 at step 2 → 4 at step 5
4 ┤                            BBB
  │                      BBBBBB
3 ┤AAA              BBBBBB
  │  AAAA      BBBBB
2 ┤      ABBBBB
  │         AAAAA
1 ┤             AAA
  └────────┴──────────────┴───────
           2              4
)");
  options.color = true;
  const std::string text = terminal_plot(runs, options);
  for (const char* part : {"\033[34m\u2501\033[0m a  3 at step 1", "\033[31m\u2501\033[0m b  2 at"})
    EXPECT_NE(text.find(part), text.npos) << text;
  const std::string svg = svg_plot(runs, {.name = "loss & more"});
  for (const char* part : {">loss &amp; more<", ">a: 3 at step 1 \u2192 1 at step 3<",
                           ">b: 2 at step 2 \u2192 4 at step 5<"})
    EXPECT_NE(svg.find(part), svg.npos) << svg;
  EXPECT_NE(svg.find("stroke=\"#1f6fb4\""), svg.npos);
  EXPECT_NE(svg.find("stroke=\"#d1495b\""), svg.npos);
}

TEST(Plot, ManyRunsOfAnyLengthFit) {
  std::vector<NamedCurve> runs{{"empty", {}}, {"nan", {{1}, {kNan}}}};
  for (const int n : {1, 2, 3, 500})
    runs.push_back({"a run with a long\nname \xC3\xA9 " + std::string(60, 'x'), falling(n)});
  for (int i = 0; i < 30; ++i) runs.push_back({"more", falling(i)});
  EXPECT_EQ(terminal_plot({runs[0], runs[1]}, {}), "there is nothing to show yet\n");
  for (const size_t count : {size_t{6}, runs.size()}) {
    const std::vector<NamedCurve> some(runs.begin(), runs.begin() + static_cast<ptrdiff_t>(count));
    for (const int width : {1, 24, 80}) {
      const auto lines = lines_of(terminal_plot(some, {.width = width, .height = 20}));
      EXPECT_EQ(lines.size(), std::max<size_t>(20, count + 6));
      for (const auto& line : lines)
        EXPECT_LE(columns(line), static_cast<size_t>(std::max(width, 24))) << line;
    }
    EXPECT_TRUE(svg_plot(some, {}).ends_with("</svg>\n"));
  }
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
  EXPECT_NE(terminal_plot(Curve{}, {}).find("nothing to show"), std::string::npos);
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

TEST(ScreenTest, TheBarFollowsTheWidthOfTheTerminal) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(terminal, 0);
  const auto resize = [&](unsigned short width) {
    const winsize size{.ws_row = 24, .ws_col = width, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(::ioctl(terminal, TIOCSWINSZ, &size), 0);
  };
  std::ostringstream out;
  {
    Screen screen(out, {.bar = true, .terminal = terminal});
    const auto drawn = [&] {
      out.str("");
      screen.bar("0123456789");
      return out.str();
    };
    resize(7);
    EXPECT_EQ(drawn(), "\r\033[K012345");
    EXPECT_EQ(screen.width(), 7);
    resize(40);
    EXPECT_EQ(drawn(), "\r\033[K0123456789");
    resize(1);
    EXPECT_EQ(drawn(), "\r\033[K");
    resize(0);  // unknown: the last one known stays
    EXPECT_EQ(drawn(), "\r\033[K");
    resize(3);
    out.str("");
    screen.line("a line");
    EXPECT_EQ(out.str(), "\r\033[Ka line\n01");
  }
  ::close(terminal);
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

TEST(ScreenTest, ABarIsDueATenthOfASecondAfterTheLast) {
  using Clock = std::chrono::steady_clock;
  std::ostringstream out;
  const auto start = Clock::now();
  Screen screen(out, {.bar = true}), plain(out, {});
  for (int i = 1; i <= 2; ++i) {
    while (!screen.bar_due()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_GE(Clock::now() - start, i * std::chrono::milliseconds(100));
    screen.bar("x");
  }
  // Without a terminal never.
  EXPECT_FALSE(plain.bar_due());
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
