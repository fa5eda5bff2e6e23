// SPDX-License-Identifier: Apache-2.0
// CommTrace: what is sent while it lives. Whoever sends for a layout (redistribute, planner, an op
// that joins inside) calls record_collective; tests then pin what is sent, and people read the
// table.
#pragma once

#include "tessera/dist/mesh.h"

#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// One collective as this rank saw it.
struct CommEntry {
  std::string op;    ///< `all_gather`, ...
  std::string axes;  ///< the mesh axes that it ran over, `dp,tp`
  int64_t bytes =
      0;  ///< of its larger side on this rank: what all_gather gives, reduce_scatter takes
  std::string path;  ///< module path, `layers.3.attention`; empty outside modules
  std::string tag;   ///< `forward`, or `grad` in backward
};

/// Records every collective of this rank from here to the end of the scope. Traces may nest: each
/// sees all that is sent while it lives. Lives and dies on one rank, in scope order.
class TESSERA_API CommTrace {
 public:
  CommTrace();
  ~CommTrace();
  CommTrace(const CommTrace&) = delete;
  CommTrace& operator=(const CommTrace&) = delete;

  [[nodiscard]] std::span<const CommEntry> entries() const { return entries_; }
  /// How many there were: in all, of one op, of one op with one tag. Empty text stands for all.
  [[nodiscard]] int count(std::string_view op = {}, std::string_view tag = {}) const;
  [[nodiscard]] int64_t bytes(std::string_view op = {}, std::string_view tag = {}) const;
  void clear() { entries_.clear(); }
  /// A table: op, axes, bytes, tag and module path by line; then the sums by op.
  [[nodiscard]] std::string table() const;

 private:
  friend TESSERA_API void record_collective(CollectiveKind, Mesh, std::span<const int>, int64_t,
                                            std::string_view);
  std::vector<CommEntry> entries_;
  CommTrace* outer_;
};
TESSERA_API std::ostream& operator<<(std::ostream&, const CommTrace&);

/// What a collective that runs now is for: `grad` inside a backward pass, else `forward`.
TESSERA_API std::string_view trace_tag();
/// Tells the living traces of this rank that `op` runs over these axes of the mesh. Costs a few
/// nanoseconds where there is none.
TESSERA_API void record_collective(CollectiveKind op, Mesh mesh, std::span<const int> axes,
                                   int64_t bytes, std::string_view tag = "forward");

}  // namespace tessera
