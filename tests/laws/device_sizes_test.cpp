// SPDX-License-Identifier: Apache-2.0
// The device against the CPU at sizes that no sample has, where kernels go another way: more rows
// than blocks, more items than threads, rows of several warps, lists of several launches, heads
// that need more shared memory than every kernel may have, one id of all tokens, vocabularies of
// any size, and what one rank has of grouped products.
#include "tessera/autograd/autograd.h"
#include "tessera/core/process.h"
#include "tessera/tessera.h"
#include "tessera/tests/laws/laws.h"

#include <gtest/gtest.h>

namespace tessera::laws {
namespace {

class CudaSizes : public testing::Test {
 protected:
  void SetUp() override {
    if (!Process::get().cuda_available()) GTEST_SKIP() << "no GPU";
  }

  Tensor random(const Shape& shape, DType dtype = DType::f32) {
    std::vector<double> values(static_cast<size_t>(shape.numel()));
    for (double& v : values) v = random_.normal();
    return from_values(values, shape, dtype);
  }

  // `f` of these tensors on the CPU and of copies on the device, with the gradients of its results
  // where it is differentiated.
  template <class F> void alike(const TensorVector& in, F f, bool differentiate = false) {
    const auto run = [&](Device device) {
      TensorVector x;
      for (const Tensor& t : in) {
        Tensor copy = device.is_cpu() ? clone(t) : to_device(t, device);
        x.push_back(differentiate ? copy.set_requires_grad() : copy);
      }
      TensorVector result = f(x);
      if (differentiate) {
        backward(result[0], {.gradient = result[0].detach()});
        for (const Tensor& t : x) result.push_back(t.grad());
      }
      return result;
    };
    const TensorVector want = run(kCpu), got = run(cuda());
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      const auto problem = difference(to_device(got[i].detach(), kCpu), want[i].detach(),
                                      tolerance_of(want[i].dtype()), terms_of(in, want[i]));
      EXPECT_FALSE(problem) << "result " << i << ": " << *problem;
    }
  }

