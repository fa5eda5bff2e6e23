// SPDX-License-Identifier: Apache-2.0
// Collectives between two ranks, 1 KiB to 64 MiB, beside memcpy: both ranks copying as many bytes
// at once, which is the least that an all_reduce in place reads and writes. Sizes are of the whole
// tensor. Back ends: threads (payloads move from tensor to tensor) and staged (through slots, as
// between processes of one host); under mpirun, srun or torchrun: the processes.
#include "tessera/bench/support.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/launch/threads_impl.h"

#include <cstring>

namespace tessera::bench {
namespace {

// Least microseconds per call of `repeats` runs, on this rank: what other programs take from a
// shared machine only adds. All ranks call f equally often.
double collective_us(ProcessGroup& group, const std::function<void()>& f, int64_t bytes,
                     int repeats) {
  const int64_t count = std::clamp<int64_t>((int64_t{256} << 20) / (bytes + 100'000), 3, 2000);
  for (int64_t i = 0; i < count; ++i) f();
  std::vector<double> times;
  for (int r = 0; r < repeats; ++r) {
    group.barrier()->wait();
    const auto start = Clock::now();
    for (int64_t i = 0; i < count; ++i) f();
    times.push_back(seconds_since(start) / static_cast<double>(count));
  }
  return *std::ranges::min_element(times) * 1e6;
}

void measure(ProcessGroup& group, std::string_view backend, int repeats, Lines& lines) {
  const bool first = group.rank() == 0;
  if (first) {
    fmt::print("\n{}, {} ranks, microseconds\n{:>10} {:>12} {:>12} {:>15} {:>12} {:>10}\n", backend,
               group.size(), "bytes", "memcpy", "all_reduce", "reduce_scatter", "all_gather",
               "of bound");
  }
  for (int64_t bytes = 1 << 10; bytes <= 64 << 20; bytes *= 4) {
    const int64_t n = bytes / 4, part = n / group.size();
    const Tensor whole = empty({n}), other = empty({n}), piece = empty({part});
    std::memset(whole.raw_data(), 0, static_cast<size_t>(bytes));
    std::memset(other.raw_data(), 0, static_cast<size_t>(bytes));
    std::memset(piece.raw_data(), 0, static_cast<size_t>(part * 4));
    const double copy = collective_us(
        group, [&] { std::memcpy(other.raw_data(), whole.raw_data(), static_cast<size_t>(bytes)); },
        bytes, repeats);
    const double reduce = collective_us(
        group, [&] { group.all_reduce(whole)->wait(); }, bytes, repeats);
    const double scatter = collective_us(
        group, [&] { group.reduce_scatter(whole, piece)->wait(); }, bytes, repeats);
    const double gather = collective_us(
        group, [&] { group.all_gather(piece, whole)->wait(); }, bytes, repeats);
    if (!first) continue;
    fmt::print("{:>10} {:>12.2f} {:>12.2f} {:>15.2f} {:>12.2f} {:>9.0f}%\n", bytes, copy, reduce,
               scatter, gather, 100 * copy / reduce);
    lines.write({{"backend", backend},
                 {"ranks", group.size()},
                 {"bytes", bytes},
                 {"memcpy_us", copy},
                 {"all_reduce_us", reduce},
                 {"reduce_scatter_us", scatter},
                 {"all_gather_us", gather}});
  }
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  return bench::run([&] {
    bench::Arguments arguments(argc, argv);
    const int ranks = arguments.number("--ranks", 2), repeats = arguments.number("--repeats", 7);
    const int threads = arguments.number("--threads", 0, 0);
    const std::string only = arguments.text("--backend");
    const Launch launch = detect_launch();
    const std::string path = arguments.text("--json");
    bench::Lines lines(launch.rank == 0 ? path : "");
    arguments.finish();
    if (launch.launcher != Launcher::single) {
      run_launched(launch, [&](World& w) {
        bench::measure(w.group(), w.group().backend(), repeats, lines);
      });
      return;
    }
    for (const PayloadMode mode : {PayloadMode::direct, PayloadMode::staged}) {
      const std::string_view name = mode == PayloadMode::direct ? "threads" : "staged";
      if (!only.empty() && only != name) continue;
      run_threads(
          ranks, [&](World& w) { bench::measure(w.group(), name, repeats, lines); },
          {.threads = threads}, mode);
    }
  });
}
