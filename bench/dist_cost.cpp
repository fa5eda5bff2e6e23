// SPDX-License-Identifier: Apache-2.0
// What distribution costs the host where the arithmetic is next to nothing: a cached distributed op
// beside the local one, a call that must be planned, a redistribution that has nothing to do. Runs
// in a world of which only this rank exists. bench/peers/dist_cost.py measures the same of DTensor.
#include "tessera/bench/support.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/views/views.h"

namespace tessera::bench {
namespace {

class Report {
 public:
  explicit Report(const std::string& json) : lines_(json) {}
  void write(std::string_view name, double us) {
    fmt::print("{:34} {:9.1f} ns\n", name, us * 1e3);
    std::fflush(stdout);
    lines_.write({{"name", name}, {"shape", {8, 8}}, {"dtype", "float32"}, {"time_us", us}});
  }

 private:
  Lines lines_;
};

void measure(Report& report) {
  const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
  const Layout cut = Layout::of(mesh, {Shard(0), Shard(1)});
  const Tensor a = normal({4, 4}, {7, 1}), b = normal({4, 4}, {7, 2});
  const Tensor x = make_distributed(a, {8, 8}, cut), y = make_distributed(b, {8, 8}, cut);
  Tensor w = a.detach(), v = make_distributed(copy(a), {8, 8}, cut);
  w.set_requires_grad();
  v.set_requires_grad();
  {
    const NoGrad guard;
    report.write("add_local", median_us([&] { (void)(a + b); }));
    report.write("add_distributed", median_us([&] { (void)(x + y); }));
    report.write("matmul_local", median_us([&] { (void)matmul(a, b); }));
    const Tensor p = make_distributed(a, {8, 4}, Layout::of(mesh, {Shard(0), Replicate()}));
    const Tensor q = make_distributed(b, {4, 8}, Layout::of(mesh, {Replicate(), Shard(1)}));
    report.write("matmul_distributed", median_us([&] { (void)matmul(p, q); }));
    report.write("redistribute_no_op", median_us([&] { (void)redistribute(x, cut); }));
  }
  report.write("add_local_recorded", median_us([&] { (void)(w + b); }));
  report.write("add_distributed_recorded", median_us([&] { (void)(v + y); }));
  // A slice that begins elsewhere is another plan; they are more than the table of plans holds.
  const NoGrad guard;
  constexpr int64_t kWide = 65536;
  const Tensor wide =
      make_distributed(zeros({4, kWide}), {8, kWide}, Layout::of(mesh, {Shard(0), Replicate()}));
  int64_t at = 0;
  report.write("plan_miss", median_us([&] {
                 at = (at + 1) % (kWide - 4);
                 (void)slice(wide, 1, {at, at + 4});
               }));
  int64_t rows = 8;
  const Layout replicated = Layout::replicated(mesh);
  report.write("redistribute_first", median_us([&] {
                 const Tensor fresh = make_distributed(b, {rows += 8, 8}, replicated);
                 (void)detail::redistribute_unrecorded(fresh, cut, "forward");
               }));
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  return bench::run([&] {
    bench::Arguments arguments(argc, argv);
    const int threads = arguments.number("--threads", 1);
    bench::Report report(arguments.text("--json"));
    arguments.finish();
    fmt::print("distribution's host cost, threads {}\n", threads);
    WorldOptions options;
    options.threads = threads;
    run_fake(
        4, 0, [&](World&) { bench::measure(report); }, options);
  });
}