 private:
  const Session session_{{.threads = 1}};
  Random random_{testing::UnitTest::GetInstance()->current_test_info()->name()};
};

TEST_F(CudaSizes, MoreRowsThanBlocks) {
  alike({random({4103, 3})}, [](const TensorVector& x) { return TensorVector{softmax(x[0])}; });
  alike({random({4099, 2}), random({2})},
        [](const TensorVector& x) { return TensorVector{rms_norm(x[0], x[1])}; });
}

TEST_F(CudaSizes, MoreItemsThanThreads) {
  alike({random({1, 4097, 257}), random({4097, 1})}, [](const TensorVector& x) {
    return TensorVector{x[0] + x[1], sum(x[0]), amax(x[0], 1)};
  });
}

TEST_F(CudaSizes, RowsOfSeveralWarps) {
  for (const int64_t d : {25, 37, 300, 1025}) {
    alike(
        {random({5, d}), random({d}), random({d})},
        [](const TensorVector& x) {
          return TensorVector{layer_norm(softmax(rms_norm(x[0], x[1])), x[1], x[2])};
        },
        true);
  }
}

// Rows in as many chunks as there may be, and rows of more columns than a block has at a time.
TEST_F(CudaSizes, GradientsOfNorms) {
  for (const Shape& shape : {Shape{2201, 130}, Shape{2, 16392}}) {
    for (const DType t : {DType::f32, DType::bf16}) {
      const Shape row{shape.back()};
      alike(
          {random(shape, t), random(shape, t), random(row, t)},
          [](const TensorVector& x) {
            const auto [y, sum] = add_rms_norm(x[0], x[1], x[2]);
            return TensorVector{y + sum};
          },
          true);
      alike(
          {random(shape, t), random(row, t), random(row, t)},
          [](const TensorVector& x) { return TensorVector{layer_norm(x[0], x[1], x[2])}; }, true);
    }
  }
}

TEST_F(CudaSizes, ListsOfSeveralLaunches) {
  for (const DType t : {DType::f32, DType::bf16}) {
    TensorVector in;
    for (int64_t i = 0; i < 4 * 101; ++i) {
      const int64_t k = i % 101;
      Tensor x = random({k == 50 ? 8193 : k * 37 % 97}, t);
      in.push_back(i / 101 == 3 ? abs(x) : x);
    }
    alike(in, [](const TensorVector& x) {
      std::vector<Tensor> lists[4];
      for (size_t i = 0; i < x.size(); ++i) lists[i / 101].push_back(x[i]);
      const Tensor size = norm(lists[0]);
      scale_(lists[1], 0.37);
      const Tensor factor = to_device(tensor(0.7, DType::f64), size.device());
      adamw_(lists[0], lists[1], lists[2], lists[3], 3, {.grad_factor = factor});
      TensorVector all = x;
      all.push_back(size);
      return all;
    });
  }
}

TEST_F(CudaSizes, HeadsAroundTheSharedMemoryOfEveryKernel) {
  for (const auto& [dtype, sizes] : {std::pair{DType::f32, std::array{113, 114, 115, 116}},
                                     {DType::f64, {119, 120, 121, 122}}}) {
    for (const int d : sizes) {
      const Shape shape{1, 1, 5, d};
      alike(
          {random(shape, dtype), random(shape, dtype), random(shape, dtype)},
          [](const TensorVector& x) {
            return TensorVector{scaled_dot_product_attention(x[0], x[1], x[2])};
          },
          true);
    }
  }
}

// All tokens of one id, one token of many, and none; rows that packs fill, and others.
TEST_F(CudaSizes, PlacesThatManyOrNonePointAt) {
  for (const DType t : {DType::f32, DType::bf16}) {
    for (const int64_t d : {1, 7, 16}) {
      for (const auto& [tokens, ids] :
           {std::pair(16384, 1), std::pair(300, 512), std::pair(0, 9)}) {
        std::vector<double> at(static_cast<size_t>(tokens));
        for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<double>(i * 7 % ids);
        const Tensor index = from_values(at, {tokens}, DType::i64);
        alike({random({ids, d}, t), index, random({tokens, d}, t)}, [&](const TensorVector& x) {
          return TensorVector{index_add(x[0], 0, x[1], x[2]), index_zeros(ids, 0, x[1], x[2]),
                              call(op::EmbeddingBackward{ids}, {x[2], x[1]})};
        });
      }
    }
  }
}

// The same of an index for each line, along either dim, and of indices that lead to slices; also
// one of 512 elements that nearly all point at.
TEST_F(CudaSizes, LinesThatManyOrNonePointAt) {
  for (const auto& [m, n, step] :
       {std::tuple(16384, 1, 0), std::tuple(2000, 7, 3), std::tuple(300, 512, 7),
        std::tuple(900, 512, 0), std::tuple(33, 512, 1), std::tuple(0, 9, 1)}) {
    const auto index = [&](const Shape& shape) {
      std::vector<double> at(static_cast<size_t>(shape.numel()));
      for (size_t i = 0; i < at.size(); ++i)
        at[i] = i % 293 == 5 ? n - 1 : static_cast<double>(i * step % n);
      return from_values(at, shape, DType::i64);
    };
    for (const DType t : {DType::f32, DType::bf16}) {
      for (const int dim : {0, 1}) {
        const Shape x = dim ? Shape{3, n} : Shape{n, 3}, src = dim ? Shape{2, m} : Shape{m, 2};
        alike({random(x, t), index(src), random(src, t)}, [&](const TensorVector& in) {
          TensorVector all{scatter_add(in[0], dim, in[1], in[2]), scatter(in[0], dim, in[1], in[2]),
                           scatter_zeros(n, dim, in[1], in[2])};
          for (const auto join : {op::ScatterJoin::prod, op::ScatterJoin::amax})
            all.push_back(call(op::ScatterReduce{dim, join}, {in[0], in[1], in[2]}));
          for (const Tensor& g : call(op::ScatterBackward{dim}, {in[0], in[1]})) all.push_back(g);
          return all;
        });
      }
      for (const int64_t d : {1, 7, 16}) {
        alike({random({n, d}, t), random({n, d}, t), random({m, d}, t), index({m})},
              [](const TensorVector& x) {
                call(op::IndexPut{true}, {x[0], x[2], x[3]});
                call(op::IndexPut{false}, {x[1], x[2], x[3]});
                return TensorVector{x[0], x[1]};
              });
      }
    }
  }
}

// Of one logit, of fewer than a pack, of packs and a rest; of no tokens, and of several chunks.
TEST_F(CudaSizes, VocabulariesOfAnySize) {
  for (const DType t : {DType::f32, DType::bf16}) {
    for (const auto& [tokens, classes] :
         {std::pair(5, 1), std::pair(70, 7), std::pair(3, 50257), std::pair(2, 2048),
          std::pair(0, 9), std::pair(8200, 3)}) {
      std::vector<double> at(static_cast<size_t>(tokens));
      for (size_t i = 0; i < at.size(); ++i)
        at[i] = i % 5 == 3 ? -100 : static_cast<double>(i * 31 % static_cast<size_t>(classes));
      const Tensor targets = from_values(at, {tokens}, DType::i64);
      alike({random({tokens, 8}, t), random({classes, 8}, t), targets}, [&](const TensorVector& x) {
        TensorVector all;
        for (const double smoothing : {0.0, 0.1}) {
          op::LinearCrossEntropy op;
          op.label_smoothing = smoothing, op.z_loss = smoothing / 100;
          for (const Tensor& y : call(op, {x[0], x[1], x[2]})) all.push_back(y);
        }
        return all;
      });
    }
  }
}

// Heads that packs fill, that they do not, and that turn in part; of a wider tensor, as of fused
// projections.
TEST_F(CudaSizes, RopeOnPacksAndOthers) {
  const Tensor places = from_values({4, 0, 2, 1, 3, 3, 3, 0, 1, 9}, {2, 5}, DType::i64);
  for (const DType t : {DType::f32, DType::bf16}) {
    for (const bool halves : {false, true}) {
      for (const auto& [d, half] : {std::pair(16, 8), std::pair(64, 32), std::pair(32, 8),
                                    std::pair(24, 12), std::pair(20, 10), std::pair(7, 3)}) {
        const Tensor cos = random({10, half}), sin = random({10, half});
        for (const bool in_order : {false, true}) {
          alike(
              {random({2, 5, 7, d}, t)},
              [&](const TensorVector& x) {
                const auto here = [&](const Tensor& y) { return to_device(y, x[0].device()); };
                const auto table = [&](const Tensor& y) {
                  return here(in_order ? contiguous(slice(y, 0, {0, 5})) : y);
                };
                const RopeOptions options{.halves = halves,
                                          .rotary = 2 * half,
                                          .positions = in_order ? Tensor() : here(places)};
                return TensorVector{rope(slice(x[0], 2, {2, 5}), table(cos), table(sin), options)};
              },
              true);
        }
      }
    }
  }
}

// Rows 20 to 119 of 140, and the second and third of four groups; groups end within tiles.
TEST_F(CudaSizes, PiecesOfGroups) {
  const op::GroupedPiece piece{20, 140, 1, 2};
  const Tensor ends = from_values({5, 110, 111, 140}, {4}, DType::i64);
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    for (const int64_t k : {39, 40}) {  // rows that begin on 16 bytes, and others
      alike({random({100, k}, t), random({2, 24, k}, t), random({100, 24}, t), ends},
            [&](const TensorVector& x) {
              return TensorVector{call(op::GroupedMM{true, piece}, {x[0], x[1], x[3]}),
                                  call(op::GroupedMM{false, piece}, {x[2], x[1], x[3]}),
                                  call(op::GroupedContract{piece}, {x[0], x[2], x[3]})};
            });
    }
  }
}

}  // namespace
}  // namespace tessera::laws
