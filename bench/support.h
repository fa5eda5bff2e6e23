// SPDX-License-Identifier: Apache-2.0
// What the benchmarks share: command lines, JSON lines, a median timer and this machine's ceilings.
// The timer is the one of bench/peers/common.py, so that both sides are measured alike.
#pragma once

#include "tessera/autograd/autograd.h"
#include "tessera/core/cuda_backend.h"
#include "tessera/core/error.h"
#include "tessera/core/process.h"
#include "tessera/dist/launch/rank_device.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/matmul/matmul.h"
#include "tessera/kernels/pointwise/pointwise.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace tessera::bench {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

/// Waits until the device has done what it was given; a CPU always has.
inline void wait_for(Device device) {
  if (device.is_cuda()) Process::get().cuda().synchronize(device.index);
}

/// Median microseconds per call over `repeats` runs of `target_s` each, after a warm-up. Each run
/// ends when `device` has done its work.
template <class F>
double median_us(F&& f, int repeats = 7, double target_s = 0.03, Device device = kCpu) {
  f();
  wait_for(device);
  auto start = Clock::now();
  f();
  wait_for(device);
  const double once = seconds_since(start);
  // Above the peer's 20000 calls: a call here is far shorter, and a run should still last target_s.
  const int64_t count =
      std::clamp<int64_t>(static_cast<int64_t>(target_s / std::max(once, 1e-8)), 1, 1000000);
  for (int64_t i = 0; i < std::min<int64_t>(count, 100); ++i) f();
  std::vector<double> times;
  for (int r = 0; r < repeats; ++r) {
    start = Clock::now();
    for (int64_t i = 0; i < count; ++i) f();
    wait_for(device);
    times.push_back(seconds_since(start) / static_cast<double>(count));
  }
  return median(times) * 1e6;
}

/// `--name value` and `--name`; what begins with --benchmark_ is left to Google Benchmark.
class Arguments {
 public:
  Arguments(int argc, char** argv) : rest_{argv[0]} {
    for (int i = 1; i < argc; ++i) {
      const std::string_view word = argv[i];
      if (word.starts_with("--benchmark_") || word == "--help") rest_.push_back(argv[i]);
      else words_.emplace_back(word);
    }
  }
  bool flag(std::string_view name) {
    const auto at = std::ranges::find(words_, name);
    if (at == words_.end()) return false;
    words_.erase(at);
    return true;
  }
  std::string text(std::string_view name, std::string fallback = {}) {
    const auto at = std::ranges::find(words_, name);
    if (at == words_.end()) return fallback;
    if (at + 1 == words_.end()) fail<ValueError>("bench", name, " needs a value");
    fallback = *(at + 1);
    words_.erase(at, at + 2);
    return fallback;
  }
  int number(std::string_view name, int fallback, int least = 1) {
    const std::string value = text(name, std::to_string(fallback));
    size_t end = 0;
    int n = 0;
    try {
      n = std::stoi(value, &end);
    } catch (const std::exception&) {
      end = 0;
    }
    if (end == 0 || end != value.size() || n < least) {
      fail<ValueError>("bench", name, " is '", value, "', expected an integer of at least ", least);
    }
    return n;
  }
  /// `--device auto | cpu | cuda`.
  DeviceChoice device_choice() {
    const std::string name = text("--device", "auto");
    for (const auto& [known, choice] : device_choices())
      if (known == name) return choice;
    fail<ValueError>("bench", "--device is '", name, "', expected auto, cpu or cuda");
  }
  /// Its device, for programs of one rank.
  Device device() { return rank_device(device_choice(), 0, 1); }
  /// Call after all options were read: what is left is unknown.
  void finish() const {
    if (!words_.empty())
      fail<ValueError>("bench", "unknown argument '", words_[0], "'; bench/README.md lists them");
  }
  /// For programs without Google Benchmark, after finish: whether `--help` was given, which prints
  /// `usage`. ValueError: options of Google Benchmark.
  [[nodiscard]] bool helps(const char* usage) const {
    if (rest_.size() == 1) return false;
    if (std::string_view(rest_[1]) != "--help")
      fail<ValueError>("bench", "unknown argument '", rest_[1], "'; --help lists them");
    fmt::print("{}", usage);
    return true;
  }
  [[nodiscard]] std::vector<char*>& rest() { return rest_; }

