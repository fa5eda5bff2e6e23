// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/planner/cost.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace tessera {
namespace {

constexpr double kCopied = 10e9;   // bytes per second within a rank
constexpr double kLargest = 1e17;  // picoseconds; sums of a few hundred of these still fit

Picoseconds rounded(double seconds) {
  return static_cast<Picoseconds>(std::llround(std::min(seconds * 1e12, kLargest)));
}

int members(Mesh mesh, std::span<const int> axes) {
  int n = 1;
  for (const int a : axes) n *= mesh.size(a);
  return n;
}

double cuts(Mesh mesh, const AxisStates& states) {
  double n = 1;
  for (int a = 0; a < mesh.axes(); ++a) {
    if (states[static_cast<size_t>(a)].placement.kind == Placement::Kind::shard) n *= mesh.size(a);
  }
  return n;
}

double two_digits(double x) {
  if (!(x > 0) || !std::isfinite(x)) return 0;
  const double unit = std::pow(10.0, std::floor(std::log10(x)) - 1);
  return std::round(x / unit) * unit;
}

// Seconds of the fastest of some all_reduces.
double fastest(ProcessGroup& group, const Tensor& x, int times) {
  double best = 1e9;
  for (int i = 0; i < times; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    group.all_reduce(x)->wait();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace

std::string MeshCosts::text(Mesh mesh) const {
  std::string text;
  for (int a = 0; a < mesh.axes(); ++a) {
    const AxisCost& c = axes[static_cast<size_t>(a)];
    text += concat(a ? ", " : "", mesh.axis(a).name, ": ", c.latency, " s + bytes / ", c.bandwidth);
  }
  return text;
}

Picoseconds collective_cost(const MeshCosts& costs, Mesh mesh, std::span<const int> axes,
                            double bytes) {
  AxisCost slowest{0, 0};
  for (const int a : axes) {
    if (mesh.size(a) == 1) continue;
    const AxisCost& c = costs.axes[static_cast<size_t>(a)];
    slowest.latency = std::max(slowest.latency, c.latency);
    slowest.bandwidth =
        slowest.bandwidth > 0 ? std::min(slowest.bandwidth, c.bandwidth) : c.bandwidth;
  }
  return slowest.bandwidth > 0 ? rounded(slowest.latency + bytes / slowest.bandwidth) : 0;
}

Picoseconds reduction_cost(const MeshCosts& costs, Mesh mesh, std::span<const int> axes,
                           double bytes) {
  return collective_cost(costs, mesh, axes, 2 * (1 - 1.0 / members(mesh, axes)) * bytes);
}

Picoseconds copy_cost(double bytes) { return rounded(bytes / kCopied); }

Picoseconds plan_cost(const MeshCosts& costs, Mesh mesh, const RedistributePlan& plan,
                      double bytes) {
  Picoseconds total = 0;
  for (const RedistributeStep& s : plan.steps) {
    const std::span<const int> axes(s.axes.data(), s.axes.size());
    const double held = bytes / cuts(mesh, s.before), given = bytes / cuts(mesh, s.after);
    const double share = 1 - 1.0 / members(mesh, axes);
    switch (s.move) {
      case Move::slice:
      case Move::zero:
      case Move::pad: total += copy_cost(given); break;
      case Move::all_gather: total += collective_cost(costs, mesh, axes, share * given); break;
      case Move::all_reduce: total += reduction_cost(costs, mesh, axes, held); break;
      case Move::reduce_scatter:
      case Move::all_to_all: total += collective_cost(costs, mesh, axes, share * held); break;
    }
  }
  return total;
}

MeshCosts measure_costs(Mesh mesh) {
  constexpr int64_t kLarge = 1 << 18;
  const Tensor small = empty({1}), large = empty({kLarge});
  std::fill_n(small.data<float>(), 1, 0.0f);
  std::fill_n(large.data<float>(), kLarge, 0.0f);
  const Tensor found = empty({2 * kMaxAxes}, DType::f64);
  auto* values = found.data<double>();
  std::fill_n(values, 2 * kMaxAxes, 0.0);
  std::vector<int> all;
  for (int a = 0; a < mesh.axes(); ++a) {
    all.push_back(a);
    if (mesh.size(a) == 1) continue;
    ProcessGroup& group = mesh.group(a);
    const double latency = fastest(group, small, 20), whole = fastest(group, large, 5);
    const double bytes = 2 * (1 - 1.0 / mesh.size(a)) * static_cast<double>(kLarge * sizeof(float));
    values[2 * a] = two_digits(latency);
    values[2 * a + 1] = two_digits(bytes / (whole - latency));
  }
  mesh.group(all).broadcast(found, 0)->wait();
  MeshCosts costs;
  for (int a = 0; a < mesh.axes(); ++a) {
    AxisCost& c = costs.axes[static_cast<size_t>(a)];
    if (values[2 * a] > 0) c.latency = values[2 * a];
    if (values[2 * a + 1] > 0) c.bandwidth = values[2 * a + 1];
  }
  return costs;
}

}  // namespace tessera
