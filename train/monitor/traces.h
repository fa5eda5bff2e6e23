// SPDX-License-Identifier: Apache-2.0
// Finds the traces that a profiled run wrote, and reads from them how long the actions of a
// pipeline took.
#pragma once

#include "tessera/core/api.h"

#include <map>
#include <string>
#include <vector>

namespace tessera::train {

/// A recorded iteration of a run.
struct TraceFolder {
  std::string path;
  std::vector<std::string> ranks;  ///< rank<r>_trace.json, sorted
};
/// The folder itself if it has traces, or those below it that have, the first iteration first:
/// `folder` may be the dump folder of a run. IoError: it cannot be read.
[[nodiscard]] TESSERA_API std::vector<TraceFolder> trace_folders(const std::string& folder);

/// What the ranks of a pipeline did, in seconds; a mean over the recorded steps.
struct MeasuredActions {
  std::map<std::string, double> of;  ///< of each F, I, W and B, by its text
  double step = 0;                   ///< from the first action of any rank to the last one's end
};
/// Of all ranks with the same stages, the longest counts. DataError: not such traces, or traces of
/// a run without a pipeline.
[[nodiscard]] TESSERA_API MeasuredActions measured_actions(const TraceFolder& folder);

}  // namespace tessera::train
