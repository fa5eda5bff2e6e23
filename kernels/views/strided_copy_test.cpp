// SPDX-License-Identifier: Apache-2.0
// Copies between any two layouts, against index arithmetic: blocks that do not divide, rows that
// are cut for threads, every size of item.
#include "tessera/kernels/shared/strided_copy_impl.h"
#include "tessera/kernels/views/views.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace {

template <class T> Tensor count_up(const Shape& shape) {
  const Tensor x = empty(shape, dtype_of<T>);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<T>()[i] = static_cast<T>(i % 251);
  return x;
}

template <class T> void expect_elements(const Tensor& copied, const Tensor& view) {
  ASSERT_TRUE(copied.is_contiguous());
  const T* x = static_cast<const T*>(view.raw_data());
  Shape at = Shape::filled(view.rank(), 0);
  for (int64_t i = 0; i < view.numel(); ++i) {
    int64_t where = 0;
    for (int d = 0; d < view.rank(); ++d) where += at[d] * view.strides()[d];
    ASSERT_EQ(copied.data<T>()[i], x[where]) << view.meta() << " element " << i;
    for (int d = view.rank() - 1; d >= 0 && ++at[d] == view.shape()[d]; --d) at[d] = 0;
  }
}

template <class T> void check_layouts(const Shape& shape) {
  const Tensor x = count_up<T>(shape);
  std::vector<Tensor> views;
  for (const Shape& order : {Shape{0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}) {
    const Tensor y = permute(x, order);
    views.push_back(y);
    views.push_back(slice(y, 0, {1, 1000, 2}));
    views.push_back(slice(y, 1, {1}));
    views.push_back(slice(y, 2, {0, 1000, 3}));
  }
  views.push_back(
      expand(reshape(slice(x, 0, {0, 1}), {1, shape[1], shape[2]}), {3, shape[1], shape[2]}));
  for (const Tensor& v : views) expect_elements<T>(row_major(v), v);
}

TEST(StridedCopy, AnyLayout) {
  for (const int threads : {1, 2}) {
    Context context({.threads = threads});
    for (const Shape& shape :
         {Shape{3, 65, 130}, {70, 5, 33}, {2, 259, 300}, {1, 8, 8}, {9, 1, 7}}) {
      check_layouts<uint8_t>(shape);
      check_layouts<int32_t>(shape);
      check_layouts<int64_t>(shape);
    }
  }
}

// Two bytes: floats whose bits say which they are.
TEST(StridedCopy, NarrowFloats) {
  Context context;
  const Tensor x = empty({131, 261}, DType::bf16);
  auto* bits = static_cast<uint16_t*>(x.raw_data());
  for (int64_t i = 0; i < x.numel(); ++i) bits[i] = static_cast<uint16_t>(i);
  const Tensor y = row_major(transpose(x, 0, 1));
  const auto* got = static_cast<const uint16_t*>(y.raw_data());
  for (int64_t i = 0; i < y.numel(); ++i)
    ASSERT_EQ(got[i], static_cast<uint16_t>(i % 131 * 261 + i / 131));
}

// Into gaps, which stay as they were.
TEST(StridedCopy, StridedTargets) {
  Context context;
  const Tensor y = count_up<int32_t>({20, 30}), x = count_up<int32_t>({15, 10});
  const Tensor into = slice(slice(y, 0, {0, 20, 2}), 1, {0, 30, 2});
  strided_copy(into, transpose(x, 0, 1));
  for (int64_t i = 0; i < 600; ++i) {
    const int64_t row = i / 30, column = i % 30;
    const bool copied = row % 2 == 0 && column % 2 == 0;
    ASSERT_EQ(y.data<int32_t>()[i], copied ? (column / 2 * 10 + row / 2) % 251 : i % 251);
  }
  EXPECT_THROW(strided_copy(y, x), UsageError);
}

}  // namespace
}  // namespace tessera
