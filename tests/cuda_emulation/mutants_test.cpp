// SPDX-License-Identifier: Apache-2.0
// Would the device law notice a slip in a kernel? Each kernel that an op launches is run with each
// mutant that it can have, on the smallest sample that reaches the place and then on larger ones
// until one notices it, in all three orders. Each run is a process of its own, since a mutant may
// read anywhere. A fifth of them, chosen by TESSERA_TEST_SEED; all with TESSERA_TEST_FULL=1.
#include "mutants.h"

#include "tessera/autograd/autograd.h"
#include "tessera/core/process.h"
#include "tessera/tests/laws/every_op.h"
#include "tessera/tests/laws/laws.h"
#include "tessera/tests/support/long_form.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera::laws {
namespace {

using cuda_emulation::Mutant;

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
    Random random(s.row->name);
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

bool killed(const Subject& s, const Case& c, const Mutant& mutant) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a loop without an end is noticed too
    dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
    for (const auto order : {cuda_emulation::Order::rising, cuda_emulation::Order::falling,
                             cuda_emulation::Order::random}) {
      plant(mutant, order);
      if (notices(s, c)) _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

// Whether it is of a barrier or shuffle that none of `others` is of.
bool is_elsewhere(const Mutant& m, const std::vector<Mutant>& others) {
  if (m.kind != Mutant::skipped_barrier && m.kind != Mutant::wrong_lane) return false;
  return std::ranges::none_of(others, [&](Mutant other) {
    other.kernel = m.kernel;
    return other == m;
  });
}

class CudaMutants : public testing::TestWithParam<const OpRow*> {};

TEST_P(CudaMutants, AreNoticed) {
  const Session session({.threads = 1});
  if (!Process::get().cuda_available()) GTEST_SKIP() << "no device";
  if (!GetParam()->not_on_cuda.empty()) GTEST_SKIP() << GetParam()->not_on_cuda;
  const Subject s = subject_of(*GetParam());
  const uint64_t seed = test_seed();
  std::vector<Case> cases;
  std::vector<Mutant> found;
  std::vector<size_t> reached_by;  // the first case that has the mutant
  for (const bool in_bf16 : {false, true}) {
    const std::vector<Mutant> before = found;
    for (Case& c : cases_of(s, in_bf16)) {
      std::vector<Mutant> reached = found;
      cuda_emulation::watch_for_mutants(&reached);
      EXPECT_FALSE(notices(s, c)) << "without a mutant, " << describe(*s.row, c.sample);
      cuda_emulation::watch_for_mutants(nullptr);
      // Of bf16 only places that f32 does not reach: where tensor cores take it.
      std::copy_if(reached.begin() + static_cast<std::ptrdiff_t>(found.size()), reached.end(),
                   std::back_inserter(found),
                   [&](const Mutant& m) { return !in_bf16 || is_elsewhere(m, before); });
      reached_by.resize(found.size(), cases.size());
      cases.push_back(std::move(c));
    }
  }
  size_t run = 0, survived = 0;
  for (size_t m = 0; m < found.size(); ++m) {
    if (!test::long_form() && (m + seed + s.row->name.size()) % 5 != 0) continue;
    ++run;
    const auto noticed = [&](const Case& c) { return killed(s, c, found[m]); };
    if (std::any_of(cases.begin() + static_cast<std::ptrdiff_t>(reached_by[m]), cases.end(),
                    noticed))
      continue;
    ++survived;
    std::cout << "survived: " << s.row->name << ' ' << text_of(found[m]) << '\n';
  }
  std::cout << "noticed " << run - survived << " of " << run << ", TESSERA_TEST_SEED=" << seed
            << '\n';
}

INSTANTIATE_TEST_SUITE_P(Laws, CudaMutants, every_op(), name_of_op);

}  // namespace
}  // namespace tessera::laws
