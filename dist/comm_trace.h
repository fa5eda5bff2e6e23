// SPDX-License-Identifier: Apache-2.0
// CommTrace: records the collectives and messages during its lifetime. Redistribute, the planner
// and ops that communicate inside call record_collective, send and recv of a mesh record_message.
// Tests pin the collectives; people read the table.
#pragma once

#include "tessera/dist/mesh.h"

#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// One collective or message as this rank saw it.
struct CommEntry {
  std::string op = {};    ///< `all_gather`, ...
  std::string axes = {};  ///< the mesh axes that it ran over, `dp,tp`
  DType dtype = DType::f32;
  int64_t bytes = 0;  ///< larger side on this rank: output of all_gather, input of reduce_scatter
  /// Module path, `layers.3.attention`: of a gather or a reduction of a unit, the unit's, whoever
  /// started it; empty for the root and outside modules.
  std::string path = {};
  std::string tag = {};  ///< `forward`, or `grad` in backward
  int peer = -1;         ///< of send and recv: the other rank's coordinate on the axis,
  int message = 0;       ///< and the message's tag
};

/// Records every collective of this rank until the end of the scope. Traces may nest; each records
/// all collectives of its lifetime. Created and destroyed on one rank, in scope order.
class TESSERA_API CommTrace {
 public:
  CommTrace();
  ~CommTrace();
  CommTrace(const CommTrace&) = delete;
  CommTrace& operator=(const CommTrace&) = delete;

  [[nodiscard]] std::span<const CommEntry> entries() const { return entries_; }
  /// Number of collectives: all, of one op, or of one op with one tag. Empty text means all.
  [[nodiscard]] int count(std::string_view op = {}, std::string_view tag = {}) const;
  [[nodiscard]] int64_t bytes(std::string_view op = {}, std::string_view tag = {}) const;
  void clear() { entries_.clear(); }
  /// A table: op, axes, dtype, bytes, tag and module path per line, then sums by op.
  [[nodiscard]] std::string table() const;

 private:
  friend TESSERA_API void record_collective(CollectiveKind, Mesh, std::span<const int>,
                                            const Tensor&, std::string_view);
  friend TESSERA_API void record_message(CollectiveKind, Mesh, int, const Tensor&, int, int,
                                         std::string_view);
  static void record(CommEntry entry, Mesh mesh, std::span<const int> axes, const Tensor& payload);
  std::vector<CommEntry> entries_;
  CommTrace* outer_;
};
TESSERA_API std::ostream& operator<<(std::ostream&, const CommTrace&);

/// Tag of a collective that runs now: `grad` inside a backward pass, else `forward`.
TESSERA_API std::string_view trace_tag();
/// Records in all traces of this rank that `op` runs over these mesh axes; `payload`: the larger
/// side on this rank. Costs a few nanoseconds without traces.
TESSERA_API void record_collective(CollectiveKind op, Mesh mesh, std::span<const int> axes,
                                   const Tensor& payload, std::string_view tag = "forward");
/// The same of a send or recv over one axis: `peer` is the other rank's coordinate there.
TESSERA_API void record_message(CollectiveKind op, Mesh mesh, int axis, const Tensor& payload,
                                int peer, int message, std::string_view tag = "forward");

}  // namespace tessera
