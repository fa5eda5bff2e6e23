// SPDX-License-Identifier: Apache-2.0
// What a device does beyond bounds that small samples do not reach: uploads larger than the ring of
// pinned memory, sequences longer than a block of attention looks ahead, and indices out of range,
// for which a kernel cannot throw.
#include "tessera/autograd/autograd.h"
#include "tessera/kernels/arange/arange.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/cross_entropy/cross_entropy.h"
#include "tessera/kernels/embedding/embedding.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/gather/gather.h"
#include "tessera/kernels/histogram/histogram.h"
#include "tessera/kernels/index_put/index_put.h"
#include "tessera/kernels/index_select/index_select.h"
#include "tessera/kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tessera/kernels/one_hot/one_hot.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/rope/rope.h"
#include "tessera/kernels/scatter/scatter.h"
#include "tessera/tests/device/counts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace tessera {
namespace {

// More than twice the size of the ring, in pieces that do not divide it, with kernels that read
// each piece in between.
TEST(DeviceBounds, UploadsGoRoundTheRingInOrder) {
  const Session session({.threads = 1});
  std::vector<std::pair<Tensor, Tensor>> all;  // on the host, on the device
  for (const int64_t n : {1'000'003, 5'000'001, 17, 2'500'000, 700'001}) {
    const Tensor host = arange(n, DType::f32);
    all.emplace_back(host, to_device(host, cuda(0)));
    (void)(all.back().second * 2);
  }
  for (const auto& [host, there] : all) {
    const Tensor back = to_device(there, kCpu);
    EXPECT_EQ(std::memcmp(back.raw_data(), host.raw_data(), static_cast<size_t>(host.numel()) * 4),
              0)
        << host.numel();
  }
}

// A kernel asks the mask about 128 blocks of keys at a time, or of queries for the gradients of
// keys. Here there are more, and documents in the second window are not those of the first.
TEST(DeviceBounds, AttentionLooksAtLongSequencesWindowByWindow) {
  const Session session({.threads = 1});
  const auto documents = [](int64_t n) {
    std::vector<double> ids;
    for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<double>(i / (n / 3)));
    return from_values(ids, {n}, DType::i64);
  };
  for (const auto& [queries, keys] :
       {std::pair{int64_t{3}, int64_t{8300}}, {int64_t{8300}, int64_t{70}}}) {
    SCOPED_TRACE(queries);
    const auto run = [&, queries = queries, keys = keys](Device device) {
      const auto input = [&](uint64_t stream, int64_t n) {
        return to_device(normal({1, 1, n, 16}, {5, stream}, 0, 1, DType::bf16), device);
      };
      Tensor q = input(1, queries), k = input(2, keys), v = input(3, keys);
      for (Tensor* x : {&q, &k, &v}) x->set_requires_grad();
      const Tensor o =
          scaled_dot_product_attention(q, k, v,
                                       {.mask = AttentionMask::document(),
                                        .query_documents = to_device(documents(queries), device),
                                        .key_documents = to_device(documents(keys), device)});
      std::vector<Tensor> all = grad({o}, {q, k, v}, {.grad_outputs = {input(4, queries)}});
      all.push_back(o);
      return all;
    };
    const std::vector<Tensor> want = run(kCpu), got = run(cuda(0));
    for (size_t i = 0; i < want.size(); ++i) {
      const std::vector<double> w = want[i].values(), g = got[i].values();
      double off = 0, all = 0;
      for (size_t e = 0; e < w.size(); ++e)
        off += (g[e] - w[e]) * (g[e] - w[e]), all += w[e] * w[e];
      EXPECT_LT(std::sqrt(off / all), 0.02) << i;
    }
  }
}

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void expect_values(const Tensor& got, const std::vector<double>& want, const char* what) {
  const std::vector<double> values = got.values();
  ASSERT_EQ(values.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    const bool equal = std::isnan(want[i]) ? std::isnan(values[i]) : values[i] == want[i];
    EXPECT_TRUE(equal) << what << ", " << i << ": " << values[i];
  }
}

// Reads give NaN, writes are left out, counts do not count it.
TEST(DeviceBounds, AnIndexOutsideShowsAndHarmsNothing) {
  if (test::host_device_counts()) return;  // kernels of the CPU throw
  const Session session({.threads = 1});
  const Device device = cuda(0);
  const auto there = [&](const Tensor& x) { return to_device(x, device); };
  const auto ids = [&](const std::vector<double>& values) {
    return there(from_values(values, {static_cast<int64_t>(values.size())}, DType::i64));
  };
  const Tensor x = there(tensor({1, 2, 3})), table = there(from_values({1, 2, 3, 4}, {2, 2}));
  for (const double outside : {-1.0, 3.0, 1e15}) {
    SCOPED_TRACE(outside);
    const Tensor at = ids({2, outside, 0});
    expect_values(gather(x, 0, at), {3, kNaN, 1}, "gather");
    expect_values(index_select(x, 0, at), {3, kNaN, 1}, "index_select");
    // Negative ones count from the end.
    expect_values(index(x, Index(at)), {3, outside < 0 ? 3 : kNaN, 1}, "index");
    expect_values(embedding(table, ids({1, outside})), {3, 4, kNaN, kNaN}, "embedding");
    expect_values(one_hot(at, 3), {0, 0, 1, 0, 0, 0, 1, 0, 0}, "one_hot");
    expect_values(bincount(at, 3), {1, 0, 1}, "bincount");
    const Tensor src = there(tensor({10, 20, 30}));
    expect_values(index_add(x, 0, at, src), {31, 2, 13}, "index_add");
    expect_values(scatter_add(x, 0, at, src), {31, 2, 13}, "scatter_add");
    expect_values(scatter(x, 0, at, src), {30, 2, 10}, "scatter");
    expect_values(index_zeros(3, 0, at, src), {30, 0, 10}, "index_zeros");
    std::vector<double> many(50, outside);  // enough to be sorted
    many[7] = 2, many[11] = 2, many[49] = 0;
    const Tensor far = ids(many), tens = there(from_values(std::vector<double>(50, 10), {50}));
    expect_values(scatter_add(x, 0, far, tens), {11, 2, 23}, "scatter_add of many");
    expect_values(scatter(x, 0, far, tens), {10, 2, 10}, "scatter of many");
    expect_values(index_add(x, 0, far, tens), {11, 2, 23}, "index_add of many");
    for (const bool accumulate : {false, true}) {
      const Tensor y = there(tensor({1, 2, 3}));
      call(op::IndexPut{accumulate}, {y, tens, far});
      expect_values(y, {accumulate ? 11.0 : 10.0, 2, accumulate ? 23.0 : 10.0}, "index_put_");
    }
    const Tensor logits = there(zeros({2, 3})), targets = ids({1, outside});
    EXPECT_TRUE(std::isnan(cross_entropy(logits, targets).sum.item()));
    EXPECT_TRUE(std::isnan(
        linear_cross_entropy(there(ones({2, 2})), there(ones({3, 2})), targets).sum.item()));
    const Tensor turn = there(ones({3, 1})), heads = there(ones({1, 2, 1, 2}));
    const std::vector<double> turned =
        rope(heads, turn, turn, {.positions = there(from_values({1, outside}, {1, 2}, DType::i64))})
            .values();
    EXPECT_FALSE(std::isnan(turned[0]) || std::isnan(turned[1]));
    EXPECT_TRUE(std::isnan(turned[2]) && std::isnan(turned[3]));
  }
  expect_values(x, {1, 2, 3}, "x");
}

}  // namespace
}  // namespace tessera
