// SPDX-License-Identifier: Apache-2.0
// Tensors, modules and collectives of one rank on a device.
#include "tessera/core/host_read.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/rank_device.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/kernels/views/views.h"
#include "tessera/models/llama3/llama3.h"
#include "tessera/nn/lay_out.h"
#include "tessera/tests/device/counts.h"
#include "tessera/tests/support/error_of.h"

#include <gtest/gtest.h>

#include <sstream>
#include <thread>
#include <utility>
#include <vector>

namespace tessera {
namespace {

// Gives back what memory held.
struct Nothing {
  static constexpr DTypeSet dtypes = kFloats;
  static constexpr NotShardable sharding{"a test"};
  static constexpr NotDifferentiable vjp{"a test"};
  MetaList meta(Metas in) const { return {in[0]}; }
  void cpu(Tensors, Outputs) const {}
};
struct OnTheCpuAlone : Nothing {
  static constexpr std::string_view name = "on_the_cpu_alone";
  static constexpr NotOnCuda cuda{"a test"};
  static std::vector<Sample<OnTheCpuAlone>> samples() { return {}; }
};
struct OfAnotherVersion : Nothing {
  static constexpr std::string_view name = "of_another_version";
  void cuda(Tensors, Outputs, Stream) const {}
  static std::vector<Sample<OfAnotherVersion>> samples() { return {}; }
};

}  // namespace
}  // namespace tessera

TESSERA_ROOM(tessera::OnTheCpuAlone)
// A row whose kernel is in the CUDA library, as those of the project's table.
template <>
const tessera::OpRow tessera::RowOf<tessera::OfAnotherVersion>::row =
    tessera::detail::make_row<tessera::OfAnotherVersion, true>();

