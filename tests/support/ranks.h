// SPDX-License-Identifier: Apache-2.0
// How tests get their ranks: threads of this process, or, in a program started by a launcher, the
// first n of its processes. A program that was launched sets `ranks_launcher()` in its main; the
// tests do not change.
#pragma once

#include "tessera/dist/launch/run.h"
#include "tessera/tests/support/bits.h"

#include <cstdlib>
#include <functional>
#include <random>

namespace tessera::test {

using RankFunction = std::function<void(World&)>;

/// Runs fn on the first n ranks of the launcher's world, each in a World of those n, and does
/// nothing on the others. Errors leave it on the rank that has them.
using RanksLauncher = std::function<void(int n, const RankFunction& fn, const WorldOptions&)>;

/// Null: ranks are threads.
inline RanksLauncher& ranks_launcher() {
  static RanksLauncher launcher;
  return launcher;
}

/// Runs fn on n ranks and returns when all have; the error of the rank that failed first comes out.
/// gtest's EXPECT and ASSERT work inside; use EXPECT where other ranks still need this one.
inline void on_ranks(int n, const RankFunction& fn, const WorldOptions& options = {}) {
  RankFunction run = fn;
  if (const uint64_t call = BitLog::get().next_call(); BitLog::get().path()) {
    run = [&fn, call](World& w) {
      Context& context = w.session().context();
      context.op_hook = [](const OpRow&, const void*, Tensors, Tensors out) {
        for (const Tensor& x : out) note_bits(x);
      };
      fn(w);
      BitLog::get().add(call, w.rank(), context.state<RankBits>().hash);
    };
  }
  if (const auto& launch = ranks_launcher()) launch(n, run, options);
  else run_ranks(n, run, options);
}

/// A random seed that all ranks of the world share; print it on rank 0.
inline unsigned shared_seed(World& world) {
  const Tensor seed = empty({1}, DType::i64);
  const char* given = std::getenv("TESSERA_TEST_SEED");
  *seed.data<int64_t>() = given ? std::atoll(given) : std::random_device{}();
  world.group().broadcast(seed, 0)->wait();
  return static_cast<unsigned>(*seed.data<int64_t>());
}

}  // namespace tessera::test
