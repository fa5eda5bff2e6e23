// SPDX-License-Identifier: Apache-2.0
// Runs on a device beside the same runs on the CPU. The devices of library/host_device.cpp compute
// by the CPU's kernels: what reaches them has the CPU's bits, and what does not reach them is a
// tensor on the wrong device, or a read of a device's bytes by the host.
#include "tessera/core/context.h"
#include "tessera/core/op_row.h"
#include "tessera/dist/dtensor.h"
#include "tessera/dist/launch/run.h"
#include "tessera/kernels/attention/device_path.h"
#include "tessera/kernels/fill/fill.h"
#include "tessera/kernels/pointwise/pointwise.h"
#include "tessera/nn/parameters.h"
#include "tessera/tests/device/counts.h"
#include "tessera/tests/support/error_of.h"
#include "tessera/tests/support/logged_losses.h"
#include "tessera/tests/support/parameter_of.h"
#include "tessera/tests/support/tiny_experts.h"
#include "tessera/tests/support/trials.h"
#include "tessera/train/generate/generate.h"
#include "tessera/train/run/compare.h"
#include "tessera/train/run/trainer.h"

#include <cmath>
#include <functional>
#include <set>

namespace tessera::train {
namespace {

class DeviceRun : public TinyRunTest {
 protected:
  // Four steps of a model that `model` names, in f32 unless `more` says otherwise. With its default
  // epsilon the first step of Adam turns a gradient of rounding errors alone into a step of the
  // whole learning rate.
  [[nodiscard]] Words tiny(const std::string& dump, const std::string& device, const Words& model,
                           const Words& more = {}) const {
    const Words base = split(
        "--threads 1 --sample.tokens 0 --debug.seed 7 --training.steps 4 --optimizer.lr 1e-2 "
        "--optimizer.eps 1e-4 --training.mixed_precision_param float32 "
        "--training.local_batch_size 2 --training.seq_len 16 --lr_scheduler.warmup_steps 1 "
        "--metrics.measure_ceiling false --checkpoint.enable true "
        "--checkpoint.last_save_model_only false");
    const Words places{"train",         "--dataloader.path", path("text.txt"),
                       "--dump_folder", path(dump),          "--device",
                       device};
    return joined(joined(places, base), joined(model, more));
  }
  [[nodiscard]] Words llama(const std::string& dump, const std::string& device,
                            const Words& more = {}) const {
    return tiny(dump, device, tiny_model(), more);
  }
  [[nodiscard]] std::string text_of(const std::string& name) const {
    return io::read_file(path(name));
  }
  // Whether kernels of the device are those of the CPU.
  static bool exact() { return test::host_device_counts() != nullptr; }
  // Two runs of four steps: bit for bit, or, on devices with kernels of their own, losses within
  // `tolerance`.
  void expect_equal(const std::string& a, const std::string& b, double tolerance) const {
    const auto x = test::logged_losses_and_norms(path(a)),
               y = test::logged_losses_and_norms(path(b));
    ASSERT_EQ(x.size(), 4u);
    ASSERT_EQ(y.size(), 4u);
    if (exact()) {
      EXPECT_EQ(x, y);
      EXPECT_EQ(tensors(a, 4), tensors(b, 4));
      return;
    }
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_LE(relative_difference(x[i].first, y[i].first), tolerance) << "step " << i + 1;
      EXPECT_LE(relative_difference(x[i].second, y[i].second), 20 * tolerance) << "step " << i + 1;
    }
  }
  // The step's tensors, byte by byte, whatever else the folder says of the run.
  [[nodiscard]] std::string tensors(const std::string& dump, int step) const {
    std::string bytes;
    const std::string folder = concat(path(dump), "/checkpoint/step-", step);
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      if (file.path().extension() == ".safetensors") bytes += io::read_file(file.path().string());
    }
    EXPECT_FALSE(bytes.empty());
    return bytes;
  }
};

