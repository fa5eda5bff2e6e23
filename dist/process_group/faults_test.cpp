// SPDX-License-Identifier: Apache-2.0
// Injected faults: in each collective, before, inside and after it, one rank throws, returns,
// stalls, aborts or calls something else. Every other rank must end, in the right typed error that
// names the rank, within its deadline and a second.
#include "tessera/dist/process_group/threads_impl.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>

namespace tessera {
namespace {

using Kind = CollectiveKind;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int kRanks = 3;
constexpr auto kDeadline = 250ms;

enum class Fault { throws, returns, stalls, aborts, kind, dtype, count, op, root, order };
enum class Moment { before, inside, after };
constexpr std::array<const char*, 10> kFaultNames{
    "throw",       "return",      "stall",    "abort",      "wrong kind",
    "wrong dtype", "wrong count", "wrong op", "wrong root", "wrong order"};
constexpr std::array<const char*, 3> kMomentNames{"before", "inside", "after"};

struct Injection {
  PayloadMode mode;
  Kind kind;  // Kind::send stands for a ring of send and recv
  int64_t size;
  Fault fault;
  Moment moment;
  int faulty;

  [[nodiscard]] std::string text() const {
    return concat(kFaultNames[static_cast<size_t>(fault)], ' ',
                  kMomentNames[static_cast<size_t>(moment)], ' ', kind, " of ", size, " by rank ",
                  faulty, mode == PayloadMode::direct ? ", direct" : ", staged");
  }
};

struct Call {
  Kind kind;
  int64_t size;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
};

// Starts one collective; the works of the call.
std::vector<Ref<Work>> start(ProcessGroup& g, const Call& call) {
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

void run(ProcessGroup& g, const Call& call) {
  for (const auto& work : start(g, call)) work->wait();
  if (call.kind == Kind::send) g.barrier()->wait();  // a sender may be far from the fault
}

void misbehave(World& w, const Injection& in) {
  switch (in.fault) {
    case Fault::throws: fail<DataError>("injected", "a fault");
    case Fault::stalls: std::this_thread::sleep_for(kDeadline + 200ms); break;
    case Fault::aborts: w.group().abort("injected"); fail<DataError>("injected", "after an abort");
    default: break;
  }
}

// What the faulty rank calls in place of `call`; false if the fault makes no sense there.
bool wrong(Fault fault, Call& call) {
  const Kind k = call.kind;
  switch (fault) {
    case Fault::kind:
      call.kind = k == Kind::broadcast || k == Kind::send ? Kind::all_reduce : Kind::broadcast;
      return true;
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

struct Outcome {
  std::string error, text;
  Clock::duration longest{};  // of the calls made
};

std::vector<Outcome> inject(const Injection& in, const std::string& folder) {
  std::vector<Outcome> outcomes(kRanks);
  const auto rank = [&](World& w) {
    Outcome& mine = outcomes[static_cast<size_t>(w.rank())];
    const bool faulty = w.rank() == in.faulty;
    const Call call{in.kind, in.size};
    const Call other{in.kind == Kind::all_gather ? Kind::all_reduce : Kind::all_gather, 3};
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
  };
  WorldOptions options;
  options.threads = 1;
  options.init_timeout = kDeadline;
  options.flight_folder = folder;
  try {
    run_threads(kRanks, rank, options, in.mode);
  } catch (const Error&) {
  }
  return outcomes;
}

void check(const Injection& in, const std::vector<Outcome>& outcomes) {
  const std::string expected = in.fault == Fault::stalls ? "CollectiveTimeout"
                               : in.fault >= Fault::kind ? "CollectiveMismatch"
                                                         : "PeerFailed";
  for (int r = 0; r < kRanks; ++r) {
    const Outcome& o = outcomes[static_cast<size_t>(r)];
    if (r == in.faulty) {
      if (in.fault >= Fault::kind || in.fault == Fault::stalls) {
        EXPECT_EQ(o.error, expected) << in.text() << ", itself: " << o.text;
      }
      continue;
    }
    EXPECT_EQ(o.error, expected) << in.text() << ", rank " << r << ": " << o.text;
    EXPECT_NE(o.text.find(concat("rank ", in.faulty)), std::string::npos)
        << in.text() << ", rank " << r << " does not name the culprit: " << o.text;
    EXPECT_LT(o.longest, kDeadline + 1s) << in.text() << ", rank " << r;
  }
}

TEST(Faults, EveryCollectiveEveryMomentEveryFault) {
  constexpr Kind kKinds[]{Kind::all_reduce,     Kind::reduce,     Kind::broadcast, Kind::all_gather,
                          Kind::reduce_scatter, Kind::all_to_all, Kind::gather,    Kind::scatter,
                          Kind::send,           Kind::barrier};
  std::vector<Injection> injections;
  int next = 0;
  for (const PayloadMode mode : {PayloadMode::direct, PayloadMode::staged}) {
    for (const Kind kind : kKinds) {
      for (const int64_t size : {6, 120'000}) {
        if (kind == Kind::barrier && size > 6) continue;
        for (int f = 0; f <= static_cast<int>(Fault::order); ++f) {
          const auto fault = static_cast<Fault>(f);
          for (const Moment moment : {Moment::before, Moment::inside, Moment::after}) {
            Call call{kind, size};
            if (fault >= Fault::kind && (moment != Moment::before || !wrong(fault, call))) continue;
            if (kind == Kind::send && fault == Fault::kind) continue;  // that is never calling it
            injections.push_back({mode, kind, size, fault, moment, next++ % kRanks});
          }
        }
      }
    }
  }
  const auto folder = std::filesystem::temp_directory_path() / concat("tessera_faults_", next);
  std::atomic<size_t> at{0};
  std::mutex mutex;
  std::map<std::string, int> counts;
  std::vector<std::thread> workers;  // most injections sleep, so several run at once
  for (int i = 0; i < 6; ++i) {
    workers.emplace_back([&] {
      for (size_t j = at++; j < injections.size(); j = at++) {
        const Injection& in = injections[j];
        const auto outcomes = inject(in, folder.string());
        const std::lock_guard guard(mutex);
        check(in, outcomes);
        ++counts[concat(kFaultNames[static_cast<size_t>(in.fault)], ' ',
                        kMomentNames[static_cast<size_t>(in.moment)])];
      }
    });
  }
  for (auto& t : workers) t.join();
  std::filesystem::remove_all(folder);
  for (const auto& [what, count] : counts) std::cout << count << " x " << what << '\n';
  std::cout << injections.size() << " injections, " << injections.size() * (kRanks - 1)
            << " survivors\n";
  EXPECT_GE(injections.size(), 200u);
}

}  // namespace
}  // namespace tessera
