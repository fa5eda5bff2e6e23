// SPDX-License-Identifier: Apache-2.0
// The laws for ops of a program or library of its own: link tessera::laws, list the rows, judge.
//   int main(int argc, char** argv) {
//     const tessera::OpRow* const rows[] = {&tessera::RowOf<my::op::SquaredRelu>::row};
//     return tessera::laws::judge_main(rows, argc, argv);
//   }
#pragma once

#include "tessera/core/op_row.h"

#include <iosfwd>
#include <span>
#include <string>
#include <vector>

namespace tessera::laws {

/// What a law found: the op, the attributes and input shapes of the sample, and what is wrong.
struct Failure {
  std::string op, sample, what;
};
std::ostream& operator<<(std::ostream&, const Failure&);

struct Options {
  bool distributed = true;  ///< also on ranks (threads) with every layout that the rule allows
  bool mutants = true;      ///< also the mutation run: would the samples notice an error?
};

struct Verdict {
  std::vector<Failure> failures;  ///< empty if every law is kept and every mutant was noticed
  int64_t checks = 0;             ///< how many things were compared
  size_t mutants = 0;             ///< how many spoiled copies of the ops were made
};
/// Judges these ops by all laws, on the CPU and on a GPU where there is one. Makes a Session of its
/// own; inputs are random, and TESSERA_TEST_SEED=<n> in the environment repeats a run.
Verdict judge(std::span<const OpRow* const> rows, const Options& options = {});

/// The main function of a program that judges `rows`: prints failures, the seed and a summary, and
/// gives the exit status. Arguments are names of ops (none: all) and `--no-mutants`.
int judge_main(std::span<const OpRow* const> rows, int argc = 0, char** argv = nullptr);

}  // namespace tessera::laws
