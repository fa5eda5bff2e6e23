// SPDX-License-Identifier: Apache-2.0
// The one compiled function behind every op call. The order is fixed: look at the inputs once
// (device, released bytes, distribution, gradients), meta check, plan, kernel, record. Nothing is
// allocated before the checks have passed.
#include "tessera/core/context.h"
#include "tessera/core/cuda_backend.h"
#include "tessera/core/message.h"
#include "tessera/core/op_row.h"
#include "tessera/core/process.h"
#include "tessera/core/rank.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <unordered_map>
#include <utility>

namespace tessera::detail {
namespace {

struct Inputs {
  Device device = kCpu;
  bool distributed = false, gradients = false, defined = false;
};

// `odd` lies elsewhere than the first input.
[[noreturn]] __attribute__((cold)) void mixed_devices(const OpRow& row, Tensors in,
                                                      const Tensor& odd) {
  const Tensor& first = *std::ranges::find_if(in, &Tensor::defined);
  fail<DeviceError>(row.name, "inputs are on different devices: ", first.meta(), " on ",
                    first.device(), ", ", odd.meta(), " on ", odd.device(),
                    "; move one with to_device");
}

// Released bytes are an error; what is under way on an operand comes first. Views look at no bytes.
__attribute__((cold, noinline)) void settle(Context& context, const OpRow& row, const Tensor& x,
                                            Access access) {
  Storage& storage = x.storage();
  if (row.kind == OpKind::view) return;
  if (storage.released()) {
    fail<StorageError>(row.name, "the bytes of input ", x.meta(),
                       " are released; regain them before the call");
  }
  storage.wait(access, x.byte_range(),
               x.device().is_cuda() ? context.stream(x.device()) : Stream{});
}

Inputs look(Context& context, const OpRow& row, Tensors in) {
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
    seen.distributed |= x.layout != LayoutId::none;
    seen.gradients |= x.requires_grad;
    if (__builtin_expect(!x.storage->ready(), false)) {
      const bool writes = row.kind == OpKind::in_place &&
                          row.writes(static_cast<size_t>(&t - in.data()), in.size());
      settle(context, row, t, writes ? Access::write : Access::read);
    }
  }
  return seen;
}

// The elements of an operand of an in-place op: bytes [first, last] of a storage.
struct Operand {
  const TensorImpl* x;
  const Storage* storage;
  int64_t first, last;
  bool written;
};

// Whether two operands with interleaved bytes share an element. Slices of one tensor (equal
// strides) do if the distance of their starts is a sum of strides.
bool share_elements(const TensorImpl& a, const TensorImpl& b) {
  const Shape &m = a.meta.shape, &n = b.meta.shape;
  if (a.meta.dtype != b.meta.dtype || m.rank() != n.rank()) return true;
  struct Dim {
    int64_t stride, least, most;  // how often the stride may be taken
  };
  SmallVector<Dim, kMaxRank> dims;
  int64_t reach = 0;
  for (int d = 0; d < m.rank(); ++d) {
    const int64_t of_a = m[d] > 1 ? a.strides[d] : 0, of_b = n[d] > 1 ? b.strides[d] : 0;
    if (of_a < 0 || of_b < 0 || (of_a > 0 && of_b > 0 && of_a != of_b)) return true;
    if (of_a == 0 && of_b == 0) continue;
    dims.push_back({std::max(of_a, of_b), of_b > 0 ? 1 - n[d] : 0, of_a > 0 ? m[d] - 1 : 0});
    const Dim& dim = dims.back();
    reach += dim.stride * std::max(-dim.least, dim.most);
  }
  std::sort(dims.begin(), dims.end(),
            [](const Dim& x, const Dim& y) { return x.stride > y.stride; });
  const auto is_sum = [&](const auto& self, size_t d, int64_t gap, int64_t rest) -> bool {
    if (d == dims.size()) return gap == 0;
    const Dim& dim = dims[d];
    rest -= dim.stride * std::max(-dim.least, dim.most);
    const int64_t least = std::max(dim.least, (gap - rest) / dim.stride - 1),
                  most = std::min(dim.most, (gap + rest) / dim.stride + 1);
    for (int64_t k = least; k <= most; ++k) {
      const int64_t left = gap - k * dim.stride;
      if (std::abs(left) <= rest && self(self, d + 1, left, rest)) return true;
    }
    return false;
  };
  return is_sum(is_sum, 0, b.offset - a.offset, reach);
}

bool same_elements(const TensorImpl& a, const TensorImpl& b) {
  if (!(a.meta.shape == b.meta.shape) || a.meta.dtype != b.meta.dtype || a.offset != b.offset)
    return false;
  for (int d = 0; d < a.meta.shape.rank(); ++d) {
    if (a.meta.shape[d] > 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

// Kernels write in any order, so a written element must not be another element that they write or
// read; an operand may be both read and written.
void check_aliases(const OpRow& row, Tensors in) {
  SmallVector<Operand, 8> operands;
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in[i].defined() || in[i].numel() == 0) continue;
    const TensorImpl& x = in[i].impl();
    const bool written = row.writes(i, in.size());
    int64_t first = x.offset, last = x.offset;
    for (int d = 0; d < x.meta.shape.rank(); ++d) {
      if (written && x.strides[d] == 0 && x.meta.shape[d] > 1)
        fail<UsageError>(row.name, "would write ", x.meta, " (input ", i, "), whose dim ", d,
                         " is expanded: its elements are one; write a copy of it");
      (x.strides[d] < 0 ? first : last) += x.strides[d] * (x.meta.shape[d] - 1);
    }
    const int64_t size = item_size(x.meta.dtype);
    operands.push_back({&x, x.storage.get(), first * size, (last + 1) * size - 1, written});
  }
  std::sort(operands.begin(), operands.end(), [](const Operand& a, const Operand& b) {
    return a.storage != b.storage ? std::less<>()(a.storage, b.storage) : a.first < b.first;
  });
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& a = operands[i];
    for (size_t j = i + 1; j < operands.size(); ++j) {
      const Operand& b = operands[j];
      if (b.storage != a.storage || b.first > a.last) break;
      if (!a.written && !b.written) continue;
      if (same_elements(*a.x, *b.x) ? !(a.written && b.written) : !share_elements(*a.x, *b.x))
        continue;
      fail<UsageError>(row.name, "would write elements that it ",
                       a.written && b.written ? "writes" : "reads",
                       " through another input: ", a.x->meta, " and ", b.x->meta,
                       " overlap in one storage; give it a copy of one of them");
    }
  }
}

// Kernels of the CUDA library that this rank has called: a name is looked up once.
class CudaKernels {
 public:
  CudaBackend::Kernel of(const CudaBackend& cuda, const OpRow& row) {
    CudaBackend::Kernel& kernel = kernels_[&row];
    if (!kernel) kernel = cuda.kernel(row.name);
    if (!kernel)
      fail<DeviceError>(row.name,
                        "the CUDA library holds no kernel of this op: it is of another version");
    return kernel;
  }

