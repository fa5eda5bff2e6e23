// SPDX-License-Identifier: Apache-2.0
// A rank that throws or stalls at any op of attention over cut sequences, so between any two
// exchanges of a layer: every other rank ends in a typed error that names it, within its deadline
// and a second. By default a part of the injections, chosen by TESSERA_TEST_SEED; all places with
// TESSERA_TEST_FULL=1.
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/tests/support/collectives.h"
#include "tessera/tests/support/cut_batch.h"
#include "tessera/tests/support/faults.h"
#include "tessera/tests/support/long_form.h"

#include <atomic>
#include <iostream>

namespace tessera::nn {
namespace {

using Clock = std::chrono::steady_clock;
using test::Fault;

struct ContextFault {
  ContextMethod method;
  Fault fault;
  bool in_backward;
  double place;  // in [0, 1): of the ops of forward, or of backward
  int rank = 0;
  [[nodiscard]] int ranks() const { return method == ContextMethod::ring_ulysses ? 4 : 3; }
  [[nodiscard]] std::chrono::milliseconds deadline() const {
    return fault == Fault::stalls ? test::kStallDeadline : std::chrono::milliseconds(10'000);
  }
  [[nodiscard]] std::string text() const {
    return concat(method, ": ", test::kFaultNames[static_cast<size_t>(fault)], " of rank ", rank,
                  " at ", place, " of ", in_backward ? "backward" : "forward");
  }
};

std::vector<ContextFault> injections() {
  const char* given = std::getenv("TESSERA_TEST_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  test::Dice dice(seed);
  std::vector<ContextFault> all;
  for (int i = 0; i < (test::long_form() ? 10 : 1); ++i) {
    for (const auto method : {ContextMethod::all_gather, ContextMethod::ring,
                              ContextMethod::ulysses, ContextMethod::ring_ulysses}) {
      const bool stalls_in_backward = dice.below(2) == 1;
      for (const bool in_backward : {false, true}) {
        for (const Fault fault : {Fault::throws, Fault::stalls}) {
          // A stall lasts: in the short form one of each method.
          if (!test::long_form() && fault == Fault::stalls && in_backward != stalls_in_backward)
            continue;
          ContextFault f{method, fault, in_backward, static_cast<double>(dice.below(1000)) / 1000};
          f.rank = static_cast<int>(dice.below(f.ranks()));
          all.push_back(f);
        }
      }
    }
  }
  std::cout << all.size() << " injections, TESSERA_TEST_SEED=" << seed << '\n';
  return all;
}

struct Ended {
  std::string kind, text;
  Clock::time_point at;
};

// Three steps of a layer, the second with the fault.
void inject(const ContextFault& f, std::chrono::milliseconds& slowest) {
  std::vector<Ended> ends(static_cast<size_t>(f.ranks()));
  std::atomic<Clock::time_point> happened{Clock::time_point()};
  const auto on_rank = [&](World& world) {
    const test::CutBatch x(test::context_options(f.method), 130, {.mask = AttentionMask::causal()},
                           6, 6);
    int step = 0;
    int64_t ops = 0, seen = 0;  // of the phase with the fault: of a step, in the second step
    if (world.rank() == f.rank) {
      world.session().context().op_hook = [&](const OpRow&, const void*, Tensors, Tensors) {
        if ((trace_tag() == "grad") != f.in_backward) return;
        if (step == 0) ++ops;
        if (step != 1 || seen++ != static_cast<int64_t>(f.place * static_cast<double>(ops))) return;
        happened = Clock::now();
        if (f.fault == Fault::throws) fail<DataError>("injected", "a fault");
        std::this_thread::sleep_for(f.deadline() + std::chrono::milliseconds(700));
      };
    }
    try {
      for (; step < 3; ++step) {
        const Tensor o = x.attend()[0];
        backward(sum(o * o));
        (void)local(x.k.grad()).values();
        world.group().set_timeout(f.deadline());
      }
    } catch (const Error& e) {
      ends[static_cast<size_t>(world.rank())] = {std::string(e.kind()), e.what(), Clock::now()};
      throw;
    }
  };
  EXPECT_THROW(run_ranks(f.ranks(), on_rank), Error) << f.text();
  const std::string expected = f.fault == Fault::stalls ? "CollectiveTimeout" : "PeerFailed";
  for (int r = 0; r < f.ranks(); ++r) {
    const Ended& end = ends[static_cast<size_t>(r)];
    const std::string who = concat(f.text(), ", rank ", r, ": ", end.kind, ": ", end.text);
    if (r == f.rank && f.fault == Fault::throws) {
      EXPECT_EQ(end.kind, "DataError") << who;
      continue;
    }
    // A rank of another group than the one that timed out learns of it as of a peer.
    EXPECT_TRUE(end.kind == expected || end.kind == "PeerFailed") << who;
    if (r == f.rank) continue;
    EXPECT_NE(end.text.find(concat("rank ", f.rank)), std::string::npos) << who;
    const auto after =
        std::chrono::duration_cast<std::chrono::milliseconds>(end.at - happened.load());
    EXPECT_LT(after, f.deadline() + std::chrono::seconds(1)) << who;
    if (f.fault == Fault::stalls) slowest = std::max(slowest, after - f.deadline());
  }
}

TEST(ContextFaults, EveryRankEndsInTime) {
  std::chrono::milliseconds slowest{0};
  for (const ContextFault& f : injections()) inject(f, slowest);
  std::cout << "the slowest survivor of a stall ended " << slowest.count()
            << " ms after its deadline\n";
}

}  // namespace
}  // namespace tessera::nn
