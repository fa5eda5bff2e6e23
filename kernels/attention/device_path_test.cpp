// SPDX-License-Identifier: Apache-2.0
// The table of attention's paths.
#include "tessera/kernels/attention/device_path.h"

#include "tessera/kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>
#include <vector>

namespace tessera {
namespace {

using Mask = AttentionMask;

// What cuDNN computes, and each change of it that one row alone refuses.
const AttentionCase kGood{.dtype = DType::bf16,
                          .batch = 2,
                          .heads = 8,
                          .kv_heads = 2,
                          .queries = 128,
                          .keys = 128,
                          .d = 64,
                          .dv = 64,
                          .mask = Mask::causal()};

TEST(AttentionPath, EachRowRefusesWhatNoOtherDoes) {
  const std::vector<void (*)(AttentionCase&)> changes{
      [](AttentionCase& c) { c.dtype = DType::f32; },
      [](AttentionCase& c) { c.d = c.dv = 20; },
      [](AttentionCase& c) { c.d = c.dv = 264; },
      [](AttentionCase& c) { c.dv = 32; },
      [](AttentionCase& c) { c.queries = 1; },
      [](AttentionCase& c) { c.batch = 0; },
      [](AttentionCase& c) { c.mask_tensors = true; },
      [](AttentionCase& c) { c.mask = Mask::window(5); },
      [](AttentionCase& c) {
        c.mask = Mask::causal() & Mask::window(5);
        c.keys = 40;
      },
      [](AttentionCase& c) { c.first_query = 3; },
      [](AttentionCase& c) { c.lse_gradient = true; },
      [](AttentionCase& c) { c.soft_cap = 50; }};
  std::set<std::string_view> reasons;
  for (const auto& change : changes) {
    AttentionCase c = kGood;
    change(c);
    std::vector<std::string_view> refused;
    for (const CudnnRefusal& row : cudnn_refusals()) {
      if (row.refuses(c)) refused.push_back(row.why);
    }
    ASSERT_EQ(refused.size(), 1U) << (refused.empty() ? "no row" : refused[0]);
    reasons.insert(refused[0]);
    const AttentionChoice choice = choose_attention(c, true);
    EXPECT_EQ(choice.why_not_cudnn, refused[0]);
    EXPECT_EQ(choice.path,
              c.dtype == DType::f32 ? AttentionPath::scalar : AttentionPath::tensor_cores);
  }
  EXPECT_EQ(reasons.size(), cudnn_refusals().size());
}

TEST(AttentionPath, IsCudnnForTheRestIfThereIsOne) {
  AttentionCase c = kGood;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const auto& [d, dv] : {std::pair(8, 8), std::pair(64, 64), std::pair(96, 96),
                                std::pair(192, 128), std::pair(256, 256)}) {
      for (const Mask& mask : {Mask(), Mask::causal(), Mask::causal() & Mask::window(9)}) {
        c.dtype = dtype, c.d = d, c.dv = dv, c.mask = mask;
        EXPECT_EQ(choose_attention(c, true).path, AttentionPath::cudnn);
        EXPECT_EQ(choose_attention(c, false).path, AttentionPath::tensor_cores);
        EXPECT_EQ(choose_attention(c, false).why_not_cudnn, kNoCudnn);
      }
    }
  }
  c.mask = Mask();  // without a mask positions say nothing
  c.first_query = 7;
  EXPECT_EQ(choose_attention(c, true).path, AttentionPath::cudnn);
}

TEST(AttentionPath, ABandIsWhatCausalAndWindowsSay) {
  const auto band = [](const Mask& mask) { return band_of(mask, 100); };
  EXPECT_FALSE(band(Mask())->causal);
  EXPECT_TRUE(band(Mask::causal())->causal);
  EXPECT_EQ(band(Mask::causal())->window, 0);
  EXPECT_EQ(band(Mask::window(30) & Mask::causal() & Mask::window(20))->window, 20);
  EXPECT_EQ(band(Mask::causal() & Mask::window(100))->window, 0);  // all of them
  EXPECT_EQ(band(Mask::causal() & Mask::window(99))->window, 99);
  for (const Mask& mask : {Mask::window(20), Mask::causal() & Mask::document(), Mask::chunk(4),
                           Mask::causal() | Mask::prefix(3), Mask::causal() & Mask::chunk(200)})
    EXPECT_FALSE(band(mask).has_value()) << mask;
}

TEST(AttentionPath, DeterministicSlicesStayBelowTheirWorkspace) {
  AttentionCase c = kGood;
  EXPECT_EQ(deterministic_slices(c).batch, 2);
  EXPECT_EQ(deterministic_slices(c).kv_heads, 2);
  c = {.dtype = DType::bf16,
       .batch = 4,
       .heads = 32,
       .kv_heads = 8,
       .queries = 4096,
       .keys = 4096,
       .d = 64,
       .dv = 64};  // 1 GiB of a sequence
  EXPECT_EQ(deterministic_slices(c).batch, 2);
  EXPECT_EQ(deterministic_slices(c).kv_heads, 8);
  c.queries = c.keys = 8192;  // 512 MiB of a key head
  EXPECT_EQ(deterministic_slices(c).batch, 1);
  EXPECT_EQ(deterministic_slices(c).kv_heads, 4);
  EXPECT_LT(cudnn_backward_workspace(c, true), most_cudnn_workspace() * 5 / 4);
  c.queries = c.keys = 65536;  // more than that of one
  EXPECT_EQ(deterministic_slices(c).kv_heads, 1);
}

TEST(AttentionPath, ItsWorkspaceIsCountedOnDevicesAlone) {
  const op::AttentionBackward op{.mask = Mask::causal(), .all_keys = true};
  const auto meta = [](const Shape& shape, DType dtype) { return TensorMeta{shape, dtype, kMeta}; };
  const Shape whole{2, 8, 128, 64}, keys{2, 2, 128, 64};
  const auto bytes = [&](DType dtype, Device device) {
    const std::vector<TensorMeta> in{meta(whole, dtype),
                                     meta(keys, dtype),
                                     meta(keys, dtype),
                                     meta(whole, dtype),
                                     meta({2, 8, 128}, DType::f32),
                                     meta(whole, dtype)};
    return op.workspace(MetaArray(std::span<const TensorMeta>(in)), device);
  };
  EXPECT_EQ(bytes(DType::bf16, kCpu), 0);
  EXPECT_EQ(bytes(DType::f32, cuda()), 0);
  EXPECT_EQ(bytes(DType::bf16, cuda()), cudnn_backward_workspace(kGood, false));
}

}  // namespace
}  // namespace tessera
