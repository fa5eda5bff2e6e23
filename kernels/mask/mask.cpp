// SPDX-License-Identifier: Apache-2.0
// Masks as text, with brackets only where AND and OR meet.
#include "tessera/kernels/mask/mask.h"

#include <ostream>
#include <string>

namespace tessera {
namespace {

struct Text {
  std::string text;
  char join = 0;  // what stands between its conditions; 0 for one

  [[nodiscard]] std::string inside(char outer) const {
    return join == 0 || join == outer ? text : '(' + text + ')';
  }
  [[nodiscard]] Text joined(const Text& other, char by) const {
    return {inside(by) + ' ' + by + ' ' + other.inside(by), by};
  }
  friend Text operator&(const Text& a, const Text& b) { return a.joined(b, '&'); }
  friend Text operator|(const Text& a, const Text& b) { return a.joined(b, '|'); }
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const AttentionMask& mask) {
  using Kind = AttentionMask::Kind;
  return out << mask.evaluate(Text{"all"},
                              [](Kind kind, int64_t n) -> Text {
                                const auto sized = [n](const char* name) {
                                  return Text{name + ('(' + std::to_string(n) + ')')};
                                };
                                switch (kind) {
                                  case Kind::causal: return {"causal"};
                                  case Kind::document: return {"document"};
                                  case Kind::window: return sized("window");
                                  case Kind::chunk: return sized("chunk");
                                  default: return sized("prefix");
                                }
                              })
                    .text;
}

}  // namespace tessera
