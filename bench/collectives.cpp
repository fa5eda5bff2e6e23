// SPDX-License-Identifier: Apache-2.0
// Collectives between two ranks, 1 KiB to 64 MiB, beside a copy: both ranks copying as many bytes
// at once, which is the least that an all_reduce in place reads and writes. Sizes are of the whole
// tensor. Back ends: threads (payloads move from tensor to tensor) and staged (through slots, as
// between processes of one host); under mpirun, srun or torchrun: the processes; between GPUs nccl,
// and what it took rank 0 to connect. Then messages between the first two ranks: half of a round
// trip, and a recv whose sender computes (one long op) as soon as it has posted.
#include "tessera/bench/support.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/launch/threads_impl.h"
#include "tessera/dist/nccl/nccl.h"

namespace tessera::bench {
namespace {

// Least microseconds per call of `repeats` runs, on this rank: what other programs take from a
// shared machine only adds. All ranks call f equally often. A run ends when the device has done it.
double collective_us(ProcessGroup& group, const std::function<void()>& f, int64_t bytes,
                     int repeats, Device device) {
  const int64_t count = std::clamp<int64_t>((int64_t{256} << 20) / (bytes + 100'000), 3, 2000);
  for (int64_t i = 0; i < count; ++i) f();
  wait_for(device);
  std::vector<double> times;
  for (int r = 0; r < repeats; ++r) {
    group.barrier()->wait();
    const auto start = Clock::now();
    for (int64_t i = 0; i < count; ++i) f();
    wait_for(device);
    times.push_back(seconds_since(start) / static_cast<double>(count));
  }
  return *std::ranges::min_element(times) * 1e6;
}

void measure(ProcessGroup& group, std::string_view backend, int repeats, Device device,
             Lines& lines) {
  const bool first = group.rank() == 0;
  if (first) {
    fmt::print("\n{} on {}, {} ranks, microseconds\n{:>10} {:>12} {:>12} {:>15} {:>12} {:>10}\n",
               backend, concat(device), group.size(), "bytes", "copy", "all_reduce",
               "reduce_scatter", "all_gather", "of bound");
  }
  for (int64_t bytes = 1 << 10; bytes <= 64 << 20; bytes *= 4) {
    const int64_t n = bytes / 4, part = n / group.size();
    const auto made = [&](int64_t elements) { return zeros({elements}, DType::f32, device); };
    const Tensor whole = made(n), other = made(n), piece = made(part);
    const auto time = [&](const std::function<void()>& f) {
      return collective_us(group, f, bytes, repeats, device);
    };
    const double copy = time([&] { copy_bytes(other, whole); });
    const double reduce = time([&] { group.all_reduce(whole)->wait(); });
    const double scatter = time([&] { group.reduce_scatter(whole, piece)->wait(); });
    const double gather = time([&] { group.all_gather(piece, whole)->wait(); });
    if (!first) continue;
    fmt::print("{:>10} {:>12.2f} {:>12.2f} {:>15.2f} {:>12.2f} {:>9.0f}%\n", bytes, copy, reduce,
               scatter, gather, 100 * copy / reduce);
    lines.write({{"backend", backend},
                 {"device", concat(device)},
                 {"ranks", group.size()},
                 {"bytes", bytes},
                 {"memcpy_us", copy},
                 {"all_reduce_us", reduce},
                 {"reduce_scatter_us", scatter},
                 {"all_gather_us", gather}});
  }
  const auto [communicators, seconds, taken] = nccl_connections();
  if (!first || communicators == 0) return;
  fmt::print("connected in {:.2f} s, about {:.1f} MiB of device memory\n", seconds,
             static_cast<double>(taken) / (1 << 20));
  lines.write({{"backend", backend},
               {"device", concat(device)},
               {"ranks", group.size()},
               {"communicators", communicators},
               {"connect_s", seconds},
               {"connect_bytes", taken}});
}

// Milliseconds of a recv on rank 1; rank 0 goes from its send into a matmul. The barrier lets both
// begin at once.
double recv_beside_op_ms(ProcessGroup& group, const Tensor& x, const Tensor& long_op) {
  group.barrier()->wait();
  const auto start = Clock::now();
  if (group.rank() == 0) {
    const Ref<Work> sent = group.send(x, 1);
    (void)matmul(long_op, long_op);
    sent->wait();
  } else if (group.rank() == 1) {
    group.recv(x, 0)->wait();
  }
  const double ms = seconds_since(start) * 1e3;
  group.barrier()->wait();
  return ms;
}

void measure_messages(ProcessGroup& group, std::string_view backend, int repeats, Device device,
                      Lines& lines) {
  const int me = group.rank();
  if (me == 1)
    fmt::print("\nmessages, {} on {}\n{:>10} {:>16} {:>10} {:>24}\n", backend, concat(device),
               "bytes", "half trip, us", "GB/s", "recv beside an op, ms");
  const Tensor long_op = zeros({1500, 1500}, DType::f32, device);
  for (const int64_t bytes : {int64_t{4}, int64_t{1} << 16, int64_t{1} << 24}) {
    const Tensor x = zeros({bytes / 4}, DType::f32, device);
    const double trip = collective_us(
        group,
        [&] {
          if (me == 0) (void)group.send(x, 1);
          if (me < 2) group.recv(x, 1 - me)->wait();
          if (me == 1) group.send(x, 0)->wait();
        },
        bytes, repeats, device);
    std::vector<double> beside;
    for (int i = 0; i < repeats; ++i) beside.push_back(recv_beside_op_ms(group, x, long_op));
    if (me != 1) continue;
    const double gigabytes = static_cast<double>(bytes) / (trip / 2) / 1e3;
    fmt::print("{:>10} {:>16.2f} {:>10.2f} {:>24.2f}\n", bytes, trip / 2, gigabytes,
               median(beside));
    lines.write({{"backend", backend},
                 {"device", concat(device)},
                 {"message_bytes", bytes},
                 {"half_trip_us", trip / 2},
                 {"recv_beside_op_ms", median(beside)}});
  }
}

void measure_all(ProcessGroup& group, std::string_view backend, int repeats, Device device,
                 bool messages_alone, Lines& lines) {
  if (!messages_alone) measure(group, backend, repeats, device, lines);
  if (group.size() > 1) measure_messages(group, backend, repeats, device, lines);
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
    const bool messages_alone = arguments.flag("--messages");
    const DeviceChoice device = arguments.device_choice();
    const Launch launch = detect_launch();
    const std::string path = arguments.text("--json");
    bench::Lines lines(launch.rank == 0 ? path : "");
    arguments.finish();
    const bool processes = launch.launcher != Launcher::single;
    const Launch all = processes ? launch : detect_launch(ranks);
    const bool on_devices = rank_device(device, all).is_cuda();
    if (processes || on_devices) {
      const auto run = [&](World& w) {
        bench::measure_all(w.group(), on_devices ? "nccl" : w.group().backend(), repeats,
                           rank_device(device, w.local_rank(), w.local_ranks()), messages_alone,
                           lines);
      };
      run_launched(all, run, {.threads = threads});
      return;
    }
    for (const PayloadMode mode : {PayloadMode::direct, PayloadMode::staged}) {
      const std::string_view name = mode == PayloadMode::direct ? "threads" : "staged";
      if (!only.empty() && only != name) continue;
      run_threads(
          ranks,
          [&](World& w) {
            bench::measure_all(w.group(), name, repeats, kCpu, messages_alone, lines);
          },
          {.threads = threads}, mode);
    }
  });
}