// A model of each kind, of some thousand parameters.
Words tiny_gpt2() {
  return split(
      "--model.name gpt2 --model.flavor debugmodel --model.dim 32 --model.n_layers 2 "
      "--model.n_heads 4 --model.vocab_size 260 --model.max_seq_len 16 "
      "--model.residual_dropout 0.1");
}
// Layers whose attention is cut into chunks, and one that sees all.
Words tiny_llama4() {
  return split(
      "--model.name llama4 --model.flavor debugmodel --model.dim 32 --model.n_layers 4 "
      "--model.n_heads 4 --model.n_kv_heads 2 --model.ffn_dim 32 --model.vocab_size 260 "
      "--model.num_experts 4 --model.moe_inter_dim 16 --model.attention_chunk_size 6");
}
TEST_F(DeviceRun, HasTheLossesAndTensorsOfTheCpu) {
  struct Run {
    std::string name;
    Words model, more = {};
  };
  const std::vector<Run> runs{
      {"llama", tiny_model()},
      {"gpt2", tiny_gpt2()},
      {"experts", tiny_experts()},
      {"llama_mixed", tiny_model(), {"--training.mixed_precision_param", "bfloat16"}},
      {"gpt2_mixed", tiny_gpt2(), {"--training.mixed_precision_param", "bfloat16"}},
      {"experts_mixed", tiny_experts(), {"--training.mixed_precision_param", "bfloat16"}},
      {"llama4", tiny_llama4()},
      {"llama4_mixed", tiny_llama4(), {"--training.mixed_precision_param", "bfloat16"}},
      {"bf16",
       tiny_model(),
       {"--training.dtype", "bfloat16", "--optimizer.state_dtype", "bfloat16"}},
      {"accumulated",
       tiny_model(),
       {"--training.global_batch_size", "6", "--activation_checkpoint.mode", "full"}},
      {"validated",
       tiny_model(),
       {"--validation.enable", "true", "--validation.dataset_path", path("text.txt"),
        "--validation.freq", "2", "--validation.steps", "3"}},
  };
  for (auto [name, model, more] : runs) {
    SCOPED_TRACE(name);
    // Documents are not cuDNN's.
    if (has_cudnn()) more = joined(more, {"--dataloader.packing", "concat"});
    ASSERT_EQ(run(tiny(name + "_cpu", "cpu", model, more)), 0) << err_.str();
    ASSERT_EQ(run(tiny(name + "_there", "cuda", model, more)), 0) << err_.str();
    TESSERA_EXPECT_HOLDS(out_.str(), "device: cuda:0, ");
    const bool narrow = name.ends_with("_mixed") || name == "bf16";
    if (name.ends_with("_mixed") && has_cudnn()) {
      TESSERA_EXPECT_HOLDS(out_.str(), concat(", causal: cuDNN ", cudnn_text()));
    }
    expect_equal(name + "_there", name + "_cpu", narrow ? 3e-2 : 1e-5);
  }
}

TEST_F(DeviceRun, ResumesWhereAnotherDeviceEnded) {
  for (const auto& [steps, device] :
       {std::pair("2", "cuda"), std::pair("3", "cpu"), std::pair("4", "cuda")}) {
    ASSERT_EQ(run(llama("host", "cpu", {"--training.steps", steps})), 0) << err_.str();
    ASSERT_EQ(run(llama("both", device, {"--training.steps", steps})), 0) << err_.str();
  }
  TESSERA_EXPECT_HOLDS(out_.str(), "device from \"cpu\" to \"cuda\"");
  expect_equal("both", "host", 1e-5);
}

TEST_F(DeviceRun, EvaluatesAndGeneratesAsTheCpu) {
  ASSERT_EQ(run(llama("a", "cpu")), 0) << err_.str();
  for (const Words& command : {Words{"eval", "--checkpoint", path("a"), "--dataset_path",
                                     path("text.txt"), "--steps", "2"},
                               Words{"generate", "--checkpoint", path("a"), "--prompt", "the ",
                                     "--prompt", "a", "--tokens", "8"}}) {
    ASSERT_EQ(run(joined(command, {"--device", "cpu"})), 0) << err_.str();
    const std::string expected = out_.str();
    ASSERT_EQ(run(joined(command, {"--device", "cuda"})), 0) << err_.str();
    if (exact()) {
      EXPECT_EQ(out_.str(), expected) << command[0];
    }
  }
}

