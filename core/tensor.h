// SPDX-License-Identifier: Apache-2.0
// Tensor: a cheap value handle of a strided view of a storage. Copying a Tensor copies the handle,
// never the bytes. Its autograd node is opaque data here (GradNode, LeafGrad); ops are free
// functions, defined in rooms.
#pragma once

#include "tessera/core/device.h"
#include "tessera/core/dtype.h"
#include "tessera/core/ref.h"
#include "tessera/core/scalar.h"
#include "tessera/core/shape.h"
#include "tessera/core/storage.h"

#include <atomic>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace tessera {

class Tensor;
/// One entry of `x[{0, slice(1, 3), new_axis}]`; the index_put room defines it.
class Index;

/// Number of a distributed tensor's layout. dist never reuses a number, even after the layout's
/// world has ended.
enum class LayoutId : uint64_t { none };

/// The properties of a tensor that an op's checks read: global shape, dtype, device.
struct TensorMeta {
  Shape shape;
  DType dtype = DType::f32;
  Device device = kCpu;
};
/// Prints as in errors: `bf16[8, 256, 512]`.
TESSERA_API std::ostream& operator<<(std::ostream&, const TensorMeta&);

/// A node of the autograd graph; autograd derives from it.
class TESSERA_API GradNode : public RefCounted<GradNode> {
 public:
  virtual ~GradNode();
  /// Of the op that it records, as printed in `grad_fn=<add>`.
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Frees the graph below it without recursion: a million ops must not need a million stack
  /// frames.
  void destroy() const noexcept;
  // Derived nodes differ in size, so they use the general allocator's sized path.
  static void* operator new(size_t bytes) { return pool_allocate(bytes); }
  static void operator delete(void* block, size_t bytes) noexcept { pool_free(block, bytes); }
};

/// State of a leaf that requires grad, kept between steps.
struct LeafGrad;

class TensorImpl : public RefCounted<TensorImpl> {
 public:
  TESSERA_API TensorImpl(const TensorMeta& m, const Shape& s, int64_t offset, Ref<Storage> storage);
  TESSERA_API ~TensorImpl();

  TensorMeta meta;
  Shape strides;       // in elements
  int64_t offset = 0;  // in elements
  Ref<Storage> storage;
  Ref<GradNode> node;  // the op that made it; null for leaves
  GradNode* leaf_node =
      nullptr;  // the graph's sink for a leaf, alive while some graph uses the leaf
  std::unique_ptr<LeafGrad> leaf;  // made when requires_grad is set
  // Only for distributed tensors: meta.shape is global, the bytes are those of `local`, this rank's
  // shard.
  LayoutId layout = LayoutId::none;
  Ref<TensorImpl> local;
  int32_t node_output = 0;  // which output of `node` this is
  bool requires_grad = false;
  bool contiguous = true;
  bool copied_view = false;  // a view of a distributed tensor whose local tensor was copied
};

