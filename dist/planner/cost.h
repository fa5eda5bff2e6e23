// SPDX-License-Identifier: Apache-2.0
// What the planner takes communication to cost: latency + bytes / bandwidth on each mesh axis. The
// costs are constants unless a program asks for measured ones, because all ranks must choose the
// same plan; measured ones are those of one rank, rounded, and printed so that a run can be
// repeated. Sums are exact (whole picoseconds), so the order of addition decides nothing.
#pragma once

#include "tessera/dist/redistribute/plan.h"

#include <array>
#include <string>

namespace tessera {

using Picoseconds = int64_t;

/// A collective over an axis takes latency (seconds) + received bytes / bandwidth (bytes per
/// second).
struct AxisCost {
  double latency = 10e-6, bandwidth = 10e9;
  bool operator==(const AxisCost&) const = default;
};

/// The costs of the axes of one mesh.
struct MeshCosts {
  std::array<AxisCost, kMaxAxes> axes{};
  bool operator==(const MeshCosts&) const = default;
  /// `dp: 1.2e-05 s + bytes / 9.1e+09, tp: ...`
  [[nodiscard]] TESSERA_API std::string text(Mesh mesh) const;
};

/// A collective over `axes` in which each rank receives `bytes`, by the slowest of the axes; 0 if
/// all have size 1.
TESSERA_API Picoseconds collective_cost(const MeshCosts& costs, Mesh mesh,
                                        std::span<const int> axes, double bytes);
/// An all_reduce of `bytes` over `axes`: what a Partial output costs later.
TESSERA_API Picoseconds reduction_cost(const MeshCosts& costs, Mesh mesh, std::span<const int> axes,
                                       double bytes);
/// Copying `bytes` within a rank.
TESSERA_API Picoseconds copy_cost(double bytes);
/// The moves of a plan for a tensor of `bytes` in all, estimated for even shards.
TESSERA_API Picoseconds plan_cost(const MeshCosts& costs, Mesh mesh, const RedistributePlan& plan,
                                  double bytes);

/// Times all_reduce on each axis of size above 1 and gives all ranks of the mesh the costs that its
/// first rank found, rounded to two digits. Collective over the mesh, takes some milliseconds.
TESSERA_API MeshCosts measure_costs(Mesh mesh);

}  // namespace tessera
