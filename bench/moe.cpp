// SPDX-License-Identifier: Apache-2.0
// A mixture of experts, forward and backward, on one rank: bench_moe [--device D]
// [--threads N] [--json FILE].
// bench/peers/moe.py measures the same in PyTorch under the same names. FLOPs are those of the
// experts' products.
#include "tessera/nn/moe/moe.h"

#include "tessera/bench/profile.h"
#include "tessera/core/process.h"
#include "tessera/nn/parameters.h"

namespace tessera::bench {
namespace {

struct Case {
  int64_t experts, top_k, dim, hidden, tokens;
};
// Few wide experts, as Mixtral's, to many narrow ones, as Qwen 3's.
constexpr std::array<Case, 5> kCases{{{8, 2, 256, 512, 2048},
                                      {8, 2, 1024, 1024, 512},
                                      {64, 8, 256, 256, 1024},
                                      {64, 4, 512, 256, 1024},
                                      {128, 8, 1024, 256, 1024}}};

void measure(const Case& c, DType dtype, Device device, const Ceilings& ceilings, Lines& lines) {
  nn::MoE layer({.router = {.dim = c.dim,
                            .experts = c.experts,
                            .top_k = c.top_k,
                            .score = nn::Router::Score::softmax,
                            .route_norm = true,
                            .dtype = dtype},
                 .hidden = c.hidden});
  nn::initialize(layer, 7, device);
  Tensor x = normal({c.tokens, c.dim}, {7, 1}, 0, 1, dtype, device);
  const Tensor dy = normal({c.tokens, c.dim}, {7, 2}, 0, 1, dtype, device);
  std::vector<Tensor> inputs{x.set_requires_grad()};
  for (const Tensor& p : nn::parameters(layer)) inputs.push_back(p);
  const auto step = [&] { (void)grad({layer(x).y}, inputs, {.grad_outputs = {dy}}); };

  const double us = median_us(step, 7, 0.1, device);
  const double flops = 3 * 6.0 * static_cast<double>(c.tokens * c.top_k * c.dim * c.hidden);
  const double percent = 100 * flops / ceilings.flops(dtype) / (us * 1e-6);
  double products = 0, all = 0;  // seconds
  std::string why_no_times;
  {
    Profile profile(nullptr, device);
    profile.enter(kForward);
    step();
    wait_for(device);
    profile.leave();
    profile.stop();
    why_no_times = profile.device_times().why_not();
    for (const auto& [key, entry] : profile.entries()) {
      all += entry.seconds;
      if (key.second.starts_with("grouped_")) products += entry.seconds;
    }
  }
  const std::string name = concat("moe/", dtype, "/", c.experts, " experts of which ", c.top_k,
                                  ", ", c.dim, " to ", c.hidden, ", ", c.tokens, " tokens");
  const std::string share =
      why_no_times.empty() ? fmt::format("{:3.0f} % of the time in products", 100 * products / all)
                           : why_no_times;
  fmt::print("{:62} {:10.2f} ms {:6.0f} % of the GEMM ceiling, {}\n", name, us / 1e3, percent,
             share);
  std::fflush(stdout);
  Json line{{"name", name},
            {"dtype", concat(dtype)},
            {"time_us", us},
            {"percent_of_gemm_ceiling", percent}};
  if (why_no_times.empty()) line["percent_in_products"] = 100 * products / all;
  lines.write(line);
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  return bench::run([&] {
    bench::Arguments arguments(argc, argv);
    const int threads = arguments.number("--threads", Process::get().cores());
    const Device device = arguments.device();
    bench::Lines lines(arguments.text("--json"));
    arguments.finish();
    if (arguments.helps("bench_moe [--device auto|cpu|cuda] [--threads N] [--json FILE]\n")) return;
    const Session session({.threads = threads});
    const bench::Ceilings ceilings = bench::measure_ceilings(device);
    fmt::print("{}\n", bench::describe(ceilings, threads, device));
    lines.write(ceilings.json());
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bench::Case& c : bench::kCases) bench::measure(c, dtype, device, ceilings, lines);
    }
  });
}