class TESSERA_API Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) noexcept = default;
  // Of a variable alone: `x[0] = y` would compile, and give the handle that x[0] is another tensor.
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & noexcept = default;
  ~Tensor() = default;

  /// Whether the handle holds a tensor. There is no conversion to bool: `if (x > 0)` does not
  /// compile, say `any(x > 0)` or `all(x > 0)` and read its `item()`.
  [[nodiscard]] bool defined() const { return static_cast<bool>(impl_); }

  [[nodiscard]] const TensorMeta& meta() const { return impl().meta; }
  [[nodiscard]] const Shape& shape() const { return impl().meta.shape; }
  [[nodiscard]] const Shape& strides() const {
    if (is_distributed()) only_local("strides");
    return impl().strides;
  }
  [[nodiscard]] int64_t offset() const {
    if (is_distributed()) only_local("offset");
    return impl().offset;
  }
  [[nodiscard]] DType dtype() const { return impl().meta.dtype; }
  [[nodiscard]] Device device() const { return impl().meta.device; }
  [[nodiscard]] int rank() const { return shape().rank(); }
  [[nodiscard]] int64_t numel() const { return shape().numel(); }
  /// Size of `dim`, which may count from the end.
  [[nodiscard]] int64_t size(int dim) const;
  [[nodiscard]] bool is_contiguous() const { return impl().contiguous; }
  /// Whether it has a layout: its shape is global, each rank holds a shard. Data, strides and item
  /// are then a LayoutError that names local() and full_tensor().
  [[nodiscard]] bool is_distributed() const { return impl().layout != LayoutId::none; }
  [[nodiscard]] Storage& storage() const { return *impl().storage; }

  /// First element, for the host to read and to write: waits until nothing is under way on the
  /// tensor's bytes. DeviceError for a tensor of a device, StorageError if the bytes are released,
  /// DTypeError if T is not the tensor's type.
  template <class T> [[nodiscard]] T* data() const {
    if (dtype() != dtype_of<T>) wrong_type(dtype_of<T>);
    return static_cast<T*>(raw_data());
  }
  [[nodiscard]] void* raw_data() const {
    const TensorImpl& t = impl();
    if (!t.meta.device.is_cpu() || not_at_hand()) return host_data(Access::write);
    return static_cast<std::byte*>(t.storage->data()) + t.offset * item_size(t.meta.dtype);
  }
  /// The same to read only: does not wait for what only reads them.
  [[nodiscard]] const void* read_data() const { return host_data(Access::read); }
  /// First element of a tensor of a device, for kernels and libraries that run there. Makes the
  /// current stream wait for what is under way; a kernel's operands are settled before it runs.
  /// DeviceError for a tensor of the CPU.
  template <class T> [[nodiscard]] T* device_data() const {
    if (dtype() != dtype_of<T>) wrong_type(dtype_of<T>);
    return static_cast<T*>(raw_device_data());
  }
  [[nodiscard]] void* raw_device_data() const {
    const TensorImpl& t = impl();
    if (!t.meta.device.is_cuda() || not_at_hand()) return data_on_device();
    return static_cast<std::byte*>(t.storage->data()) + t.offset * item_size(t.meta.dtype);
  }
  /// The first element's address on any device, to pass on: waits as data() or device_data() does.
  [[nodiscard]] void* settled_address(Access access) const;
  /// The first element's address, whatever is under way; null where there are no bytes.
  [[nodiscard]] void* address() const;
  /// The bytes of its storage that hold its elements, gaps included; of a distributed tensor, this
  /// rank's.
  [[nodiscard]] ByteRange byte_range() const;
  /// The one element's value as a double, whatever the dtype; synchronises a device. ShapeError if
  /// numel() != 1.
  [[nodiscard]] double item() const;
  /// The same with all its bits; DTypeError if T is not the tensor's type.
  template <class T> [[nodiscard]] T item() const {
    if (numel() != 1) not_one();
    return to_vector<T>()[0];
  }
  /// The elements in row-major order, with all their bits, from any device. DTypeError if T is not
  /// the tensor's type.
  template <class T> [[nodiscard]] std::vector<T> to_vector() const {
    if (dtype() != dtype_of<T>) wrong_type(dtype_of<T>);
    if constexpr (std::is_same_v<T, bool>) {  // whose vector holds no bytes
      std::vector<uint8_t> bytes(static_cast<size_t>(numel()));
      read(bytes.data());
      return {bytes.begin(), bytes.end()};
    } else {
      std::vector<T> elements(static_cast<size_t>(numel()));
      read(elements.data());
      return elements;
    }
  }
  /// The elements in row-major order, converted to doubles: i64 beyond 2^53 are rounded.
  [[nodiscard]] std::vector<double> values() const;

  [[nodiscard]] bool requires_grad() const { return impl().requires_grad; }
  /// Marks a leaf of floating dtype as a variable. AutogradError on a non-leaf, DTypeError on
  /// integers.
  Tensor& set_requires_grad(bool on = true);
  [[nodiscard]] bool is_leaf() const { return !impl().node; }
  /// The accumulated gradient of a leaf; undefined before the first backward.
  [[nodiscard]] Tensor grad() const;
  void set_grad(Tensor grad);
  /// The same bytes without the graph.
  [[nodiscard]] Tensor detach() const;

  /// `x[i]`: whatever `index(x, i)` a room defines for the type of `i` (the slice room: `x[slice(1,
  /// 3)]`). To write: `assign_(x[0], y)`, `x[0] += y` or index_put_; `x[0] = y` does not compile.
  template <class At> [[nodiscard]] Tensor operator[](const At& i) const { return index(*this, i); }
  /// `x[{0, slice(1, 3), new_axis}]`: an entry per dim, as in `x[0, 1:3, None]`.
  template <class At = Index>
  [[nodiscard]] Tensor operator[](std::type_identity_t<std::initializer_list<At>> entries) const {
    return index(*this, entries);
  }

  [[nodiscard]] TensorImpl& impl() const {
    if (!impl_) undefined();
    return *impl_;
  }
  [[nodiscard]] const Ref<TensorImpl>& handle() const { return impl_; }

 private:
  [[noreturn]] static void undefined();
  [[noreturn]] void only_local(std::string_view what) const;
  [[noreturn]] void wrong_type(DType asked) const;
  [[noreturn]] void not_one() const;
  [[nodiscard]] bool not_at_hand() const {
    return is_distributed() || !impl_->storage->ready() || !impl_->storage->data();
  }
  [[nodiscard]] void* host_data(Access access) const;
  [[nodiscard]] void* data_on_device() const;
  void read(void* to) const;  // all elements, row-major
  Ref<TensorImpl> impl_;
};

