// SPDX-License-Identifier: Apache-2.0
// Features of a run, a row each: how the command line turns it on, and what it may change. Pairs of
// them are tried by feature_pairs_test.cpp; a new feature needs its row and nothing else.
#pragma once

#include "tessera/tests/support/tiny_run.h"

#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace tessera::mesh_tests {

using train::joined, train::Words;

struct Feature {
  std::string name;
  Words words;
  int ranks = 1;  ///< by which it multiplies those of the run
  /// How far it may move loss and gradient norm, relative to the run without it: 0: not a bit;
  /// none: it trains another model, or on other data.
  std::optional<double> moves = {};
  /// Of features that exclude each other by their nature, at most one is in a run.
  std::string kind = {};
  std::string needs = {};  ///< another feature, without which it does nothing
  double noise = 0;        ///< of its narrow numbers: so far apart are runs that round elsewhere
  int cuts = 1;            ///< parts into which it cuts the rows of a step
  friend std::ostream& operator<<(std::ostream& os, const Feature& f) { return os << f.name; }
};

/// What a feature needs comes before it. `folder` holds data.
std::vector<Feature> features(const std::string& folder);

/// A pair that does not train as its rows say.
struct Exception {
  std::string a, b;
  std::string error = {};  ///< with which it is refused; empty: it trains with other numbers
};
std::vector<Exception> exceptions();

}  // namespace tessera::mesh_tests
