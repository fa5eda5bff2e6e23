// SPDX-License-Identifier: Apache-2.0
// Inputs that are nearly right: texts with a few changes each, the same ones in every run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tessera::test {

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> seeds) : seeds_(std::move(seeds)) {}
  std::string next() {
    std::string t = seeds_[below(seeds_.size())];
    for (size_t changes = 1 + below(4); changes > 0 && !t.empty(); --changes) change(t);
    return t;
  }

 private:
  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
  void change(std::string& t) {
    static const std::vector<std::string> kPieces{"\"",
                                                  "{",
                                                  "}",
                                                  "[",
                                                  "]",
                                                  ",",
                                                  ":",
                                                  "-1",
                                                  "0",
                                                  "1.",
                                                  "1e9",
                                                  "-",
                                                  "1e999",
                                                  "\\ud800",
                                                  "null",
                                                  "true",
                                                  "\xff",
                                                  "[[",
                                                  "9223372036854775808",
                                                  "\n--",
                                                  "\n",
                                                  std::string(1, '\0')};
    const size_t at = below(t.size());
    const std::string piece = t.substr(at, below(40));
    switch (below(8)) {
      case 0: t[at] = static_cast<char>(t[at] ^ 1 << below(8)); break;
      case 1: t.erase(at, 1 + below(20)); break;
      case 2: t.insert(at, kPieces[below(kPieces.size())]); break;
      case 3: t.insert(below(t.size()), piece); break;
      case 4: t.replace(at, 1, kPieces[below(kPieces.size())]); break;
      case 5: t.resize(at); break;
      case 6: {  // the tail of another
        const std::string& other = seeds_[below(seeds_.size())];
        t = t.substr(0, at) + other.substr(std::min(at, other.size()));
        break;
      }
      default:  // depth and length
        t.insert(at, std::string(1 + below(3000), "[{(9a"[below(5)]));
    }
  }

  std::vector<std::string> seeds_;
  std::mt19937_64 random_{1};
};

}  // namespace tessera::test
