// SPDX-License-Identifier: Apache-2.0
// Screen: lines for people, and on a terminal a bar below them that shows how far a run is. Where
// the output is no terminal there are plain lines alone.
#pragma once

#include "tessera/core/api.h"

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

namespace tessera::train {

class TESSERA_API Screen {
 public:
  struct Style {
    bool bar = false;    ///< a line is drawn over and over
    bool color = false;  ///< escape codes may be used
    int width = 80, height = 24;
  };
  Screen(std::ostream& out, const Style& style) : out_(out), style_(style) {}
  /// What fits `out`: a bar and colours where it is the standard output on a terminal (colours not
  /// where NO_COLOR is set), plain lines otherwise.
  static Style style_of(const std::ostream& out);
  ~Screen() { clear_bar(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  [[nodiscard]] const Style& style() const { return style_; }
  /// Neither bar nor colours from now on.
  void set_plain();
  /// A line of its own, above the bar; flushed.
  void line(std::string_view text);
  /// The bar below the last line from now on; it is cut to the terminal's width.
  void bar(const std::string& text);
  void clear_bar();

 private:
  void draw_bar();
  std::ostream& out_;
  Style style_;
  std::string bar_;
};

/// `[=======>      ]  27/60  45%  1.2 s/step  loss 3.2145  eta 40s`, `width` characters at most.
TESSERA_API std::string progress_bar(int64_t step, int64_t steps, double seconds_per_step,
                                     double loss, double seconds_left, int width);

}  // namespace tessera::train
