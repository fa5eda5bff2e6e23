// SPDX-License-Identifier: Apache-2.0
#include "tessera/laws/judge.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/process.h"
#include "tessera/tests/laws/mutations.h"

#include <algorithm>
#include <iostream>

namespace tessera::laws {
namespace {

void add(Verdict& verdict, std::string_view law, Outcome outcome) {
  verdict.checks += outcome.checks;
  for (Failure& f : outcome.failures) {
    f.what = concat(law, " law: ", f.what);
    verdict.failures.push_back(std::move(f));
  }
}

}  // namespace

Verdict judge(std::span<const OpRow* const> rows, const Options& options) {
  Verdict verdict;
  for (const OpRow* row : rows) {
    const Subject s = subject_of(*row);
    if (options.distributed && s.sharding) add(verdict, "Distributed", distributed_law(s));
    const Session session({.threads = 1});  // the determinism law sets its own
    for (const Law& law : laws()) add(verdict, law.name, judged_by(law, s));
    if (Process::get().cuda_available() && row->not_on_cuda.empty())
      add(verdict, "Cuda", device_law(s));
    if (!options.mutants) continue;
    const MutationRun run = mutation_run(*row);
    verdict.mutants += run.made;
    for (const std::string& what : run.survivors) {
      verdict.failures.push_back({std::string(row->name), "all samples",
                                  concat("no law notices this mutant: ", what,
                                         "; give a sample or a known value that does")});
    }
  }
  return verdict;
}

int judge_main(std::span<const OpRow* const> rows, int argc, char** argv) {
  Options options;
  std::vector<const OpRow*> chosen;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--no-mutants") {
      options.mutants = false;
      continue;
    }
    const auto row = std::ranges::find(rows, word, &OpRow::name);
    if (row == rows.end()) {
      std::cerr << "no op '" << word << "' here; the ops are:";
      for (const OpRow* r : rows) std::cerr << ' ' << r->name;
      std::cerr << '\n';
      return 2;
    }
    chosen.push_back(*row);
  }
  if (chosen.empty()) chosen.assign(rows.begin(), rows.end());
  const Verdict verdict = judge(chosen, options);
  for (const Failure& f : verdict.failures) std::cout << f << '\n';
  if (!verdict.failures.empty()) std::cout << "TESSERA_TEST_SEED=" << test_seed() << '\n';
  std::cout << "laws: " << chosen.size() << " ops, " << verdict.checks << " checks, "
            << verdict.mutants << " mutants, " << verdict.failures.size() << " failures\n";
  return verdict.failures.empty() ? 0 : 1;
}

}  // namespace tessera::laws