namespace tessera {
namespace {

TEST(RankDevice, EachRankOfAHostHasOneOfItsOwn) {
  EXPECT_EQ(rank_device(DeviceChoice::cpu, 7, 8), kCpu);
  EXPECT_EQ(rank_device(DeviceChoice::cuda, 0, 1), cuda(0));
  EXPECT_EQ(rank_device(DeviceChoice::cuda, 1, 2), cuda(1));
  Launch unknown;
  unknown.rank = 3;
  unknown.size = 4;
  EXPECT_EQ(rank_device(DeviceChoice::cuda, unknown), cuda(0));
  EXPECT_EQ(rank_device(DeviceChoice::automatic, 0, 1 << 20), kCpu);
  const Device last = cuda(99);
  EXPECT_THROW((void)rank_device(DeviceChoice::cuda, last.index, last.index + 1), ConfigError);
}

TEST(DeviceTensor, TravelsAndComputes) {
  const Session session({.threads = 1});
  const Tensor host = normal({3, 5}, {.seed = 1});
  const Tensor there = to_device(host, cuda(0));
  EXPECT_EQ((transpose(there, 0, 1) * 2).values(), (transpose(host, 0, 1) * 2).values());
  EXPECT_EQ(to_device(slice(there, 1, {1, 4}), kCpu).values(), slice(host, 1, {1, 4}).values());
  EXPECT_EQ(to_device(empty({0, 2}), cuda(0)).numel(), 0);
  EXPECT_EQ(to_device(tensor(3), cuda(0)).item(), 3);
  EXPECT_THROW((void)(host + there), DeviceError);
  EXPECT_THROW((void)empty({1}, DType::f32, cuda(100)), DeviceError);
}

TEST(DeviceTensor, AnOpWithoutAKernelForDevicesSaysWhy) {
  const Session session({.threads = 1});
  const Tensor x = to_device(tensor({1, 2}), cuda(0));
  EXPECT_EQ(test::error_of<DeviceError>([&] { (void)call(OnTheCpuAlone{}, {x}); }),
            "[on_the_cpu_alone] does not run on CUDA: a test");
  EXPECT_EQ(test::error_of<DeviceError>([&] { (void)call(OfAnotherVersion{}, {x}); }),
            "[of_another_version] the CUDA library holds no kernel of this op: it is of another "
            "version");
}

// What the tests of runs rest on.
TEST(DeviceTensorDeathTest, BytesOfADeviceAreOutOfTheHostsReach) {
  if (!test::host_device_counts()) return;
  const Session session({.threads = 1});
  const Tensor x = to_device(tensor({1, 2}), cuda(0));
  EXPECT_DEATH((void)*static_cast<volatile float*>(x.address()), "");
}

// Streams of threads differ, and none waits for another but for such a tensor.
TEST(DeviceTensor, MayBeUsedOnAnotherThreadThanItsMakers) {
  const Session session({.threads = 1});
  const Tensor host = normal({1000}, {.seed = 3});
  for (int i = 0; i < 5; ++i) {
    Tensor made = to_device(host, cuda(0)) * 2;
    std::vector<double> got;
    std::thread([&, given = std::move(made)]() mutable {
      const Session own({.threads = 1});
      const Tensor result = given + 1;
      given = {};
      got = result.values();
    }).join();
    (void)full({1000}, 9, DType::f32, cuda(0));  // may take the bytes that were freed
    EXPECT_EQ(got, (host * 2 + 1).values());
  }
}

// Only a copy to the host waits for the device.
TEST(DeviceTensor, OnlyAReadWaits) {
  test::HostDeviceCounts* const counts = test::host_device_counts();
  if (!counts) return;
  const Session session({.threads = 1});
  const int64_t before = counts->to_host + counts->synchronised;
  const Tensor x = to_device(normal({64}, {.seed = 2}), cuda(0));
  const Tensor y = clamp(x * x + 1, {.max = 2});
  copy_bytes(x, y);
  EXPECT_EQ(counts->to_host + counts->synchronised, before);
  EXPECT_EQ(x.values().size(), 64u);
  EXPECT_EQ(counts->to_host + counts->synchronised, before + 1);
}

TEST(DeviceTensor, IsOutOfTheHostsReachByName) {
  const Session session({.threads = 1});
  const Tensor x = normal({2, 3}, {.seed = 3}, 0, 1, DType::f32, cuda(0));
  const Tensor row = select(x, 0, 1);
  for (const Tensor& t : {x, row}) {
    const std::string start = concat("[data] ", t.meta(), " is on a device, ");
    for (const std::string& error : {test::error_of<DeviceError>([&] { (void)t.data<float>(); }),
                                     test::error_of<DeviceError>([&] { (void)t.raw_data(); }),
                                     test::error_of<DeviceError>([&] { (void)t.read_data(); })})
      EXPECT_TRUE(error.starts_with(start)) << error;
    EXPECT_EQ(t.device_data<float>(), t.address());
  }
  // These wait for the device and read.
  const std::vector<double> values = to_device(row, kCpu).values();
  EXPECT_EQ(row.values(), values);
  EXPECT_EQ(row.to_vector<float>()[2], static_cast<float>(values[2]));
  EXPECT_EQ(select(row, 0, 1).item(), values[1]);
  EXPECT_EQ(select(row, 0, 1).item<float>(), static_cast<float>(values[1]));
  const auto printed = [](const Tensor& t) {
    std::ostringstream text;
    text << t;
    return text.str();
  };
  const std::string here = printed(to_device(row, kCpu));
  EXPECT_EQ(printed(row), concat(here.substr(0, here.size() - 1), ", device='cuda:0')"));
  EXPECT_EQ(printed(to_device(tensor({1, 2}, DType::i64), cuda(0))),
            "tensor([1, 2], device='cuda:0')");
}

// The copy begins at once, so that later writes are not seen; the host waits where it reads.
TEST(DeviceTensor, IsReadWhileTheDeviceGoesOn) {
  test::HostDeviceCounts* const counts = test::host_device_counts();
  const Session session({.threads = 1});
  const Tensor x = to_device(tensor({1, 2, 3}), cuda(0));
  const auto waits = [&] { return counts ? counts->to_host + counts->synchronised : int64_t{0}; };
  const int64_t before = waits();
  const HostRead first(x * 2), second(x), given_up(x);
  copy_bytes(x, x * 5);
  EXPECT_EQ(waits(), before);
  EXPECT_EQ(first.values(), (std::vector<double>{2, 4, 6}));
  EXPECT_EQ(second.values(), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(HostRead(x).values(), (std::vector<double>{5, 10, 15}));
  EXPECT_EQ(HostRead(empty({0}, DType::f32, cuda(0))).values(), std::vector<double>());
  EXPECT_EQ(HostRead(tensor({4})).values(), std::vector<double>{4});
  if (counts) {
    EXPECT_EQ(waits(), before + 3);
  }
  EXPECT_THROW((void)HostRead(transpose(to_device(tensor({{1, 2}, {3, 4}}), cuda(0)), 0, 1)),
               UsageError);
}

TEST(DeviceAttention, NamesAHeadSizeThatNoKernelTakes) {
  const Session session({.threads = 1});
  const auto of = [](int64_t d) { return zeros({1, 2, 3, d}, DType::f32, cuda(0)); };
  EXPECT_EQ(scaled_dot_product_attention(of(256), of(256), of(256)).shape(), (Shape{1, 2, 3, 256}));
  EXPECT_EQ(test::error_of<ShapeError>(
                [&] { (void)scaled_dot_product_attention(of(8), of(8), of(257)); }),
            "[scaled_dot_product_attention] the heads are of 257 values, on a device of up to 256: "
            "q is f32[1, 2, 3, 8]@cuda:0, k is f32[1, 2, 3, 8]@cuda:0, v is f32[1, 2, 3, "
            "257]@cuda:0; use more and smaller heads, or the CPU");
}

TEST(DeviceAttention, NamesASequenceThatIsTooLong) {
  const Session session({.threads = 1});
  const Tensor x = zeros({1, 1, 1, 8}, DType::bf16, cuda(0)),
               keys = expand(x, {1, 1, (int64_t{1} << 30) + 1, 8});
  EXPECT_EQ(test::error_of<ShapeError>([&] { (void)scaled_dot_product_attention(x, keys, keys); }),
            "[scaled_dot_product_attention] a sequence has 1073741825 tokens, on a device of up to "
            "1073741824: q is bf16[1, 1, 1, 8]@cuda:0, k is bf16[1, 1, 1073741825, 8]@cuda:0, v is "
            "bf16[1, 1, 1073741825, 8]@cuda:0; cut it over ranks");
}

// A block that names bits that are not there is NaN, in all rows of it and what is made of them.
TEST(DeviceAttention, GivesNaNForABlockMapThatIsBroken) {
  if (test::host_device_counts()) return;  // the CPU's kernels refuse it
  const Session session({.threads = 1});
  for (const DType dtype : {DType::bf16, DType::f32}) {
    Tensor x[3];
    for (Tensor& t : x) {
      t = ones({1, 1, 70, 8}, dtype, cuda(0));
      t.set_requires_grad();
    }
    // Blocks of (queries, keys): the first rows see all, the last a block of bits 3, of none.
    const Tensor blocks =
        to_device(from_values({2, 2, 2, BlockMap::kBits + 3}, {1, 2, 2}, DType::i32), cuda(0));
    const Tensor o = scaled_dot_product_attention(x[0], x[1], x[2], {.block_map = {blocks, {}}});
    backward(o, {.gradient = ones(o.shape(), dtype, cuda(0))});
    const auto values = [](const Tensor& t) {
      return to_device(cast(t.detach(), DType::f64), kCpu).values();
    };
    const std::vector<double> rows = values(o), dq = values(x[0].grad()), dk = values(x[1].grad());
    for (size_t i = 0; i < rows.size(); ++i) {
      const bool broken = i / 8 >= 64;
      EXPECT_EQ(std::isnan(rows[i]), broken) << i;
      EXPECT_EQ(std::isnan(dq[i]), broken) << i;
      EXPECT_TRUE(std::isnan(dk[i])) << i;  // each key has a row of the block
    }
  }
}

TEST(DeviceMemory, OfADeviceIsTakenByItsFirstTensor) {
  test::HostDeviceCounts* const counts = test::host_device_counts();
  if (!counts) return;
  const Session session({.threads = 1});
  (void)empty({1}, DType::f32, cuda(0));
  const int64_t before = counts->allocators;
  (void)empty({1}, DType::f32, cuda(0));
  EXPECT_EQ(counts->allocators, before);  // and the other device has none yet, or keeps its own
  (void)empty({1}, DType::f32, cuda(1));
  EXPECT_LE(counts->allocators, before + 1);
}

// The bits of a parameter do not depend on where it is made.
TEST(DeviceModule, HasTheParametersOfTheHost) {
  run_ranks(1, [](World& world) {
    const Mesh mesh = Mesh::make({{"dp", world.size()}});
    const llama3::Config config{.dim = 16,
                                .n_layers = 1,
                                .n_heads = 2,
                                .n_kv_heads = 1,
                                .ffn_dim = 24,
                                .vocab_size = 31,
                                .max_seq_len = 8};
    const auto replicated = [&](const std::string&, const TensorMeta&) {
      return Layout::replicated(mesh);
    };
    llama3::Model here(config), there(config), empty_one(config);
    nn::initialize(here, 5, replicated);
    nn::initialize(there, 5, replicated, cuda(0));
    const auto expected = nn::named_parameters(here), made = nn::named_parameters(there);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(made[i].tensor.device(), cuda(0)) << made[i].name;
      EXPECT_EQ(local(made[i].tensor).values(), local(expected[i].tensor).values()) << made[i].name;
    }
    nn::lay_out(empty_one, replicated);
    nn::allocate(empty_one, cuda(0));
    for (const auto& p : nn::named_parameters(empty_one))
      EXPECT_EQ(p.tensor.device(), cuda(0)) << p.name;
    const nn::AttentionMetadata tables = there.metadata(8).kinds[0];
    for (const Tensor& table : {tables.cos, tables.sin}) EXPECT_EQ(table.device(), cuda(0));
  });
}

TEST(DeviceGroup, OfOneRankCopiesOnTheDevice) {
  run_ranks(1, [](World& world) {
    ProcessGroup& group = world.group();
    const Tensor x = to_device(tensor({1, 2, 3}), cuda(0)), y = empty({3}, DType::f32, cuda(0));
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min})
      group.all_reduce(x, op)->wait();
    group.reduce(x, 0)->wait();
    group.broadcast(x, 0)->wait();
    group.all_gather(x, y)->wait();
    EXPECT_EQ(y.values(), (std::vector<double>{1, 2, 3}));
    group.reduce_scatter(y * 2, x)->wait();
    EXPECT_EQ(x.values(), (std::vector<double>{2, 4, 6}));
    group.all_to_all(x + 1, y, {3}, {3})->wait();
    EXPECT_EQ(y.values(), (std::vector<double>{3, 5, 7}));
    group.gather(x, y, 0)->wait();
    group.scatter(x + y, y, 0)->wait();
    EXPECT_EQ(y.values(), (std::vector<double>{4, 8, 12}));
    EXPECT_THROW((void)group.send(x, 0), UsageError);
    EXPECT_THROW((void)group.all_gather(tensor({1, 2, 3}), y), DeviceError);
  });
}

}  // namespace
}  // namespace tessera
