// SPDX-License-Identifier: Apache-2.0
#include "tessera/dist/point_to_point.h"

#include "tessera/autograd/autograd.h"
#include "tessera/dist/comm_trace.h"
#include "tessera/kernels/pointwise/pointwise.h"

namespace tessera {

Ref<Work> send(Mesh mesh, int axis, const Tensor& x, int to, int tag) {
  const NoGrad guard;
  const Tensor bytes = x.defined() && !x.is_distributed() ? contiguous(x) : x;
  Ref<Work> work = mesh.group(axis).send(bytes, to, tag);
  record_message(CollectiveKind::send, mesh, axis, bytes, to, tag, trace_tag());
  return work;
}

Ref<Work> recv(Mesh mesh, int axis, const Tensor& x, int from, int tag) {
  Ref<Work> work = mesh.group(axis).recv(x, from, tag);
  record_message(CollectiveKind::recv, mesh, axis, x, from, tag, trace_tag());
  return work;
}

}  // namespace tessera
