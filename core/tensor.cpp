// SPDX-License-Identifier: Apache-2.0
// Tensor handles: making, reading, copying between devices. Nothing here is recorded by autograd.
#include "tessera/core/tensor.h"

#include "tessera/core/context.h"
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"

#include <cstring>

namespace tessera {

GradNode::~GradNode() = default;

TensorImpl::TensorImpl(const TensorMeta& m, const Shape& s, int64_t o, Ref<Storage> st)
    : meta(m),
      strides(s),
      offset(o),
      storage(std::move(st)),
      contiguous(tessera::is_contiguous(m.shape, s)) {}
TensorImpl::~TensorImpl() = default;

int64_t Tensor::size(int dim) const { return shape()[normalize_dim(dim, rank(), "size")]; }

void* Tensor::raw_data() const {
  const TensorImpl& t = impl();
  if (is_distributed()) only_local("data");
  if (!t.storage->data()) {
    if (t.storage->released())
      fail<StorageError>("data", "the bytes of ", t.meta,
                         " are released; regain them before reading");
    if (t.meta.device.is_meta())
      fail<DeviceError>("data", "a meta tensor ", t.meta, " has no bytes");
    return nullptr;
  }
  return static_cast<std::byte*>(t.storage->data()) + t.offset * item_size(t.meta.dtype);
}

Tensor& Tensor::set_requires_grad(bool on) {
  TensorImpl& t = impl();
  if (t.node)
    fail<AutogradError>("set_requires_grad", "only leaves can be variables; ", t.meta,
                        " was made by an op: use detach()");
  if (on && !is_floating(t.meta.dtype))
    fail<DTypeError>("set_requires_grad", t.meta,
                     " is not floating: only floating tensors have gradients");
  t.requires_grad = on;
  if (on && !t.leaf) t.leaf = std::make_unique<LeafGrad>();
  return *this;
}

Tensor Tensor::grad() const { return impl().leaf ? impl().leaf->grad : Tensor(); }

void Tensor::set_grad(Tensor grad) {
  if (grad.defined() && (grad.shape() != shape() || grad.dtype() != dtype())) {
    fail<ShapeError>("set_grad", "the gradient of ", meta(), " cannot be ", grad.meta());
  }
  if (!impl().leaf) impl().leaf = std::make_unique<LeafGrad>();
  impl().leaf->grad = std::move(grad);
}

Tensor Tensor::detach() const {
  const TensorImpl& t = impl();
  if (is_distributed()) return make_distributed(Tensor(t.local), t.meta.shape, t.layout);
  return alias(*this, t.meta.shape, t.strides, t.offset);
}

void Tensor::only_local(std::string_view what) const {
  fail<LayoutError>(what, meta(),
                    " is distributed, this rank holds a part of it: read local() for the part, or "
                    "full_tensor() for the whole");
}

void Tensor::undefined() {
  fail<UsageError>("tensor", "an undefined Tensor was used: it holds no value yet");
}

void Tensor::wrong_type(DType asked) const {
  fail<DTypeError>("data", meta(), " was read as ", asked, "; read it as ", dtype(),
                   " or cast it first");
}

Tensor empty(const Shape& shape, DType dtype, Device device) {
  const int64_t n = checked_numel(shape, item_size(dtype), "empty");
  Ref<Allocator> allocator;
  if (!device.is_meta() && n > 0) allocator = Context::current().allocator(device);
  auto storage = make_ref<Storage>(std::move(allocator), n * item_size(dtype), device);
  return Tensor(make_ref<TensorImpl>(TensorMeta{shape, dtype, device}, contiguous_strides(shape), 0,
                                     std::move(storage)));
}

Tensor empty_like(const Tensor& x) { return empty(x.shape(), x.dtype(), x.device()); }

Tensor alias(const Tensor& x, const Shape& shape, const Shape& strides, int64_t offset) {
  return Tensor(make_ref<TensorImpl>(TensorMeta{shape, x.dtype(), x.device()}, strides, offset,
                                     x.impl().storage));
}

Tensor make_distributed(const Tensor& local, const Shape& global, LayoutId layout) {
  const TensorImpl& part = local.impl();
  auto whole = make_ref<TensorImpl>(TensorMeta{global, part.meta.dtype, part.meta.device},
                                    part.strides, part.offset, part.storage);
  whole->layout = layout;
  whole->local = local.handle();
  whole->contiguous = part.contiguous;
  return Tensor(std::move(whole));
}

Tensor from_values(std::span<const double> values, const Shape& shape, DType dtype) {
  const int64_t n = checked_numel(shape, item_size(dtype), "from_values");
  if (n != static_cast<int64_t>(values.size())) {
    fail<ShapeError>("from_values", values.size(), " values do not fill ", shape, ", which holds ",
                     n);
  }
  Tensor t = empty(shape, dtype);
  dispatch<kAllDTypes>(dtype, [&]<class T>() {
    T* to = t.data<T>();
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (is_floating(dtype_of<T>))
        to[i] = static_cast<T>(static_cast<compute_t<T>>(values[i]));
      else to[i] = static_cast<T>(values[i]);
    }
  });
  return t;
}

