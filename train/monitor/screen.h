// SPDX-License-Identifier: Apache-2.0
// Screen: lines for people, and on a terminal a progress bar below them. If the output is not a
// terminal, only plain lines.
#pragma once

#include "tessera/core/api.h"

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

namespace tessera::train {

class TESSERA_API Screen {
 public:
  struct Style {
    bool bar = false;    ///< draw a progress bar
    bool color = false;  ///< use escape codes
    int width = 80, height = 24;
    int terminal = -1;  ///< descriptor that knows the width, which may change; -1: it is fixed
  };
  Screen(std::ostream& out, const Style& style) : out_(out), style_(style) {}
  /// The style for `out`: bar and colours if it is the standard output on a terminal (no colours if
  /// NO_COLOR is set), plain lines otherwise.
  static Style style_of(const std::ostream& out);
  ~Screen() { clear_bar(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  [[nodiscard]] const Style& style() const { return style_; }
  /// Characters of a line now: a terminal may have been resized.
  [[nodiscard]] int width();
  /// Turns bar and colours off.
  void set_plain();
  /// Prints a line above the bar and flushes.
  void line(std::string_view text);
  /// Whether the next bar should be drawn: there are bars, and the last one, or the screen itself,
  /// is a tenth of a second old. (A terminal may be far away.)
  [[nodiscard]] bool bar_due() const;
  /// Sets the bar below the last line, cut to less than width().
  void bar(const std::string& text);
  void clear_bar();

 private:
  void draw_bar();
  std::ostream& out_;
  Style style_;
  std::string bar_;
  std::chrono::steady_clock::time_point drawn_ = std::chrono::steady_clock::now();
};

/// `[=======>      ]  facts`: `share` of 1 is done; `width` characters at most.
TESSERA_API std::string bar_of(double share, std::string_view facts, int width);
/// `[=======>      ]  1,024/2,048 MiB  50%  210 MiB/s`, `width` characters at most.
TESSERA_API std::string byte_bar(uint64_t bytes, uint64_t of, double seconds, int width);
/// `[=======>      ]  27/60  45%  1.2 s/step  loss 3.2145  eta 40s`, `width` characters at most.
TESSERA_API std::string progress_bar(int64_t step, int64_t steps, double seconds_per_step,
                                     double loss, double seconds_left, int width);

}  // namespace tessera::train
