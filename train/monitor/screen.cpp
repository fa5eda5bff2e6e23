// SPDX-License-Identifier: Apache-2.0
// Printing a line erases the bar and draws it again below. The bar is cut to the terminal's width,
// because a wrapped bar could not be erased; the width is asked for each time, so no signal handler
// is needed for a resize.
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

// A terminal that does not know its size says 0.
void read_size(Screen::Style& style) {
  winsize size{};
  if (ioctl(style.terminal, TIOCGWINSZ, &size) != 0) return;
  if (size.ws_col > 0) style.width = size.ws_col;
  if (size.ws_row > 0) style.height = size.ws_row;
}
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
  style.terminal = STDOUT_FILENO;
  read_size(style);
  return style;
}

void Screen::set_plain() {
  clear_bar();
  style_.bar = style_.color = false;
}

int Screen::width() {
  if (style_.terminal >= 0) read_size(style_);
  return style_.width;
}

void Screen::line(std::string_view text) {
  if (!bar_.empty()) out_ << kEraseLine;
  out_ << text << '\n';
  draw_bar();
  out_.flush();
}

bool Screen::bar_due() const {
  return style_.bar && std::chrono::steady_clock::now() - drawn_ >= std::chrono::milliseconds(100);
}

void Screen::bar(const std::string& text) {
  if (!style_.bar) return;
  drawn_ = std::chrono::steady_clock::now();
  bar_ = text;
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
  const auto most = static_cast<size_t>(std::max(0, width() - 1));
  out_ << std::string_view(bar_).substr(0, most);
}

std::string bar_of(double share, std::string_view facts, int width) {
  const int room = std::min(40, width - static_cast<int>(facts.size()) - 4);
  if (room < 4) return std::string(facts.substr(0, static_cast<size_t>(std::max(0, width))));
  const int full = std::clamp(static_cast<int>(share * room), 0, room);
  std::string bar(static_cast<size_t>(full), '=');
  if (full < room) bar += '>' + std::string(static_cast<size_t>(room - full - 1), ' ');
  return concat('[', bar, "]  ", facts);
}

std::string progress_bar(int64_t step, int64_t steps, double seconds_per_step, double loss,
                         double seconds_left, int width) {
  const double share = steps > 0 ? static_cast<double>(step) / static_cast<double>(steps) : 1;
  std::string facts =
      fmt::format("{}/{}  {:.0f}%  {:.3g} s/step  loss {:.4f}", with_separators(step),
                  with_separators(steps), 100 * share, seconds_per_step, loss);
  if (seconds_left >= 0) facts += fmt::format("  eta {}", duration(seconds_left));
  return bar_of(share, facts, width);
}

std::string byte_bar(uint64_t bytes, uint64_t of, double seconds, int width) {
  const double share = of > 0 ? static_cast<double>(bytes) / static_cast<double>(of) : 1;
  std::string facts =
      fmt::format("{}/{} MiB  {:.0f}%", with_separators(static_cast<int64_t>(bytes >> 20)),
                  with_separators(static_cast<int64_t>(of >> 20)), 100 * share);
  if (seconds > 0)
    facts += fmt::format("  {:.0f} MiB/s", static_cast<double>(bytes) / (1 << 20) / seconds);
  return bar_of(share, facts, width);
}

}  // namespace tessera::train
