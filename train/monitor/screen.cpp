// SPDX-License-Identifier: Apache-2.0
// A line erases the bar, is printed and draws it again below. The bar is cut to the terminal's
// width: one that wrapped could not be erased.
#include "tessera/train/monitor/screen.h"

#include "tessera/train/monitor/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <sys/ioctl.h>
#include <unistd.h>

namespace tessera::train {
namespace {
constexpr std::string_view kEraseLine = "\r\033[K";
}  // namespace

Screen::Style Screen::style_of(const std::ostream& out) {
  Style style;
  const char* terminal = std::getenv("TERM");
  if (out.rdbuf() != std::cout.rdbuf() || isatty(STDOUT_FILENO) == 0 || !terminal ||
      std::string_view(terminal) == "dumb")
    return style;
  const char* no_color = std::getenv("NO_COLOR");
  style.bar = true;
  style.color = !no_color || *no_color == 0;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    style.width = size.ws_col;
    style.height = size.ws_row;
  }
  return style;
}

void Screen::set_plain() {
  clear_bar();
  style_.bar = style_.color = false;
}

void Screen::line(std::string_view text) {
  if (!bar_.empty()) out_ << kEraseLine;
  out_ << text << '\n';
  draw_bar();
  out_.flush();
}

void Screen::bar(const std::string& text) {
  if (!style_.bar) return;
  bar_ = text.substr(0, static_cast<size_t>(std::max(1, style_.width - 1)));
  out_ << kEraseLine;
  draw_bar();
  out_.flush();
}

void Screen::clear_bar() {
  if (bar_.empty()) return;
  out_ << kEraseLine;
  out_.flush();
  bar_.clear();
}

void Screen::draw_bar() {
  if (!bar_.empty()) out_ << bar_;
}

std::string progress_bar(int64_t step, int64_t steps, double seconds_per_step, double loss,
                         double seconds_left, int width) {
  const double share = steps > 0 ? static_cast<double>(step) / static_cast<double>(steps) : 1;
  std::string facts =
      fmt::format("  {}/{}  {:.0f}%  {:.3g} s/step  loss {:.4f}", with_separators(step),
                  with_separators(steps), 100 * share, seconds_per_step, loss);
  if (seconds_left >= 0) facts += fmt::format("  eta {}", duration(seconds_left));
  const int room = std::min(40, width - static_cast<int>(facts.size()) - 2);
  if (room < 4) return facts.substr(2, static_cast<size_t>(std::max(0, width)));
  const int full = std::clamp(static_cast<int>(share * room), 0, room);
  std::string bar(static_cast<size_t>(full), '=');
  if (full < room) bar += '>' + std::string(static_cast<size_t>(room - full - 1), ' ');
  return '[' + bar + ']' + facts;
}

}  // namespace tessera::train