TEST_F(DeviceRun, IsComparedWithOneOnAnother) {
  for (const std::string device : {"cpu", "cuda"}) {
    Config c = config("run_" + device, {"--device", device, "--checkpoint.enable", "false"});
    io::write_file_atomically(path(device + ".json"), c.fields().dump());
  }
  const Words words{"compare",     path("cpu.json"),       path("cuda.json"), "--steps",  "2",
                    "--tolerance", exact() ? "0" : "1e-4", "--dump_folder",   path("out")};
  EXPECT_EQ(run(words), 0) << err_.str();
  TESSERA_EXPECT_HOLDS(out_.str(), "device: cpu");
  TESSERA_EXPECT_HOLDS(out_.str(), "device: cuda:0");
  EXPECT_EQ(run(joined(words, {"--overwrite", "true", "--device", "cuda"})), 0) << err_.str();
  EXPECT_EQ(out_.str().find("device: cpu"), std::string::npos) << out_.str();
}

// A step makes no tensor on the host. The host waits for the device in logged steps alone:
// once, for the values of all steps up to this one, when it has given the device the next one.
TEST_F(DeviceRun, AStepStaysOnItsDevice) {
  for (const Words& model : {tiny_model(), tiny_gpt2(), tiny_experts()}) {
    SCOPED_TRACE(model[1]);
    Words words = tiny("a", "cuda", model,
                       {"--overwrite", "true", "--checkpoint.enable", "false", "--training.steps",
                        "9", "--metrics.log_freq", "3"});
    words.erase(words.begin());
    const Config c = parse_config(words);
    const auto on_rank = [&](World&) {
      Trainer trainer(c);
      (void)trainer.step();
      std::set<std::string> elsewhere;
      Context& context = Context::current();
      context.op_hook = [&](const OpRow& row, const void*, Tensors in, Tensors out) {
        for (const Tensors list : {in, out}) {
          for (const Tensor& t : list)
            if (t.defined() && t.device() != cuda(0)) elsewhere.emplace(row.name);
        }
      };
      const test::HostDeviceCounts* const host = test::host_device_counts();
      struct Seen {
        int64_t waits, begun;
        size_t records;
        bool operator==(const Seen&) const = default;
      };
      std::vector<Seen> seen;
      for (int step = 2; step <= 8; ++step) {
        const int64_t waits = test::device_counts().waits, begun = host ? host->begun.load() : 0;
        trainer.advance();
        seen.push_back({test::device_counts().waits - waits, host ? host->begun - begun : 0,
                        trainer.records().size()});
      }
      context.op_hook = nullptr;
      // Targets are counted where the rows come from.
      EXPECT_EQ(elsewhere, std::set<std::string>{"fill"});
      // Steps 2 to 8, of which 3 and 6 are logged.
      std::vector<Seen> expected{{0, 0, 1}, {0, 1, 1}, {1, 0, 3}, {0, 0, 3},
                                 {0, 1, 3}, {1, 0, 6}, {0, 0, 6}};
      const bool counted = !test::device_counts().launches.empty();
      for (Seen& s : expected) {
        if (!counted) s.waits = 0;
        if (!host) s.begun = 0;
      }
      EXPECT_TRUE(seen == expected) << testing::PrintToString(trainer.records().size());
      trainer.settle();
      EXPECT_EQ(trainer.records().size(), 8u);
      EXPECT_EQ(trainer.step().step, 9);
    };
    run_ranks(1, on_rank, world_options(c));
  }
}

// From the second step on; their list is printed.
TEST_F(DeviceRun, LaunchesTheSameInEveryStep) {
  for (const std::string family : {"llama3", "gpt2"}) {
    const Words model = family == "gpt2" ? tiny_gpt2() : tiny_model();
    Words words = tiny("a", "cuda", model, {"--overwrite", "true", "--checkpoint.enable", "false"});
    words.erase(words.begin());
    const Config c = parse_config(words);
    const auto on_rank = [&](World&) {
      Trainer trainer(c);
      (void)trainer.step();
      const auto launches_of_step = [&] {
        const auto before = test::device_counts();
        (void)trainer.step();
        auto after = test::device_counts();
        for (const auto& [name, times] : before.launches) {
          if ((after.launches[name] -= times) == 0) after.launches.erase(name);
        }
        return after.launches;
      };
      const auto second = launches_of_step();
      int64_t all = 0;
      for (const auto& [name, times] : second) {
        std::cout << times << " x " << name << '\n';
        all += times;
      }
      std::cout << all << " launches in a step of " << family << '\n';
      EXPECT_EQ(launches_of_step(), second);
      EXPECT_TRUE(all > 0 || !std::getenv("TESSERA_EMULATED_DEVICES"));
    };
    run_ranks(1, on_rank, world_options(c));
  }
}

