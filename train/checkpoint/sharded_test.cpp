// SPDX-License-Identifier: Apache-2.0
// Checkpoints of several ranks: they come back bit for bit on any other mesh, and what is damaged
// is found by all ranks, named, and loaded by none.
#include "tessera/autograd/autograd.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/optim/adamw.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/folder_test.h"
#include "tessera/tests/support/long_form.h"
#include "tessera/tests/support/trials.h"
#include "tessera/tests/support/whole_checkpoint.h"
#include "tessera/train/checkpoint/checkpoint.h"
#include "tessera/train/ranks/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <sched.h>
#include <unistd.h>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

struct Degrees {
  int a, b, c;
  [[nodiscard]] int ranks() const { return a * b * c; }
};
constexpr std::array<Degrees, 8> kMeshes{
    {{1, 1, 1}, {1, 2, 1}, {1, 1, 3}, {2, 2, 1}, {5, 1, 1}, {1, 3, 2}, {7, 1, 1}, {2, 2, 2}}};

class ShardedTest : public test::FolderTest {
 protected:
  struct Meta {
    std::string name;
    Shape shape;
    DType dtype;
  };
  static std::vector<Meta> metas() {
    return {{"w", {13, 6}, DType::f32},   {"bias", {5}, DType::bf16},
            {"scalar", {}, DType::f64},   {"ids", {3, 2, 4}, DType::i64},
            {"none", {0, 3}, DType::f32}, {"one", {1, 9}, DType::f16}};
  }
  // Tensors of this mesh, sharded in a way that `salt` chooses; with values, or zero.
  static std::vector<nn::NamedParameter> tensors(Mesh mesh, unsigned salt, bool values,
                                                 const std::string& suffix = "") {
    std::mt19937 random(salt);
    std::vector<nn::NamedParameter> all;
    for (const auto& [name, shape, dtype] : metas()) {
      const Tensor whole = empty(shape, dtype);
      std::mt19937 bits(static_cast<unsigned>(name[0] + suffix.size()));
      const auto bytes = static_cast<size_t>(whole.numel() * item_size(dtype));
      for (size_t i = 0; i < bytes; ++i)
        static_cast<unsigned char*>(whole.raw_data())[i] =
            values ? static_cast<unsigned char>(bits()) : 0;
      std::vector<Placement> placements;
      for (int a = 0; a < mesh.axes(); ++a) {
        const auto dim = static_cast<int>(random() % 4);
        placements.push_back(dim < shape.rank() ? Shard(dim) : Replicate());
      }
      const bool plain = random() % 5 == 0;
      all.push_back(
          {name + suffix, plain ? whole : distribute(whole, Layout::of(mesh, placements))});
    }
    return all;
  }
  static Mesh make_mesh(const Degrees& d) {
    return Mesh::make({{"a", d.a}, {"b", d.b}, {"c", d.c}});
  }
  static std::string bytes_of(const Tensor& t) {
    const Tensor part = t.is_distributed() ? local(t) : t;
    const auto bytes = static_cast<size_t>(part.numel() * item_size(part.dtype()));
    return {bytes > 0 ? static_cast<const char*>(part.read_data()) : "", bytes};
  }
  [[nodiscard]] CheckpointFolder steps() const { return CheckpointFolder(folder_ + "/steps"); }
  void save_on(const Degrees& degrees, int64_t step, unsigned salt) const {
    run_ranks(degrees.ranks(), [&](World&) {
      const Mesh mesh = make_mesh(degrees);
      save(steps(), {.progress = {step, step, step, step},
                     .model = tensors(mesh, salt, true),
                     .optimizer = tensors(mesh, salt + 1, true, ".m")});
    });
  }
  /// What each rank threw, all alike; then nothing has changed.
  std::string load_error(int ranks, const StepFolders& from) const {
    std::vector<std::string> errors(static_cast<size_t>(ranks));
    run_ranks(ranks, [&](World& world) {
      const Mesh mesh = Mesh::make({{"a", ranks}, {"b", 1}, {"c", 1}});
      auto own = tensors(mesh, 4, false);
      for (auto& t : tensors(mesh, 5, false, ".m")) own.push_back(std::move(t));
      errors[static_cast<size_t>(world.rank())] = test::error_of<DataError>(
          [&] { (void)load_first_whole(from, [&](const CheckpointReader&) { return own; }, {}); });
      for (const auto& t : own)
        EXPECT_EQ(bytes_of(t.tensor).find_first_not_of('\0'), std::string::npos) << t.name;
    });
    for (const auto& e : errors) EXPECT_EQ(e, errors[0]);
    return errors[0];
  }
};

