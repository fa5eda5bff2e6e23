// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/io/model_file.h"

#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/nn/containers.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/folder_test.h"

#include <gtest/gtest.h>

namespace tessera::nn {
namespace {

struct Many final : Layer<Many> {
  ModuleList<Linear> layers;
  void visit(Visitor& v) override { v.children("layers", layers); }
};

class ModelFileTest : public test::FolderTest {};

TEST_F(ModelFileTest, AModelComesBackAsItWas) {
  const Session session;
  const std::string path = folder_ + "/linear.safetensors";
  Linear a(3, 5, Init::normal(1), DType::f32, true), b(3, 5, Init::normal(1), DType::f32, true);
  initialize(a, 1);
  save(a, path, {{"step", "7"}});
  load(b, path);
  EXPECT_EQ(b.weight.values(), a.weight.values());
  EXPECT_EQ(b.bias.values(), a.bias.values());
  EXPECT_TRUE(b.weight.requires_grad());
  EXPECT_EQ(io::SafetensorsFile(path).metadata().at("step"), "7");
  Linear other(4, 5);
  EXPECT_THROW(load(other, path), DataError);
  EXPECT_THROW(load(b, folder_ + "/none"), IoError);
}

// Quadratic time would be half a minute.
TEST_F(ModelFileTest, TimeIsLinearInTheNumberOfParameters) {
  const Session session({.threads = 1});
  const std::string path = folder_ + "/many.safetensors";
  Many a, b;
  for (int i = 0; i < 60'000; ++i) {
    a.layers.emplace_back(1, 1, Init::normal(1));
    b.layers.emplace_back(1, 1, Init::normal(1));
  }
  initialize(a, 1);
  save(a, path);
  load(b, path);
  EXPECT_EQ(b.layers[59'999].weight.item(), a.layers[59'999].weight.item());
}

TEST_F(ModelFileTest, PartsAreWrittenAsOneFileAndReadAsParts) {
  const std::string path = folder_ + "/cut.safetensors";
  run_ranks(3, [&](World&) {
    const Mesh mesh = Mesh::make({{"dp", 3}});
    const auto rows = [&](const std::string&, const TensorMeta&) {
      return Layout::of(mesh, {Shard(0)});
    };
    Linear cut(3, 5, Init::normal(1)), again(3, 5, Init::normal(1));
    initialize(cut, 1, rows);
    initialize(again, 2, rows);
    save(cut, path);
    mesh.group(0).barrier()->wait();
    load(again, path);
    EXPECT_EQ(layout_of(again.weight), layout_of(cut.weight));
    EXPECT_EQ(local(again.weight).values(), local(cut.weight).values());
    EXPECT_EQ(full_tensor(cut.weight).values(), io::SafetensorsFile(path).read("weight").values());
  });
}

}  // namespace
}  // namespace tessera::nn
