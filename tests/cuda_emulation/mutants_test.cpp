// SPDX-License-Identifier: Apache-2.0
// Would the device law notice a slip in a kernel? Each kernel that an op launches is run with each
// mutant that it can have, on the smallest sample that reaches the place and then on larger ones
// until one notices it, in all three orders. Each run is a process of its own, since a mutant may
// read anywhere; inputs and orders are the same each time. survivors.txt says why no sample can
// notice a mutant: another that survives fails, and so does a line whose mutant is noticed. A fifth
// of those without a line, chosen by TESSERA_TEST_SEED; all with TESSERA_TEST_FULL=1.
#include "mutants.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/process.h"
#include "tessera/tests/laws/every_op.h"
#include "tessera/tests/laws/laws.h"
#include "tessera/tests/support/long_form.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <fstream>
#include <iostream>
#include <map>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera::laws {
namespace {

using cuda_emulation::Mutant;

constexpr uint64_t kSeed = 7;  // of all inputs
constexpr int kNoticed = 3;    // the status of a process; sanitizers end with others

// A sample with its inputs and the CPU's results.
struct Case {
  SampleRow sample;
  TensorVector in, want;
  [[nodiscard]] int64_t size() const {
    int64_t all = 0;
    for (const TensorVector* list : {&in, &want}) {
      for (const Tensor& x : *list) all += x.defined() ? x.numel() : 0;
    }
    return all;
  }
};

// In bf16 those of `s` that take it, else in f32 or what comes nearest.
std::vector<Case> cases_of(const Subject& s, bool in_bf16) {
  std::vector<Case> all;
  for (const SampleRow& sample : good_samples(s)) {
    const std::vector<DType> dtypes = run_dtypes(*s.row, sample);
    const DType wanted = in_bf16 ? DType::bf16 : DType::f32;
    const bool has = std::ranges::find(dtypes, wanted) != dtypes.end();
    if (in_bf16 && !has) continue;
    Random random(s.row->name, kSeed);
    Case c{sample, inputs_of(sample, has ? wanted : dtypes.front(), random), {}};
    c.want = run(s, sample.op.get(), c.in);
    all.push_back(std::move(c));
  }
  std::ranges::stable_sort(all, {}, &Case::size);
  return all;
}

bool notices(const Subject& s, const Case& c) {
  try {
    const TensorVector got = run_on_cuda(s, c.sample.op.get(), c.in);
    for (size_t o = 0; o < got.size(); ++o) {
      const Tensor& want = c.want[o];
      if (difference(got[o], want, tolerance_of(want.dtype()), terms_of(c.in, want))) return true;
    }
    return false;
  } catch (const Error&) {
    return true;
  }
}

enum Fate { survived, noticed, crashed };

// Of the mutant on one sample.
Fate fate_of(const Mutant& mutant, const Subject& s, const Case& c) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // for a loop without an end
    dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
    for (const auto order : {cuda_emulation::Order::rising, cuda_emulation::Order::falling,
                             cuda_emulation::Order::random}) {
      plant(mutant, order);
      if (notices(s, c)) _exit(kNoticed);
    }
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  if (!WIFEXITED(status)) return crashed;
  return WEXITSTATUS(status) == 0 ? survived : WEXITSTATUS(status) == kNoticed ? noticed : crashed;
}

// Whether it has a place in the sources that none of `others` has.
bool is_elsewhere(const Mutant& m, const std::vector<Mutant>& others) {
  return m.site.line() != 0 && std::ranges::none_of(others, [&](Mutant other) {
           other.kernel = m.kernel;
           return other == m;
         });
}

// The mutants of an op by their text, each with the first of `cases` that has it; these are filled.
// Several of one text are of kernels that differ in what the text leaves out; they share one fate.
struct Reached {
  std::vector<Mutant> mutants;
  size_t first_case;
};
std::map<std::string, Reached> mutants_of(const Subject& s, std::vector<Case>& cases) {
  std::map<std::string, Reached> all;
  std::vector<Mutant> found;
  for (const bool in_bf16 : {false, true}) {
    const std::vector<Mutant> before = found;
    for (Case& c : cases_of(s, in_bf16)) {
      std::vector<Mutant> reached = found;
      cuda_emulation::watch_for_mutants(&reached);
      EXPECT_FALSE(notices(s, c)) << "without a mutant, " << describe(*s.row, c.sample);
      cuda_emulation::watch_for_mutants(nullptr);
      for (size_t m = found.size(); m < reached.size(); ++m) {
        // Of bf16 only places that f32 does not reach: where tensor cores take it.
        if (in_bf16 && !is_elsewhere(reached[m], before)) continue;
        all.try_emplace(text_of(reached[m]), Reached{{}, cases.size()})
            .first->second.mutants.push_back(reached[m]);
      }
      found = std::move(reached);
      cases.push_back(std::move(c));
    }
  }
  return all;
}

// Patterns of `op: mutant`, before the reasons in survivors.txt.
std::vector<std::string> ledger() {
  std::vector<std::string> all;
  std::ifstream file("tests/cuda_emulation/survivors.txt");
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    const size_t at = line.find(" | ");
    EXPECT_NE(at, std::string::npos) << line << ": a line is `op: mutant | reason`";
    all.push_back(line.substr(0, at));
  }
  return all;
}

class CudaMutants : public testing::TestWithParam<const OpRow*> {};

TEST_P(CudaMutants, AreNoticed) {
  const Session session({.threads = 1});
  if (!Process::get().cuda_available()) GTEST_SKIP() << "no device";
  if (!GetParam()->not_on_cuda.empty()) GTEST_SKIP() << GetParam()->not_on_cuda;
  const Subject s = subject_of(*GetParam());
  const uint64_t seed = test_seed();
  const std::vector<std::string> known = ledger();
  const auto matches = [](const std::string& pattern, const std::string& name) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  };
  std::vector<Case> cases;
  size_t at = 0, run = 0, left = 0;
  std::vector<std::string> reached;
  for (const auto& [text, where] : mutants_of(s, cases)) {
    const std::string& name = reached.emplace_back(concat(s.row->name, ": ", text));
    const bool may_survive =
        std::ranges::any_of(known, [&](const std::string& p) { return matches(p, name); });
    // One that nobody notices runs on all samples: in the long form alone.
    if (!test::long_form() && (may_survive || (at++ + seed + s.row->name.size()) % 5 != 0))
      continue;
    ++run;
    Fate worst = crashed;
    for (const Mutant& m : where.mutants) {
      Fate own = survived;
      for (size_t i = where.first_case; own == survived && i < cases.size(); ++i)
        own = fate_of(m, s, cases[i]);
      worst = std::min(worst, own);
    }
    left += worst == survived;
    EXPECT_FALSE(worst == survived && !may_survive)
        << name << ": no sample notices it; add one, or the reason to survivors.txt";
    // What only a sanitizer or luck sees may stand there.
    EXPECT_FALSE(worst == noticed && may_survive)
        << name << ": noticed; delete or narrow its line of survivors.txt";
  }
  for (const std::string& pattern : known) {
    const bool own = pattern.starts_with(concat(s.row->name, ": "));
    EXPECT_TRUE(!own ||
                std::ranges::any_of(
                    reached, [&](const std::string& name) { return matches(pattern, name); }))
        << pattern << ": no kernel has it";
  }
  std::cout << "noticed " << run - left << " of " << run << ", TESSERA_TEST_SEED=" << seed << '\n';
}

INSTANTIATE_TEST_SUITE_P(Laws, CudaMutants, every_op(), name_of_op);

}  // namespace
}  // namespace tessera::laws
