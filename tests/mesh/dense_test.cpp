// SPDX-License-Identifier: Apache-2.0
// Dense decoders on every mesh of (dp_replicate, dp_shard, cp, tp) against one rank: initial
// parameters bit for bit, every gradient of the first step relative to its own norm in f64, losses
// and gradient norms of 10 steps in f32 and bf16, in each mode of activation checkpointing.
#include "tessera/tests/mesh/dense.h"

#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/gradients.h"
#include "tessera/tests/support/long_form.h"

#include <algorithm>
#include <iostream>

namespace tessera::mesh_tests {
namespace {

// Of losses and norms in 10 steps.
struct Limits {
  double loss, norm;
};
constexpr Limits limits_of(DType compute) {
  return compute == DType::bf16 ? Limits{5e-4, 3e-2} : Limits{1e-5, 1e-5};
}
constexpr double kGradientLimit = 1e-10;
constexpr DType kDTypes[]{DType::f32, DType::bf16};

class Dense : public test::FolderTest {
 protected:
  // What one rank computes.
  struct One {
    Values gradients;
    std::map<DType, Outcome> runs;
  };
  [[nodiscard]] One one_rank(const std::string& family) const {
    One one{gradients(dense(family, {}, DType::f64), {}), {}};
    for (const DType compute : kDTypes)
      one.runs[compute] = trained(dense(family, {}, compute, Mode::none, folder_), {});
    return one;
  }

  static void check_gradients(const std::string& family, const Degrees& degrees, const One& one,
                              size_t turn) {
    for (const Mode mode : modes(turn)) {
      const std::string what = text(family, degrees, mode);
      const Values got = gradients(dense(family, degrees, DType::f64, mode), degrees);
      expect_below(test::expect_same_gradients(got, one.gradients, kGradientLimit, what),
                   kGradientLimit, what + "gradients");
    }
  }
  // Each dtype and the gradients have another of the modes.
  void check(const std::string& family, const Degrees& degrees, const One& one, size_t turn) const {
    check_gradients(family, degrees, one, turn);
    for (const DType compute : kDTypes) {
      for (const Mode mode : modes(++turn))
        expect_alike(dense(family, degrees, compute, mode, folder_), degrees, one.runs.at(compute),
                     text(family, degrees, mode));
    }
  }
  static std::string text(const std::string& family, const Degrees& degrees, Mode mode) {
    return concat(family, " on ", degrees.text(), ", checkpoint mode ", static_cast<int>(mode),
                  ", ");
  }
  static void expect_alike(const train::Config& config, const Degrees& degrees, const Outcome& want,
                           const std::string& what) {
    const DType compute = config.training.mixed_precision_param;
    const std::string which = concat(what, name(compute));
    const Outcome got = trained(config, degrees);
    for (const auto& [name, values] : want.initial)
      EXPECT_TRUE(got.initial.at(name) == values) << which << ": " << name;
    const Limits limits = limits_of(compute);
    expect_below(largest_difference(got.losses, want.losses), limits.loss, which + " loss");
    expect_below(largest_difference(got.norms, want.norms), limits.norm, which + " norm");
  }
};

class DenseSweep : public Dense,
                   public testing::WithParamInterface<std::tuple<const char*, Degrees>> {};

TEST_P(DenseSweep, TrainsAsOneRank) {
  const auto& [family, degrees] = GetParam();
  check(family, degrees, one_rank(family), static_cast<size_t>(degrees.ranks()));
}

INSTANTIATE_TEST_SUITE_P(OnePerKind, DenseSweep,
                         testing::Combine(testing::ValuesIn(kFamilies),
                                          testing::ValuesIn(one_per_kind())),
                         [](const auto& test) {
                           return concat(std::get<0>(test.param), '_',
                                         std::get<1>(test.param).text());
                         });

class DenseFamily : public Dense, public testing::WithParamInterface<const char*> {};

TEST_P(DenseFamily, TrainsAsOneRankOnOtherMeshes) {
  const One one = one_rank(GetParam());
  size_t turn = 0;
  for (const Degrees& degrees : some_others()) check(GetParam(), degrees, one, turn++);
}

// Whose heads degrees of 2 divide.
TEST_P(DenseFamily, DebugModelTrainsAsOneRank) {
  if (!test::long_form()) return;  // it takes minutes
  for (const DType compute : kDTypes) {
    const auto config = [&](const Degrees& degrees) {
      train::Config c = dense(GetParam(), degrees, compute, Mode::selective, folder_);
      c.model = models::find_family(models::families(), GetParam()).flavor("debugmodel");
      return c;
    };
    const Outcome one = trained(config({}), {});
    for (Degrees degrees : one_per_kind()) {
      degrees.tp = std::min(degrees.tp, 2);
      expect_alike(config(degrees), degrees, one,
                   concat(GetParam(), " debugmodel on ", degrees.text(), ", "));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DenseFamily, testing::ValuesIn(kFamilies),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace tessera::mesh_tests
