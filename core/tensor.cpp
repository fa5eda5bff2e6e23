// SPDX-License-Identifier: Apache-2.0
// Tensor handles: making, reading, copying between devices. Nothing here is recorded by autograd.
#include "tessera/core/tensor.h"

#include "tessera/core/borrowed_impl.h"
#include "tessera/core/context.h"
#include "tessera/core/cuda_backend.h"
#include "tessera/core/message.h"
#include "tessera/core/meta_memory.h"
#include "tessera/core/process.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tessera {

GradNode::~GradNode() = default;

// Nodes that are freed by the destructor of another, through edges or whatever it saved, wait until
// that has run. Thread-local, because a graph may outlive its Context.
void GradNode::destroy() const noexcept {
  static thread_local std::vector<const GradNode*>* waiting = nullptr;
  if (waiting) {
    waiting->push_back(this);
    return;
  }
  std::vector<const GradNode*> nodes;
  waiting = &nodes;
  delete this;
  while (!nodes.empty()) {
    const GradNode* node = nodes.back();
    nodes.pop_back();
    delete node;
  }
  waiting = nullptr;
}

TensorImpl::TensorImpl(const TensorMeta& m, const Shape& s, int64_t o, Ref<Storage> st)
    : meta(m),
      strides(s),
      offset(o),
      storage(std::move(st)),
      contiguous(tessera::is_contiguous(m.shape, s)) {}
TensorImpl::~TensorImpl() = default;

int64_t Tensor::size(int dim) const { return shape()[normalize_dim(dim, rank(), "size")]; }

ByteRange Tensor::byte_range() const {
  const TensorImpl& t = impl().local ? *impl().local : impl();
  if (t.meta.shape.numel() == 0) return {};
  int64_t first = t.offset, last = t.offset;
  for (int d = 0; d < t.meta.shape.rank(); ++d)
    (t.strides[d] < 0 ? first : last) += t.strides[d] * (t.meta.shape[d] - 1);
  const int64_t size = item_size(t.meta.dtype);
  return {first * size, (last + 1) * size};
}

void* Tensor::address() const {
  const TensorImpl& t = impl();
  if (is_distributed()) only_local("data");
  if (!t.storage->data()) return nullptr;
  return static_cast<std::byte*>(t.storage->data()) + t.offset * item_size(t.meta.dtype);
}

void* Tensor::host_data(Access access) const {
  if (!is_distributed() && device().is_cuda())
    fail<DeviceError>("data", meta(),
                      " is on a device, whose bytes the host cannot read or write: values(), "
                      "item() and to_vector() wait for the device and read them, "
                      "to_device(x, kCpu) copies them");
  return settled_address(access);
}

void* Tensor::data_on_device() const {
  if (!is_distributed() && device().is_cpu())
    fail<DeviceError>("device_data", meta(),
                      " is on the CPU, expected a tensor of a device: copy it there by "
                      "to_device(x, cuda()), or read it by data()");
  return settled_address(Access::write);
}

// A kernel's operands are settled before it runs, by `call`, and not by its worker threads.
void* Tensor::settled_address(Access access) const {
  const TensorImpl& t = impl();
  if (is_distributed()) only_local("data");
  if (t.storage->released())
    fail<StorageError>("data", "the bytes of ", t.meta,
                       " are released; regain them before reading");
  if (t.meta.device.is_meta()) fail<DeviceError>("data", "a meta tensor ", t.meta, " has no bytes");
  if (!t.storage->ready()) {
    Context* const context = Context::current_or_null();
    if (context && !context->in_kernel) {
      t.storage->wait(access, byte_range(),
                      t.meta.device.is_cuda() ? context->stream(t.meta.device) : Stream{});
    }
  }
  return address();
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
                    " is distributed: read local() for this rank's shard, or "
                    "full_tensor() for the global tensor");
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
  if (n > 0)
    allocator = device.is_meta() ? detail::meta_counter() : Context::current().allocator(device);
  auto storage = make_ref<Storage>(std::move(allocator), n * item_size(dtype), device);
  return Tensor(make_ref<TensorImpl>(TensorMeta{shape, dtype, device}, contiguous_strides(shape), 0,
                                     std::move(storage)));
}

Tensor empty_like(const Tensor& x) { return empty(x.shape(), x.dtype(), x.device()); }

