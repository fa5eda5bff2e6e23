// SPDX-License-Identifier: Apache-2.0
// The conformance suite over the back ends of the host. `ranks` is whatever the program runs on
// (threads, or a launcher's processes), `staged` are threads that move payloads as processes do.
// `nccl` is in tests/nccl, since a program with devices links the shared library.
#include "tessera/tests/support/conformance.h"

#include "tessera/dist/launch/threads_impl.h"

namespace tessera::test {
namespace {

void run_default(int n, const RankFunction& fn) { on_ranks(n, fn); }
void run_staged(int n, const RankFunction& fn) { run_threads(n, fn, {}, PayloadMode::staged); }

const auto kBackends =
    testing::Values(Backend{"ranks", run_default}, Backend{"staged", run_staged});
constexpr auto kName = [](const auto& backend) { return std::string(backend.param.name); };
INSTANTIATE_TEST_SUITE_P(Backends, Conformance, kBackends, kName);

// Back ends whose sums follow the tree.
class Trees : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Backends, Trees, kBackends, kName);

// Sums over the axes of a mesh equal the sum over the flattened axis where the fast axes are powers
// of two.
TEST_P(Trees, NestedAxesEqualTheFlattenedOne) {
  struct Axes {
    int slow, fast;
  };
  for (const Axes a : {Axes{2, 2}, Axes{2, 4}, Axes{4, 2}, Axes{3, 2}}) {
    run(a.slow * a.fast, [&](World& w) {
      const auto fast = w.group().split(w.rank() / a.fast, 0, "fast");
      const auto slow = w.group().split(w.rank() % a.fast, 0, "slow");
      for (const int64_t size : {5, 100'003}) {
        const Tensor nested = empty({size}), flat = empty({size});
        fill<float>(nested, 3, w.rank());
        fill<float>(flat, 3, w.rank());
        fast->all_reduce(nested)->wait();
        slow->all_reduce(nested)->wait();
        w.group().all_reduce(flat)->wait();
        for (int64_t i = 0; i < size; ++i)
          ASSERT_TRUE(same(nested.data<float>()[i], flat.data<float>()[i])) << i;
      }
    });
  }
}

TEST(ConformanceThreads, SeveralPerRankGiveTheSameBits) {
  const Backend host{"ranks", run_default};
  for (const PayloadMode mode : {PayloadMode::direct, PayloadMode::staged}) {
    WorldOptions options;
    options.threads = 3;
    run_threads(
        2, [&](World& w) { Case<float>(host, w.group(), 21, false).all(400'003); }, options, mode);
  }
}

}  // namespace
}  // namespace tessera::test
