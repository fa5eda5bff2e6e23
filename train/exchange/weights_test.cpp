// SPDX-License-Identifier: Apache-2.0
// Tensors in F8_E4M3 and MXFP4, as tests/goldens/hugging_face.py stored them, have the values of a
// formula in torch, bit for bit, in any range.
#include "tessera/train/exchange/weights.h"

#include "tessera/core/scopes.h"
#include "tessera/kernels/views/views.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/trials.h"

#include <gtest/gtest.h>

#include <random>

namespace tessera::train {
namespace {

const std::string kFolder = "tests/goldens/hugging_face/quantised";

Tensor range_of(Tensor x, const Shape& begin, const Shape& size) {
  for (int d = 0; d < x.shape().rank(); ++d) x = narrow(x, d, begin[d], size[d]);
  return contiguous(x);
}

std::string bits(const Tensor& x) {
  return {static_cast<const char*>(x.read_data()),
          static_cast<size_t>(x.numel() * item_size(x.dtype()))};
}

TEST(QuantisedTensors, HaveTheValuesOfTorch) {
  const Session session;
  const HfWeights weights(kFolder);
  const io::SafetensorsFile golden(kFolder + ".safetensors");
  ASSERT_EQ(weights.tensors().size(), golden.entries().size());
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 dice(seed);
  for (const auto& [name, entry] : golden.entries()) {
    const Tensor whole = golden.read(name);
    EXPECT_EQ(weights.tensors().at(name).shape, entry.shape) << name;
    const Shape& shape = whole.shape();
    EXPECT_EQ(bits(weights.read(name, Shape::filled(shape.rank(), 0), shape)), bits(whole)) << name;
    for (int trial = 0; trial < 100; ++trial) {
      Shape begin = shape, size = shape;
      for (int d = 0; d < shape.rank(); ++d) {
        begin[d] = static_cast<int64_t>(dice()) % shape[d];
        size[d] = 1 + static_cast<int64_t>(dice()) % (shape[d] - begin[d]);
      }
      EXPECT_EQ(bits(weights.read(name, begin, size)), bits(range_of(whole, begin, size)))
          << name << begin << size;
    }
  }
}

class QuantisedFiles : public test::FolderTest {
 protected:
  /// The error that a folder with these tensors gives.
  std::string refusal(const std::vector<nn::NamedParameter>& tensors) {
    io::write_safetensors(folder_ + "/model.safetensors", tensors);
    return test::error_of([&] { const HfWeights weights(folder_); });
  }
};

TEST_F(QuantisedFiles, WhatDoesNotBelongTogetherIsNamed) {
  const Session session;
  const auto of = [](const Shape& shape, DType dtype) { return zeros(shape, dtype); };
  TESSERA_EXPECT_HOLDS(
      refusal({{"w", of({129, 1}, DType::f8_e4m3)}, {"w_scale_inv", of({1, 1}, DType::f32)}}),
      "w_scale_inv has the shape [1, 1], expected [2, 1]");
  TESSERA_EXPECT_HOLDS(
      refusal({{"e_blocks", of({2, 3, 1, 16}, DType::u8)}, {"e_scales", of({2, 3, 2}, DType::u8)}}),
      "e_scales has the shape [2, 3, 2], expected [2, 3, 1]");
  TESSERA_EXPECT_HOLDS(
      refusal({{"e_blocks", of({2, 3, 8}, DType::u8)}, {"e_scales", of({2, 3}, DType::u8)}}),
      "e_blocks has the shape [2, 3, 8], expected [experts, out, in / 32, 16]");
  TESSERA_EXPECT_HOLDS(refusal({{"e", of({1}, DType::f32)},
                                {"e_blocks", of({2, 3, 1, 16}, DType::u8)},
                                {"e_scales", of({2, 3, 1}, DType::u8)}}),
                       "has both e and e_blocks: remove one of them");
}

TEST_F(QuantisedFiles, ATensorOfTwoFilesHasTheSameValuesInBoth) {
  const Session session;
  io::write_safetensors(folder_ + "/a.safetensors", {{"w", tensor({1, 2})}});
  io::write_safetensors(folder_ + "/b.safetensors", {{"v", tensor({1})}, {"w", tensor({1, 3})}});
  (void)put("model.safetensors.index.json",
            R"({"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}})");
  EXPECT_EQ(test::error_of<DataError>([&] { const HfWeights weights(folder_); }),
            "[hugging_face] " + folder_ +
                ": w is in a.safetensors and with other values in b.safetensors: remove one of "
                "them");
}

TEST_F(QuantisedFiles, ATypeThatIsUnknownHereIsNotRead) {
  const Session session;
  const std::string header = R"({"w":{"dtype":"U16","shape":[1],"data_offsets":[0,2]}})";
  std::string size(8, '\0');
  size[0] = static_cast<char>(header.size());
  (void)put("model.safetensors", concat(size, header, "xx"));
  const HfWeights weights(folder_);
  EXPECT_EQ(test::error_of<DataError>([&] { (void)weights.read("w", {0}, {1}); }),
            "[hugging_face] w is U16, which cannot be read");
}

}  // namespace
}  // namespace tessera::train
