// SPDX-License-Identifier: Apache-2.0
// How `{0, slice(1, 3), ids}` becomes views and one index: places, slices and new axes are applied
// first, then the dims of index tensors are joined to one, in which a single index counts.
#include "tessera/kernels/index_put/indexing.h"

#include "tessera/core/message.h"
#include "tessera/core/scopes.h"
#include "tessera/kernels/assign/assign.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/index_put/index_put.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/shared/integer_range_impl.h"

#include <algorithm>
#include <vector>

namespace tessera {
namespace {

template <class T> const T* get(const Index& i) { return std::get_if<T>(&i.entry()); }
bool is_mask(const Tensor& t) { return t.dtype() == DType::bool_; }
bool on_this_host(const Tensor& t) { return t.device().is_cpu() && !t.is_distributed(); }

// What entries other than index tensors make of x, and the index tensors with the dims of that view
// which they index, in rising order.
struct Selection {
  Tensor view;
  std::vector<int> dims;
  std::vector<Tensor> indices;

  Selection(std::string_view name, const Tensor& x, std::span<const Index> entries) : view(x) {
    int taken = 0, ellipses = 0, dim = 0;
    for (const Index& e : entries) {
      if (const Tensor* t = get<Tensor>(e)) taken += is_mask(*t) ? t->rank() : 1;
      else if (get<Ellipsis>(e)) ++ellipses;
      else taken += get<NewAxis>(e) ? 0 : 1;
    }
    if (ellipses > 1)
      fail<IndexError>(name, "one ellipsis at most: given ", ellipses, " for ", x.meta());
    if (taken > x.rank())
      fail<IndexError>(name, "too many indices: given ", taken, " for ", x.meta(), " of ",
                       counted(x.rank(), "dim"));
    for (const Index& e : entries) {
      if (const auto* at = get<int64_t>(e)) {
        view = select(view, dim, *at);
      } else if (const auto* range = get<Range>(e)) {
        view = slice(view, dim++, *range);
      } else if (get<NewAxis>(e)) {
        view = unsqueeze(view, dim++);
      } else if (get<Ellipsis>(e)) {
        dim += x.rank() - taken;
      } else if (const Tensor& t = *get<Tensor>(e); is_mask(t)) {
        add_mask(name, t, dim);
        dim += t.rank();
      } else {
        add(name, t, dim++);
      }
    }
  }

  void add(std::string_view name, const Tensor& index, int dim) {
    if (index.dtype() != DType::i64 && index.dtype() != DType::i32)
      fail<DTypeError>(name, "an index tensor must be i64, i32 or bool: given ", index.meta(),
                       "; cast it");
    dims.push_back(dim);
    indices.push_back(index);
  }

  // A mask is as many index tensors as it has dims.
  void add_mask(std::string_view name, const Tensor& mask, int dim) {
    bool fits = mask.rank() > 0;
    for (int d = 0; fits && d < mask.rank(); ++d) fits = mask.shape()[d] == view.shape()[dim + d];
    if (!fits)
      fail<IndexError>(name, "a mask must have the shape of the dims that it stands for: given ",
                       mask.meta(), " at dim ", dim, " of ", view.meta());
    const Tensor places = nonzero(mask);  // (n, rank)
    for (int d = 0; d < mask.rank(); ++d) add(name, select(places, 1, d), dim + d);
  }