 private:
  std::unordered_map<const OpRow*, CudaBackend::Kernel> kernels_;
};

}  // namespace

void run_kernel(Context& context, const OpRow& row, const void* op, Tensors in, Outputs out,
                Device device) {
  if (row.kind == OpKind::in_place) check_aliases(row, in);
  struct InKernel {  // also where it throws, or a kernel's own calls run others
    explicit InKernel(Context& c) : context(c), before(std::exchange(c.in_kernel, true)) {}
    ~InKernel() { context.in_kernel = before; }
    InKernel(const InKernel&) = delete;
    InKernel& operator=(const InKernel&) = delete;
    Context& context;
    bool before;
  };
  const InKernel inside(context);
  if (device.is_cpu()) {
    row.cpu(op, in, out);
    return;
  }
  if (device.is_meta()) return;
  if (!row.not_on_cuda.empty())
    fail<DeviceError>(row.name, "does not run on CUDA: ", row.not_on_cuda);
  CudaBackend& cuda = Process::get().cuda();
  const Stream stream = cuda.stream_for(device.index, in);
  if (row.cuda) row.cuda(op, in, out, stream);
  else context.state<CudaKernels>().of(cuda, row)(op, in, out, stream);
}

// Reports the first op with NaN in its output and none in its inputs.
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
    fail<NumericError>(row.name, "made NaN in its output ", t.meta(), " from inputs without NaN",
                       in_module(joined_path(context.module_path)));
  }
}

// A distributed tensor on a thread without a planner.
[[noreturn]] __attribute__((cold)) void fail_no_rank(std::string_view who, const Tensor& x) {
  fail<UsageError>(who, x.meta(),
                   " is distributed, but this thread is not a rank: the world it was made in has "
                   "ended, or is another thread's; take its full_tensor() before that world ends");
}
__attribute__((cold)) void check_plain(const OpRow& row, Tensors in) {
  for (const Tensor& t : in) {
    if (t.defined() && t.is_distributed()) fail_no_rank(row.name, t);
  }
}

// Throws.
__attribute__((cold)) Context& no_context(const OpRow& row, Tensors in) {
  check_plain(row, in);
  return Context::current();
}

// The interceptor is disabled while the op runs, so that it sees only the program's calls.
__attribute__((cold)) void intercepted(Context& context, const OpRow& row, const void* op,
                                       Tensors in, TensorList& out, const Inputs& seen) {
  struct Aside {
    explicit Aside(Context& c) : context(c), interceptor(std::exchange(c.interceptor, nullptr)) {}
    ~Aside() { context.interceptor = interceptor; }
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;
    Context& context;
    Interceptor* interceptor;
  };
  const Aside aside(context);
  TensorList arrived;
  if (seen.distributed && context.distributor) {
    arrived = context.distributor->arrange(row, op, in);
    in = arrived;
  }
  if (!aside.interceptor->replay(row, op, in, out)) {
    call(row, op, in, out);
  } else if (seen.gradients && context.grad_enabled && context.recorder) {
    context.recorder->record(row, op, in, out);
  }
  aside.interceptor->observe(row, op, in, out);
}

void call(const OpRow& row, const void* op, Tensors in, TensorList& out) {
  Context* const current = Context::current_or_null();
  Context& context = __builtin_expect(current != nullptr, true) ? *current : no_context(row, in);
  if (__builtin_expect(context.progress != nullptr, false)) context.progress->poll();
  const Inputs seen = look(context, row, in);
  if (__builtin_expect(context.interceptor != nullptr, false))
    return intercepted(context, row, op, in, out, seen);
  if (seen.distributed) {
    if (!context.distributor) check_plain(row, in);
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
  distributor_of(row.name, like).call_like(row, op, like, out);
}

Distributor& distributor_of(std::string_view who, const Tensor& x) {
  const Context* context = Context::current_or_null();
  if (!context || !context->distributor) fail_no_rank(who, x);
  return *context->distributor;
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
