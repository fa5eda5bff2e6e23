// SPDX-License-Identifier: Apache-2.0
// Functions that are no ops, of tensors with gaps, of transposed and of expanded ones: each gives
// the bits of a contiguous tensor of the same values, or a typed error before anything is written.
#include "tessera/autograd/autograd.h"
#include "tessera/dist/buckets/bucket.h"
#include "tessera/dist/dtensor.h"
#include "tessera/kernels/cat/cat.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/views/views.h"
#include "tessera/nn/io/safetensors.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/nn/optim/clip.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/support/ranks.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <unistd.h>

namespace tessera::nn {
namespace {

struct Form {
  std::string name;
  Tensor t;       // (4, 6)
  bool writable;  // each of its elements has a place of its own
};

// The same shape with other strides; the values differ from form to form.
std::vector<Form> forms(DType dtype = DType::f32) {
  const auto made = [dtype](const Shape& shape, double salt) {
    std::vector<double> v(static_cast<size_t>(shape.numel()));
    for (size_t i = 0; i < v.size(); ++i) v[i] = salt + static_cast<double>(i) / 8;
    return from_values(v, shape, dtype);
  };
  return {{"contiguous", made({4, 6}, 1), true},
          {"transposed", transpose(made({6, 4}, 2), 0, 1), true},
          {"with gaps", slice(made({4, 9}, 3), 1, {1, 7}), true},
          {"every other row", slice(made({8, 6}, 4), 0, {0, 8, 2}), true},
          {"one row for all", expand(made({1, 6}, 5), {4, 6}), false},
          {"one number for all", expand(made({1, 1}, 6), {4, 6}), false}};
}

// A module whose parameter is the given tensor.
struct Holder final : Layer<Holder> {
  explicit Holder(Tensor t) : weight(std::move(t)) {}
  void visit(Visitor& v) override { v.parameter("weight", weight, Init::normal(1)); }
  [[nodiscard]] Tensor forward(const Tensor& x) const { return x; }
  Tensor weight;
};

using Values = std::vector<double>;

TEST(Strided, LoadsFromAndIntoAnyForm) {
  const Session session;
  for (const Form& from : forms()) {
    for (const Form& to : forms()) {
      const std::string what = from.name + " into " + to.name;
      Holder loaded(to.t);
      const Values want = from.t.values();
      load(loaded, {{"weight", from.t}});
      EXPECT_EQ(loaded.weight.values(), want) << what;
      copy_values(loaded.weight, zeros({4, 6}));
      EXPECT_EQ(from.t.values(), want) << what << ": the source was written";
    }
  }
}

TEST(Strided, CopiesValuesIntoAnyFormThatCanHoldThem) {
  const Session session;
  for (const Form& from : forms()) {
    for (const Form& to : forms()) {
      const std::string what = from.name + " into " + to.name;
      const Values before = to.t.values();
      Holder into(to.t), source(from.t);
      if (to.writable) {
        copy_parameters(into, source);
        EXPECT_EQ(to.t.values(), from.t.values()) << what;
        copy_values(into.weight, zeros({4, 6}));
        EXPECT_EQ(to.t.values(), Values(24, 0)) << what;
      } else {
        EXPECT_THROW(copy_parameters(into, source), Error) << what;
        EXPECT_THROW(copy_values(into.weight, from.t), Error) << what;
        EXPECT_EQ(to.t.values(), before) << what;
      }
    }
  }
}

TEST(Strided, FilesHoldTheValues) {
  const Session session;
  const std::string path =
      testing::TempDir() + "strided." + std::to_string(::getpid()) + ".safetensors";
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Form& form : forms(dtype)) {
      io::write_safetensors(path, {{"weight", form.t}}, {});
      EXPECT_EQ(io::SafetensorsFile(path).read("weight").values(), form.t.values()) << form.name;
    }
  }
  std::filesystem::remove(path);
}

TEST(Strided, BytesAreCopiedBetweenContiguousTensorsAlone) {
  const Session session;
  for (const Form& form : forms()) {
    const Tensor plain = zeros({4, 6});
    if (form.name == "contiguous") continue;
    EXPECT_THROW(copy_bytes(plain, form.t), ShapeError) << form.name;
    EXPECT_THROW(copy_bytes(form.t, plain), ShapeError) << form.name;
    EXPECT_EQ(plain.values(), Values(24, 0)) << form.name;
  }
}