TEST_F(ShardedTest, EveryMeshLoadsWhatEveryOtherSaved) {
  std::random_device seeds;
  unsigned salt = seeds();
  for (const Degrees& from : kMeshes) {
    save_on(from, 1, ++salt);
    for (const Degrees& to : kMeshes) {
      run_ranks(to.ranks(), [&](World&) {
        const Mesh mesh = make_mesh(to);
        const unsigned own = salt + 17;
        auto got = tensors(mesh, own, false), want = tensors(mesh, own, true);
        const auto more = tensors(mesh, own + 1, false, ".m"),
                   m = tensors(mesh, own + 1, true, ".m");
        got.insert(got.end(), more.begin(), more.end());
        want.insert(want.end(), m.begin(), m.end());
        const auto reader = load_first_whole({steps().latest_first()},
                                             [&](const CheckpointReader&) { return got; }, {});
        ASSERT_NE(reader, nullptr);
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_EQ(bytes_of(got[i].tensor), bytes_of(want[i].tensor))
              << got[i].name << " from " << from.ranks() << " to " << to.ranks() << ", salt "
              << salt;
        }
      });
    }
  }
}

// Of whole tensors, as earlier programs wrote them.
TEST_F(ShardedTest, WholeTensorsAreLoadedOnAnyMesh) {
  save_on({2, 2, 1}, 1, 8);
  {
    const Session session;
    test::make_whole(steps().folder_of(1), 2);
    EXPECT_TRUE(CheckpointReader(steps().folder_of(1)).manifest().whole_tensors);
  }
  run_ranks(3, [&](World&) {
    const Mesh mesh = make_mesh({1, 3, 1});
    const auto got = tensors(mesh, 9, false), want = tensors(mesh, 9, true);
    (void)load_first_whole({steps().latest_first()}, [&](const CheckpointReader&) { return got; },
                           {});
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_EQ(bytes_of(got[i].tensor), bytes_of(want[i].tensor)) << got[i].name;
  });
  const std::string file = steps().folder_of(1) + "/model.safetensors";
  std::string bytes = io::read_file(file);
  bytes[bytes.size() - 3] ^= 4;
  io::write_file_atomically(file, bytes);
  TESSERA_EXPECT_HOLDS(load_error(2, {steps().latest_first(), IfDamaged::fail}),
                       "step-1 is incomplete or damaged: model.safetensors has the checksum ");
}

// Bits flipped and files cut anywhere.
TEST_F(ShardedTest, DamageIsFoundAndNamed) {
  const int trials = test::long_form() ? 1000 : 50;
  save_on({2, 1, 2}, 1, 3);
  const std::string step = steps().folder_of(1);
  std::vector<std::string> names;
  for (const auto& e : fs::directory_iterator(step)) names.push_back(e.path().filename());
  std::ranges::sort(names);
  ASSERT_EQ(names.size(), 5u);  // the manifest, and a file per rank
  std::random_device seeds;
  const unsigned seed = seeds();
  std::mt19937 random(seed);
  int flips = 0, cuts = 0;
  for (int i = 0; i < trials; ++i) {
    const std::string& name = names[random() % names.size()];
    const std::string path = concat(step, '/', name), whole = io::read_file(path);
    std::string changed = whole, tensor;
    const size_t at = random() % whole.size();
    if (random() % 3 == 0) {
      ++cuts;
      changed.resize(at);
    } else {
      ++flips;
      changed[at] = static_cast<char>(changed[at] ^ 1 << random() % 8);
      if (name != kManifestFile) {
        const io::SafetensorsFile file(path);
        for (const auto& [key, e] : file.entries())
          if (at >= file.header().bytes + e.begin && at < file.header().bytes + e.end) tensor = key;
      }
    }
    std::ofstream(path, std::ios::binary).write(changed.data(), std::ssize(changed));
    const std::string error = load_error(2, {{step}, IfDamaged::fail});
    std::ofstream(path, std::ios::binary).write(whole.data(), std::ssize(whole));
    TESSERA_EXPECT_HOLDS(error, name) << " seed " << seed;
    TESSERA_EXPECT_HOLDS(error, tensor) << " seed " << seed;
  }
  const Session session;
  CheckpointReader(steps().folder_of(1)).verify();
  std::cout << flips << " flips and " << cuts << " cuts\n";
}

