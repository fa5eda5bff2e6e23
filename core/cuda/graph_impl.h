// SPDX-License-Identifier: Apache-2.0
// Capture of what a thread's stream is given. Tensors made meanwhile come from memory of the graph,
// and nothing is called that CUDA forbids during a capture: no allocation or free of the driver, no
// wait, no query of an event.
#pragma once

#include "tessera/core/cuda/lanes_impl.h"
#include "tessera/core/cuda_graph.h"

namespace tessera {

/// UsageError: it is captured already.
void begin_capture(Lane& lane, int device, int64_t reserve);
[[nodiscard]] Ref<CudaGraph> end_capture(Lane& lane, int device);

}  // namespace tessera
