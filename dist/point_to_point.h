// SPDX-License-Identifier: Apache-2.0
// send and recv along an axis of a mesh, as the stages of a pipeline use them: messages of its
// group, which CommTrace records.
#pragma once

#include "tessera/dist/mesh.h"

namespace tessera {

/// Sends the local tensor x to the rank at coordinate `to` of `axis`, which receives it by a recv
/// of the same tag, number of elements and dtype. The Work may be dropped, and x too: its bytes
/// stay until they have been sent, and a write to x waits for that. Errors: as of
/// ProcessGroup::send.
TESSERA_API Ref<Work> send(Mesh mesh, int axis, const Tensor& x, int to, int tag = 0);
/// Receives into x, which is contiguous. To be posted early: whoever needs the bytes of x waits for
/// them. Messages of one pair and tag arrive in order, others in any. Errors: as of
/// ProcessGroup::recv.
TESSERA_API Ref<Work> recv(Mesh mesh, int axis, const Tensor& x, int from, int tag = 0);

}  // namespace tessera