TEST_F(ShardedTest, BadFilesAreErrorsOnAllRanks) {
  save_on({1, 2, 1}, 1, 3);
  save_on({1, 2, 1}, 2, 3);
  const std::string step = steps().folder_of(2), file = step + "/rank-00001.safetensors";
  const StepFolders only{{step}, IfDamaged::fail};
  // A chunk of another dtype, under checksums that fit.
  const std::string manifest = step + "/manifest.json", text = io::read_file(manifest);
  const std::string data = io::read_file(file);
  std::string other = data;
  const size_t at = other.find("\"F32\"");
  ASSERT_NE(at, other.npos);
  other.replace(at, 5, "\"I32\"");
  io::write_file_atomically(file, other);
  const auto header_sum = [](const std::string& bytes) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    return test::hex(io::crc32c(std::string_view(bytes).substr(0, sizeof length + length)));
  };
  std::string forged = text.substr(0, text.rfind(",\n \"crc32c\""));
  forged.replace(forged.find(header_sum(data)), 8, header_sum(other));
  io::write_file_atomically(manifest, test::sealed(forged));
  TESSERA_EXPECT_HOLDS(load_error(2, only),
                       ": w[7:13,0:6] is I32 of [6, 6], but the manifest says F32");
  io::write_file_atomically(manifest, text);
  TESSERA_EXPECT_HOLDS(load_error(2, only),
                       "the header of rank-00001.safetensors has the checksum");
  // Another rank's file, or none.
  fs::copy_file(step + "/rank-00000.safetensors", file, fs::copy_options::overwrite_existing);
  TESSERA_EXPECT_HOLDS(load_error(3, only), "rank-00001.safetensors");
  fs::remove(file);
  TESSERA_EXPECT_HOLDS(load_error(3, only),
                       "step-2 is incomplete or damaged: rank-00001.safetensors: No such file");
  // The one before is whole.
  run_ranks(2, [&](World& world) {
    std::vector<std::string> warnings;
    const auto own = tensors(make_mesh({1, 2, 1}), 3, false);
    const auto reader = load_first_whole(
        {steps().latest_first()}, [&](const CheckpointReader&) { return own; },
        [&](const std::string& line) { warnings.push_back(line); });
    EXPECT_EQ(reader->manifest().progress.step, 1);
    EXPECT_EQ(warnings.size(), world.rank() == 0 ? 1u : 0u);
  });
}

// Each thread may have a working folder of its own, as hosts have disks.
TEST_F(ShardedTest, AFolderThatIsNotSharedIsRefused) {
  fs::create_directories(folder_ + "/host0");
  fs::create_directories(folder_ + "/host1/steps/step-1.partial");
  (void)put("host1/steps/step-1.partial/.shared", "another text");
  std::atomic<int> refused{0};
  run_ranks(2, [&](World& world) {
    ASSERT_EQ(unshare(CLONE_FS), 0);
    ASSERT_EQ(chdir(concat(folder_, "/host", world.rank()).c_str()), 0);
    const auto model = tensors(make_mesh({1, 2, 1}), 3, true);
    const std::string error =
        test::error_of<IoError>([&] { save(CheckpointFolder("steps"), {.model = model}); });
    TESSERA_EXPECT_HOLDS(error, "[checkpoint] rank 1 on host ");
    TESSERA_EXPECT_HOLDS(error, "give a folder that all hosts share");
    ++refused;
  });
  EXPECT_EQ(refused, 2);
  EXPECT_TRUE(fs::is_empty(folder_ + "/host0/steps"));
}

