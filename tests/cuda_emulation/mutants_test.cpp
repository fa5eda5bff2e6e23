// SPDX-License-Identifier: Apache-2.0
// Would the device law notice a slip in a kernel? Each kernel that an op launches is run with each
// mutant that it can have, on the smallest sample that reaches the place and then on larger ones
// until one notices it, in all three orders. Each run is a process of its own, since a mutant may
// read anywhere; inputs and orders are the same each time. survivors.txt says why no sample can
// notice a mutant: another that survives fails, and so does a line whose mutant is noticed. A fifth
// of them, chosen by TESSERA_TEST_SEED; all with TESSERA_TEST_FULL=1.
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

std::vector<Case> cases_of(const Subject& s) {
  std::vector<Case> all;
  for (const SampleRow& sample : good_samples(s)) {
    const std::vector<DType> dtypes = run_dtypes(*s.row, sample);
    const bool f32 = std::ranges::find(dtypes, DType::f32) != dtypes.end();
    Random random(s.row->name, kSeed);
    Case c{sample, inputs_of(sample, f32 ? DType::f32 : dtypes.front(), random), {}};
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

// The mutants of an op by their text, each with the first case that has it. Several of one text are
// of kernels that differ in what the text leaves out; they share one fate.
struct Reached {
  std::vector<Mutant> mutants;
  size_t first_case;
};
std::map<std::string, Reached> mutants_of(const Subject& s, const std::vector<Case>& cases) {
  std::map<std::string, Reached> all;
  std::vector<Mutant> found;
  size_t seen = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    cuda_emulation::watch_for_mutants(&found);
    EXPECT_FALSE(notices(s, cases[i])) << "without a mutant, " << describe(*s.row, cases[i].sample);
    cuda_emulation::watch_for_mutants(nullptr);
    for (; seen < found.size(); ++seen)
      all.try_emplace(text_of(found[seen]), Reached{{}, i})
          .first->second.mutants.push_back(found[seen]);
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
  const std::vector<Case> cases = cases_of(s);
  const std::vector<std::string> known = ledger();
  const auto matches = [](const std::string& pattern, const std::string& name) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  };
  size_t at = 0, run = 0, left = 0;
  std::vector<std::string> reached;
  for (const auto& [text, where] : mutants_of(s, cases)) {
    const std::string& name = reached.emplace_back(concat(s.row->name, ": ", text));
    if (!test::long_form() && (at++ + seed + s.row->name.size()) % 5 != 0) continue;
    ++run;
    Fate worst = crashed;
    for (const Mutant& m : where.mutants) {
      Fate own = survived;
      for (size_t i = where.first_case; own == survived && i < cases.size(); ++i)
        own = fate_of(m, s, cases[i]);
      worst = std::min(worst, own);
    }
    const bool may_survive =
        std::ranges::any_of(known, [&](const std::string& p) { return matches(p, name); });
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