Tensor tensor(double value, DType dtype) { return from_values({value}, {}, dtype); }
Tensor tensor(std::initializer_list<double> row, DType dtype) {
  return from_values(row, {static_cast<int64_t>(row.size())}, dtype);
}
Tensor tensor(std::initializer_list<std::initializer_list<double>> rows, DType dtype) {
  std::vector<double> all;
  const size_t columns = rows.size() ? rows.begin()->size() : 0;
  for (const auto& row : rows) {
    if (row.size() != columns)
      fail<ShapeError>("tensor", "rows differ in length: ", columns, " and ", row.size());
    all.insert(all.end(), row);
  }
  return from_values(all, {static_cast<int64_t>(rows.size()), static_cast<int64_t>(columns)},
                     dtype);
}

std::vector<double> Tensor::values() const {
  if (is_distributed()) only_local("values");
  if (!device().is_cpu()) return to_device(*this, kCpu).values();
  std::vector<double> out;
  if (numel() == 0) return out;
  out.reserve(static_cast<size_t>(numel()));
  dispatch<kAllDTypes>(dtype(), [&]<class T>() {
    const T* p = data<T>();
    Shape at = Shape::filled(rank(), 0);
    for (int64_t i = 0, n = numel(); i < n; ++i) {
      int64_t place = 0;
      for (int d = 0; d < rank(); ++d) place += at[d] * strides()[d];
      out.push_back(static_cast<double>(p[place]));
      for (int d = rank() - 1; d >= 0 && ++at[d] == shape()[d]; --d) at[d] = 0;
    }
  });
  return out;
}

double Tensor::item() const {
  if (is_distributed()) only_local("item");
  if (numel() != 1)
    fail<ShapeError>("item", meta(), " has ", numel(), " elements: item() reads exactly one");
  return values()[0];
}

void copy_bytes(const Tensor& to, const Tensor& from) {
  if (to.shape() != from.shape() || to.dtype() != from.dtype() || !to.is_contiguous() ||
      !from.is_contiguous()) {
    fail<ShapeError>("copy_bytes", "expected two contiguous tensors alike, given ", to.meta(),
                     " and ", from.meta());
  }
  const int64_t bytes = to.numel() * item_size(to.dtype());
  if (bytes == 0) return;
  if (to.device().is_meta() || from.device().is_meta()) {
    fail<DeviceError>("copy_bytes", "a meta tensor has no values: given ", to.meta(), " and ",
                      from.meta());
  }
  to.storage().bump_version();
  if (to.device().is_cpu() && from.device().is_cpu()) {
    std::memcpy(to.raw_data(), from.raw_data(), static_cast<size_t>(bytes));
  } else {
    Process::get().cuda().copy(to.raw_data(), to.device(), from.raw_data(), from.device(), bytes);
  }
}

Tensor to_device(const Tensor& x, Device device) {
  if (x.device() == device) return x;
  if (!x.is_contiguous()) {
    // A view travels as its whole storage, and is viewed again on the other side.
    const int64_t n = x.storage().bytes() / item_size(x.dtype());
    const Tensor flat = to_device(alias(x, {n}, {1}, 0), device);
    return alias(flat, x.shape(), x.strides(), x.offset());
  }
  Tensor y = empty(x.shape(), x.dtype(), device);
  if (!device.is_meta()) copy_bytes(y, x);
  return y;
}

}  // namespace tessera
