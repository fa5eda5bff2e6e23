// SPDX-License-Identifier: Apache-2.0
// The most that this device does: products of random matrices, copies, and what a call costs the
// host: bench_ceilings [--device D] [--threads N] [--json FILE]. `--about` says in one line of JSON
// which device it is and measures nothing.
#include "tessera/bench/support.h"

namespace tessera::bench {
namespace {

Json about(Device device, int threads) {
  Json line{{"name", "about"}, {"device", device_name(device, threads)}};
  if (device.is_cuda()) {
    line["devices"] = Process::get().cuda().device_count();
    line["memory_bytes"] = Process::get().cuda().device_memory(device.index);
  }
  return line;
}

void measure(Device device, int threads, Lines& lines) {
  const Ceilings ceilings = measure_ceilings(device);
  fmt::print("{}\n", describe(ceilings, threads, device));
  Json line{{"name", "ceilings"}};
  line.update(ceilings.json());
  lines.write(line);

  const NoGrad guard;
  const Tensor x = normal({8}, {1, 1}, 0, 1, DType::f32, device);
  const auto report = [&](const std::string& name, double us) {
    fmt::print("{:46} {:9.3f} us\n", name, us);
    lines.write({{"name", name}, {"time_us", us}});
  };
  // The queue is never longer than a window of 1000, so that the host does not wait for room in it.
  const auto queued = [&] {
    constexpr int kCalls = 1000;
    std::vector<double> times;
    for (int round = 0; round < 9; ++round) {
      wait_for(device);
      const auto start = Clock::now();
      for (int i = 0; i < kCalls; ++i) (void)(x + x);
      times.push_back(seconds_since(start) / kCalls);
    }
    wait_for(device);
    return median(times) * 1e6;
  };
  report("a call, until the host goes on", queued());
  report("a call, until it is done, one after another",
         median_us([&] { (void)(x + x); }, 7, 0.03, device));
  report("a call and a wait for it", median_us([&] {
           (void)(x + x);
           wait_for(device);
         }));
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  return bench::run([&] {
    bench::Arguments arguments(argc, argv);
    const bool about = arguments.flag("--about");
    const int threads = arguments.number("--threads", Process::get().cores());
    const Device device = arguments.device();
    bench::Lines lines(arguments.text("--json"));
    arguments.finish();
    const Session session({.threads = threads});
    const bench::Json line = bench::about(device, threads);
    if (about) return fmt::print("{}\n", line.dump());
    lines.write(line);
    bench::measure(device, threads, lines);
  });
}
