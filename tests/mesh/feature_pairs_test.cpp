// SPDX-License-Identifier: Apache-2.0
// Two features at once: every pair of the table trains two steps with finite losses, and a feature
// that moves no number of a run alone moves none beside another. By default one pair in four,
// chosen by TESSERA_TEST_SEED; all with TESSERA_TEST_FULL=1.
#include "tessera/tests/mesh/features.h"
#include "tessera/tests/mesh/meshes.h"
#include "tessera/tests/support/logged_losses.h"
#include "tessera/tests/support/tiny_experts.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/run/compare.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>

namespace tessera::mesh_tests {
namespace {

constexpr int64_t kRows = 8;  // of a step

using Set = std::set<size_t>;                            // features by their place in the table
using Figures = std::vector<std::pair<double, double>>;  // loss and gradient norm of each step

class FeaturePairs : public train::TinyRunTest {
 protected:
  FeaturePairs() : all_(features(folder_)) {}

  [[nodiscard]] size_t place(const std::string& name) const {
    const auto at = std::ranges::find(all_, name, &Feature::name);
    if (at == all_.end()) throw std::logic_error("no feature is called " + name);
    return static_cast<size_t>(at - all_.begin());
  }
  // A feature with all that it needs.
  [[nodiscard]] Set with_needs(size_t feature) const {
    Set set{feature};
    if (!all_[feature].needs.empty()) set.merge(with_needs(place(all_[feature].needs)));
    return set;
  }
  [[nodiscard]] static Set united(const Set& a, Set b) {
    b.insert(a.begin(), a.end());
    return b;
  }
  // Whether one run can have all of them, and each says something that the others do not.
  [[nodiscard]] bool is_pair(size_t a, size_t b) const {
    const Set first = with_needs(a), second = with_needs(b);
    if (first.contains(b) || second.contains(a)) return false;
    std::map<std::string, size_t> kinds;
    for (const size_t f : united(first, second))
      if (const std::string& kind = all_[f].kind; !kind.empty() && !kinds.emplace(kind, f).second)
        return false;
    return true;
  }
  // Of a set that two features make; none of them is an exception by itself.
  [[nodiscard]] std::optional<Exception> exception(const Set& set) const {
    for (const Exception& e : exceptions())
      if (set.contains(place(e.a)) && set.contains(place(e.b))) return e;
    return std::nullopt;
  }

  // The command of a run with these features. Its steps have the same rows on every mesh.
  [[nodiscard]] Words command(const Set& set) const {
    Words words = train::split(
        "train --threads 1 --training.steps 2 --training.seq_len 16 --optimizer.lr 1e-2 "
        "--optimizer.eps 1e-4 --lr_scheduler.warmup_steps 0 --metrics.log_freq 1 "
        "--metrics.measure_ceiling false --memory.check false --sample.tokens 0 --debug.seed 7");
    words = joined(words, {"--dataloader.path", path("text.txt"), "--dump_folder", path("run")});
    int64_t ranks = 1, cuts = 1;
    const auto has = [&](const char* kind) {
      return std::ranges::any_of(set, [&](size_t f) { return all_[f].kind == kind; });
    };
    if (!has("model")) words = joined(words, train::tiny_model());
    if (!has("dtype"))
      words = joined(
          words, {"--training.dtype", "float64", "--training.mixed_precision_param", "float64"});
    for (const size_t f : set) {
      words = joined(words, all_[f].words);
      ranks *= all_[f].ranks;
      cuts *= all_[f].cuts;
    }
    return joined(words, {"--ranks", std::to_string(ranks), "--training.global_batch_size",
                          std::to_string(kRows), "--training.local_batch_size",
                          std::to_string(kRows / cuts)});
  }
  [[nodiscard]] std::string text(const Set& set) const {
    std::string names;
    for (const size_t f : set) names += concat(names.empty() ? "" : " + ", all_[f].name);
    return names.empty() ? "no feature" : names;
  }
  int run_afresh(const Set& set) {
    std::filesystem::remove_all(path("run"));
    return run(command(set));
  }
  // Losses and norms of a run, which many pairs have in common.
  const Figures& figures(const Set& set) {
    const auto [at, fresh] = figures_.try_emplace(set);
    if (!fresh) return at->second;
    EXPECT_EQ(run_afresh(set), 0) << text(set) << ": " << err_.str();
    at->second = test::logged_losses_and_norms(path("run"));
    EXPECT_EQ(at->second.size(), 2u) << text(set);
    for (const auto& [loss, norm] : at->second)
      EXPECT_TRUE(std::isfinite(loss) && std::isfinite(norm)) << text(set);
    return at->second;
  }

  // The run of `set` against that without `feature`.
  void expect_unmoved(const Set& set, size_t feature) {
    Set without = set;
    without.erase(feature);
    double limit = *all_[feature].moves;
    for (const size_t f : without)
      if (limit > 0) limit = std::max(limit, all_[f].noise);
    const Figures &got = figures(set), &want = figures(without);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      const double loss = train::relative_difference(got[i].first, want[i].first),
                   norm = train::relative_difference(got[i].second, want[i].second);
      EXPECT_LE(loss, limit) << text(set) << " against " << text(without) << ", step " << i + 1;
      // Norms are f32.
      EXPECT_LE(norm, limit == 0 ? 0 : std::max(20 * limit, 1e-6))
          << text(set) << " against " << text(without) << ", step " << i + 1;
    }
  }
  void expect_pair(size_t a, size_t b) {
    const Set set = united(with_needs(a), with_needs(b));
    const auto other = exception(set);
    if (other && !other->error.empty()) {
      EXPECT_NE(run_afresh(set), 0) << text(set);
      TESSERA_EXPECT_HOLDS(err_.str(), other->error) << text(set);
      return;
    }
    (void)figures(set);
    for (const size_t feature : {a, b})
      if (all_[feature].moves && !other) expect_unmoved(set, feature);
  }

  std::vector<Feature> all_;
  std::map<Set, Figures> figures_;
};

TEST_F(FeaturePairs, TrainAsEachOfThemSays) {
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t a = 0; a < all_.size(); ++a)
    for (size_t b = 0; b < a; ++b)
      if (is_pair(a, b)) pairs.emplace_back(b, a);
  const size_t count = pairs.size();
  pairs = some_of(std::move(pairs), 4, fresh_seed());
  std::cout << pairs.size() << " of " << count << " pairs\n";
  for (const auto& [a, b] : pairs) expect_pair(a, b);
}

}  // namespace
}  // namespace tessera::mesh_tests