TEST(Strided, DistributedTensorsAreMadeOfAnyForm) {
  for (size_t which = 0; which < 6; ++which) {
    test::on_ranks(2, [which](World& world) {
      const Mesh mesh = Mesh::make({{"dp", 2}});
      const Form form = forms()[which];
      for (const Placement p : {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate())}) {
        const Tensor x = distribute(form.t, Layout::of(mesh, {p}));
        EXPECT_EQ(full_tensor(x).values(), form.t.values()) << form.name;
        EXPECT_EQ(full_tensor(redistribute(x, {Shard(1)})).values(), form.t.values()) << form.name;
        EXPECT_EQ(full_tensor(redistribute(x, {Replicate()})).values(), form.t.values())
            << form.name;
      }
      // Each rank gives the whole form as its part.
      const Tensor joined = from_local(form.t, Layout::of(mesh, {Shard(0)}));
      Values twice = form.t.values();
      const Values once = twice;
      twice.insert(twice.end(), once.begin(), once.end());
      EXPECT_EQ(full_tensor(joined).values(), twice) << form.name;
      const Tensor summed = from_local(form.t, Layout::of(mesh, {Partial()}));
      EXPECT_EQ(full_tensor(summed).values(), (form.t * 2.0).values()) << form.name;
      EXPECT_EQ(form.t.values(), once) << form.name << ": a collective wrote its input";
      if (form.name != "contiguous") {
        EXPECT_THROW(world.group().all_reduce(form.t), UsageError) << form.name;
        EXPECT_THROW(world.group().broadcast(form.t, 0), UsageError) << form.name;
      }
    });
  }
}

TEST(Strided, BucketsGatherAndReduceAnyForm) {
  for (size_t which = 0; which < 6; ++which) {
    for (const int ranks : {1, 2}) {
      test::on_ranks(ranks, [which, ranks](World&) {
        const Mesh mesh = Mesh::make({{"dp", ranks}});
        const Layout rows = Layout::of(mesh, {Shard(0)});
        const Form form = forms()[which];
        // The form is each rank's shard of (4 ranks, 6), and the gradient is made of it too.
        const Tensor parameter = from_local(form.t, rows);
        for (const DType dtype : {DType::f32, DType::bf16}) {
          Bucket bucket(std::vector<Tensor>{parameter}, {{"dp"}, {}}, {.param = dtype});
          bucket.gather(std::vector<Tensor>{form.t});
          Values want;
          for (int r = 0; r < ranks; ++r)
            for (const double v : cast(form.t, dtype).values()) want.push_back(v);
          EXPECT_EQ(bucket.whole()[0].values(), want) << form.name << ' ' << dtype;
        }
        Bucket bucket(std::vector<Tensor>{parameter}, {{"dp"}, {}});
        const Tensor gradient = ranks == 1 ? form.t : cat({form.t, form.t}, 0);
        for (const Tensor& g : {gradient, expand(slice(gradient, 0, {0, 1}), gradient.shape()),
                                transpose(contiguous(transpose(gradient, 0, 1)), 0, 1)}) {
          Values want;
          for (const double v : slice(g, 0, {0, 4}).values()) want.push_back(ranks * v);
          const Values before = g.values();
          const Tensor shard = bucket.reduce(std::vector<Tensor>{g})[0];
          EXPECT_EQ(shard.values(), want) << form.name;
          const Tensor held = zeros({4, 6});
          EXPECT_FALSE(
              bucket.reduce(std::vector<Tensor>{g}, Reduce::all, std::vector<Tensor>{held})[0]
                  .defined());
          bucket.wait();
          EXPECT_EQ(held.values(), want) << form.name;
          EXPECT_EQ(g.values(), before) << form.name << ": reduce wrote the gradient";
        }
      });
    }
  }
}

TEST(Strided, OptimizersAndClippingTakeGradientsOfAnyForm) {
  const Session session;
  for (const Form& form : forms(DType::f64)) {
    const auto with_gradient = [](const Tensor& g) {
      Tensor weight = full({4, 6}, 1, DType::f64).set_requires_grad();
      weight.set_grad(g);
      return weight;
    };
    const Tensor weight = with_gradient(form.t), plain = with_gradient(copy(form.t));
    EXPECT_NEAR(optim::grad_norm({weight}, 1.0).norm.item(),
                optim::grad_norm({plain}, 1.0).norm.item(), 1e-5)
        << form.name;
    for (const Tensor& w : {weight, plain}) {
      optim::AdamW optimizer({w}, {.lr = 0.1});
      optimizer.step();
    }
    EXPECT_EQ(weight.values(), plain.values()) << form.name;
    const Values before = form.t.values();
    if (form.writable) {
      (void)optim::clip_grad_norm_({weight}, 0.5);
      (void)optim::clip_grad_norm_({plain}, 0.5);
      EXPECT_EQ(form.t.values(), plain.grad().values()) << form.name;
    } else {
      EXPECT_THROW((void)optim::clip_grad_norm_({weight}, 0.5), Error) << form.name;
      EXPECT_EQ(form.t.values(), before) << form.name;
    }
  }
}

}  // namespace
}  // namespace tessera::nn
