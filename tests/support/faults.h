// SPDX-License-Identifier: Apache-2.0
// Injected faults: in each collective, before, inside and after it, one rank does something wrong.
// Every other rank must end, in the right typed error that names the rank, within its deadline and
// a second. The same injections run on threads and on processes; only processes can exit, be killed
// or be stopped.
#pragma once

#include "tessera/dist/world.h"

#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace tessera::test {

constexpr int kFaultRanks = 3;
/// Of injections that must outlast it; the healthy collectives of the others may take longer on a
/// busy machine.
#ifdef __SANITIZE_THREAD__
constexpr auto kStallDeadline = std::chrono::milliseconds(2000);
#else
constexpr auto kStallDeadline = std::chrono::milliseconds(500);
#endif

enum class Fault {
  throws,
  returns,
  stalls,
  aborts,
  exits,
  is_killed,
  is_stopped,
  kind,
  dtype,
  count,
  op,
  root,
  order
};
enum class Moment { before, inside, after };
constexpr std::array<const char*, 13> kFaultNames{
    "throw",      "return",      "stall",       "abort",    "exit",       "SIGKILL",    "SIGSTOP",
    "wrong kind", "wrong dtype", "wrong count", "wrong op", "wrong root", "wrong order"};
constexpr std::array<const char*, 3> kMomentNames{"before", "inside", "after"};

/// One collective of every rank; Kind::send stands for a ring of send and recv.
struct Call {
  CollectiveKind kind;
  int64_t size;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
};

struct Injection {
  CollectiveKind kind;
  int64_t size;
  Fault fault;
  Moment moment;
  int faulty;

