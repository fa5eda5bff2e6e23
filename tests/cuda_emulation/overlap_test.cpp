// SPDX-License-Identifier: Apache-2.0
// fully_shard on two emulated devices: the bytes of a layer travel while another computes. What a
// stream was given is recorded. Between the event that lets a collective begin and the wait for
// its end, the rank's stream is given the products that may run beside it. Losses are those of CPU
// ranks, whatever order the streams take.
#include "tessera/core/cuda_backend.h"
#include "tessera/core/process.h"
#include "tessera/tessera.h"
#include "tessera/tests/support/ranks.h"

#include "cuda_emulation.h"
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

namespace tessera {
namespace {

using cuda_emulation::StepRecord;

constexpr int kLayers = 4, kSteps = 4;
constexpr int64_t kWidth = 24, kRows = 8;

class Net final : public nn::Layer<Net> {
 public:
  Net() {
    for (int i = 0; i < kLayers; ++i) layers.emplace_back(kWidth, kWidth);
  }
  void visit(nn::Visitor& v) override {
    v.children("layers", layers);
    v.child("head", head);
  }
  [[nodiscard]] Tensor forward(const Tensor& x) const {
    Tensor y = x;
    for (const nn::Linear& layer : layers) y = gelu(layer(y));
    return head(y);
  }
  nn::ModuleList<nn::Linear> layers;
  nn::Linear head{kWidth, 1};
};

// A collective on its stream, and the rank's stream between its begin and the wait for its end.
struct Window {
  std::string what;
  int products = 0;   // given to the rank's stream meanwhile
  int overtaken = 0;  // of these, that ran before it
};

struct Record {
  std::vector<double> losses;
  std::vector<Window> forward, backward;  // of the last step, on device 0
};

size_t find(const std::vector<StepRecord>& steps, size_t from,
            const std::function<bool(const StepRecord&)>& is) {
  while (from < steps.size() && !is(steps[from])) ++from;
  return from;
}

std::vector<Window> windows(const std::vector<StepRecord>& steps, size_t begin, size_t end) {
  std::vector<Window> found;
  for (size_t i = begin; i < end; ++i) {
    const StepRecord& c = steps[i];
    if (c.device != 0 || !(c.what.starts_with("AllGather") || c.what.starts_with("ReduceScatter")))
      continue;
    // On its stream: what it waits for before it, and the event after it.
    size_t before = i;
    while (before > 0 && !(steps[before].stream == c.stream && steps[before].what == "wait"))
      --before;
    const size_t after = find(
        steps, i, [&](const StepRecord& s) { return s.stream == c.stream && s.what == "record"; });
    const size_t first = find(steps, 0, [&](const StepRecord& s) {
      return s.what == "record" && s.event == steps[before].event;
    });
    EXPECT_LT(first, i);
    EXPECT_LT(after, steps.size());
    const size_t last =
        after == steps.size() ? after : find(steps, after, [&](const StepRecord& s) {
          return s.what == "wait" && s.event == steps[after].event;
        });
    Window w{c.what.substr(0, c.what.find(' '))};
    for (size_t k = first; k < last; ++k) {
      const StepRecord& s = steps[k];
      if (s.stream != steps[first].stream || s.what != "library") continue;
      ++w.products;
      w.overtaken += s.ran < c.ran;
    }
    found.push_back(w);
  }
  return found;
}

Record train(bool on_devices) {
  Record run;
  run_ranks(2, [&](World& world) {
    const Device device = on_devices ? cuda(world.rank()) : kCpu;
    const Mesh mesh = Mesh::make({{"dp", 2}});
    Net net;
    const nn::DataAxes axes{{"dp"}};
    for (nn::Linear& layer : net.layers) nn::fully_shard(layer, mesh, axes);
    nn::fully_shard(net, mesh, axes);
    nn::initialize(net, 7, nn::laid_out(net, mesh), device);
    optim::SGD optimizer(nn::named_parameters(net), {.lr = 0.02});
    for (int step = 0; step < kSteps; ++step) {
      const Tensor whole = normal({2 * kRows, kWidth}, RngKey{5, static_cast<uint64_t>(step)});
      const Tensor x = distribute(to_device(whole, device), Layout::of(mesh, {Shard(0)}));
      const bool last = on_devices && step == kSteps - 1;
      if (last) {
        world.group().barrier()->wait();
        if (world.rank() == 0) cuda_emulation::record_steps(true);
        world.group().barrier()->wait();
      }
      const Tensor y = net(x);
      const Tensor loss = sum(y * y) * (1.0 / (2 * kRows));
      const size_t middle = last ? cuda_emulation::recorded_steps().size() : 0;
      backward(loss);
      const size_t end = last ? cuda_emulation::recorded_steps().size() : 0;
      optimizer.step();
      optimizer.zero_grad();
      const double value = full_tensor(loss).item();
      if (world.rank() != 0) continue;
      run.losses.push_back(value);
      if (!last) continue;
      Process::get().cuda().synchronize(0);
      const auto steps = cuda_emulation::recorded_steps();
      run.forward = windows(steps, 0, middle);
      run.backward = windows(steps, middle, end);
    }
  });
  cuda_emulation::record_steps(false);
  return run;
}

std::vector<Window> of_kind(const std::vector<Window>& all, std::string_view kind) {
  std::vector<Window> some;
  std::ranges::copy_if(all, std::back_inserter(some),
                       [&](const Window& w) { return w.what == kind; });
  return some;
}

std::string text_of(const std::vector<Window>& all) {
  std::string text;
  for (const Window& w : all)
    text += concat(w.what, " beside ", w.products, " products, ", w.overtaken, " ran before it; ");
  return text;
}

TEST(OverlapCuda, GathersAndReductionsTravelBesideTheProductsOfOtherLayers) {
  const Record host = train(false);
  int overtaken = 0, waited = 0;
  for (int round = 0; round < 3; ++round) {
    const Record device = train(true);
    for (int step = 0; step < kSteps; ++step)
      EXPECT_NEAR(device.losses[static_cast<size_t>(step)], host.losses[static_cast<size_t>(step)],
                  1e-5 * std::abs(host.losses[static_cast<size_t>(step)]));
    SCOPED_TRACE(
        concat("forward: ", text_of(device.forward), "\nbackward: ", text_of(device.backward)));
    // One gather per layer and one for the rest of the root; the first has nothing to hide behind.
    const auto forward = of_kind(device.forward, "AllGather");
    ASSERT_EQ(forward.size(), kLayers + 1);
    const auto hidden = [](const std::vector<Window>& all) {
      return std::ranges::count_if(all, [](const Window& w) { return w.products > 0; });
    };
    EXPECT_GE(hidden(forward), kLayers - 1);
    // The root's and the last layer's parameters stay; each other gather hides behind a backward.
    const auto again = of_kind(device.backward, "AllGather");
    EXPECT_GE(hidden(again), static_cast<int64_t>(again.size()) - 1);
    // Reductions hide behind the backward of the layers before theirs.
    const auto reductions = of_kind(device.backward, "ReduceScatter");
    ASSERT_EQ(reductions.size(), kLayers + 1);
    EXPECT_GE(hidden(reductions), kLayers - 1);
    for (const auto* all : {&device.forward, &device.backward}) {
      for (const Window& w : *all) overtaken += w.overtaken, waited += w.products - w.overtaken;
    }
  }
  std::cout << overtaken << " products ran before a collective that they may run beside, " << waited
            << " after it\n";
  // Nothing but the events orders them: some ran before what they travel beside, some after.
  EXPECT_GT(overtaken, 0);
  EXPECT_GT(waited, 0);
}

}  // namespace
}  // namespace tessera