Tensor alias(const Tensor& x, const Shape& shape, const Shape& strides, int64_t offset) {
  return Tensor(make_ref<TensorImpl>(TensorMeta{shape, x.dtype(), x.device()}, strides, offset,
                                     x.impl().storage));
}

Tensor carve(const Tensor& flat, int64_t offset, const Shape& shape) {
  const int64_t n = checked_numel(shape, item_size(flat.dtype()), "carve");
  if (flat.is_distributed() || !flat.is_contiguous())
    fail<UsageError>("carve", flat.meta(),
                     " is not contiguous, or distributed: give a flat buffer");
  if (offset < 0 || offset + n > flat.numel()) {
    fail<ShapeError>("carve", shape, " from element ", offset, " does not lie in ", flat.meta());
  }
  const int64_t size = item_size(flat.dtype()), begin = (flat.offset() + offset) * size;
  return Tensor(make_ref<TensorImpl>(
      TensorMeta{shape, flat.dtype(), flat.device()}, contiguous_strides(shape), 0,
      Storage::part(flat.impl().storage, {begin, begin + n * size})));
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

namespace {

template <class T> T element(double value) {
  if constexpr (is_floating(dtype_of<T>)) return static_cast<T>(static_cast<compute_t<T>>(value));
  else return static_cast<T>(value);
}
template <class T> T element(Scalar value) {
  if constexpr (is_floating(dtype_of<T>)) return element<T>(value.real());
  else return value.is_whole() ? static_cast<T>(value.whole()) : static_cast<T>(value.real());
}

template <class V> Tensor made_of(std::span<const V> values, const Shape& shape, DType dtype) {
  Tensor t = empty(shape, dtype);
  dispatch<kAllDTypes>(dtype, [&]<class T>() {
    std::ranges::transform(values, t.data<T>(), [](const V& v) { return element<T>(v); });
  });
  return t;
}

}  // namespace

Tensor from_values(std::span<const double> values, const Shape& shape, DType dtype) {
  const int64_t n = checked_numel(shape, item_size(dtype), "from_values");
  if (n != static_cast<int64_t>(values.size())) {
    fail<ShapeError>("from_values", counted(values.size(), "value"), " cannot fill ", shape,
                     ", which holds ", n);
  }
  return made_of(values, shape, dtype);
}

Tensor detail::from_elements(const void* values, int64_t count, const Shape& shape, DType dtype) {
  const int64_t n = checked_numel(shape, item_size(dtype), "from_span");
  if (n != count)
    fail<ShapeError>("from_span", counted(count, "value"), " cannot fill ", shape, ", which holds ",
                     n);
  Tensor t = empty(shape, dtype);
  if (n > 0) std::memcpy(t.raw_data(), values, static_cast<size_t>(n * item_size(dtype)));
  return t;
}

namespace {

// Tells the owner of the memory when no storage needs it any more.
class Blob final : public detail::Borrowed {
 public:
  Blob(void* data, std::function<void(void*)> deleter)
      : Borrowed(data), deleter_(std::move(deleter)) {}
  ~Blob() override {
    if (deleter_) deleter_(data());
  }

 private:
  std::function<void(void*)> deleter_;
};

}  // namespace

Tensor from_blob(void* data, const Shape& shape, DType dtype, std::function<void(void*)> deleter,
                 Device device) {
  const int64_t size = item_size(dtype), n = checked_numel(shape, size, "from_blob");
  if (device.is_meta()) fail<DeviceError>("from_blob", "a meta tensor has no bytes: given ", shape);
  if (n > 0 && (!data || std::bit_cast<uintptr_t>(data) % static_cast<uintptr_t>(size) != 0))
    fail<ValueError>("from_blob", "the pointer ", data, " is null or not aligned to the ",
                     counted(size, "byte"), " of ", dtype, ": given shape ", shape);
  auto storage =
      make_ref<Storage>(Ref<Allocator>(make_ref<Blob>(data, std::move(deleter))), n * size, device);
  return Tensor(make_ref<TensorImpl>(TensorMeta{shape, dtype, device}, contiguous_strides(shape), 0,
                                     std::move(storage)));
}

Tensor tensor(Scalar value, DType dtype) {
  return made_of(std::span<const Scalar>(&value, 1), {}, dtype);
}
Tensor tensor(std::initializer_list<Scalar> row, DType dtype) {
  return made_of(std::span<const Scalar>(row.begin(), row.size()),
                 {static_cast<int64_t>(row.size())}, dtype);
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

void Tensor::read(void* to) const {
  if (is_distributed()) only_local("values");
  if (!device().is_cpu()) return to_device(*this, kCpu).read(to);
  if (numel() == 0) return;
  const auto size = static_cast<size_t>(item_size(dtype()));
  const auto* from = static_cast<const std::byte*>(read_data());
  auto* out = static_cast<std::byte*>(to);
  if (is_contiguous()) {
    std::memcpy(out, from, static_cast<size_t>(numel()) * size);
    return;
  }
  Shape at = Shape::filled(rank(), 0);
  for (int64_t i = 0, n = numel(); i < n; ++i, out += size) {
    int64_t place = 0;
    for (int d = 0; d < rank(); ++d) place += at[d] * strides()[d];
    std::memcpy(out, from + place * static_cast<int64_t>(size), size);
    for (int d = rank() - 1; d >= 0 && ++at[d] == shape()[d]; --d) at[d] = 0;
  }
}

std::vector<double> Tensor::values() const {
  std::vector<double> out;
  dispatch<kAllDTypes>(dtype(), [&]<class T>() {
    const auto exact = to_vector<T>();
    out.reserve(exact.size());
    for (const T v : exact) out.push_back(static_cast<double>(v));
  });
  return out;
}

double Tensor::item() const {
  if (is_distributed()) only_local("item");
  if (numel() != 1) not_one();
  return values()[0];
}

void Tensor::not_one() const {
  fail<ShapeError>("item", meta(), " has ", counted(numel(), "element"),
                   ": item() reads exactly one");
}

void copy_bytes(const Tensor& to, const Tensor& from) {
  if (to.shape() != from.shape() || to.dtype() != from.dtype() || !to.is_contiguous() ||
      !from.is_contiguous()) {
    fail<ShapeError>("copy_bytes",
                     "expected two contiguous tensors of equal shape and dtype, given ", to.meta(),
                     " and ", from.meta());
  }
  const int64_t bytes = to.numel() * item_size(to.dtype());
  // Also without bytes: ranks that hold less must see as many writes as others.
  to.storage().bump_version();
  if (bytes == 0) return;
  if (to.device().is_meta() || from.device().is_meta()) {
    fail<DeviceError>("copy_bytes", "a meta tensor has no values: given ", to.meta(), " and ",
                      from.meta());
  }
  if (to.device().is_cpu() && from.device().is_cpu()) {
    std::memcpy(to.raw_data(), from.read_data(), static_cast<size_t>(bytes));
  } else {
    Process::get().cuda().copy(to.settled_address(Access::write), to.device(),
                               from.settled_address(Access::read), from.device(), bytes);
  }
}

namespace {

// In new memory, so that the copy need not wait for what the device does meanwhile.
Tensor uploaded(const Tensor& x, Device device) {
  CudaBackend& cuda = Process::get().cuda();
  const int64_t bytes = x.numel() * item_size(x.dtype());
  auto storage = make_ref<Storage>(cuda.upload_allocator(device.index), bytes, device);
  cuda.upload(storage->data(), device.index, x.read_data(), bytes);
  return Tensor(make_ref<TensorImpl>(TensorMeta{x.shape(), x.dtype(), device},
                                     contiguous_strides(x.shape()), 0, std::move(storage)));
}

}  // namespace

Tensor to_device(const Tensor& x, Device device) {
  if (x.device() == device) return x;
  if (!x.is_contiguous()) {
    // A view travels as its whole storage, and is viewed again on the other side.
    const int64_t n = x.storage().bytes() / item_size(x.dtype());
    const Tensor flat = to_device(alias(x, {n}, {1}, 0), device);
    return alias(flat, x.shape(), x.strides(), x.offset());
  }
  if (x.device().is_cpu() && device.is_cuda() && x.numel() > 0) return uploaded(x, device);
  Tensor y = empty(x.shape(), x.dtype(), device);
  if (!device.is_meta()) copy_bytes(y, x);
  return y;
}

}  // namespace tessera