  // The shape that the index tensors have together.
  [[nodiscard]] Shape joint_shape(std::string_view name) const {
    Shape shape = indices[0].shape();
    for (const Tensor& i : indices) shape = broadcast_shapes(shape, i.shape(), name);
    return shape;
  }
  [[nodiscard]] bool together() const {
    return dims.back() - dims.front() + 1 == static_cast<int>(dims.size());
  }
  // Where the dims of the index tensors stand in the result.
  [[nodiscard]] int place() const { return together() ? dims.front() : 0; }
  // The dims that no index tensor stands for.
  [[nodiscard]] std::vector<int> others() const {
    std::vector<int> rest;
    for (int d = 0; d < view.rank(); ++d) {
      if (std::ranges::find(dims, d) == dims.end()) rest.push_back(d);
    }
    return rest;
  }
  // The shape of x[entries].
  [[nodiscard]] Shape result_shape(const Shape& joint) const {
    Shape shape;
    int at = 0;
    const std::vector<int> rest = others();
    for (; at < place(); ++at) shape.push_back(view.shape()[rest[static_cast<size_t>(at)]]);
    for (const int64_t size : joint) shape.push_back(size);
    for (size_t i = static_cast<size_t>(at); i < rest.size(); ++i)
      shape.push_back(view.shape()[rest[i]]);
    return shape;
  }
  // The view with the indexed dims first, the others after them.
  [[nodiscard]] Tensor indexed_first() const {
    Shape order;
    for (const int d : dims) order.push_back(d);
    for (const int d : others()) order.push_back(d);
    return permute(view, order);
  }
};

// Index k with negative ones counted from the end, as i64. Values on this host are checked.
Tensor counted(std::string_view name, const Selection& s, size_t k) {
  const Tensor& given = s.indices[k];
  const int64_t size = s.view.shape()[s.dims[k]];
  if (!on_this_host(given)) {
    const Tensor i = cast(given, DType::i64);
    return where(i < 0, i + size, i);
  }
  const Tensor i = given.dtype() == DType::i64 ? copy(given) : cast(given, DType::i64);
  auto* values = i.numel() > 0 ? i.data<int64_t>() : nullptr;
  for (int64_t j = 0; j < i.numel(); ++j) {
    if (values[j] < -size || values[j] >= size)
      fail<IndexError>(name, "index ", values[j], " at position ", j, " of ", given.meta(),
                       " is out of range for dim ", s.dims[k], " of ", s.view.meta(), ": expected ",
                       -size, " to ", size - 1);
    if (values[j] < 0) values[j] += size;
  }
  return i;
}

// The places of the index tensors in their dims as one: (m).
Tensor joined(std::string_view name, const Selection& s, const Shape& joint) {
  constexpr int64_t kOutside = -(int64_t{1} << 59);  // below 0 in any sum
  Tensor all;
  int64_t step = 1;
  for (size_t k = s.indices.size(); k-- > 0;) {
    const int64_t size = s.view.shape()[s.dims[k]];
    Tensor i = counted(name, s, k);
    if (!on_this_host(i) && s.indices.size() > 1)
      i = masked_fill(i, (i < 0) | (i >= size), kOutside / std::max<int64_t>(step, 1));
    i = step == 1 ? i : i * step;
    all = all.defined() ? all + i : i;
    step *= size;
  }
  return reshape(expand(all, joint), {joint.numel()});
}

// `values`, copied if they lie in the storage that is written.
Tensor apart_from(const Tensor& x, const Tensor& values) {
  const auto storage = [](const Tensor& t) {
    return (t.is_distributed() ? Tensor(t.impl().local) : t).impl().storage;
  };
  return storage(values) == storage(x) ? copy(values) : values;
}

void put(const Tensor& x, std::span<const Index> entries, const Tensor& values, bool accumulate) {
  constexpr std::string_view kName = op::IndexPut::name;
  if (values.dtype() != x.dtype())
    fail<DTypeError>(kName, "x and values must share one dtype: given ", x.meta(), " and ",
                     values.meta(), "; cast the values");
  check_unrecorded(kName, x, values);
  const NoGrad guard;
  const Selection s(kName, x, entries);
  if (s.indices.empty()) {
    const Tensor all = expand(values, s.view.shape());
    return assign_(s.view, accumulate ? s.view + all : all);
  }
  const Shape joint = s.joint_shape(kName);
  Tensor all = expand(apart_from(x, values), s.result_shape(joint));
  Shape order;  // the dims of the index tensors first
  for (int d = 0; d < joint.rank(); ++d) order.push_back(s.place() + d);
  for (int d = 0; d < all.rank(); ++d) {
    if (d < s.place() || d >= s.place() + joint.rank()) order.push_back(d);
  }
  Shape sizes{joint.numel()};
  for (const int d : s.others()) sizes.push_back(s.view.shape()[d]);
  TensorList in;
  in.push_back(s.indexed_first());                    // (n_0, ..., n_k-1, ...)
  in.push_back(reshape(permute(all, order), sizes));  // (m, ...)
  for (size_t k = 0; k < s.indices.size(); ++k)
    in.push_back(reshape(expand(counted(kName, s, k), joint), {joint.numel()}));
  call(op::IndexPut{accumulate}, in);
}

}  // namespace

Tensor index(const Tensor& x, std::span<const Index> entries) {
  constexpr std::string_view kName = "index";
  const Selection s(kName, x, entries);
  if (s.indices.empty()) return s.view;
  const Shape joint = s.joint_shape(kName);
  const int place = s.place(), count = static_cast<int>(s.dims.size());
  const Tensor ordered = s.together() ? s.view : s.indexed_first();
  const Tensor flat = count > 1 ? flatten(ordered, place, place + count - 1) : ordered;
  return reshape(index_select(flat, place, joined(kName, s, joint)), s.result_shape(joint));
}

void index_put_(const Tensor& x, std::span<const Index> entries, const Tensor& values,
                bool accumulate) {
  put(x, entries, values, accumulate);
}
void index_put_(const Tensor& x, std::span<const Index> entries, Scalar value, bool accumulate) {
  op::check_scalar(op::IndexPut::name, value, x.meta());
  put(x, entries, full({}, value, x.dtype(), x.device()), accumulate);
}

Tensor nonzero(const Tensor& x) {
  if (x.is_distributed())
    fail<LayoutError>("nonzero", x.meta(),
                      " is distributed: how many elements are not zero differs from rank to rank; "
                      "take local(), or full_tensor() first");
  if (x.device().is_meta())
    fail<DeviceError>("nonzero", "a meta tensor has no values: given ", x.meta());
  const Tensor truths = x.dtype() == DType::bool_ ? x : x != 0;
  const auto flags = truths.to_vector<bool>();
  std::vector<int64_t> places;
  Shape at = Shape::filled(x.rank(), 0);
  for (const bool flag : flags) {
    if (flag) places.insert(places.end(), at.begin(), at.end());
    for (int d = x.rank() - 1; d >= 0 && ++at[d] == x.shape()[d]; --d) at[d] = 0;
  }
  const int64_t count = std::ranges::count(flags, true);
  return to_device(from_span(places, {count, x.rank()}), x.device());
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  if (!is_mask(mask))
    fail<DTypeError>("masked_select", "the mask must be bool: given ", mask.meta(),
                     "; compare first");
  const Shape shape = broadcast_shapes(x.shape(), mask.shape(), "masked_select");
  if (shape.rank() == 0) return masked_select(reshape(x, {1}), reshape(mask, {1}));
  return index(expand(x, shape), expand(mask, shape));
}

}  // namespace tessera