  [[nodiscard]] std::chrono::milliseconds deadline() const {
    return fault == Fault::stalls || fault == Fault::is_stopped ? kStallDeadline
                                                                : std::chrono::milliseconds(10'000);
  }
  [[nodiscard]] std::string text() const {
    return concat(kFaultNames[static_cast<size_t>(fault)], ' ',
                  kMomentNames[static_cast<size_t>(moment)], ' ', kind, " of ", size, " by rank ",
                  faulty);
  }
};

/// How a rank ended.
struct Outcome {
  std::string error, text;
  std::chrono::steady_clock::duration longest{};  // of the calls made
};

/// Starts one collective; the works of the call.
inline std::vector<Ref<Work>> start(ProcessGroup& g, const Call& call) {
  using Kind = CollectiveKind;
  const int n = g.size(), me = g.rank();
  const Tensor one = empty({call.size}, call.dtype), all = empty({call.size * n}, call.dtype);
  std::memset(one.raw_data(), 0, static_cast<size_t>(call.size * item_size(call.dtype)));
  std::memset(all.raw_data(), 0, static_cast<size_t>(n * call.size * item_size(call.dtype)));
  switch (call.kind) {
    case Kind::all_reduce: return {g.all_reduce(one, call.op)};
    case Kind::reduce: return {g.reduce(one, call.root, call.op)};
    case Kind::broadcast: return {g.broadcast(one, call.root)};
    case Kind::all_gather: return {g.all_gather(one, all)};
    case Kind::reduce_scatter: return {g.reduce_scatter(all, one, call.op)};
    case Kind::all_to_all: return {g.all_to_all(all, empty({call.size * n}, call.dtype))};
    case Kind::gather: return {g.gather(one, me == call.root ? all : Tensor(), call.root)};
    case Kind::scatter: return {g.scatter(me == call.root ? all : Tensor(), one, call.root)};
    case Kind::send:
    case Kind::recv: {
      auto sent = g.send(one, (me + 1) % n);
      return {std::move(sent), g.recv(empty({call.size}, call.dtype), (me + n - 1) % n)};
    }
    case Kind::barrier: return {g.barrier()};
  }
  return {};
}

inline void run(ProcessGroup& g, const Call& call) {
  for (const auto& work : start(g, call)) work->wait();
  if (call.kind == CollectiveKind::send) g.barrier()->wait();  // a sender may be far from the fault
}

/// What the faulty rank calls in place of `call`; false if the fault makes no sense there.
inline bool wrong(Fault fault, Call& call) {
  using Kind = CollectiveKind;
  const Kind k = call.kind;
  switch (fault) {
    case Fault::kind:
      call.kind = k == Kind::broadcast || k == Kind::send ? Kind::all_reduce : Kind::broadcast;
      return k != Kind::send;  // that is never calling it
    case Fault::dtype: call.dtype = DType::i32; return k != Kind::barrier;
    case Fault::count: call.size += 2; return k != Kind::barrier;
    case Fault::op:
      call.op = ReduceOp::max;
      return k == Kind::all_reduce || k == Kind::reduce || k == Kind::reduce_scatter;
    case Fault::root:
      call.root = 1;
      return k == Kind::reduce || k == Kind::broadcast || k == Kind::gather || k == Kind::scatter;
    case Fault::order: return k != Kind::send;  // messages and collectives have no common order
    default: return false;
  }
}

inline void misbehave(World& w, const Injection& in) {
  switch (in.fault) {
    case Fault::throws: fail<DataError>("injected", "a fault");
    case Fault::stalls:
      std::this_thread::sleep_for(in.deadline() + std::chrono::milliseconds(700));
      break;
    case Fault::aborts: w.group().abort("injected"); fail<DataError>("injected", "after an abort");
    case Fault::exits: std::exit(0);
    case Fault::is_killed: std::raise(SIGKILL); break;
    case Fault::is_stopped: std::raise(SIGSTOP); break;
    default: break;
  }
}

/// A rank's part: the collective three times, the second time with the fault.
inline void take_part(World& w, const Injection& in, Outcome& mine) {
  using Clock = std::chrono::steady_clock;
  const bool faulty = w.rank() == in.faulty;
  const Call call{in.kind, in.size};
  const Call other{in.kind == CollectiveKind::all_gather ? CollectiveKind::all_reduce
                                                         : CollectiveKind::all_gather,
                   3};
  auto begin = Clock::now();
  try {
    for (int i = 0; i < 3; ++i) {
      begin = Clock::now();
      if (!faulty || i != 1) {
        run(w.group(), call);
        if (in.fault == Fault::order) run(w.group(), other);
      } else if (in.fault >= Fault::kind) {
        Call mistake = call;
        wrong(in.fault, mistake);
        if (in.fault == Fault::order) run(w.group(), other);
        run(w.group(), mistake);
      } else {
        std::vector<Ref<Work>> works;
        if (in.moment == Moment::inside) works = start(w.group(), call);
        if (in.moment == Moment::after) run(w.group(), call);
        if (in.fault == Fault::returns) return;
        misbehave(w, in);
        for (const auto& work : works) work->wait();
      }
      mine.longest = std::max(mine.longest, Clock::now() - begin);
    }
  } catch (const Error& e) {
    mine.longest = std::max(mine.longest, Clock::now() - begin);
    mine.error = e.kind();
    mine.text = e.what();
    throw;
  }
}

/// All that make sense; the faulty rank changes from one to the next.
inline std::vector<Injection> every_injection(bool processes) {
  using Kind = CollectiveKind;
  constexpr Kind kKinds[]{Kind::all_reduce,     Kind::reduce,     Kind::broadcast, Kind::all_gather,
                          Kind::reduce_scatter, Kind::all_to_all, Kind::gather,    Kind::scatter,
                          Kind::send,           Kind::barrier};
  std::vector<Injection> injections;
  int next = 0;
  for (const Kind kind : kKinds) {
    for (const int64_t size : {6, 120'000}) {
      if (kind == Kind::barrier && size > 6) continue;
      for (int f = 0; f <= static_cast<int>(Fault::order); ++f) {
        const auto fault = static_cast<Fault>(f);
        const bool needs_process = fault >= Fault::exits && fault <= Fault::is_stopped;
        if (needs_process && !processes) continue;
        for (const Moment moment : {Moment::before, Moment::inside, Moment::after}) {
          Call call{kind, size};
          if (fault >= Fault::kind && (moment != Moment::before || !wrong(fault, call))) continue;
          injections.push_back({kind, size, fault, moment, next++ % kFaultRanks});
        }
      }
    }
  }
  return injections;
}

/// Holds what the ranks report against what must be.
inline void check_outcomes(const Injection& in, const std::vector<Outcome>& outcomes,
                           const std::string& what) {
  const bool late = in.fault == Fault::stalls || in.fault == Fault::is_stopped;
  const std::string expected = late                      ? "CollectiveTimeout"
                               : in.fault >= Fault::kind ? "CollectiveMismatch"
                                                         : "PeerFailed";
  for (int r = 0; r < kFaultRanks; ++r) {
    const Outcome& o = outcomes[static_cast<size_t>(r)];
    if (r == in.faulty) {
      if (in.fault >= Fault::kind || in.fault == Fault::stalls) {
        EXPECT_EQ(o.error, expected) << in.text() << ", " << what << ", itself: " << o.text;
      }
      continue;
    }
    EXPECT_EQ(o.error, expected) << in.text() << ", " << what << ", rank " << r << ": " << o.text;
    EXPECT_NE(o.text.find(concat("rank ", in.faulty)), std::string::npos)
        << in.text() << ", " << what << ", rank " << r << " does not name the culprit: " << o.text;
    EXPECT_LT(o.longest, in.deadline() + std::chrono::seconds(1))
        << in.text() << ", " << what << ", rank " << r;
  }
}

}  // namespace tessera::test