// A token costs one read, a validation one.
TEST_F(DeviceRun, ReadsOncePerTokenAndPerValidation) {
  test::HostDeviceCounts* const counts = test::host_device_counts();
  if (!counts) return;
  Words words = llama("a", "cuda",
                      {"--checkpoint.enable", "false", "--validation.enable", "true",
                       "--validation.dataset_path", path("text.txt"), "--validation.steps", "3"});
  words.erase(words.begin());
  const Config c = parse_config(words);
  const auto on_rank = [&](World&) {
    Trainer trainer(c);
    const auto waits_of = [&](const std::function<void()>& work) {
      const int64_t before = counts->to_host + counts->synchronised;
      work();
      return counts->to_host + counts->synchronised - before;
    };
    EXPECT_EQ(waits_of([&] { (void)trainer.validate(); }), 1);
    EXPECT_EQ(
        waits_of([&] { (void)generate(trainer.model(), "the ", {.tokens = 5, .temperature = 0}); }),
        5);
  };
  run_ranks(1, on_rank, world_options(c));
}

TEST_F(DeviceRun, WithoutADeviceEndsInOneLine) {
  const auto fails = [&](const Words& environment, const Words& words) {
    Child child(words, path("out.log"), environment, "", path("err.log"));
    EXPECT_EQ(child.wait(), 2);
    EXPECT_EQ(text_of("out.log"), "");
    const std::string text = text_of("err.log");
    EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
    return text;
  };
  const Words words = joined(train("a"), {"--device", "cuda", "--dataloader.path", "missing"});
  TESSERA_EXPECT_HOLDS(fails({"TESSERA_CUDA_LIBRARY=/nowhere.so"}, words),
                       "[--device] cuda: CUDA cannot be used: /nowhere.so: cannot open");
  TESSERA_EXPECT_HOLDS(fails({"TESSERA_CUDA_LIBRARY=libm.so.6"}, words),
                       "[--device] cuda: CUDA cannot be used: it is not Tessera's CUDA library");
  if (exact()) {
    TESSERA_EXPECT_HOLDS(
        fails({"TESSERA_HOST_DEVICES=0"}, words),
        "[--device] cuda: CUDA cannot be used: no device is visible; --device cpu does");
  }
  TESSERA_EXPECT_HOLDS(fails({}, joined(words, {"--ranks", "3"})),
                       "[--device] cuda: 3 ranks of this host see 2 devices");
  EXPECT_FALSE(std::filesystem::exists(path("a")));
}

// Any library takes the driver's place.
TEST_F(DeviceRun, WithADriverAutoSaysWhyItTakesTheCpu) {
  std::filesystem::create_symlink(TESSERA_HOST_DEVICE, path("libcuda.so.1"));
  const std::string driver = concat("LD_LIBRARY_PATH=", path(""));
  const auto says = [&](const Words& environment, const Words& more) {
    const Words words = joined(train("a"), {"--device", "auto", "--dataloader.path", "missing"});
    Child child(joined(words, more), path("out.log"), environment, "", path("err.log"));
    EXPECT_EQ(child.wait(), 2);  // there is no data
    const std::string text = text_of("err.log");
    return text.starts_with("warning: ") ? text.substr(0, text.find('\n')) : "";
  };
  const std::string start = "warning: [--device] auto takes the CPU: ";
  TESSERA_EXPECT_HOLDS(says({driver, "TESSERA_CUDA_LIBRARY=/nowhere.so"}, {}),
                       start + "CUDA cannot be used: /nowhere.so: cannot open");
  TESSERA_EXPECT_HOLDS(says({driver}, {"--ranks", "3"}),
                       start + "3 ranks of this host see 2 devices");
  EXPECT_EQ(says({driver}, {}), "");
  EXPECT_EQ(says({driver}, {"--ranks", "3", "--device", "cpu"}), "");
}

}  // namespace
}  // namespace tessera::train