class Net final : public nn::Layer<Net> {
 public:
  Net() : hidden(5, 7), out(7, 3) {}
  void visit(nn::Visitor& v) override {
    v.child("hidden", hidden);
    v.child("out", out);
  }
  [[nodiscard]] Tensor forward(const Tensor& x) const { return out(hidden(x)); }
  nn::Linear hidden, out;
};

TEST_F(ShardedTest, AModelAndItsOptimizerGoOnOnOtherRanks) {
  const std::string steps = folder_ + "/own";
  const auto train = [&](int ranks, int64_t last) {
    std::vector<double> weights;
    run_ranks(ranks, [&](World& world) {
      const Mesh mesh = Mesh::make({{"dp", ranks}});
      Net net;
      nn::initialize(net, 3, [&](const std::string&, const TensorMeta& meta) {
        return Layout::of(mesh, {meta.shape[0] > 3 ? Shard(0) : Replicate()});
      });
      optim::AdamW optimizer(nn::named_parameters(net), {.lr = 0.1});
      const auto from = load(net, optimizer, steps);
      int64_t done = from ? from->step : 0;
      for (; done < last; ++done) {
        for (const auto& p : nn::named_parameters(net)) {
          Tensor t = p.tensor;
          t.set_grad(full(t.shape(), 0.5 + static_cast<double>(done), t.dtype(), layout_of(t)));
        }
        optimizer.step();
      }
      EXPECT_EQ(optimizer.steps(), last);
      save(net, optimizer, steps, {.step = done, .data_rows = 4 * done});
      std::vector<double> own;
      for (const auto& p : nn::named_parameters(net))
        for (const double v : full_tensor(p.tensor).values()) own.push_back(v);
      if (world.rank() == 0) weights = own;
    });
    return weights;
  };
  for (const auto& [ranks, last] : {std::pair(4, 2), {1, 3}, {3, 4}, {2, 5}})
    (void)train(ranks, last);
  const auto resumed = train(4, 6);
  fs::remove_all(steps);
  EXPECT_EQ(train(1, 6), resumed);
  // Another run holds the folder.
  const io::FolderLock lock(steps, "checkpoint");
  run_ranks(2, [&](World&) {
    Net net;
    nn::initialize(net, 3);
    const optim::AdamW optimizer(nn::named_parameters(net), {});
    TESSERA_EXPECT_HOLDS(test::error_of<IoError>([&] { save(net, optimizer, steps, {.step = 7}); }),
                         "is used by another run (process ");
  });
}

TEST_F(ShardedTest, AFolderMayBeThatOfARunOrOfAStep) {
  const std::string run = folder_ + "/run", steps = run + "/checkpoint";
  run_ranks(2, [&](World&) {
    Net net;
    nn::initialize(net, 3);
    optim::AdamW optimizer(nn::named_parameters(net), {});
    for (const int64_t step : {1, 2}) save(net, optimizer, steps, {.step = step});
    EXPECT_EQ(load(net, optimizer, steps)->step, 2);
    EXPECT_EQ(load(net, optimizer, run)->step, 2);
    EXPECT_EQ(load(net, optimizer, steps + "/step-1")->step, 1);
  });
}

TEST_F(ShardedTest, AModelThatDoesNotFitIsLeftAlone) {
  const std::string steps = folder_ + "/own";
  run_ranks(2, [&](World&) {
    Net net;
    nn::initialize(net, 3);
    optim::AdamW optimizer(nn::named_parameters(net), {});
    EXPECT_FALSE(load(net, optimizer, steps));
    save(net, optimizer, steps, {.step = 1});
    nn::Linear other(5, 8);
    nn::initialize(other, 3);
    optim::AdamW others(nn::named_parameters(other), {});
    const auto before = other.weight.values();
    const std::string error = test::error_of<DataError>([&] { (void)load(other, others, steps); });
    TESSERA_EXPECT_HOLDS(error,
                         "step-1 does not fit this model and optimizer: weight is missing; ");
    TESSERA_EXPECT_HOLDS(error, "hidden.weight, f32[7, 5], is not in this run");
    EXPECT_EQ(other.weight.values(), before);
  });
}

}  // namespace
}  // namespace tessera::train