struct LeafGrad {
  std::atomic<uint32_t> context{0};  // number of the Context whose autograd uses the leaf; 0: none
  Tensor grad;
  std::vector<std::function<Tensor(const Tensor&)>> hooks;  // may replace the arriving gradient
  std::vector<std::function<void(const Tensor&)>>
      post_accumulate;  // run after `grad` holds it; get the leaf
};

/// Prints as PyTorch: `tensor([[1., 2.],\n        [3., 4.]], requires_grad=True)`; beyond 1000
/// elements three at both ends of each dim. A distributed tensor prints this rank's shard, its
/// global size and its layout.
TESSERA_API std::ostream& operator<<(std::ostream&, const Tensor&);

namespace detail {
TESSERA_API Tensor from_elements(const void* values, int64_t count, const Shape& shape,
                                 DType dtype);
}  // namespace detail

/// Uninitialised tensor on the current Context's allocator.
TESSERA_API Tensor empty(const Shape& shape, DType dtype = DType::f32, Device device = kCpu);
TESSERA_API Tensor empty_like(const Tensor& x);
/// A 1-D tensor of `values` converted to `dtype`, then shaped: `from_values({1, 2, 3, 4}, {2, 2})`.
TESSERA_API Tensor from_values(std::span<const double> values, const Shape& shape,
                               DType dtype = DType::f32);
inline Tensor from_values(std::initializer_list<double> values, const Shape& shape,
                          DType dtype = DType::f32) {
  return from_values(std::span<const double>(values.begin(), values.size()), shape, dtype);
}
/// Literals for tests and examples: `tensor({{1, 2}, {3, 4}})`.
TESSERA_API Tensor tensor(Scalar value, DType dtype = DType::f32);
TESSERA_API Tensor tensor(std::initializer_list<Scalar> row, DType dtype = DType::f32);
TESSERA_API Tensor tensor(std::initializer_list<std::initializer_list<double>> rows,
                          DType dtype = DType::f32);
/// A copy of `values`, row-major, of T's dtype. ShapeError unless they fill `shape`.
template <class T> Tensor from_span(std::span<const T> values, const Shape& shape) {
  return detail::from_elements(values.data(), static_cast<int64_t>(values.size()), shape,
                               dtype_of<T>);
}
template <class T> Tensor from_span(const std::vector<T>& values, const Shape& shape) {
  static_assert(!std::is_same_v<T, bool>, "a vector of bool holds no bytes: use uint8_t and cast");
  return from_span(std::span<const T>(values), shape);
}
/// The same, 1-D.
template <class T> Tensor from_span(std::span<const T> values) {
  return from_span(values, {static_cast<int64_t>(values.size())});
}
template <class T> Tensor from_span(const std::vector<T>& values) {
  return from_span(values, {static_cast<int64_t>(values.size())});
}
/// Literals of T's dtype with all their bits: `tensor<int64_t>({9007199254740993})`. T is named.
template <class T> Tensor tensor(std::type_identity_t<T> value) {
  return from_span(std::span<const T>(&value, 1), {});
}
template <class T> Tensor tensor(std::initializer_list<std::type_identity_t<T>> row) {
  return from_span(std::span<const T>(row.begin(), row.size()));
}
/// A tensor on memory of the caller, row-major, which it neither copies nor frees: `deleter(data)`
/// is called when the last tensor on it is gone, on any thread. ValueError for a null pointer, or
/// one that is not aligned to the dtype; DeviceError for the meta device.
TESSERA_API Tensor from_blob(void* data, const Shape& shape, DType dtype,
                             std::function<void(void*)> deleter = {}, Device device = kCpu);
/// A view of the same storage, unchecked and unrecorded, for View rooms and engines.
TESSERA_API Tensor alias(const Tensor& x, const Shape& shape, const Shape& strides, int64_t offset);
/// A contiguous part of the contiguous tensor `flat`, from element `offset`, with a storage of its
/// own on the same bytes: its holder is its only owner and may write it in place, so a leaf takes
/// it as its gradient without a copy. Parts must not overlap, and `flat` is no longer used for
/// them; its bytes stay as long as any part. What is under way on them is under way on the part.
/// ShapeError: beyond the end of `flat`. UsageError: `flat` is not contiguous. Not recorded.
TESSERA_API Tensor carve(const Tensor& flat, int64_t offset, const Shape& shape);
/// The tensor of `global` shape whose shard on this rank is `local`; dtype and device are those of
/// `local`. Unchecked and unrecorded, for dist.
TESSERA_API Tensor make_distributed(const Tensor& local, const Shape& global, LayoutId layout);
/// Copies bytes between any two devices; shapes and dtypes must be equal, both contiguous. Not
/// recorded.
TESSERA_API void copy_bytes(const Tensor& to, const Tensor& from);
/// The same values on `device`; not recorded.
TESSERA_API Tensor to_device(const Tensor& x, Device device);

}  // namespace tessera
