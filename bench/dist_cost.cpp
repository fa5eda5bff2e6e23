// SPDX-License-Identifier: Apache-2.0
// What distribution costs the host where the arithmetic is next to nothing: a cached distributed op
// beside the local one, a call that must be planned, a redistribution that has nothing to do. Runs
// in a world of which only this rank exists. bench/peers/dist_cost.py measures the same of DTensor.
#include "tessera/bench/support.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/dist/planner/strategy.h"
#include "tessera/dist/world.h"
#include "tessera/kernels/adamw/adamw.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/views/views.h"

#include <algorithm>

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

void measure(Report& report, Device device) {
  const Mesh mesh = Mesh::make({{"dp", 2}, {"tp", 2}});
  const Layout cut = Layout::of(mesh, {Shard(0), Shard(1)});
  const auto random = [device](uint64_t stream) {
    return normal({4, 4}, {7, stream}, 0, 1, DType::f32, device);
  };
  const Tensor a = random(1), b = random(2);
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
  const Tensor wide = make_distributed(zeros({4, kWide}, DType::f32, device), {8, kWide},
                                       Layout::of(mesh, {Shard(0), Replicate()}));
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

// Plans of large calls on six axes, where no two operands lie alike.
void plan_large(Report& report) {
  const Mesh mesh = Mesh::make({{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}, {"e", 2}, {"f", 2}});
  std::vector<TensorMeta> metas;
  std::vector<AxisStates> states;
  const auto add = [&](const Shape& shape, bool partial, uint32_t seed) {
    std::vector<Placement> placements;
    for (int a = 0; a < mesh.axes() && shape.rank() > 0; ++a) {
      seed = seed * 1664525u + 1013904223u;
      const int pick = static_cast<int>(seed >> 16) % (shape.rank() + 2);
      placements.push_back(pick < shape.rank()              ? Shard(pick)
                           : partial && pick > shape.rank() ? Partial()
                                                            : Replicate());
    }
    placements.resize(static_cast<size_t>(mesh.axes()));
    metas.push_back({shape, DType::f32, kCpu});
    states.push_back(Layout::of(mesh, placements).states());
  };
  // By the op's row, which the library exports.
  const auto time = [&]<class Op>(std::string_view name, const Op& op) {
    const OpRow& row =
        **std::ranges::find_if(kernel_rows(), [](const OpRow* r) { return r->name == Op::name; });
    const bool in_place = row.kind == OpKind::in_place;
    std::vector<const TensorMeta*> pointers;
    std::vector<StrategyInput> inputs;
    for (size_t i = 0; i < metas.size(); ++i) {
      pointers.push_back(&metas[i]);
      inputs.push_back({&metas[i], states[i], false});
      if (in_place) inputs.back().written = row.writes(i, metas.size());
    }
    const Metas in(pointers.data(), pointers.size());
    const MetaList made = row.meta(&op, in);
    const std::vector<TensorMeta> outputs(made.begin(), made.end());
    report.write(name, median_us([&] {
                   (void)choose_strategy(name, row.sharding(&op, in), mesh, inputs, outputs,
                                         in_place);
                 }));
    metas.clear();
    states.clear();
  };
  // Rate, step, skip, factor of the gradients.
  for (const DType scalar : {DType::f64, DType::f64, DType::bool_, DType::f64}) {
    add({}, false, 0);
    metas.back().dtype = scalar;
  }
  for (uint32_t role = 0; role < 4; ++role) {
    for (uint32_t i = 0; i < 300; ++i) add({64, 32}, role == 1, role == 1 ? 7919 + i : i);
  }
  time("plan_adamw_300_tensors_6_axes", op::AdamW{});
  uint32_t seed = 0;
  for (const int64_t heads : {8, 4, 4, 8}) add({8, heads, 64, 16}, false, ++seed);
  add({8, 8, 64}, false, ++seed);
  add({8, 8, 64, 16}, true, ++seed);
  time("plan_attention_backward_6_axes", op::AttentionBackward{.mask = AttentionMask::causal()});
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  return bench::run([&] {
    bench::Arguments arguments(argc, argv);
    const int threads = arguments.number("--threads", 1);
    const Device device = arguments.device();
    bench::Report report(arguments.text("--json"));
    arguments.finish();
    fmt::print("distribution's host cost on {}, threads {}\n", concat(device), threads);
    WorldOptions options;
    options.threads = threads;
    run_fake(
        4, 0, [&](World&) { bench::measure(report, device); }, options);
    run_fake(
        64, 5, [&](World&) { bench::plan_large(report); }, options);
  });
}