 private:
  std::vector<std::string> words_;
  std::vector<char*> rest_;
};

/// One JSON object a line into the file of `--json`; nothing without one.
class Lines {
 public:
  explicit Lines(const std::string& path) {
    if (path.empty()) return;
    file_.open(path);
    if (!file_) fail<ValueError>("bench", "cannot write '", path, "'");
  }
  void write(const Json& line) {
    if (file_.is_open()) file_ << line.dump() << std::endl;
  }

 private:
  std::ofstream file_;
};

/// The most that this machine was seen to do, in this run and with these threads.
struct Ceilings {
  double gemm_f32 = 0, gemm_bf16 = 0;  ///< floating-point operations per second of a square product
  double copy = 0;                     ///< bytes read and written per second by a copy
  [[nodiscard]] double flops(DType t) const { return t == DType::bf16 ? gemm_bf16 : gemm_f32; }
  /// Shortest seconds for `cost` by either ceiling.
  [[nodiscard]] double seconds(const Cost& cost, DType t) const {
    return std::max(cost.flops / flops(t), cost.bytes / copy);
  }
  [[nodiscard]] Json json() const {
    return {{"gemm_f32_gflops", gemm_f32 / 1e9},
            {"gemm_bf16_gflops", gemm_bf16 / 1e9},
            {"copy_gbytes", copy / 1e9}};
  }
};

/// Least seconds of a call in windows of a tenth of a second at most. A window ends when `device`
/// has done its work, so that what a wait costs is shared by its calls.
template <class F> double least_seconds(F&& f, Device device, int windows) {
  const auto window = [&](int64_t calls) {
    wait_for(device);
    const auto start = Clock::now();
    for (int64_t i = 0; i < calls; ++i) f();
    wait_for(device);
    return seconds_since(start) / static_cast<double>(calls);
  };
  (void)window(1);
  double best = window(1);
  const int64_t calls = std::clamp<int64_t>(static_cast<int64_t>(0.1 / best), 1, 50);
  for (int i = 0; i < windows; ++i) best = std::min(best, window(calls));
  return best;
}

/// Products of random 2048 x 2048 matrices and copies of 64 MiB; larger ones, up to 8192 x 8192 and
/// 1 GiB, where one takes less than a millisecond, as on a GPU.
inline Ceilings measure_ceilings(Device device = kCpu) {
  const NoGrad guard;
  constexpr double kLong = 1e-3;
  const auto product_flops = [device](DType t) {
    for (int64_t size = 2048;; size *= 2) {
      const Tensor a = normal({size, size}, {1, 1}, 0, 1, t, device),
                   b = normal({size, size}, {1, 2}, 0, 1, t, device);
      const double s = least_seconds([&] { (void)matmul(a, b); }, device, 8);
      if (s > kLong || size == 8192) return 2.0 * std::pow(static_cast<double>(size), 3) / s;
    }
  };
  const auto copied_bytes = [device] {
    for (int64_t elements = int64_t{16} << 20;; elements *= 2) {
      const Tensor x = normal({elements}, {1, 3}, 0, 1, DType::f32, device);
      const double s = least_seconds([&] { (void)copy(x); }, device, 15);
      if (s > kLong || elements == int64_t{256} << 20)
        return 2.0 * static_cast<double>(x.numel()) * 4 / s;
    }
  };
  return {.gemm_f32 = product_flops(DType::f32),
          .gemm_bf16 = product_flops(DType::bf16),
          .copy = copied_bytes()};
}

/// `NVIDIA H100 80GB HBM3`; of the CPU, the number of threads.
inline std::string device_name(Device device, int threads) {
  if (device.is_cuda()) return Process::get().cuda().device_name(device.index);
  return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
}

inline std::string describe(const Ceilings& c, int threads, Device device = kCpu) {
  return fmt::format("ceilings of {}: GEMM f32 {:.0f} and bf16 {:.0f} GFLOP/s, copy {:.1f} GB/s",
                     device_name(device, threads), c.gemm_f32 / 1e9, c.gemm_bf16 / 1e9,
                     c.copy / 1e9);
}

/// main's body with errors as one line and exit status 1.
inline int run(const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}

}  // namespace tessera::bench
