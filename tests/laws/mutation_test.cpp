// SPDX-License-Identifier: Apache-2.0
// The mutation run: every spoiled copy of every op must be noticed by some law.
#include "tessera/autograd/autograd.h"
#include "tessera/tests/laws/mutations.h"

#include <gtest/gtest.h>

#include <iostream>
#include <map>

namespace tessera::laws {
namespace {

TEST(Mutations, AreAllKilled) {
  const Session session({.threads = 1});
  size_t made = 0, killed = 0;
  std::map<std::string, int> killers;
  for (const OpRow* row : kernel_rows()) {
    for (const Mutant& m : mutants_of(*row)) {
      ++made;
      const std::string law = killed_by(m);
      if (law.empty()) {
        ADD_FAILURE() << "survived: " << row->name << ", " << m.what
                      << " (TESSERA_TEST_SEED=" << test_seed() << ')';
        continue;
      }
      ++killed;
      ++killers[law];
    }
  }
  std::cout << "mutations: killed " << killed << " of " << made;
  for (const auto& [law, n] : killers) std::cout << ", " << n << " by " << law;
  std::cout << '\n';
}

}  // namespace
}  // namespace tessera::laws
