// SPDX-License-Identifier: Apache-2.0
// The one compiled function behind every op call. The order is fixed: look at the inputs once
// (device, released bytes, distribution, gradients), meta check, plan, kernel, record. Nothing is
// allocated before the checks have passed.
#include "tessera/core/context.h"
#include "tessera/core/cuda_backend.h"
#include "tessera/core/op_row.h"

#include <cmath>
#include <utility>

namespace tessera::detail {
namespace {

struct Inputs {
  Device device = kCpu;
  bool distributed = false, gradients = false, defined = false;
};

[[noreturn]] __attribute__((cold)) void mixed_devices(const OpRow& row, Tensors in,
                                                      const Tensor& odd) {
  for (const Tensor& t : in) {
    if (t.defined() && t.device() != odd.device()) {
      fail<DeviceError>(row.name, "inputs lie on different devices: ", t.meta(), " on ", t.device(),
                        ", ", odd.meta(), " on ", odd.device(), "; move one with to_device");
    }
  }
  fail<DeviceError>(row.name, "inputs lie on different devices");
}

Inputs look(const OpRow& row, Tensors in) {
  Inputs seen;
  for (const Tensor& t : in) {
    if (!t.defined()) continue;
    const TensorImpl& x = t.impl();
    if (!seen.defined) {
      seen.defined = true;
      seen.device = x.meta.device;
    } else if (!(x.meta.device == seen.device)) {
      mixed_devices(row, in, t);
    }
    seen.distributed |= x.layout != nullptr;
    seen.gradients |= x.requires_grad;
    if (x.storage->released() && row.kind != OpKind::view) {
      fail<StorageError>(row.name, "the bytes of input ", x.meta,
                         " are released; regain them before the call");
    }
  }
  return seen;
}

}  // namespace

void run_kernel(Context& context, const OpRow& row, const void* op, Tensors in, Outputs out,
                Device device) {
  if (device.is_cpu()) {
    row.cpu(op, in, out);
    return;
  }
  if (device.is_meta()) return;
  if (!row.not_on_cuda.empty())
    fail<DeviceError>(row.name, "does not run on CUDA: ", row.not_on_cuda);
  if (row.cuda) {
    row.cuda(op, in, out, context.stream(device));
    return;
  }
  const auto kernel = Process::get().cuda().kernel(row.name);
  if (!kernel)
    fail<DeviceError>(row.name,
                      "the CUDA library holds no kernel of this op: it is of another version");
  kernel(op, in, out, context.stream(device));
}

// The first op whose output is not a number while its inputs are is the culprit.
__attribute__((cold)) void find_nan(const Context& context, const OpRow& row, Tensors in,
                                    Tensors out) {
  const auto has_nan = [](const Tensor& t) {
    if (!t.defined() || !is_floating(t.dtype()) || t.device().is_meta()) return false;
    for (double v : t.values()) {
      if (std::isnan(v)) return true;
    }
    return false;
  };
  for (const Tensor& t : in) {
    if (has_nan(t)) return;
  }
  for (const Tensor& t : out) {
    if (!has_nan(t)) continue;
    std::string path;
    for (const auto& part : context.module_path) path += (path.empty() ? "" : ".") + part;
    fail<NumericError>(row.name, "made NaN in its output ", t.meta(), " from inputs without NaN",
                       path.empty() ? "" : ", in module ", path);
  }
}

// The interceptor is put aside while the op runs, so that it sees what the program calls and no
// more.
__attribute__((cold)) void intercepted(Context& context, const OpRow& row, const void* op,
                                       Tensors in, TensorList& out, bool gradients) {
  struct Aside {
    explicit Aside(Context& c) : context(c), interceptor(std::exchange(c.interceptor, nullptr)) {}
    ~Aside() { context.interceptor = interceptor; }
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;
    Context& context;
    Interceptor* interceptor;
  };
  const Aside aside(context);
  if (!aside.interceptor->replay(row, op, in, out)) {
    call(row, op, in, out);
  } else if (gradients && context.grad_enabled && context.recorder) {
    context.recorder->record(row, op, in, out);
  }
  aside.interceptor->observe(row, op, in, out);
}

void call(const OpRow& row, const void* op, Tensors in, TensorList& out) {
  Context& context = Context::current();
  if (__builtin_expect(context.progress != nullptr, false)) context.progress->poll();
  const Inputs seen = look(row, in);
  if (__builtin_expect(context.interceptor != nullptr, false))
    return intercepted(context, row, op, in, out, seen.gradients);
  if (seen.distributed) {
    if (!context.distributor) {
      fail<LayoutError>(
          row.name,
          "an input is distributed, but this Context has no Distributor: use dist's session");
    }
    context.distributor->call(row, op, in, out);
    return;
  }
  switch (row.kind) {
    case OpKind::compute: {
      const MetaArray metas(in);
      for (const TensorMeta& m : row.meta(op, metas)) {
        out.push_back(empty(m.shape, m.dtype, seen.defined ? seen.device : m.device));
      }
      run_kernel(context, row, op, in, out, out.empty() ? seen.device : out[0].device());
      break;
    }
    case OpKind::view: {
      const Tensor& x = in[0];
      const Geometry g = row.view(op, {x.shape(), x.strides(), x.offset()});
      out.push_back(alias(x, g.shape, g.strides, g.offset));
      break;
    }
    case OpKind::in_place: {
      const MetaArray metas(in);
      (void)row.meta(op, metas);
      TensorList written;
      for (size_t i = 0; i < in.size(); ++i) {
        if (!row.writes(i, in.size())) continue;
        if (context.recorder) context.recorder->check_write(row, in[i]);
        written.push_back(in[i]);
      }
      run_kernel(context, row, op, in, written, seen.device);
      for (const Tensor& t : written) t.storage().bump_version();
      break;
    }
  }
  if (seen.gradients && context.grad_enabled && context.recorder && row.kind != OpKind::in_place) {
    context.recorder->record(row, op, in, out);
  }
  if (__builtin_expect(context.options.anomaly, false)) find_nan(context, row, in, out);
  if (__builtin_expect(static_cast<bool>(context.op_hook), false))
    context.op_hook(row, op, in, out);
}

void call_like(const OpRow& row, const void* op, const Tensor& like, TensorList& out) {
  if (!like.is_distributed()) return call(row, op, {}, out);
  Context& context = Context::current();
  if (!context.distributor)
    fail<LayoutError>(row.name, like.meta(),
                      " is distributed, but this Context has no Distributor");
  context.distributor->call_like(row, op, like, out);
}

Cost bytes_moved(Metas in, Metas out) {
  Cost cost;
  for (const Metas& side : {in, out}) {
    for (size_t i = 0; i < side.size(); ++i) {
      if (side.has(i))
        cost.bytes += static_cast<double>(side[i].shape.numel() * item_size(side[i].dtype));
    }
  }
  return cost;
}

}  // namespace tessera::detail
