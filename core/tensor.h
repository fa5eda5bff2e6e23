// SPDX-License-Identifier: Apache-2.0
// Tensor: a cheap value handle on a strided view of a storage. Copying a Tensor copies the handle,
// never the bytes. It knows its place in the autograd graph as opaque data (GradNode, LeafGrad);
// ops live in rooms, as free functions.
#pragma once

#include "tessera/core/device.h"
#include "tessera/core/dtype.h"
#include "tessera/core/ref.h"
#include "tessera/core/shape.h"
#include "tessera/core/storage.h"

#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <span>
#include <vector>

namespace tessera {

class Tensor;

/// How a distributed tensor lies, by a number that dist gives out once: it is never another
/// layout's, whatever became of the world that it was made in.
enum class LayoutId : uint64_t { none };

/// What an op's checks see of a tensor: global shape, dtype, device.
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
  // Derived nodes differ in size, so they use the general allocator's sized path.
  static void* operator new(size_t bytes) { return pool_allocate(bytes); }
  static void operator delete(void* block, size_t bytes) noexcept { pool_free(block, bytes); }
};

/// What a leaf that requires grad keeps between steps.
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
  // Distributed tensors alone: meta.shape is global, the bytes are those of `local`, this rank's
  // part.
  LayoutId layout = LayoutId::none;
  Ref<TensorImpl> local;
  int32_t node_output = 0;  // which output of `node` this is
  bool requires_grad = false;
  bool contiguous = true;
  bool copied_view = false;  // a view of a distributed tensor whose part had to be copied or moved
};

class TESSERA_API Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}

  [[nodiscard]] bool defined() const { return static_cast<bool>(impl_); }
  explicit operator bool() const { return defined(); }

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
  /// Whether it has a layout: its shape is global, each rank holds a part. Data, strides and item
  /// are then a LayoutError that names local() and full_tensor().
  [[nodiscard]] bool is_distributed() const { return impl().layout != LayoutId::none; }
  [[nodiscard]] Storage& storage() const { return *impl().storage; }

  /// First element; throws StorageError if the bytes are released, DTypeError if T is not the
  /// tensor's type.
  template <class T> [[nodiscard]] T* data() const {
    if (dtype() != dtype_of<T>) wrong_type(dtype_of<T>);
    return static_cast<T*>(raw_data());
  }
  [[nodiscard]] void* raw_data() const;
  /// The one element's value as a double, whatever the dtype; synchronises a device. ShapeError if
  /// numel() != 1.
  [[nodiscard]] double item() const;
  /// The elements in row-major order, converted. For tests and small results.
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
  /// 3)]`).
  template <class Index> [[nodiscard]] Tensor operator[](const Index& i) const {
    return index(*this, i);
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
  Ref<TensorImpl> impl_;
};

struct LeafGrad {
  Tensor grad;
  std::vector<std::function<Tensor(const Tensor&)>> hooks;  // may replace the arriving gradient
  std::vector<std::function<void(const Tensor&)>>
      post_accumulate;  // run after `grad` holds it; get the leaf
};

/// Prints dtype, shape and values, abbreviated beyond 1000 elements.
TESSERA_API std::ostream& operator<<(std::ostream&, const Tensor&);

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
TESSERA_API Tensor tensor(double value, DType dtype = DType::f32);
TESSERA_API Tensor tensor(std::initializer_list<double> row, DType dtype = DType::f32);
TESSERA_API Tensor tensor(std::initializer_list<std::initializer_list<double>> rows,
                          DType dtype = DType::f32);
/// A view of the same storage, unchecked and unrecorded: what View rooms and engines build results
/// from.
TESSERA_API Tensor alias(const Tensor& x, const Shape& shape, const Shape& strides, int64_t offset);
/// The tensor of `global` shape whose part on this rank is `local`; dtype and device are the
/// part's. Unchecked and unrecorded: what dist builds its tensors from.
TESSERA_API Tensor make_distributed(const Tensor& local, const Shape& global, LayoutId layout);
/// Copies bytes between any two devices; shapes and dtypes must be equal, both contiguous. Not
/// recorded.
TESSERA_API void copy_bytes(const Tensor& to, const Tensor& from);
/// The same values on `device`; not recorded.
TESSERA_API Tensor to_device(const Tensor& x, Device device);

}  // namespace tessera
