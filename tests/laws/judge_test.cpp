// SPDX-License-Identifier: Apache-2.0
// The laws as a library: an op outside the table is judged, and each flaw is found by its law.
#include "tessera/laws/judge.h"

#include "tessera/core/error.h"
#include "tessera/core/scopes.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera::laws {
namespace {

enum class Flaw : uint8_t { none, gradient, formula, no_known };

// 2 x, or wrong in one way.
template <Flaw kFlaw> struct Twice {
  static constexpr std::string_view name = "twice";
  static constexpr DTypeSet dtypes = dtypes_of(DType::f32, DType::f64);
  static constexpr Saves saves = Saves::none();
  static constexpr double kFactor = kFlaw == Flaw::formula ? 2.02 : 2;
  static constexpr double kSlope = kFlaw == Flaw::gradient ? 2.02 : kFactor;
  MetaList meta(Metas in) const {
    if (!dtypes.has(in[0].dtype))
      fail<DTypeError>(name, "given ", in[0], ", expected f32 or f64; cast it");
    return {in[0]};
  }
  ShardingRule sharding(Metas in) const { return rule("... -> ...", in).linear({0}).monotone_up(); }
  void cpu(Tensors in, Outputs y) const {
    const NoGrad quiet;
    const Tensor x = contiguous(in[0]);
    dispatch<dtypes>(x.dtype(), [&]<class T>() {
      for (int64_t i = 0; i < x.numel(); ++i)
        y[0].data<T>()[i] = x.data<T>()[i] * static_cast<T>(kFactor);
    });
  }
  static constexpr NotOnCuda cuda{"a test"};
  Grads vjp(const Saved&, const Grads& dy, Needs) const { return {affine(dy[0], kSlope, 0)}; }
  static std::vector<Sample<Twice>> samples() {
    std::vector<Sample<Twice>> all{
        {{}, {arg({5, 7})}}, {{}, {arg({})}}, bad(Twice{}, {index_arg({3}, 0, 4)}, "DTypeError")};
    if (kFlaw != Flaw::no_known)
      all.push_back(known(Twice{}, {arg({2}).listed({3, -0.5})}, {{6, -1}}));
    return all;
  }
};

// The beginnings of what is found, without the rest: "Gradient law".
template <Flaw kFlaw> std::vector<std::string> found(const Options& options) {
  const OpRow* const rows[] = {&RowOf<Twice<kFlaw>>::row};
  std::vector<std::string> laws;
  for (const Failure& f : judge(rows, options).failures) {
    const std::string law = f.what.substr(0, f.what.find(':'));
    if (std::ranges::find(laws, law) == laws.end()) laws.push_back(law);
  }
  return laws;
}

constexpr Options kQuick{.distributed = false, .mutants = false};
using Laws = std::vector<std::string>;

}  // namespace
}  // namespace tessera::laws

TESSERA_ROOM(tessera::laws::Twice<tessera::laws::Flaw::none>)
TESSERA_ROOM(tessera::laws::Twice<tessera::laws::Flaw::gradient>)
TESSERA_ROOM(tessera::laws::Twice<tessera::laws::Flaw::formula>)
TESSERA_ROOM(tessera::laws::Twice<tessera::laws::Flaw::no_known>)

namespace tessera::laws {
namespace {

TEST(Judge, AnOpOutsideTheTableKeepsAllLawsAndItsMutantsAreNoticed) {
  const OpRow* const rows[] = {&RowOf<Twice<Flaw::none>>::row};
  const Verdict verdict = judge(rows);
  EXPECT_TRUE(verdict.failures.empty()) << verdict.failures[0];
  EXPECT_GT(verdict.checks, 100);
  EXPECT_GT(verdict.mutants, 5u);
}

TEST(Judge, AWrongGradientIsFoundByTheGradientLaw) {
  EXPECT_EQ(found<Flaw::gradient>(kQuick), (Laws{"Gradient law"}));
}

TEST(Judge, AFormulaThatIsWrongEverywhereIsFoundByTheKnownLawAlone) {
  EXPECT_EQ(found<Flaw::formula>(kQuick), (Laws{"Known law"}));
}

TEST(Judge, AnOpWithoutAKnownValueIsAskedForOne) {
  EXPECT_EQ(found<Flaw::no_known>(kQuick), (Laws{"Samples law"}));
}

TEST(Judge, TheProgramNamesTheOpsItHas) {
  const OpRow* const rows[] = {&RowOf<Twice<Flaw::none>>::row};
  std::string program = "laws", name = "thrice";
  char* argv[] = {program.data(), name.data()};
  testing::internal::CaptureStderr();
  EXPECT_EQ(judge_main(rows, 2, argv), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "no op 'thrice' here; the ops are: twice\n");
}

}  // namespace
}  // namespace tessera::laws
