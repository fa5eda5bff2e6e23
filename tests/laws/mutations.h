// SPDX-License-Identifier: Apache-2.0
// Spoiled copies of an op, each wrong in one way that a careless room would be wrong in.
#pragma once

#include "tessera/tests/laws/laws.h"

namespace tessera::laws {

struct Mutant {
  std::string what;
  Subject subject;
  std::string_view first_law;  // the one most likely to notice, asked first
};
/// Every mutant of an op that differs from the op: a gradient that is zero, a factor of size 1 or a
/// needlessly strict rule give none.
std::vector<Mutant> mutants_of(const OpRow& row);
/// The law that notices the mutant; empty if none does.
std::string killed_by(const Mutant& m);

struct MutationRun {
  size_t made = 0;
  std::vector<std::string> survivors;  // what was spoiled and not noticed
};
/// Makes all mutants of an op. One that is made for the known values must be noticed by them.
MutationRun mutation_run(const OpRow& row);

}  // namespace tessera::laws
