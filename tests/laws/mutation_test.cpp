// SPDX-License-Identifier: Apache-2.0
// The mutation run: every spoiled copy of an op must be noticed by some law.
#include "tessera/autograd/autograd.h"
#include "tessera/tests/laws/every_op.h"
#include "tessera/tests/laws/mutations.h"

#include <gtest/gtest.h>

#include <iostream>

namespace tessera::laws {
namespace {

class Mutants : public testing::TestWithParam<const OpRow*> {};

TEST_P(Mutants, AreKilled) {
  const Session session({.threads = 1});
  const MutationRun run = mutation_run(*GetParam());
  for (const std::string& what : run.survivors)
    ADD_FAILURE() << "survived: " << what << " (TESSERA_TEST_SEED=" << test_seed() << ')';
  std::cout << "killed " << run.made - run.survivors.size() << " of " << run.made << '\n';
}

INSTANTIATE_TEST_SUITE_P(Laws, Mutants, every_op(), name_of_op);

}  // namespace
}  // namespace tessera::laws
