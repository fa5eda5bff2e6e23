// SPDX-License-Identifier: Apache-2.0
// Variants of device kernels at the shapes of models: bench_kernels [--only NAME] [--json FILE].
// Times are the device's, by CUPTI: the mean of some launches, before each of which its caches are
// overwritten. Each variant's results are compared with the first one's, which libtessera_cuda.so
// runs.
#include "tessera/bench/device_times.h"
#include "tessera/bench/support.h"
#include "tessera/kernels/reduce/reduce.h"
#include "tessera/kernels/sweep.h"

#include <deque>
#include <dlfcn.h>
#include <filesystem>

namespace tessera::bench {
namespace {

constexpr int kLaunches = 20;
constexpr int64_t kCacheBytes = int64_t{256} << 20;

constexpr const char* kUsage =
    "usage: bench_kernels [--only NAME] [--json FILE]\n"
    "Times variants of kernels on the first GPU; NAME is the beginning of a kernel's name.\n";

// Never closed: the variants are its code.
Sweep open_sweep() {
  const char* cuda = std::getenv("TESSERA_CUDA_LIBRARY");
  const auto folder = cuda ? std::filesystem::path(cuda).parent_path() : "lib";
  const std::string path = folder / "libtessera_sweep.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = library ? dlsym(library, "tessera_sweep") : nullptr;
  if (!symbol)
    fail<DeviceError>("bench_kernels", "cannot open ", path, ": ", dlerror(),
                      "; it lies beside libtessera_cuda.so, which TESSERA_CUDA_LIBRARY names");
  Sweep sweep;
  reinterpret_cast<decltype(&tessera_sweep)>(symbol)(sweep);
  return sweep;
}

// What one variant did with one case.
struct Row {
  const SweptKernel* kernel;
  const SweepCase* sweep_case;
  const SweepVariant* variant;
  std::string key;
  double difference = 0;
  std::string error;
};

double bytes_of(const SweepCase& c) {
  double bytes = 0;
  for (const auto* operands : {&c.in, &c.out})
    for (const auto& o : *operands)
      bytes += static_cast<double>(o.shape.numel() * item_size(o.dtype));
  return bytes;
}

double norm_of(const Tensor& x) { return std::sqrt(sum(x * x).item()); }

// |a - b| / |b|, the worst of all pairs.
double difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const Tensor want = cast(b[i], DType::f32), off = cast(a[i], DType::f32) - want;
    const double each = norm_of(off) / norm_of(want);
    worst = each == each ? std::max(worst, each) : each;  // NaN: an element that nobody wrote
    if (worst != worst) break;
  }
  return worst;
}

class Measured {
 public:
  explicit Measured(Device device) : device_(device), times_(device) {
    if (!times_.why_not().empty()) fail<DeviceError>("bench_kernels", times_.why_not());
  }

  void measure(const SweptKernel& kernel, const SweepCase& c) {
    std::vector<Tensor> in, out(c.out.size()), first;
    for (const auto& o : c.in)
      in.push_back(normal(o.shape, {11, in.size()}, 0, 1, o.dtype, device_));
    for (const SweepVariant& variant : kernel.variants) {
      Row& row = rows_.emplace_back(
          Row{&kernel, &c, &variant, concat(kernel.name, '/', c.name, '/', variant.name), 0, {}});
      const auto run = [&] { variant.run(in, out, Process::get().cuda().stream(device_.index)); };
      try {
        for (size_t i = 0; i < out.size(); ++i)
          out[i] = full(c.out[i].shape, std::numeric_limits<double>::quiet_NaN(), c.out[i].dtype,
                        device_);
        run();
        if (first.empty()) first = out;
        row.difference = difference(out, first);
        for (int i = 0; i < kLaunches; ++i) {
          (void)full({kCacheBytes}, 0, DType::u8, device_);
          times_.ended(kOptimizer, "between");
          run();
          times_.ended(kForward, row.key);
        }
      } catch (const DeviceError& e) {
        row.error = e.what();
      }
      wait_for(device_);
    }
  }

  void report(const Ceilings& ceilings, Lines& lines) {
    (void)times_.finish();
    for (const Row& row : rows_) {
      const double seconds = times_.seconds({kForward, row.key}) / kLaunches;
      const double limit = std::max(row.sweep_case->flops / ceilings.gemm_bf16,
                                    bytes_of(*row.sweep_case) / ceilings.copy);
      const double share = row.error.empty() && seconds > 0 ? 100 * limit / seconds : 0;
      Json line = {{"name", "variant"},
                   {"kernel", row.kernel->name},
                   {"case", row.sweep_case->name},
                   {"variant", row.variant->name},
                   {"chosen", row.variant == &row.kernel->variants[0]}};
      if (!row.error.empty()) {
        line["error"] = row.error;
        fmt::print("{}: {}\n", row.key, row.error);
      } else {
        line["time_us"] = seconds * 1e6;
        line["percent_of_limit"] = share;
        line["difference"] = row.difference;
        fmt::print("{}: {:.1f} us, {:.0f} % of the limit, within {:.1e} of the first\n", row.key,
                   seconds * 1e6, share, row.difference);
      }
      lines.write(line);
    }
  }

 private:
  const Device device_;
  DeviceTimes times_;
  std::deque<Row> rows_;  // the trace has views of their keys
};

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  return bench::run([&] {
    bench::Arguments arguments(argc, argv);
    const std::string only = arguments.text("--only");
    bench::Lines lines(arguments.text("--json"));
    arguments.finish();
    if (arguments.helps(bench::kUsage)) return;
    const Session session({.threads = 1});
    const NoGrad guard;
    const Device device = rank_device(DeviceChoice::cuda, 0, 1);
    const Sweep sweep = bench::open_sweep();
    const bench::Ceilings ceilings = bench::measure_ceilings(device);
    bench::Measured measured(device);
    for (const SweptKernel& kernel : sweep)
      if (kernel.name.starts_with(only))
        for (const SweepCase& c : kernel.cases) measured.measure(kernel, c);
    measured.report(ceilings, lines);
  });
}
